from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from attacks.dp_audit.verdict import CanaryPart, audited
from attacks.metrics.training import EPSILON_SHOWN
from defenses.neighbours import CLIENT_LEVEL, EXAMPLE_LEVEL, REPLACE_CLIENT, REPLACE_ONE
from simulations.report.analysis.budget import REFUTED, audit_text, audit_warnings
from simulations.report.sections.audited_epsilon import joint, limit
from simulations.report.studies.study import Study
from simulations.run_folder.rows import Row
from strategies.federated.shown_epsilon import AUDIT, CONFIDENCE, ShownEpsilon

LONE = "reported num-examples"
pooled = ShownEpsilon.strongest
pytestmark = pytest.mark.numeric


def audit_of(
    claimed: float, shift: float, seed: int = 0, confidence: float = CONFIDENCE, neighbours: str = REPLACE_ONE
) -> ShownEpsilon:
    generator = torch.Generator().manual_seed(seed)
    coins, few = (torch.rand(number, generator=generator) < 0.5 for number in (2000, 10))
    scores = shift * (coins.double() - 0.5) + torch.randn(2000, generator=generator).double()
    lone = CanaryPart(torch.randn(10, generator=generator).double(), few)
    parts = {"all parameters": CanaryPart(scores, coins, centred=True), LONE: lone}
    return ShownEpsilon.of(audited(parts, claimed, 1e-5, confidence), neighbours)


def warnings_of(found: Sequence[ShownEpsilon]) -> list[str]:
    known = {"metric": EPSILON_SHOWN.name, "defense": "DP", "round": 1}
    rows = [Row(seed=s, value=one.plain, extra={AUDIT: one.to_json()}, **known) for s, one in enumerate(found)]
    return audit_warnings(study(*rows), "DP")


def study(*rows: Row) -> Study:
    return Study(("e", "federated", "d", "m", ""), rows, ("", "DP"))


@pytest.fixture(scope="module")
def above() -> ShownEpsilon:
    return audit_of(2.0, 1.0)


@pytest.fixture(scope="module")
def below() -> ShownEpsilon:
    return audit_of(4.5, 1.0, seed=1)


def test_a_refutation_names_the_assumption_that_it_needs(above: ShownEpsilon) -> None:
    assert above.plain < above.claimed < above.gaussian
    assert (above.refuted, above.refuted_plainly) == (True, False)
    assert "The claim is refuted if noise is Gaussian." in audit_text(above)
    assert audit_of(0.2, 1.0).refuted_plainly
    assert "The claim is refuted." in audit_text(audit_of(0.2, 1.0))


def test_of_several_seeds_all_or_each_must_refute(above: ShownEpsilon, below: ShownEpsilon) -> None:
    one = pooled([below, above, *[below] * 18])
    assert (one.above, one.refuted, one.seeds, one.seeds_above, one.corrected) == (True, False, 20, 1, 0)
    text = audit_text(one)
    assert "In 1 of 20 seeds a bound is above the claim; not corrected for 20 seeds." in text
    assert "95 % confidence in one of 20 seeds, 0 % if corrected for all" in text
    assert "The claim is refuted" not in text
    (warning,) = warnings_of([below, above])
    assert warning.startswith("in 1 of 2 seeds a bound is above the claim; not corrected for 2 seeds: claimed 2.00")
    assert warnings_of([below, below]) == []
    strict = [audit_of(claimed, 1.0, seed, confidence=1 - 0.05 / 2) for seed, claimed in enumerate((2.0, 4.5))]
    one = pooled(strict)
    assert (one.corrected, one.seeds_above, one.refuted) == (pytest.approx(0.95), 1, True)
    assert not pooled([*strict, below]).refuted
    every = [above, audit_of(2.0, 1.0, seed=2), audit_of(2.0, 1.0, seed=3)]
    one = pooled(every)
    assert (one.seeds_above, one.refuted, one.refuted_plainly) == (3, True, False)
    assert "The claim is refuted by each of 3 seeds if noise is Gaussian." in audit_text(one)
    assert warnings_of(every)[0].startswith(f"{REFUTED} if noise is Gaussian: claimed 2.00")
    # All bounds of several claims and seeds hold with a union bound.
    assert joint([above] * 4) == pytest.approx(0.8)
    assert joint([above, pooled([above, above])]) == pytest.approx(0.85)
    assert joint([pooled([above] * 30)]) == 0


def test_an_audit_without_power_says_so_in_place_of_a_gap(below: ShownEpsilon) -> None:
    large = audit_of(300.0, 1.0)
    assert not large.could_refute
    text = audit_text(large)
    assert f"The canaries could not have refuted the claim: they could show at most {large.largest:.2f}." in text
    assert "Gap: " not in text
    assert f"Gap: {below.gap:.2f} without an assumption, {below.gap_gaussian:.2f} if noise is" in audit_text(below)
    one = replace(below, largest_plain=0.5, largest_gaussian=9.0)
    assert limit(one.largest_plain, one.claimed) == "no power, could not have refuted the claim"
    assert (limit(one.largest_gaussian, one.claimed), limit(0.5, 0.2)) == ("", "no power")


def test_an_audit_names_what_its_epsilon_protects_and_levels_have_no_order(above: ShownEpsilon) -> None:
    clients = audit_of(2.0, 1.0, neighbours=REPLACE_CLIENT)
    assert (above.level, clients.level, clients.to_json()["level"]) == (EXAMPLE_LEVEL, CLIENT_LEVEL, CLIENT_LEVEL)
    assert "epsilon claimed: 2.00 at delta 1e\N{MINUS SIGN}5 (client-level, replace-client)." in audit_text(clients)
    with pytest.raises(ValueError, match="client-level, example-level; allowed: audits of one level"):
        pooled([above, clients])


def test_a_row_holds_one_seed_and_is_read_as_it_was_written(above: ShownEpsilon) -> None:
    assert ShownEpsilon.from_json(pooled([above, above]).to_json()) == above
    # Each bound has its own limit.
    generator = torch.Generator().manual_seed(0)
    coins = torch.rand(20, generator=generator) < 0.5
    audit = audited({"all": CanaryPart(coins.double(), coins)}, 4.0, 1e-5, CONFIDENCE)
    found = ShownEpsilon.of(replace(audit, shown=replace(audit.shown, largest=0.5)), REPLACE_ONE)
    assert (found.largest_plain, found.largest_gaussian) == (0.5, audit.shown_gaussian.largest)
    assert ShownEpsilon.from_json(found.to_json()) == found
    new = above.to_json()
    for odd in (
        {key: value for key, value in new.items() if key != "largest_plain"}, new | {"plain": -1.0}, [new], None,
    ):  # fmt: skip
        assert ShownEpsilon.from_json(odd) is None
