"""What the server must know of the clients' data to build the model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from clients.data.datasets import ImageDataset


@dataclass(frozen=True)
class DataCard:
    """What the server must know of the clients' data to build the model; no example is needed for that.

    Attributes:
        num_classes: Number of classes.
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
        return cls(
            data.num_classes,
            data.input_shape,
            tuple(data.mean),
            tuple(data.std),
            tuple(data.columns),
            tuple(data.cardinalities),
            data.multi_label,
        )

    @classmethod
    def from_json(cls, text: str) -> DataCard:
        """Reads a card that was written as a JSON object."""
        return cls.from_mapping(json.loads(text))

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> DataCard:
        """Reads a card whose tuples have become lists."""
        plain: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
        return cls(**plain)
