"""Optuna's part of a measured search: the queue, successive halving, and what a killed process leaves."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulations.search.measured import working_processes
from simulations.search.measured.judging import Judgement
from simulations.search.measured.proposals import NONE, RANDOM, Proposal
from simulations.search.measured.settings import Measured, Rung
from simulations.search.measured.trials import (
    CHOICE,
    enqueue,
    judged,
    open_study,
    plan,
)
from simulations.search.measured.working_processes import run_all

SEARCH = Measured(rounds=9, rungs=3, reduction=3, workers=1)
ACCURACY = {"": 0.9, **{str(at): 0.9 - at / 20 for at in range(9)}}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """Judgements by a formula in place of minutes of training: what is tested here is how long each hybrid is judged."""
    made: list[tuple[str, int, int]] = []

    def judge(search: Measured, dataset: str, hybrid: str, rung: Rung, seed: int, folder: Path) -> Judgement:
        made.append((hybrid, rung.rounds, seed))
        if hybrid == "8" and len(made) < 3:
            raise RuntimeError("its weights are not finite")
        return Judgement(ACCURACY[hybrid], 100, 1, 4, 1.0, "an attack", 0.1)

    monkeypatch.setattr(working_processes, "judge", judge)
    return made


def queue(folder: Path, name: str, hybrids: list[str], seeds: list[int]) -> None:
    proposals = [Proposal(one, RANDOM if one else NONE) for one in hybrids]
    study = open_study(folder, name, SEARCH)
    plan(study, [proposals], seeds)
    enqueue(study, proposals)


def test_about_one_in_three_goes_on_and_no_defence_always(tmp_path: Path, calls: list[tuple[str, int, int]]) -> None:
    queue(tmp_path, CHOICE, ["", *map(str, range(8))], [0])
    run_all(tmp_path, CHOICE, SEARCH, "data", lambda done, of: None)
    assert [call for call in calls if not call[0]] == [("", 1, 0), ("", 3, 0), ("", 9, 0)]
    # The best comes first and goes on to the end; of those behind it the third is the first with a third of the others below.
    assert [call[1] for call in calls if call[0] == "0"] == [1, 3, 9]
    every = judged(open_study(tmp_path, CHOICE, SEARCH), SEARCH)
    assert {one.hybrid for one in every} == {"", *map(str, range(8))}
    assert [one.hybrid for one in every if one.complete] == ["", "0"]
    assert all(len(one.rungs) == 1 for one in every if not one.complete)
