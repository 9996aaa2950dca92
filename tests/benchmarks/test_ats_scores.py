"""The studies of both privacy scores: their arithmetic on numbers whose answer is known, and a small one from end to end."""

from __future__ import annotations

import re
import sys

import ats_scores
import numpy as np
import pytest


def numbers(line: str) -> list[float]:
    """What a line of ``compared`` says: released, paper, difference, each with its interval."""
    return [float(value) for value in re.findall(r"[+-]\d+\.\d\d", line)]


def test_a_score_that_is_what_attacks_find_is_told_from_one_that_has_nothing_to_do_with_it() -> None:
    generator = np.random.default_rng(0)
    tables = []
    for scale in (1.0, 50.0):  # a seed's own level and scale must not count as agreement
        known = generator.normal(size=40)
        tables.append(np.stack([scale * known + scale, generator.normal(size=40), known, known, -known]))
    transformed, gain, original = (numbers(line) for line in ats_scores.compared(tables))
    chance = np.mean([np.corrcoef(table[1], table[2])[0, 1] for table in tables])
    assert transformed == gain
    assert transformed[:3] == [1, 1, 1]
    assert transformed[3] == pytest.approx(chance, abs=0.005)
    assert transformed[4] < 0 < transformed[5]
    assert transformed[6] == pytest.approx(1 - chance, abs=0.005)
    assert transformed[7] > 0
    assert original[:3] == [-1, -1, -1]


def test_the_agreement_of_a_seed_is_printed_with_its_interval(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["--policies", "4", "--images", "2", "--semi-epochs", "1", "--seeds", "3"]
    monkeypatch.setattr(sys, "argv", ["ats_scores.py", "agreement", *small])
    ats_scores.main()
    lines = capsys.readouterr().out.splitlines()[2:]
    assert [line.split(": Spearman")[0] for line in lines] == [
        "- seed 3, released and paper, same gradients",
        "- seed 3, released and paper, each its own draws",
        "- seed 3, released with itself, other draws",
        "- seed 3, paper with itself, other draws",
    ]
    for line in lines:
        assert re.fullmatch(r".*Spearman -?\d\.\d\d \(95 % interval -?\d\.\d\d to -?\d\.\d\d, n = 4\)", line)
