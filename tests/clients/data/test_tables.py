"""Tables as examples, and partitions: slow readers, closed forms and Flower Datasets' own answers."""

import csv
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from clients.data import tables
from clients.data.datasets import load_dataset
from clients.data.images import DataError
from clients.data.partitions import Dirichlet, Iid, Shards, parse_partition, partition_indices
from clients.data.public_tables import COLUMNS, LEAST, TEST, TRAIN, criteo
from clients.data.tables import UNSEEN, bucket
from defenses.spec import SpecError
from tests.clients.data.table_files import criteo_line, write_census


def test_buckets_are_those_of_the_contest(tmp_path: Path) -> None:
    # The slow definition: values up to 2 are their own bucket, larger ones share floor(ln(v)^2), three above it.
    for value, expected in {-3: -3, 0: 0, 2: 2, 3: 4, 7: 6, 8: 7, 99_999: 135}.items():
        assert bucket(value) == (value if value <= 2 else 3 + math.floor(math.log(value) ** 2)) == expected
    assert bucket(10**25 - 1) == 3 + int((25 * math.log(10)) ** 2)
    assert criteo(write_criteo(tmp_path, [criteo_line(first="9" * 25)] * 20), "all").cardinalities[0] == 2


def test_codes_are_those_of_a_slow_reader(tmp_path: Path) -> None:
    data = load_dataset("census", data_dir=str(write_census(tmp_path / "c")))
    used = [at for at, column in enumerate(COLUMNS) if column.used]
    assert data.columns == tuple(COLUMNS[at].name for at in used)
    read = {}
    for name in (TRAIN, TEST):
        with (tmp_path / "c" / name).open() as file:
            read[name] = [[cell.strip() for cell in line] for line in csv.reader(file)]
    for place, at in enumerate(used):

        def key(line: list[str], at: int = at) -> str | int:
            return bucket(int(line[at])) if COLUMNS[at].numeric else line[at]

        number = {value: code for code, value in enumerate(sorted({key(line) for line in read[TRAIN]}), 1)}  # type: ignore[type-var]
        assert data.cardinalities[place] == len(number) + 1
        for part, name in ((data.train, TRAIN), (data.test, TEST)):
            assert part.images[:][:, 0, place, 0].tolist() == [number.get(key(line), UNSEEN) for line in read[name]]
    assert data.train.labels.tolist() == [int(line[-1] == "50000+.") for line in read[TRAIN]]
    assert data.train.images.dtype == torch.int32


def test_damaged_files_are_named_with_the_line(tmp_path: Path, subtests: pytest.Subtests) -> None:
    path = write_census(tmp_path) / TRAIN
    whole = path.read_bytes()
    for content, message in (
        (b"", r"train\.csv is empty; expected lines of 42 columns"),
        (whole + b"1, 2, 3\n", r"line 201 has 3 columns; expected 42 on every line.*age, class-of-worker"),
        (whole.replace(b"- 50000.", b"poor"), r"line \d+ has the label 'poor'; allowed: '- 50000.' or '50000\+.'"),
        (b"old" + whole[2:], r"line 1 has 'old' in column 'age'; expected a whole number"),
        (whole.replace(b"x,", b"\xe9,", 1), r"train\.csv is not UTF-8 text"),
        (whole + b"\n", r"line 201 is empty"),
    ):
        path.write_bytes(content)
        with subtests.test(message), pytest.raises(DataError, match=message):
            load_dataset("census", data_dir=str(tmp_path))
    plain = [criteo_line()] * 19
    rare = [criteo_line(category=f"{at:08x}").replace("0b153874", f"{at:08x}") for at in range(20)]
    for lines, name, message in (
        ([*plain, criteo_line("2")], "criteo", "line 20 has the label '2'; allowed: '0' or '1'"),
        ([*plain, criteo_line(category="zebra")], "criteo", "line 20 has 'zebra' in column 'C1'; expected up to 8 hex"),
        ([*plain, criteo_line() + "\t1"], "criteo", r"line 20 has 41 columns; expected 40 on every line.*: label, I1"),
        ([criteo_line(first="1.5"), *plain], "criteo:all", "line 1 has '1.5' in column 'I1'; expected a whole number"),
        (plain[:9], "criteo", "has 9 lines; expected 10 or more"),
        (rare, "criteo", "no category of any column is on 10 of 18 training lines"),
    ):
        write_criteo(tmp_path, lines)
        load_dataset.cache_clear()
        with subtests.test(message), pytest.raises(DataError, match=message):
            load_dataset(name, data_dir=str(tmp_path))


