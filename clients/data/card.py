"""Metadata of the clients' data that the server needs to build the model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any

from clients.data.datasets import ImageDataset
from clients.wire.texts import read_json


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

    num_classes: int
    input_shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    columns: tuple[str, ...] = ()
    cardinalities: tuple[int, ...] = ()
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
        """Read a card from a JSON object; ``ValueError`` for any other text."""
        try:
            return cls.from_mapping(read_json(text))
        except RecursionError:  # nested deeper than Python goes
            raise ValueError("the card is no JSON that can be read") from None

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> DataCard:
        """Read a card from a mapping in which lists stand for tuples; ``ValueError`` for a value that no data set has."""
        needed = {spec.name for spec in fields(cls) if spec.default is MISSING}
        if not isinstance(values, Mapping) or not needed <= set(values) <= set(_CHECKS):
            raise ValueError(f"the card is no object of {', '.join(_CHECKS)}: {str(values)[:120]!r}")
        plain: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
        for name in plain:
            if not _CHECKS[name](plain[name]):
                raise ValueError(f"{name} is {str(plain[name])[:120]!r}, which no data set has")
        return cls(**plain)


def _sizes(value: Any) -> bool:
    return isinstance(value, tuple) and all(type(one) is int and 0 < one <= MOST for one in value)


def _finite(value: Any) -> bool:
    return isinstance(value, tuple) and all(isinstance(one, int | float) and math.isfinite(one) for one in value)


MOST = 2**24
"""Of classes, categories and pixels along a side."""
_CHECKS: dict[str, Callable[[Any], bool]] = {
    "num_classes": lambda value: _sizes((value,)),
    "input_shape": lambda value: _sizes(value) and len(value) == 3 and math.prod(value) <= MOST_VALUES,
    "mean": _finite,
    "std": lambda value: _finite(value) and all(one > 0 for one in value),
    "columns": lambda value: isinstance(value, tuple) and all(isinstance(one, str) for one in value),
    "cardinalities": _sizes,
    "multi_label": lambda value: isinstance(value, bool),
}
MOST_VALUES = 2**28
"""Of one example: a gibibyte as floats."""
