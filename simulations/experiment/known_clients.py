"""What the server knows of the clients once they are set up."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from clients.data.card import DataCard


@dataclass(frozen=True)
class KnownClients:
    """The clients of a run.

    Attributes:
        card: Shape and normalisation of their images.
        sizes: Partition -> (training examples, test examples).
        labels: Partition -> What is true of its training examples, in its order; empty where the server does not have it.
        randomness: Where the nodes' random draws start, as each of them says of itself.
    """

    card: DataCard
    sizes: dict[int, tuple[int, int]]
    labels: dict[int, Tensor]
    randomness: str = ""
