"""The file that studies go on from, and their tables of means over seeds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from scipy.stats import ttest_rel
from seeded_results import Column, Numbers, Results, differences, means

SETTINGS = {"images": 8, "defense": "VisualMixer()", "out_of": (1, 2)}
COLUMNS = [Column("top1", "top-1, %", 2, 100)]


def results(path: Path, **other: object) -> Results:
    return Results(path / "runs" / "study.jsonl", "a_study", {**SETTINGS, **other})


def test_what_is_known_is_not_computed_again(tmp_path: Path) -> None:
    computed: list[int] = []

    def compute() -> Numbers:
        computed.append(1)
        return {"top1": 0.5, "losses": [1.0, 0.25]}

    first = results(tmp_path)
    assert first.known(0, "TO", compute) == first.known(0, "TO", compute)
    again = results(tmp_path)
    assert again.known(0, "TO", compute) == {"top1": 0.5, "losses": [1.0, 0.25]}
    assert computed == [1]
    again.known(1, "TO", compute)
    again.known(0, "TV", compute)
    assert computed == [1, 1, 1]


def test_a_line_that_was_cut_off_is_computed_again(tmp_path: Path) -> None:
    begun = results(tmp_path)
    begun.add(0, "TO", {"top1": 0.5})
    begun.add(0, "TV", {"top1": 0.25})
    begun.path.write_text(begun.path.read_text()[:-5])
    again = results(tmp_path)
    assert again.find(0, "TO") == {"top1": 0.5}
    assert again.find(0, "TV") is None
    again.add(0, "TV", {"top1": 0.75})
    assert results(tmp_path).find(0, "TV") == {"top1": 0.75}
    assert [json.loads(line)["seed"] for line in begun.path.read_text().splitlines()[1:]] == [0, 0]


def test_other_settings_are_refused_with_what_differs(tmp_path: Path) -> None:
    results(tmp_path).add(0, "TO", {"top1": 0.5})
    with pytest.raises(SystemExit, match=r"other settings: images was 8 and is 9; name another file$"):
        results(tmp_path, images=9)
    with pytest.raises(SystemExit, match="epochs was None and is 3"):
        results(tmp_path, epochs=3)


def test_a_file_of_something_else_is_refused_and_stays(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="is of a_study, not of another"):
        Results(results(tmp_path).path, "another", SETTINGS)
    for text in ("a letter\n", '["a list"]\n', '{"seed": 1}\n'):
        path = tmp_path / "letter"
        path.write_text(text)
        with pytest.raises(SystemExit, match="holds no results"):
            Results(path, "a_study", SETTINGS)
        assert path.read_text() == text


def test_models_come_back_as_they_were(tmp_path: Path) -> None:
    def model() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2)).to(
            memory_format=torch.channels_last
        )  # type: ignore[call-overload]

    kept, other = model(), model()
    kept(torch.rand(4, 1, 5, 5))  # BatchNorm counts batches
    results(tmp_path).keep_model(3, "TO", kept)
    assert not results(tmp_path).load_model(4, "TO", other)
    assert results(tmp_path).load_model(3, "TO", other)
    for name, tensor in kept.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name])


def test_differences_are_paired_by_seed_as_in_a_paired_t_test(tmp_path: Path) -> None:
    protected, plain, found = [0.61, 0.55, 0.70, 0.66], [0.72, 0.63, 0.71, 0.80], results(tmp_path)
    for seed, (one, other) in enumerate(zip(protected, plain, strict=True)):
        found.add(seed, "TV", {"top1": one})
        found.add(seed, "TO", {"top1": other})
    expected = ttest_rel(protected, plain).confidence_interval(0.95)
    mean = 100 * (sum(protected) - sum(plain)) / 4
    line = differences(found, range(4), [("TV", "TO")], COLUMNS).splitlines()[-1]
    assert line == f"| TV - TO | 4 | {mean:+.2f} ({100 * expected.low:+.2f} to {100 * expected.high:+.2f}) |"
    assert means(found, range(4), ["TO"], COLUMNS).splitlines()[-1] == f"| TO | 4 | {25 * sum(plain):.2f} |"


def test_tables_say_what_is_not_there(tmp_path: Path) -> None:
    found = results(tmp_path)
    found.add(0, "TO", {"top1": 0.5})
    found.add(0, "TV", {})
    found.add(1, "TO", {"top1": 0.75})
    assert means(found, [0, 1], ["TO", "TV", "SO"], COLUMNS).splitlines()[2:] == [
        "| TO | 2 | 62.50 |", "| TV | 1 | - |", "| SO | 0 | - |",
    ]  # fmt: skip
    found.add(1, "TV", {"top1": 0.5})
    # One seed has a difference and no interval; a seed without the number leaves no mean behind.
    assert differences(found, [1], [("TV", "TO")], COLUMNS).splitlines()[-1] == "| TV - TO | 1 | -25.00 |"
    assert differences(found, [0, 1], [("TV", "TO")], COLUMNS).splitlines()[-1] == "| TV - TO | 2 | - |"
