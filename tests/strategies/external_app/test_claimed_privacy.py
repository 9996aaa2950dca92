"""What an app reports of its differential privacy, of the budgets of its mods and of its accuracy."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp.mod import LocalDpMod
from flwr.serverapp import strategy as flower
from torch import Tensor

from clients.external_app.mods import ModBudget, budgets
from clients.flower_private import set_message_id
from clients.wire.schema import readable
from strategies.external_app.claim import (
    ACCOUNTANT,
    CLIENTS,
    METRICS,
    MOD,
    SERVER,
    WRAPPER,
    AppAccuracy,
    Claim,
    ReportedAccuracy,
)
from strategies.external_app.claimed_privacy import PrivacyClaims, wrappers_in, wrappers_named
from strategies.external_app.record import AppFacts
from strategies.external_app.replies import reported_budgets
from strategies.recording.strategy import RecordingStrategy
from tests.strategies.external_app.audits import node_of
from tests.strategies.stub_grid import reply_of

PLAIN = flower.FedAvg(fraction_evaluate=0.0)
WRAPPED = (
    flower.DifferentialPrivacyServerSideFixedClipping(PLAIN, 1.5, 0.5, 2),
    flower.DifferentialPrivacyClientSideFixedClipping(PLAIN, 1.5, 0.5, 2),
    flower.DifferentialPrivacyServerSideAdaptiveClipping(PLAIN, 1.5, 2, 0.5, clipped_count_stddev=10.0),
    flower.DifferentialPrivacyClientSideAdaptiveClipping(PLAIN, 1.5, 2, 0.5, clipped_count_stddev=10.0),
)


def metrics_claim(*rounds: Mapping[int, Mapping[str, Any]]) -> Claim | None:
    claims = PrivacyClaims()
    for number, nodes in enumerate(rounds, 1):
        claims.observe(
            number, [reply_of(RecordDict({"metrics": MetricRecord(dict(one))}), node) for node, one in nodes.items()]
        )
    found = claims.found()
    assert len(found) <= 1
    return found[0] if found else None


class Accountant:
    """Stands for ``flwr.serverapp.RdpAccountant``, whose package is not among those of fedveil."""

    def __init__(self, epsilon: Any, delta: Any = 1e-6) -> None:
        self.epsilon, self.delta, self.config = epsilon, delta, SimpleNamespace(max_epsilon=8.0)

    def get_privacy_spent(self) -> Any:
        if self.epsilon is None:
            raise RuntimeError("no release\nyet")
        return SimpleNamespace(epsilon=self.epsilon, delta=self.delta)


def accounted(accountant: Accountant) -> Claim:
    wrapper = flower.DifferentialPrivacyServerSideFixedClipping(PLAIN, 1.0, 0.5, 2)
    wrapper.accountant = accountant  # type: ignore[assignment]
    (found,) = PrivacyClaims(wrappers_in(wrapper)).found()
    return found


def test_a_row_that_was_tampered_with_gives_no_claim() -> None:
    kept = Claim(METRICS, "said", 2, 3.0, 1.0, 1e-5, "a note")
    told = json.loads(json.dumps(asdict(kept)))
    assert readable(Claim, told) == kept
    odd = ({"text": 3}, {"text": ""}, {"epsilon": "inf"}, {"delta": 2.0}, {"lowest": -1}, {"rounds": None})
    assert not any(readable(Claim, found) for found in (None, 3, [], {}, *({**told, **one} for one in odd)))


def test_metrics_of_flowers_opacus_example_are_a_claim() -> None:
    one = {"num-examples": 100, "epsilon": 13.84, "target_delta": 1e-5, "noise_multiplier": 1.0, "max_grad_norm": 1.2}
    two = one | {"epsilon": 6.071, "noise_multiplier": 1.5}
    found = metrics_claim({11: one, 12: two}, {11: one, 12: two}, {11: {"num-examples": 100}})
    assert found is not None
    assert (found.source, found.epsilon, found.lowest, found.delta, found.rounds) == (METRICS, 13.84, 6.071, 1e-5, 2)
    assert "fedveil did not check this claim" in found.text
    assert found.number == "13.84 (the app's word)"
    # Many apps clip gradients, and a delta may be anything.
    for metrics, claims in (
        ({"dp-epsilon": 2}, True), ({"EPSILON": 2.0}, True), ({"noise-multiplier": 1.0}, True),
        ({"max_grad_norm": 1.0, "delta": 0.1, "loss": 2.0}, False), ({"eps": 1e-8, "epsilon-greedy": 0.1}, False),
        ({"num-examples": 3}, False),
    ):  # fmt: skip
        assert (metrics_claim({1: metrics}) is not None) is claims, metrics
    failed = PrivacyClaims()
    failed.observe(1, [reply_of(Error(code=1, reason="out of memory"), 1)])
    assert failed.found() == []


def test_a_value_that_is_no_number_from_0_on_is_named_and_left_out() -> None:
    """JSON has neither NaN nor infinity: a recording holds their names; a truth value is no number either."""
    odd: Any
    for odd in (
        math.nan, math.inf, -math.inf, -1.0, 1e200, 10**17 * 10**90, [1.0, 2.0], "nan", "inf", None, True, {"a": 1},
    ):  # fmt: skip
        claims = PrivacyClaims()
        claims.read(1, 5, [{"epsilon": odd, "delta": 1e-5}])
        (alone,) = claims.found()
        assert (alone.epsilon, alone.lowest, alone.delta, alone.number) == (None, None, 1e-5, ""), odd
        assert "1 value of epsilon was left out" in alone.text
        claims.read(1, 6, [{"epsilon": 3.0, "delta": 1.0}])
        (beside,) = claims.found()
        assert (beside.epsilon, beside.lowest, beside.delta) == (3.0, 3.0, 1e-5)
        assert "1 value of delta was left out" in beside.text
        json.dumps(asdict(beside), allow_nan=False)


def test_flowers_wrappers_are_found_inside_others_with_their_settings(tmp_path: Path) -> None:
    """Their noise comes after the server received the updates, and protects no client against this server."""
    for wrapper in WRAPPED:
        claims = PrivacyClaims(wrappers_in(RecordingStrategy(wrapper, tmp_path / type(wrapper).__name__)))
        claims.observe(1, [])
        claims.observe(2, [])
        (found,) = claims.found()
        assert (found.source, found.rounds, found.epsilon, found.number) == (WRAPPER, 2, None, "")
        assert f"noise multiplier {wrapper.noise_multiplier:.4g} and clipping norm 0.5" in found.text
        assert "So the noise does not protect the clients against this server." in found.text
    assert wrappers_in(PLAIN) == wrappers_in(None) == []
    assert wrappers_named(["RecordingStrategy", "FedAvg", "DifferentialPrivacyMine"]) == []
    silent = flower.DifferentialPrivacyServerSideFixedClipping(PLAIN, 0.0, 0.5, 2)
    broken = flower.DifferentialPrivacyServerSideFixedClipping(
        PLAIN, math.nan, 0.5, 2
    )  # Flower refuses negative numbers only
    first, second = PrivacyClaims([silent, broken]).found()
    assert "With this multiplier it adds no noise." in first.text
    assert "noise multiplier unknown (no finite number from 0 on)" in second.text


def test_an_accountants_epsilon_is_named_and_one_that_fails_ends_no_audit() -> None:
    found = accounted(Accountant(2.125))
    assert (found.source, found.epsilon, found.delta) == (ACCOUNTANT, 2.125, 1e-6)
    assert found.detail == "δ = 1e-06, server accountant, not against this server"
    for epsilon, said in (
        (None, "gave no number (RuntimeError: no release yet)"),
        (math.inf, "gives an epsilon that is no finite number from 0 on"),
        ("2", "gives an epsilon that is no finite number from 0 on"),
    ):
        failed = accounted(Accountant(epsilon))
        assert failed.epsilon is None
        assert said in failed.text


def test_mods_claim_what_they_are_set_to() -> None:
    claims = PrivacyClaims()
    claims.observe(1, [])
    text = "LocalDpMod(clipping_norm=0.5, sensitivity=1.0, epsilon=2.0, delta=0.001) | fixedclipping_mod"
    local, clip = claims.found(text, [ModBudget(2.0, 1e-3, 1.0, 0.5)])
    assert (local.source, local.epsilon, local.delta, local.note) == (MOD, 2.0, 1e-3, "for each message")
    assert clip.epsilon is None
    (weak,) = claims.found("LocalDpMod(epsilon=2.0)", [ModBudget(2.0, 1e-3, 1.0, 1.0)])
    assert "it is for a sensitivity of 1, and two clipped updates lie up to 2 apart" in weak.text
    assert claims.found("Clip(max_norm=1.0, per='update') | arrays_size_mod") == []


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
        spent = AppFacts(None, budgets=[budget], probes=3).spent
        assert ("by basic composition" in spent) is holds
        why = f"it is for a sensitivity of {sensitivity:g}, and two updates of norm 1 lie up to 2 apart"
        assert (why in spent) is not holds


def test_what_is_spent_is_added_up_and_a_budget_that_is_none_is_not() -> None:
    assert AppFacts(None, probes=3).spent == ""
    spent = AppFacts(None, budgets=[ModBudget(10.0, 1e-3, 2.0, 1.0)], probes=3).spent
    assert "(40, 0.004)" in spent
    assert "holds for an epsilon of at most 1 only" in spent
    two = [ModBudget(1.0, 1e-3, 2.0, 1.0), ModBudget(0.5, 2e-3, 9.0, 1.0)]
    assert "(1.5, 0.003) a message: by basic composition 1 x" in AppFacts(None, budgets=two).spent
    for text in ("", "{", "3", "[1]", "[[1, 2, 3]]", '[["a", 1, 1, 1]]', "[[NaN, 1, 1, 1]]", "[[-1, 0, 1, 1]]"):
        assert reported_budgets(text) == [], text
    assert reported_budgets("[[0.5, 0.001, 2, 1]]") == [ModBudget(0.5, 1e-3, 2.0, 1.0)]


def test_of_several_metrics_the_latest_and_then_the_plainest_counts() -> None:
    reports = ReportedAccuracy()
    reports.observe(SERVER, 0, {"accuracy": 0.098})
    assert reports.found() is None, "round 0 is before training"
    reports.observe(SERVER, 1, {"accuracy": 0.3})
    reports.observe(CLIENTS, 2, {"val_acc": 0.1, "eval_accuracy": 0.8, "accuracy": 0.7, 1: 0.5})  # type: ignore[dict-item]
    assert reports.found() == AppAccuracy(0.7, "accuracy", CLIENTS, 2)
    reports.observe(SERVER, 2, {"test_acc": 0.6})
    assert reports.found() == AppAccuracy(0.6, "test_acc", SERVER, 2)


def test_names_and_values_of_accuracies_are_told_from_others() -> None:
    good = ("accuracy", "eval_acc", "test-accuracy", "evalAcc", "central_accuracy", "top1_acc")
    others = (
        "loss", "train_acc", "top5_accuracy", "accountant", "accelerator", "vacc", "accuracy_std", "top10_accuracy",
        "backdoor_accuracy", "accuracy_class_0", "acc@5", "fit_accuracy",
    )  # fmt: skip
    for name in (*good, *others):
        reports = ReportedAccuracy()
        reports.observe(CLIENTS, 1, {name: 0.5})
        assert (reports.found() is not None) is (name in good), name
    for value in (-0.1, 100.5, math.nan, math.inf, True, [0.5], "0.5"):
        reports = ReportedAccuracy()
        reports.observe(SERVER, 1, {"accuracy": value})
        assert reports.found() is None, value
    for data in (None, 3, {}, {"value": 2, "round": 1}, {"value": "x", "round": 1}, {"value": 0.5}):
        assert readable(AppAccuracy, data) is None, data
    kept = AppAccuracy(0.5, "acc", SERVER, 1)
    assert readable(AppAccuracy, asdict(kept)) == kept


def test_percent_is_recognised_over_all_rounds_and_not_by_rounding() -> None:
    for first, last, expected in ((40.0, 0.8, 0.008), (1.0000000000000002, 0.97, 0.97)):
        reports = ReportedAccuracy()
        reports.observe(SERVER, 1, {"accuracy": first})
        reports.observe(SERVER, 2, {"accuracy": last})
        assert reports.found() == AppAccuracy(expected, "accuracy", SERVER, 2)
