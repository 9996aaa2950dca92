"""What a run directory asks of whatever it keeps the results of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from attacks.base import Attack
from defenses.pipeline import Pipeline
from strategies.audit.kinds import Kind


class RunStudy(Protocol):
    """An experiment of fedveil's, or the audit of an external app."""

    @property
    def experiment(self) -> str:
        """Its name, as in every row."""

    @property
    def scenario(self) -> str:
        """Which messages its clients answer."""

    @property
    def dataset(self) -> str:
        """By name, or words that say whose it is."""

    @property
    def model(self) -> str:
        """By name."""

    @property
    def auxiliary_data(self) -> str:
        """What attacks learn from, by name."""

    @property
    def seed(self) -> int:
        """Of everything that is drawn."""

    @property
    def resume(self) -> bool:
        """Whether it goes on from what its folder holds."""

    @property
    def on_tables(self) -> bool:
        """Whether examples are rows of a table."""

    @property
    def kinds(self) -> Sequence[Kind]:
        """What is observed."""

    @property
    def pipelines(self) -> Sequence[Pipeline]:
        """What protects the clients, one after the other."""

    def attacks_on(self, pipeline: Pipeline, kind: Kind) -> Sequence[Attack[Any, Any]]:
        """What is tried on an observation under a pipeline."""

    def to_mapping(self) -> dict[str, Any]:
        """Settings as files write them."""
