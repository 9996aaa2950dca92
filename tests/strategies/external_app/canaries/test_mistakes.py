"""Apps that use canaries in a wrong way: the error says what to do, and no bound is shown."""

from pathlib import Path
from typing import Any

import pytest
from torch import nn

from strategies.external_app.record import AuditError
from tests.strategies.external_app.app import AppGrid
from tests.strategies.external_app.audits import page_of
from tests.strategies.external_app.canaries.private_app import Net, pooled, private_app, run, shown_in

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
    """Its last bias is not trained."""
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
