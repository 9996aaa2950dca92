"""Which hybrids are judged: each once, disjoint, reproducible."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from defenses.images.ats import Policy, parse_policies
from defenses.random_draws import generator_for
from simulations.search.measured import proposals
from simulations.search.measured.proposals import (
    CONTROL,
    PAPER,
    RANDOM,
    SCORED,
    candidates,
    controls,
    hybrids_of,
    references,
)
from simulations.search.measured.settings import Measured
from simulations.search.space import overlap, random_hybrid, sample
from simulations.settings.errors import ConfigError

SEARCH = Measured(dataset="mnist-5k", candidates=12, by_score=0, controls=5)


def nothing(what: str, done: int, of: int) -> None:
    """Of a display."""


def test_random_candidates_and_controls_are_disjoint_and_reproducible() -> None:
    found = candidates(SEARCH, "mnist-5k", nothing)
    assert found == candidates(SEARCH, "mnist-5k", nothing)
    assert {one.origin for one in found} == {RANDOM}
    assert len({one.hybrid for one in found}) == 12
    others = controls(SEARCH, "mnist-5k")
    assert [one.origin for one in others] == [CONTROL] * 5
    assert not {one.hybrid for one in others} & {one.hybrid for one in found}
    for one in (*found, *others):
        policies = parse_policies(one.hybrid)
        assert not any(overlap(a, b, 1) for a, b in itertools.combinations(policies, 2))


def test_another_seed_has_other_candidates() -> None:
    other = Measured(**{**SEARCH.__dict__, "seed": 1})
    assert candidates(SEARCH, "mnist-5k", nothing) != candidates(other, "mnist-5k", nothing)


def test_hybrids_of_both_origins_are_mixed_by_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scores are left out: what is tested is the order of the queue, which decides who goes on."""
    scored = [f"{at}-{at}+49" for at in range(20)]
    monkeypatch.setattr(proposals, "_by_score", lambda search, dataset, wanted, show: scored[:wanted])
    orders = []
    for seed in range(3):
        search = Measured(dataset="mnist-5k", candidates=40, seed=seed)
        found = candidates(search, "mnist-5k", nothing)
        assert sorted(one.hybrid for one in found if one.origin == SCORED) == sorted(scored)
        orders.append([one.origin for one in found])
        assert 4 <= orders[-1][:20].count(SCORED) <= 16  # 10 are expected; outside, 1 in 15,000
    assert len(set(map(tuple, orders))) == 3


def test_controls_are_as_many_as_the_settings_say() -> None:
    first = controls(SEARCH, "mnist-5k")
    others = controls(SEARCH, "mnist-5k", {first[0].hybrid})
    assert [one.hybrid for one in others[:4]] == [one.hybrid for one in first[1:]]
    assert len({one.hybrid for one in others}) == 5


def test_draws_end_where_the_space_holds_no_other_hybrid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of policies of one transform there are fewer than 50."""
    drawn: list[object] = []

    def counted(*about: Any) -> tuple[Policy, ...]:
        drawn.append(about)
        return random_hybrid(*about)

    monkeypatch.setattr(proposals, "random_hybrid", counted)
    search = Measured(dataset="mnist-5k", policies=1, longest=1, candidates=500, by_score=0, controls=60)
    for few in (candidates(search, "mnist-5k", nothing), controls(search, "mnist-5k")):
        assert 10 < len({one.hybrid for one in few}) == len(few) < 60
    assert len(drawn) < 5000


def test_hybrids_by_score_begin_with_the_best() -> None:
    ranked = [(9,), (9, 3), (1,), (2,), (3,)]
    # 9 and 9-3 share a transform; a policy that is in a hybrid already begins none, and is taken again where no other is left.
    assert hybrids_of(ranked, 2, 9, 3) == ["9+1", "9-3+2", "3+9"]
    assert hybrids_of(ranked, 2, 1, 3) == ["9+1"]


def test_hybrids_by_score_are_of_the_better_half_of_the_scored_policies() -> None:
    """With the 60 policies that 80 candidates once had, all 60 were in a hybrid, so that the score chose nothing."""
    search = Measured(candidates=80)
    ranked = list(itertools.islice(sample(generator_for("test", 0), 1), search.to_score))
    found = hybrids_of(ranked, search.policies, search.by_score_wanted, 1)
    assert len(found) == 40
    used = {ranked.index(policy) for hybrid in found for policy in parse_policies(hybrid)}
    assert max(used) < len(ranked) / 2


def test_the_papers_hybrids_are_read_from_the_settings() -> None:
    found = references(Measured(papers="3-1-7 ; 43-18-18"))
    assert [(one.hybrid, one.origin) for one in found[1:]] == [("3-1-7", PAPER), ("43-18-18", PAPER)]
    with pytest.raises(ConfigError, match="papers"):
        Measured(papers="3-1-77")
