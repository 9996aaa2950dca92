"""Random hybrids are judged only as long as a recommendation is possible."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import optuna
import pytest

from simulations.search.measured import search as measured_search
from simulations.search.measured import working_processes
from simulations.search.measured.judging import Judgement
from simulations.search.measured.page import write_measured_page
from simulations.search.measured.proposals import CONTROL, Proposal
from simulations.search.measured.search import Found, MeasuredFolder, run_search
from simulations.search.measured.sentences import verdict
from simulations.search.measured.settings import Measured, Rung
from simulations.search.measured.trials import HYBRID, ORIGIN, SEED
from simulations.search.measured.verdict import undecided
from tests.simulations.search.measured.test_verdict import TESTED, held_out, over_seeds

SEARCH = Measured(
    dataset="mnist-5k", papers="3-1-7", candidates=3, by_score=0, rungs=2, rounds=3, workers=1, seeds=3, controls=19
)
Results = tuple[float, int]
"""Accuracy, and recovered images of 32."""
Search = Callable[..., Found]
"""``found`` below."""


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Search:
    """A search whose judgements are given: of its candidates, and of random hybrids, also of those on the first held-out seed.

    What is tested is which judgements are made.
    """

    def search(
        settings: Measured, of_candidates: Results, of_controls: Results, on_first_seed: Results | None = None
    ) -> Found:
        known: set[str] = set()

        def judge(search: Measured, dataset: str, hybrid: str, rung: Rung, seed: int, folder: Path) -> Judgement:
            if "choice" in folder.name:
                known.add(hybrid)
            of_random = on_first_seed or of_controls if seed == 1 else of_controls
            accuracy, recovered = (0.9, 32) if not hybrid else of_candidates if hybrid in known else of_random
            return Judgement(accuracy, TESTED, recovered, 32, 1.0, "an attack", 0.1)

        monkeypatch.setattr(working_processes, "judge", judge)
        path = tmp_path / "search"
        folder = MeasuredFolder.resume(path, {}) if path.exists() else MeasuredFolder.create(path, settings)
        try:
            return run_search(folder, lambda what, done, of: None)
        finally:
            folder.close()

    return search


def random_ones(found: Found) -> int:
    return sum(one.origin == CONTROL for one in found.held_out)


def test_a_choice_that_loses_much_is_compared_with_none(found: Search, tmp_path: Path) -> None:
    result = found(SEARCH, (0.8, 2), (0.9, 32))
    assert (random_ones(result), result.skipped, result.recommended) == (0, 19, [])
    (first, skipped) = verdict(result)
    assert (
        f"{result.confirmed[0]} is not recommended. It costs 10.0 (9.9 to 10.1) points of accuracy: not shown to lose"
        in first
    )
    assert "recovers 6 of 96 images" in first
    assert skipped.startswith(
        "19 of 19 random hybrids were not judged, because no recommendation was possible any more"
    )
    assert skipped in write_measured_page(tmp_path, result).read_text(encoding="utf-8")


def test_a_search_that_is_not_curtailed_compares_it_all_the_same(
    found: Search,
) -> None:
    settings = Measured.from_mapping(SEARCH.to_mapping() | {"curtail": False})
    result = found(settings, (0.8, 2), (0.9, 32))
    assert (random_ones(result), result.skipped, result.recommended) == (19, 0, [])


def test_a_choice_that_may_win_is_compared_with_all(found: Search) -> None:
    result = found(SEARCH, (0.89, 2), (0.8, 20))
    assert (random_ones(result), result.skipped) == (19, 0)
    assert [one.outcome.hybrid for one in result.recommended] == list(result.confirmed)


def test_it_ends_when_a_random_hybrid_is_as_good(found: Search) -> None:
    result = found(SEARCH, (0.89, 10), (0.89, 10))
    assert (random_ones(result), result.skipped, result.recommended) == (5, 14, [])
    (first, skipped) = verdict(result)
    assert (
        "5 of 5 random hybrids lose at most 3 points in the mean and let no larger share be recovered: their mean would be"
        in first
    )
    for word in ("difference", "by rank", "chance"):
        assert word not in first
    assert skipped.startswith("14 of 19 random hybrids were not judged")


def test_a_kill_while_random_hybrids_are_queued_ends_no_confirmation_too_early(
    found: Search, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the first seed alone random hybrids look as good as the choice, over all three they do not."""
    results = SEARCH, (0.89, 10), (0.8, 20), (0.89, 5)
    queue = measured_search.enqueue

    def killed(study: optuna.Study, proposals: Sequence[Proposal]) -> None:
        if proposals[0].origin != CONTROL:
            queue(study, proposals)
            return
        known = {HYBRID: proposals[0].hybrid, SEED: 1}
        study.enqueue_trial(known, known | {ORIGIN: CONTROL})
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(measured_search, "enqueue", killed)
        with pytest.raises(KeyboardInterrupt):
            found(*results)
    result = found(*results)
    assert (random_ones(result), result.skipped) == (19, 0)


def test_an_attack_that_fails_without_a_defence_decides_at_once() -> None:
    every = held_out(2, controls=0)
    assert undecided(SEARCH, every, ["20-21"])
    weak = [*over_seeds("", "none", 0.83, 15), *(one for one in every if one.hybrid)]
    assert not undecided(SEARCH, weak, ["20-21"])


def test_two_confirmed_hybrids_need_39_random_ones() -> None:
    every = held_out(2, controls=0)
    assert not undecided(SEARCH, every, ["20-21", "1-2"])
    assert undecided(Measured(controls=39), every, ["20-21", "1-2"])
