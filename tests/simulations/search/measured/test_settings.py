"""Settings of a measured search: which attacks run, how many policies are scored, and what can never recommend a hybrid."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulations.search.measured.sentences import notice
from simulations.search.measured.settings import Measured, with_inversion
from strategies.federated.observations import PROBE

SPEAR, INVERTING = "Spear()", "InvertingGradients(iterations=2)"


@pytest.mark.parametrize(
    ("attacks", "expected"),
    [
        (SPEAR, [SPEAR, f"{SPEAR} | PolicyInversion()"]),
        (
            f"{SPEAR}; {INVERTING}",
            [SPEAR, INVERTING, f"{SPEAR} | PolicyInversion()", f"{INVERTING} | PolicyInversion()"],
        ),
        (f"{SPEAR} | PolicyInversion()", [f"{SPEAR} | PolicyInversion()"]),
        (f"{SPEAR}; {SPEAR} | PolicyInversion()", [SPEAR, f"{SPEAR} | PolicyInversion()"]),
        (f"{SPEAR};;", [SPEAR, f"{SPEAR} | PolicyInversion()"]),
        ("", []),
    ],
)
def test_each_attack_also_undoes_policies_once(attacks: str, expected: list[str]) -> None:
    assert with_inversion(attacks) == "; ".join(expected)


def test_a_list_of_attacks_runs_on_every_rung() -> None:
    search = Measured(dataset="mnist-5k", attack=f"{SPEAR}; {INVERTING}")
    search.check()
    runs = [search.experiment("mnist-5k", "3-1-7", search.rung(at), 0, Path()) for at in range(search.rungs)]
    assert [len(run.attacks[PROBE]) for run in runs] == [4, 4, 2]  # on the last rung a run adds adaptive attacks itself


def test_the_score_chooses_among_three_times_as_many_policies_as_it_uses() -> None:
    assert Measured().to_score == 60
    assert Measured(candidates=80).to_score == 3 * 2 * 40
    assert Measured(candidates=80, scored=1000).to_score == 1000
    assert Measured(candidates=80, by_score=0).to_score == 60


def test_settings_that_can_never_recommend_are_named() -> None:
    assert notice(Measured()) == ""
    assert notice(Measured(confirmed=0)) == ""
    assert notice(Measured(confirmed=5, controls=99)) == ""
    assert notice(Measured(controls=2)).endswith("To confirm 1 hybrid takes 19 random ones; raise controls")
    assert "To confirm 5 hybrids takes 99 random ones" in notice(Measured(confirmed=5))
