"""The privacy budgets of the mods of an audited app: which nodes and runs they set apart, and what probes spend of them."""

import math

import torch
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp.mod import LocalDpMod
from torch import Tensor

from clients.external_app.mods import ModBudget, budgets
from clients.flower_private import set_message_id
from strategies.external_app.record import AppFacts
from strategies.external_app.replies import reported_budgets
from tests.strategies.external_app.audits import node_of


def through(mod: LocalDpMod, update: Tensor) -> Tensor:
    """What the mod makes of an update of zeros."""
    zeros = RecordDict({"arrays": ArrayRecord({"a": torch.zeros_like(update)})})
    asked = Message(zeros, dst_node_id=1, message_type="train")
    set_message_id(asked, "m")

    def answer(message: Message, context: Context) -> Message:
        return Message(RecordDict({"arrays": ArrayRecord({"a": update})}), reply_to=message)

    return mod(asked, node_of(0), answer).content["arrays"].to_torch_state_dict()["a"]  # type: ignore[union-attr]


def test_a_budget_is_added_up_only_where_the_noise_is_for_any_two_clipped_updates() -> None:
    """Against the mod itself: how far apart it lets two updates be, and the standard deviation of its own noise."""
    for sensitivity, holds in ((1e-6, False), (1.0, False), (1.999, False), (2.0, True), (5.0, True)):
        settings: dict[str, float] = {"clipping_norm": 1.0, "sensitivity": sensitivity, "delta": 1e-3}
        mod, quiet = (LocalDpMod(epsilon=epsilon, **settings) for epsilon in (0.5, 1e12))
        long = torch.zeros(20000)
        long[0] = 100.0
        apart = float((through(quiet, long) - through(quiet, -long)).norm())
        std = float(through(mod, long)[1:].std())
        enough = std >= 0.97 * apart * (2 * math.log(1.25 / 1e-3)) ** 0.5 / 0.5
        (budget,) = budgets([mod])
        assert budget.holds is holds, sensitivity
        if abs(sensitivity - 2) > 0.01:
            assert enough is holds, sensitivity
        spent = AppFacts(budgets=[budget], probes=3).spent
        assert ("by basic composition" in spent) is holds
        why = f"it is for a sensitivity of {sensitivity:g}, and two updates of norm 1 lie up to 2 apart"
        assert (why in spent) is not holds


def test_what_is_spent_is_added_up_and_a_budget_that_is_none_is_not() -> None:
    assert AppFacts(probes=3).spent == ""
    assert "(40, 0.004)" in AppFacts(budgets=[ModBudget(10.0, 1e-3, 2.0, 1.0)], probes=3).spent
    assert (
        "holds for an epsilon of at most 1 only" in AppFacts(budgets=[ModBudget(10.0, 1e-3, 2.0, 1.0)], probes=3).spent
    )
    two = [ModBudget(1.0, 1e-3, 2.0, 1.0), ModBudget(0.5, 2e-3, 9.0, 1.0)]
    assert "(1.5, 0.003) a message: by basic composition 1 x" in AppFacts(budgets=two).spent
    for text in ("", "{", "3", "[1]", "[[1, 2, 3]]", '[["a", 1, 1, 1]]', "[[NaN, 1, 1, 1]]", "[[-1, 0, 1, 1]]"):
        assert reported_budgets(text) == [], text
    assert reported_budgets("[[0.5, 0.001, 2, 1]]") == [ModBudget(0.5, 1e-3, 2.0, 1.0)]
