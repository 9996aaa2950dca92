"""Partitions: invariants, closed forms of the Dirichlet distribution, and Flower Datasets' own answers."""

from __future__ import annotations

import subprocess
import sys
import warnings
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from clients.data.datasets import DataError
from clients.data.partitions import Dirichlet, Iid, Partition, Shards, parse_partition, partition_indices
from defenses.spec import SpecError

SORTED = np.repeat(np.arange(10), 100)
TEXTS = ["iid", "dirichlet", "dirichlet(alpha=0.1)", "dirichlet(100)", "shards", "shards(num_shards_per_partition=3)"]


def flower(partitioner: Any, labels: NDArray[Any], num_partitions: int) -> list[list[int]]:
    """Flower Datasets used as its documentation says."""
    from datasets import Dataset

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        partitioner.dataset = Dataset.from_dict({"label": labels, "row": np.arange(len(labels))})
        return [sorted(partitioner.load_partition(i)["row"]) for i in range(num_partitions)]


@pytest.mark.parametrize("num_partitions", [1, 7])
@pytest.mark.parametrize("text", TEXTS)
def test_every_example_belongs_to_exactly_one_client(text: str, num_partitions: int) -> None:
    labels = np.random.default_rng(0).permutation(SORTED)
    parts = partition_indices(labels, text, num_partitions, seed=1)
    assert len(parts) == num_partitions
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(1000))
    assert all(part.dtype == np.int64 and len(part) and (np.diff(part) > 0).all() for part in parts)


@pytest.mark.parametrize("text", TEXTS)
def test_the_seed_decides(text: str) -> None:
    first, again, other = (partition_indices(SORTED, text, 5, seed) for seed in (1, 1, 2))
    assert all(map(np.array_equal, first, again))
    assert not all(map(np.array_equal, first, other))


def test_iid_shares_of_sorted_data_have_every_class() -> None:
    parts = partition_indices(SORTED, "iid", 4, seed=0)
    assert {len(part) for part in parts} == {250}
    for part in parts:
        # Drawing 250 of 1,000 without replacement: hypergeometric counts, here within five standard deviations.
        deviation = (250 * 0.1 * 0.9 * 750 / 999) ** 0.5
        assert (abs(np.bincount(SORTED[part], minlength=10) - 25) < 5 * deviation).all()
    assert sorted(map(len, partition_indices(SORTED[:10], "iid", 3, seed=0))) == [3, 3, 4]


@pytest.mark.parametrize("alpha", [0.05, 0.5, 5.0])
def test_dirichlet_shares_have_the_second_moment_of_the_distribution(alpha: float) -> None:
    clients, classes, size = 5, 300, 50
    labels = np.repeat(np.arange(classes), size)
    parts = partition_indices(labels, f"dirichlet(alpha={alpha})", clients, seed=3)
    shares = np.stack([np.bincount(labels[part], minlength=classes) for part in parts]) / size
    sums = (shares**2).sum(axis=0)
    # E[sum p^2] = (alpha + 1) / (K alpha + 1). Cuts are rounded down, which moves every share by less than 1 / n.
    expected = (alpha + 1) / (clients * alpha + 1)
    assert abs(sums.mean() - expected) < 5 * sums.std() / classes**0.5 + 2 / size + clients / size**2


def test_a_large_alpha_is_an_equal_share_of_every_class() -> None:
    for part in partition_indices(SORTED, "dirichlet(alpha=1e8)", 4, seed=0):
        assert (abs(np.bincount(SORTED[part], minlength=10) - 25) <= 1).all()


def test_dirichlet_is_that_of_flower() -> None:
    from flwr_datasets.partitioner import DirichletPartitioner

    for seed in range(3):
        theirs = flower(DirichletPartitioner(6, "label", 0.3, 1, False, True, seed), SORTED, 6)
        assert [part.tolist() for part in partition_indices(SORTED, "dirichlet(alpha=0.3)", 6, seed)] == theirs


@pytest.mark.parametrize(("count", "clients"), [(10, 3), (1000, 7), (9, 9), (5, 1)])
def test_iid_shares_are_those_of_flower_on_shuffled_data(count: int, clients: int) -> None:
    from flwr_datasets.partitioner import IidPartitioner

    for seed in range(3):
        order = np.random.default_rng(seed).permutation(count)
        theirs = [sorted(order[rows].tolist()) for rows in flower(IidPartitioner(clients), SORTED[order], clients)]
        assert [part.tolist() for part in partition_indices(SORTED[:count], "iid", clients, seed)] == theirs


