"""Metadata of the clients' data that the server needs to build the model."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict

from clients.data.images import ImageDataset
from clients.wire.schema import STRICT, parsed
from defenses.checks import Allowed, Limit

MOST = 2**24
"""Of classes, categories and pixels along a side."""
MOST_VALUES = 2**28
"""Of one example: a gibibyte as floats."""
Size = Annotated[int, Limit(1, MOST)]


class _Fits(Allowed):
    """Of a shape: an example of it fits into memory."""

    def allows(self, value: tuple[int, ...]) -> bool:
        """Whether it has no more than ``MOST_VALUES`` values."""
        return math.prod(value) <= MOST_VALUES

    def words(self, kind: Any) -> str:
        """See ``Allowed``."""
        return f"at most {MOST_VALUES} values"


@dataclass(frozen=True)
class DataCard:
    """Metadata of the clients' data that the server needs to build the model; holds no example.

    Attributes:
        input_shape: (C, H, W).
        mean: Per channel, of images in [0, 1].
        std: Per channel.
        columns: Names of a table's columns; empty where examples are images.
        cardinalities: Categories of each column.
        multi_label: An example may have several of the ``num_classes`` labels, or none; else it has one class.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    num_classes: Size
    input_shape: Annotated[tuple[Size, Size, Size], _Fits()]
    mean: tuple[float, ...]
    std: tuple[Annotated[float, Limit(0, math.inf, above=True)], ...]
    columns: tuple[str, ...] = ()
    cardinalities: tuple[Size, ...] = ()
    multi_label: bool = False

    @property
    def is_table(self) -> bool:
        """Whether examples are rows of a table (see ``clients.data.tables``), not images."""
        return bool(self.columns)

    @classmethod
    def of(cls, data: ImageDataset) -> DataCard:
        """The card of a data set."""
        return cls(**{spec.name: getattr(data, spec.name) for spec in fields(cls)})

    @classmethod
    def from_json(cls, text: str) -> DataCard:
        """Read a card from the JSON of a message; ``ValueError`` for a text of no card, or a value that no data set has."""
        return parsed(cls, text, ValueError)
