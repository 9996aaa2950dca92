"""Partitions of a data set's indices over the clients, equal to those that the partitioners of Flower Datasets draw."""

from collections.abc import Callable
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from clients.data.images import DataError, Labels
from defenses.base import call_text
from defenses.checks import Examples, Limit, algorithm, check_fields
from defenses.spec import parse_statements

DRAWS = 11
"""Draws of ``Dirichlet``, of which the first that leaves no client without examples is taken."""
LEAST_ALPHA, MOST_ALPHA = 1e-3, 1e9
"""Below, each class goes to one client whole, and quotients of numbers near 0 are no numbers; above, shares are equal."""

Indices = NDArray[np.int64]


class Partition:
    """Base of all partitions: a frozen dataclass that assigns the examples to clients."""

    def __post_init__(self) -> None:
        check_fields(self)

    def deal(self, labels: Labels, num_partitions: int, seed: int) -> list[Indices]:
        """Assign disjoint index sets that cover all examples; some may be empty."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return call_text(self).lower()


@algorithm
class Iid(Partition):
    """Every client gets a random share of the same size, up to one example."""

    def deal(self, labels: Labels, num_partitions: int, seed: int) -> list[Indices]:
        """See ``Partition.deal``."""
        # Contiguous pieces of a shuffle: of data sorted by class, they would be anything but i.i.d.
        return np.array_split(np.random.default_rng(seed).permutation(len(labels)), num_partitions)


@algorithm
class Dirichlet(Partition):
    """For each class, the clients' shares are drawn from a Dirichlet distribution with all parameters ``alpha``.

    A draw that leaves a client without examples is repeated, at most ten times: the result follows the distribution under the
    condition that no client is empty. Shares are not balanced afterwards.

    Attributes:
        alpha: From 0.001 to 1e9. Below 1, most clients miss most classes; large values come close to equal shares.

    Source: Hsu et al. 2019 (the idea); Yurochkin et al. 2019, section 4 (per class, as here).
    """

    alpha: Annotated[float, Limit(LEAST_ALPHA, MOST_ALPHA)] = 0.5

    def deal(self, labels: Labels, num_partitions: int, seed: int) -> list[Indices]:
        """See ``Partition.deal``."""
        generator = np.random.default_rng(seed)
        draws = [self._draw(labels, num_partitions, generator) for _ in range(DRAWS)]
        # When every draw leaves a client without examples, the first one shows which.
        return next((dealt for dealt in draws if all(map(len, dealt))), draws[0])

    def _draw(self, labels: Labels, num_partitions: int, generator: np.random.Generator) -> list[Indices]:
        by_class = []
        for label in np.unique(labels):
            rows = np.flatnonzero(labels == label)
            shares = generator.dirichlet(np.full(num_partitions, float(self.alpha)))
            by_class.append(np.split(rows, (np.cumsum(shares) * len(rows)).astype(int)[:-1]))
        return [np.concatenate(parts) for parts in zip(*by_class, strict=True)]


@algorithm
class Shards(Partition):
    """The examples, sorted by class, are cut into equal shards (up to one example); each client gets some at random.

    Attributes:
        num_shards_per_partition: At least 1. A client sees about so many classes.

    Source: McMahan et al. 2017, Communication-Efficient Learning, section 3 ("pathological non-IID", two shards).
    """

    num_shards_per_partition: Examples = 2

    def deal(self, labels: Labels, num_partitions: int, seed: int) -> list[Indices]:
        """See ``Partition.deal``."""
        num_shards = num_partitions * self.num_shards_per_partition
        if num_shards > len(labels):
            raise DataError(
                f"{num_partitions} partitions of {self.num_shards_per_partition} shards need {num_shards} examples, "
                f"there are {len(labels)}; choose fewer partitions or shards"
            )
        # Equal up to one example: of equal shards, the remainder of the division would be left over.
        shards = np.array_split(np.argsort(labels, kind="stable"), num_shards)
        dealt = np.random.default_rng(seed).permutation(num_shards).reshape(num_partitions, -1)
        return [np.concatenate([shards[at] for at in mine]) for mine in dealt]


_PARTITIONS: dict[str, Callable[..., Partition]] = {"iid": Iid, "dirichlet": Dirichlet, "shards": Shards}


def parse_partition(text: str) -> Partition:
    """Read ``iid``, ``dirichlet(alpha=0.5)`` or ``shards(num_shards_per_partition=2)``; else ``SpecError`` or ``DataError``."""
    statements = parse_statements(text, _PARTITIONS, "partition")
    if len(statements) != 1 or len(statements[0]) != 1:
        raise DataError(f"partition {text!r}: expected exactly one of {', '.join(_PARTITIONS)}")
    partition: Partition = statements[0][0]
    return partition


def partition_indices(labels: Labels, partition: str, num_partitions: int, seed: int) -> list[Indices]:
    """Assign the examples with classes ``labels`` (N,) to 1 to N clients; the result depends on the arguments alone.

    Returns:
        Per client, its sorted indices. They are disjoint, none is empty, and together they are 0 to N - 1.

    Raises:
        SpecError: See ``parse_partition``.
        DataError: When there are more clients than examples, or a client stays empty.
    """
    rule = parse_partition(partition)
    labels = np.asarray(labels)
    if num_partitions < 1 or num_partitions > len(labels):
        raise DataError(f"num-clients is {num_partitions}; allowed: 1 to {len(labels)}, the number of examples")
    if seed < 0:
        raise DataError(f"seed is {seed}; allowed: 0 or more")
    dealt = [np.sort(indices).astype(np.int64) for indices in rule.deal(labels, num_partitions, seed)]
    if empty := [number for number, indices in enumerate(dealt) if not len(indices)]:
        raise DataError(
            f"{partition} with seed {seed} leaves {len(empty)} of {num_partitions} partitions empty (first: partition "
            f"{empty[0]}); choose a larger alpha, fewer partitions, more examples or another seed"
        )
    return dealt