def write_criteo(folder: Path, lines: list[str]) -> Path:
    (folder / "train.txt").write_text("\n".join(lines) + "\n")
    return folder / "train.txt"


def test_criteo_has_the_papers_fields_and_cuts_by_time(tmp_path: Path) -> None:
    lines = [criteo_line(first=str(at), category="aaaa0000") for at in range(LEAST)]
    lines += [criteo_line("1", first="", category="bbbb0000") for _ in range(LEAST - 1)]
    lines = [*lines, criteo_line(category="aaaa0000"), criteo_line("1", category="bbbb0000")]
    path = write_criteo(tmp_path, lines)
    data = load_dataset("criteo", data_dir=str(tmp_path))
    assert data.input_shape == (1, 26, 1)
    assert (len(data.train), len(data.test)) == (19, 2)
    first = [part.images[:][:, 0, 0, 0].tolist() for part in (data.train, data.test)]
    assert first == [[1] * LEAST + [UNSEEN] * (LEAST - 1), [1, UNSEEN]]
    assert data.cardinalities == (2, *[2] * 24, 1)
    assert data.train.labels.tolist() == [0] * LEAST + [1] * (LEAST - 1)
    assert criteo(path, "all").columns[:2] == ("I1", "I2")


def test_a_limited_read_of_criteo_stops_at_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # In blocks of a few lines it gives the lines that the whole file has there; what lies between is never parsed.
    lines = [criteo_line(str(at % 2), category=f"{at % 3:08x}") for at in range(200)]
    path = write_criteo(tmp_path, lines)
    whole = criteo(path)
    monkeypatch.setattr(tables, "BLOCK", 1000)
    in_blocks = criteo(path)
    for ours, other in ((in_blocks.train, whole.train), (in_blocks.test, whole.test)):
        every = np.arange(len(other.labels))
        assert torch.equal(ours.images(every, 0, 1), other.images(every, 0, 1))
        assert ours.labels.tolist() == other.labels.tolist()
    lines[100], lines[199] = "no line of the table", "nor this"
    write_criteo(tmp_path, lines)
    limited = load_dataset("criteo", data_dir=str(tmp_path), train_limit=40, test_limit=5)
    assert torch.equal(limited.train.images[:], whole.train.images(np.arange(40), 0, 1))
    assert torch.equal(limited.test.images[:], whole.test.images(np.arange(5), 0, 1))
    with pytest.raises(DataError, match="line 101 has 1 columns"):
        criteo(path)


SORTED = np.repeat(np.arange(10), 100)
NO_FLOWER_DATASETS = "flwr-datasets is not installed: uv sync --group dev"
TEXTS = ["iid", "dirichlet", "dirichlet(alpha=0.1)", "dirichlet(100)", "shards", "shards(num_shards_per_partition=3)"]


def flower(partitioner: Any, labels: NDArray[Any], num_partitions: int) -> list[list[int]]:
    from datasets import Dataset

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        partitioner.dataset = Dataset.from_dict({"label": labels, "row": np.arange(len(labels))})
        return [sorted(partitioner.load_partition(i)["row"]) for i in range(num_partitions)]


