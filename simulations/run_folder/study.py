"""Interface that a run directory needs from the study whose results it keeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from attacks.base import Attack
from defenses.pipeline import Pipeline
from strategies.audit.kinds import Kind


class RunStudy(Protocol):
    """An experiment of fedveil, or the audit of an external app."""

    @property
    def experiment(self) -> str:
        """Name of the experiment, as in every row."""

    @property
    def scenario(self) -> str:
        """Name of the scenario, which decides the messages."""

    @property
    def dataset(self) -> str:
        """Name of the data set, or words on its owner."""

    @property
    def model(self) -> str:
        """Name of the model."""

    @property
    def auxiliary_data(self) -> str:
        """Name of the data that attacks learn from."""

    @property
    def seed(self) -> int:
        """Seed of all random draws."""

    @property
    def resume(self) -> bool:
        """Whether to resume from the folder's content."""

    @property
    def on_tables(self) -> bool:
        """Whether examples are rows of a table."""

    @property
    def kinds(self) -> Sequence[Kind]:
        """Kinds of observations."""

    @property
    def pipelines(self) -> Sequence[Pipeline]:
        """Pipelines of the clients, one after the other."""

    def attacks_on(self, pipeline: Pipeline, kind: Kind) -> Sequence[Attack[Any, Any]]:
        """Attacks on an observation under a pipeline."""

    def to_mapping(self) -> dict[str, Any]:
        """Settings as files write them."""