@pytest.mark.long
@pytest.mark.parametrize("text", ["iid", "shards"])
def test_the_usual_partitions_load_none_of_the_packages_that_take_seconds(text: str) -> None:
    loaded = (
        "import sys; from clients.data.partitions import partition_indices; "
        f"partition_indices([0, 1] * 10, {text!r}, 2, 0); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    assert not {"flwr_datasets", "datasets", "pandas", "matplotlib", "pyarrow"} & set(done.stdout.split())


def test_shards_are_those_of_flower_where_the_division_has_no_remainder() -> None:
    from flwr_datasets.partitioner import ShardPartitioner

    labels = np.random.default_rng(0).permutation(SORTED)
    for shards in (1, 2, 5):
        theirs = flower(ShardPartitioner(10, "label", shards, seed=4), labels, 10)
        assert [part.tolist() for part in partition_indices(labels, f"shards({shards})", 10, 4)] == theirs


def test_shards_lose_no_remainder_and_keep_their_classes_few() -> None:
    parts = partition_indices(SORTED, "shards(2)", 7, seed=0)
    sizes = [len(part) for part in parts]
    assert sum(sizes) == 1000
    assert max(sizes) - min(sizes) <= 2
    # A shard of 71 or 72 examples touches at most two classes of 100.
    assert max(len(np.unique(SORTED[part])) for part in parts) <= 4


def test_an_empty_client_is_named_with_what_to_change() -> None:
    from flwr_datasets.partitioner import DirichletPartitioner

    first_draw = flower(DirichletPartitioner(40, "label", 0.001, 0, False, True, 0), SORTED, 40)
    empty = [i for i, part in enumerate(first_draw) if not part]
    with pytest.raises(DataError, match=rf"{len(empty)} of 40 .*\(first: partition {empty[0]}\).*alpha"):
        partition_indices(SORTED, "dirichlet(alpha=0.001)", 40, seed=0)


def test_an_unlucky_draw_is_repeated() -> None:
    from flwr_datasets.partitioner import DirichletPartitioner

    def first_draw(seed: int) -> list[list[int]]:
        return flower(DirichletPartitioner(8, "label", 0.05, 0, False, True, seed), SORTED, 8)

    unlucky = next(seed for seed in range(30) if not all(first_draw(seed)))
    assert all(map(len, partition_indices(SORTED, "dirichlet(alpha=0.05)", 8, unlucky)))


@pytest.mark.parametrize(
    ("labels", "text", "num_partitions", "seed", "message"),
    [
        (SORTED[:5], "iid", 6, 0, "num-clients is 6; allowed: 1 to 5"),
        (SORTED, "iid", 0, 0, "num-clients is 0"),
        (SORTED, "iid", 2, -1, "seed is -1"),
        (SORTED[:9], "shards(2)", 5, 0, "need 10 examples, there are 9"),
        (SORTED, "iid | shards", 2, 0, "exactly one of iid, dirichlet, shards"),
        (SORTED, "iid; iid", 2, 0, "exactly one"),
        (SORTED, "", 2, 0, "exactly one"),
    ],
)
def test_impossible_partitions(labels: NDArray[Any], text: str, num_partitions: int, seed: int, message: str) -> None:
    with pytest.raises(DataError, match=message):
        partition_indices(labels, text, num_partitions, seed)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dirichlett", "did you mean 'dirichlet'"),
        ("dirichlet(beta=1)", "no argument 'beta'"),
        ("dirichlet(alpha=0)", "alpha is 0"),
        ("dirichlet(alpha=inf)", "alpha is inf"),
        *(
            (f"dirichlet(alpha={a})", f"alpha is {a}; allowed: a number from 0.001 to 1e")
            for a in ("1e-300", "1e-160", "5e-324")
        ),
        (f"dirichlet(alpha={2**70})", f"alpha is {2**70}; allowed: a number from 0.001"),
        (f"shards(num_shards_per_partition={2**70})", f"is {2**70}; allowed: a whole number from 1 to 1048576"),
        ("shards(0)", "num_shards_per_partition is 0"),
        ("shards(1.5)", "num_shards_per_partition is 1.5"),
        ("iid(", "cannot be read"),
    ],
)
def test_text_that_names_no_partition(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        parse_partition(text)


@pytest.mark.parametrize("partition", [Iid(), Dirichlet(), Dirichlet(0.25), Dirichlet(3), Shards(), Shards(4)])
def test_text_and_object_are_inverse(partition: Partition) -> None:
    assert parse_partition(repr(partition)) == partition