def test_every_example_belongs_to_exactly_one_client_and_the_seed_decides() -> None:
    labels = np.random.default_rng(0).permutation(SORTED)
    for text in TEXTS:
        for num_partitions in (1, 7):
            parts = partition_indices(labels, text, num_partitions, seed=1)
            assert len(parts) == num_partitions
            assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(1000))
            assert all(part.dtype == np.int64 and len(part) and (np.diff(part) > 0).all() for part in parts)
        first, again, other = (partition_indices(SORTED, text, 5, seed) for seed in (1, 1, 2))
        assert all(map(np.array_equal, first, again))
        assert not all(map(np.array_equal, first, other))
    # Where the shards are not of one size, which Flower's are: 71 or 72 examples touch at most two classes of 100.
    parts = partition_indices(SORTED, "shards(2)", 7, seed=0)
    assert max(map(len, parts)) - min(map(len, parts)) <= 2
    assert max(len(np.unique(SORTED[part])) for part in parts) <= 4
    assert sorted(map(len, partition_indices(SORTED[:10], "iid", 3, seed=0))) == [3, 3, 4]
    for part in partition_indices(SORTED, "dirichlet(alpha=1e8)", 4, seed=0):
        assert (abs(np.bincount(SORTED[part], minlength=10) - 25) <= 1).all()


def test_partitions_are_those_of_flower() -> None:
    partitioners = pytest.importorskip("flwr_datasets.partitioner", reason=NO_FLOWER_DATASETS)
    for seed in range(3):
        theirs = flower(partitioners.DirichletPartitioner(6, "label", 0.3, 1, False, True, seed), SORTED, 6)
        assert [part.tolist() for part in partition_indices(SORTED, "dirichlet(alpha=0.3)", 6, seed)] == theirs
        for count, clients in ((10, 3), (1000, 7), (9, 9), (5, 1)):
            order = np.random.default_rng(seed).permutation(count)
            theirs = [
                sorted(order[rows].tolist())
                for rows in flower(partitioners.IidPartitioner(clients), SORTED[order], clients)
            ]
            assert [part.tolist() for part in partition_indices(SORTED[:count], "iid", clients, seed)] == theirs
    labels = np.random.default_rng(0).permutation(SORTED)
    for shards in (1, 2, 5):  # which divide without a remainder
        theirs = flower(partitioners.ShardPartitioner(10, "label", shards, seed=4), labels, 10)
        assert [part.tolist() for part in partition_indices(labels, f"shards({shards})", 10, 4)] == theirs


def test_an_empty_client_is_named_unless_another_draw_has_none() -> None:
    partitioners = pytest.importorskip("flwr_datasets.partitioner", reason=NO_FLOWER_DATASETS)

    def first_draw(clients: int, alpha: float, seed: int) -> list[list[int]]:
        return flower(partitioners.DirichletPartitioner(clients, "label", alpha, 0, False, True, seed), SORTED, clients)

    empty = [i for i, part in enumerate(first_draw(40, 0.001, 0)) if not part]
    with pytest.raises(DataError, match=rf"{len(empty)} of 40 .*\(first: partition {empty[0]}\).*alpha"):
        partition_indices(SORTED, "dirichlet(alpha=0.001)", 40, seed=0)
    unlucky = next(seed for seed in range(30) if not all(first_draw(8, 0.05, seed)))
    assert all(map(len, partition_indices(SORTED, "dirichlet(alpha=0.05)", 8, unlucky)))


def test_impossible_partitions_are_refused() -> None:
    for count, text, num_partitions, seed, message in (
        (5, "iid", 6, 0, "num-clients is 6; allowed: 1 to 5"), (9, "iid", 0, 0, "num-clients is 0"),
        (9, "iid", 2, -1, "seed is -1"), (9, "shards(2)", 5, 0, "need 10 examples, there are 9"),
        (9, "iid | shards", 2, 0, "exactly one of iid, dirichlet, shards"),
    ):  # fmt: skip
        with pytest.raises(DataError, match=message):
            partition_indices(SORTED[:count], text, num_partitions, seed)
    for text in ("dirichlet(alpha=0.0009)", "dirichlet(alpha=1e300)", f"shards({2**20 + 1})", "shards(0)"):
        with pytest.raises(SpecError, match=r"allowed: a (whole )?number from (0\.001|1) to"):
            parse_partition(text)
    for partition in (Iid(), Dirichlet(0.001), Dirichlet(3), Shards(2**20)):
        assert parse_partition(repr(partition)) == partition
