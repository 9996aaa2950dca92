"""The claimed epsilon of a small app under real Opacus: a bound below the claim, planted bugs above it, mistakes that are named."""

import re
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from defenses.smashed.gaussian_mechanism import gaussian_epsilon
from strategies.external_app.record import AuditError
from tests.strategies.external_app.app import AppGrid
from tests.strategies.external_app.audits import page_of
from tests.strategies.external_app.canaries.private_app import (
    COUNT,
    DELTA,
    Bug,
    Net,
    correct,
    half_of_the_images_flipped,
    half_of_the_noise,
    no_clipping,
    no_noise_on_a_layer,
    pooled,
    private_app,
    run,
    shown_in,
)


def test_a_correct_training_shows_a_bound_well_above_zero_and_below_the_claim(tmp_path: Path) -> None:
    """One full-batch step with noise multiplier 1 is exactly 1-GDP: its epsilon is 4.38 at this delta."""
    rows = run(tmp_path / "out", private_app())
    shown = shown_in(rows)
    exact = gaussian_epsilon(1.0, DELTA)
    assert shown["claimed"] == pytest.approx(exact, rel=0.05)
    assert (shown["delta"], pooled(shown)) == (DELTA, 2 * COUNT)
    assert 1.5 < shown["gaussian"] < exact
    assert 0.5 < shown["plain"] < shown["gaussian"]
    assert shown["refuted_by"] == []
    assert shown["largest_gaussian"] > shown["claimed"], "these canaries could have refuted the claim"
    assert [row["metric"] for row in rows if row.get("audit")] == ["epsilon-shown", "epsilon-shown-gaussian"]

    page = page_of(tmp_path / "out")
    existing = re.search(r"Canaries that were in some batch: (\d+) of the (\d+) that exist\.", page)
    assert existing is not None
    assert existing[1] == existing[2], "a full batch holds every canary"
    assert 0.4 * 2 * COUNT < int(existing[1]) < 0.6 * 2 * COUNT
    assert "fedveil tested this claim by canaries, which cannot prove it." in page
    assert "the claimed epsilon is refuted" not in page


@pytest.mark.parametrize(
    ("bug", "view"),
    [(half_of_the_noise, "all parameters"), (no_noise_on_a_layer, "head.weight"), (no_clipping, "all parameters")],
)
def test_planted_bugs_refute_the_claim(bug: Bug, view: str, tmp_path: Path) -> None:
    shown = shown_in(run(tmp_path / "out", private_app(bug)))
    assert shown["claimed"] == pytest.approx(gaussian_epsilon(1.0, DELTA), rel=0.05), "the accountant knows no bug"
    assert shown["gaussian"] > shown["claimed"] + 1
    assert view in shown["refuted_by"]
    assert "the claimed epsilon is refuted" in page_of(tmp_path / "out")


def test_canaries_of_several_rounds_are_pooled_against_the_claim_of_one(tmp_path: Path) -> None:
    """Coins are new in each round: else the canaries of two rounds would bound the epsilon of both together."""
    shown = shown_in(run(tmp_path / "out", private_app(), rounds=3))
    assert pooled(shown) == 3 * 2 * COUNT
    assert shown["claimed"] == pytest.approx(gaussian_epsilon(1.0, DELTA), rel=0.05)
    assert shown["refuted_by"] == []
    assert "Trainings that are pooled: 6, of 2 of 2 nodes." in shown["covers"]


def test_a_bug_at_a_node_that_claims_less_is_found_at_its_own_claim(tmp_path: Path) -> None:
    """Node 1 claims a tenth of what node 0 does, and adds half of its noise, which is no fault beside the claim of node 0."""

    def second(optimizer: object, model: object) -> None:
        if optimizer.noise_multiplier > 1:  # type: ignore[attr-defined]
            half_of_the_noise(optimizer, model)  # type: ignore[arg-type]

    noises = {0: 0.3, 1: 2.5}
    shown = shown_in(run(tmp_path / "out", private_app(second, noise=noises.__getitem__, count=1200)))
    assert shown["claimed"] == pytest.approx(gaussian_epsilon(1 / 2.5, DELTA), rel=0.1)
    assert "Trainings that are pooled: 1, of 1 of 2 nodes." in shown["covers"]
    assert "2 levels of claims were tested" in shown["covers"]
    right = shown_in(run(tmp_path / "right", private_app(noise=noises.__getitem__, count=1200)))
    assert right["refuted_by"] == []
    assert right["claimed"] > 10 > shown["claimed"], "where no level is refuted, the largest has all canaries"


