"""What an app says about its differential privacy: read from replies, mods and Flower's own wrappers, and checked by nobody."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from flwr.app import Error, MetricRecord, RecordDict
from flwr.serverapp import strategy as flower

from clients.external_app.mods import ModBudget
from clients.wire.schema import readable
from strategies.external_app.claim import ACCOUNTANT, METRICS, MOD, WRAPPER, Claim
from strategies.external_app.claimed_privacy import PrivacyClaims, wrappers_in, wrappers_named
from strategies.recording.strategy import RecordingStrategy
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
