"""Optuna's part of a measured search: the queue, successive halving, and what a killed process leaves."""

from __future__ import annotations

import math
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from optuna.trial import TrialState

from simulations.search.measured import working_processes
from simulations.search.measured.judging import MOST_GAIN, Judgement
from simulations.search.measured.proposals import NONE, RANDOM, Proposal
from simulations.search.measured.settings import Measured, Rung
from simulations.search.measured.trials import (
    CHOICE,
    CONFIRMATION,
    Judged,
    enqueue,
    front,
    judged,
    next_trial,
    open_study,
    plan,
    requeue,
    retry,
)
from simulations.search.measured.working_processes import run_all, work

SEARCH = Measured(rounds=9, rungs=3, reduction=3, workers=1)
ACCURACY = {"": 0.9, **{str(at): 0.9 - at / 20 for at in range(9)}}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """Judgements by a formula in place of minutes of training; what is tested here is what decides who is judged how long."""
    made: list[tuple[str, int, int]] = []

    def judge(search: Measured, dataset: str, hybrid: str, rung: Rung, seed: int, folder: Path) -> Judgement:
        made.append((hybrid, rung.rounds, seed))
        return Judgement(ACCURACY[hybrid], 100, 1, 4, 1.0, "an attack", 0.1)

    monkeypatch.setattr(working_processes, "judge", judge)
    return made


def queue(folder: Path, name: str, hybrids: list[str], seeds: list[int]) -> None:
    proposals = [Proposal(one, RANDOM if one else NONE) for one in hybrids]
    study = open_study(folder, name, SEARCH)
    plan(study, [proposals], seeds)
    enqueue(study, proposals)


def test_about_one_in_three_goes_on_and_no_defence_always(tmp_path: Path, calls: list[tuple[str, int, int]]) -> None:
    queue(tmp_path, CHOICE, ["", *map(str, range(9))], [0])
    run_all(tmp_path, CHOICE, SEARCH, "data", lambda done, of: None)
    assert [call for call in calls if not call[0]] == [("", 1, 0), ("", 3, 0), ("", 9, 0)]
    # The best comes first and goes on to the end; of those behind it the third is the first with a third of the others below.
    assert [call[1] for call in calls if call[0] == "0"] == [1, 3, 9]
    every = judged(open_study(tmp_path, CHOICE, SEARCH), SEARCH)
    assert {one.hybrid for one in every} == {"", *map(str, range(9))}
    assert [one.hybrid for one in every if one.complete] == ["", "0"]
    assert all(len(one.rungs) == 1 for one in every if not one.complete)


def test_a_better_one_that_comes_late_goes_on(tmp_path: Path, calls: list[tuple[str, int, int]]) -> None:
    queue(tmp_path, CHOICE, ["8", "7", "6", "0"], [0])
    run_all(tmp_path, CHOICE, SEARCH, "data", lambda done, of: None)
    assert [call[1] for call in calls if call[0] == "0"] == [1, 3, 9]


def test_one_process_shows_each_hybrid_as_it_is_judged(tmp_path: Path, calls: list[tuple[str, int, int]]) -> None:
    queue(tmp_path, CONFIRMATION, ["", "3"], [1, 2])
    shown: list[tuple[int, int, int]] = []
    run_all(tmp_path, CONFIRMATION, SEARCH, "data", lambda done, of: shown.append((done, of, len(calls))))
    assert shown == [(done, 4, done) for done in range(5)]


def test_held_out_hybrids_are_judged_in_full_on_each_seed(tmp_path: Path, calls: list[tuple[str, int, int]]) -> None:
    queue(tmp_path, CONFIRMATION, ["", "3"], [1, 2])
    run_all(tmp_path, CONFIRMATION, SEARCH, "data", lambda done, of: None)
    assert sorted(calls) == [("", 9, 1), ("", 9, 2), ("3", 9, 1), ("3", 9, 2)]


def test_what_a_killed_process_had_judged_is_kept(tmp_path: Path, calls: list[tuple[str, int, int]]) -> None:
    queue(tmp_path, CHOICE, ["5"], [0])
    study = open_study(tmp_path, CHOICE, SEARCH)
    trial = next_trial(study)
    assert trial is not None
    trial.set_user_attr("rung 0", Judgement(0.5, 100, 1, 4, 1.0, "an attack", 0.1).to_json())
    run_all(tmp_path, CHOICE, SEARCH, "data", lambda done, of: None)
    assert [call[1] for call in calls] == [3, 9]
    (one,) = judged(open_study(tmp_path, CHOICE, SEARCH), SEARCH)
    assert [rung.accuracy for rung in one.rungs] == [0.5, ACCURACY["5"], ACCURACY["5"]]