def test_small_batches_give_a_bound_that_is_no_evidence_and_no_alarm(tmp_path: Path) -> None:
    """Poisson batches, of which the first is empty at times: a canary is in one of 18 steps on average."""
    shown = shown_in(run(tmp_path / "out", private_app(correct, batch=13)))
    assert shown["refuted_by"] == []
    assert max(shown["plain"], shown["gaussian"]) < shown["claimed"]


def test_destroyed_canaries_are_counted(tmp_path: Path) -> None:
    """A flipped image no longer shows the number of its canary to the model."""
    shown = shown_in(run(tmp_path / "out", private_app(half_of_the_images_flipped)))
    found = re.search(r"in some batch: (\d+) of the (\d+) that exist\. A canary that is in no batch", shown["covers"])
    assert found is not None
    assert 0.3 * int(found[2]) < int(found[1]) < 0.7 * int(found[2])


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "the second line forgotten": (
        {"second": False}, "the canaries did not act: call set_canary_gradients after make_private",
    ),
    "the first line forgotten": ({"first": False}, "call with_canaries on the training data before"),
    "both lines forgotten": (
        {"first": False, "second": False}, "the last training of this node had no canaries: call with_canaries in train",
    ),
    "no DP": ({"private": False}, "optimizer is SGD, which keeps no gradients per example; allowed: the optimizer that Opacus"),
    "no claim": ({"claims": False}, "its reply to training reports no epsilon"),
    "more canaries than weights": ({"count": 5000}, "count is 5000; the model has 3466 trained weights"),
    "no number of canaries": ({"count": 0}, "count is 0; allowed: a whole number from 1 to 16384"),
}  # fmt: skip


def test_a_mistake_is_named_and_no_bound_is_shown(subtests: pytest.Subtests, tmp_path: Path) -> None:
    for name, (told, said) in MISTAKES.items():
        with subtests.test(name=name):
            with pytest.raises(AuditError, match="the audit attacked nothing") as error:
                run(tmp_path / name, private_app(**told))
            assert said in str(error.value)
            assert "the audit of epsilon failed" in page_of(tmp_path / name)


def frozen_by_node(**told: Any) -> Any:
    """Node 1 trains other tensors than node 0."""
    apps = [private_app(**told), private_app(network=frozen, **told)]
    return lambda message, context: apps[int(context.node_config["partition-id"])](message, context)


def frozen() -> Net:
    net = Net()
    net.head.bias.requires_grad_(False)
    return net


def test_a_node_that_trains_other_tensors_than_the_first_is_left_out(tmp_path: Path) -> None:
    rows = run(tmp_path / "out", AppGrid(frozen_by_node(), 2))
    shown = shown_in(rows)
    assert pooled(shown) == 400
    assert "client 1: query.coins: this node trains other tensors than the first node" in shown["covers"]


def test_a_deployed_node_adds_canaries_only_if_its_operator_allows(tmp_path: Path) -> None:
    node = {"randomness": "secret", "secret-dir": str(tmp_path), "audits": True}
    with pytest.raises(AuditError, match="canaries in the node's configuration"):
        run(tmp_path / "no", AppGrid(private_app(), 2, **node))
    rows = run(tmp_path / "yes", AppGrid(private_app(), 2, **node, canaries=True))
    assert pooled(shown_in(rows)) == 800, "their coins follow from a secret, so that the bounds are not always the same"


def test_a_model_that_is_not_the_trained_one_is_named(tmp_path: Path) -> None:
    def other(optimizer: Any, model: nn.Module) -> None:
        model._forward_pre_hooks.clear()

    with pytest.raises(AuditError, match="the model saw no batch of images; give the model that is trained"):
        run(tmp_path / "out", private_app(other))