def test_nothing_is_judged_twice(tmp_path: Path, calls: list[tuple[str, int, int]]) -> None:
    queue(tmp_path, CONFIRMATION, ["3"], [1])
    for _ in range(2):
        queue(tmp_path, CONFIRMATION, ["3"], [1])
        run_all(tmp_path, CONFIRMATION, SEARCH, "data", lambda done, of: None)
    assert len(calls) == 1


def test_a_failed_training_is_kept_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def judge(*about: object) -> Judgement:
        raise RuntimeError("its weights are not finite")

    monkeypatch.setattr(working_processes, "judge", judge)
    queue(tmp_path, CONFIRMATION, ["3"], [1])
    run_all(tmp_path, CONFIRMATION, SEARCH, "data", lambda done, of: None)
    (one,) = judged(open_study(tmp_path, CONFIRMATION, SEARCH), SEARCH)
    assert (one.failure, one.complete) == ("RuntimeError: its weights are not finite", False)


@pytest.mark.parametrize("error", [ValueError("a package refuses it"), RuntimeError("its weights are not finite")])
def test_what_failed_is_tried_again_where_it_failed(
    tmp_path: Path, calls: list[tuple[str, int, int]], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    by_formula = working_processes.judge

    def judge(search: Measured, dataset: str, hybrid: str, rung: Rung, seed: int, folder: Path) -> Judgement:
        if (hybrid, rung.rounds) == ("3", 3):
            raise error
        return by_formula(search, dataset, hybrid, rung, seed, folder)

    queue(tmp_path, CHOICE, ["3", "4"], [0])
    with monkeypatch.context() as patch:
        patch.setattr(working_processes, "judge", judge)
        run_all(tmp_path, CHOICE, SEARCH, "data", lambda done, of: None)
    study = open_study(tmp_path, CHOICE, SEARCH)
    (failed, other) = judged(study, SEARCH)
    assert (failed.hybrid, failed.failure) == ("3", f"{type(error).__name__}: {error}")
    calls.clear()
    for _ in range(2):
        retry(study)
        run_all(tmp_path, CHOICE, SEARCH, "data", lambda done, of: None)
    assert calls == [("3", 3, 0), ("3", 9, 0)]
    (again, same) = judged(study, SEARCH)
    assert (again.hybrid, again.complete, again.failure, len(again.rungs)) == ("3", True, "", 3)
    assert same == other


def test_a_number_that_is_none_is_a_failure_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        working_processes, "judge", lambda *about: Judgement(math.nan, 100, 1, 4, 1.0, "an attack", 0.1)
    )
    queue(tmp_path, CONFIRMATION, ["3"], [1])
    run_all(tmp_path, CONFIRMATION, SEARCH, "data", lambda done, of: None)
    (one,) = judged(open_study(tmp_path, CONFIRMATION, SEARCH), SEARCH)
    assert one.failure == "ValueError: accuracy nan or gain 1.0 is not a number"


def test_an_exact_copy_has_a_finite_gain() -> None:
    exact = Judgement(0.8, 100, 4, 4, math.inf, "an attack", 0.1)
    assert exact.gain == MOST_GAIN
    every = [
        Judged(name, RANDOM, 0, (one,), True)
        for name, one in (("1", exact), ("2", replace(exact, recovered=0, gain=2.0)))
    ]
    assert [one.hybrid for one in front(every)] == ["2"]


def test_a_process_without_its_parent_takes_no_trial(tmp_path: Path, calls: list[tuple[str, int, int]]) -> None:
    queue(tmp_path, CONFIRMATION, ["3"], [1])
    before = signal.getsignal(signal.SIGINT)
    try:
        work(tmp_path, CONFIRMATION, SEARCH, "data", parent=-1)
    finally:
        signal.signal(signal.SIGINT, before)
    assert not calls


def test_a_trial_that_was_not_queued_is_given_back(tmp_path: Path) -> None:
    queue(tmp_path, CONFIRMATION, ["3"], [1])
    study = open_study(tmp_path, CONFIRMATION, SEARCH)
    first = next_trial(study)
    assert first is not None
    assert next_trial(study) is None
    requeue(study)
    assert len(study.get_trials(states=(TrialState.WAITING,))) == 1
