"""The scripts on client-level differential privacy: planted bugs are refuted, and Flower's own classes are what the tables say."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Iterator
from dataclasses import replace

import flower_central_dp as central
import flower_local_dp as local
import pytest
from broken_clients import (
    BROKEN_CLIENTS,
    BareTensor,
    HalfClientNoise,
    SameClientNoise,
    ShortClientAccount,
    TensorClip,
)

from attacks.dp_audit.canary_clients import TURNING, audit_client_dp
from attacks.dp_audit.verdict import ALL
from clients.flower_private import act_as_task
from defenses.registry import DEFENSES
from defenses.smashed.gaussian_mechanism import gaussian_epsilon
from defenses.updates.client_dp import ClientDP

CLAIM = {"target_epsilon": 2.0, "rounds": 2}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Flower writes lines for every message."""
    logger = logging.getLogger("flwr")
    before = logger.level
    logger.setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    logger.setLevel(before)


@pytest.mark.parametrize(
    ("kind", "view"),
    [(HalfClientNoise, ALL), (BareTensor, "2.bias"), (TensorClip, ALL), (SameClientNoise, TURNING)],
)
def test_planted_bugs_are_refuted_by_the_view_that_shows_them(kind: type[ClientDP], view: str) -> None:
    # benchmarks/results/dp_audit.md: 20 of 20 seeds each.
    found = audit_client_dp(kind(**CLAIM), clients=600, rounds=2)
    assert found.claimed == pytest.approx(2.0, rel=1e-6)
    assert view in found.refuted_by


def test_an_account_of_one_round_less_claims_the_same_and_has_less_noise() -> None:
    short, correct = ShortClientAccount(**CLAIM), ClientDP(**CLAIM)
    assert short.privacy(short.recorded(short.recorded({})))["epsilon"] == pytest.approx(2.0, rel=1e-6)
    assert short.noise == pytest.approx(correct.noise / math.sqrt(2))


def test_broken_defences_are_in_no_catalogue() -> None:
    assert not {kind.__name__ for kind in BROKEN_CLIENTS} & set(DEFENSES)


def test_the_exact_epsilon_of_flowers_noise() -> None:
    std = math.sqrt(2 * math.log(1.25e5))
    assert local.Setting(1.0, 1.0, rounds=4).exact == pytest.approx(gaussian_epsilon(4 / std, 1e-5))
    assert local.Setting(1.0, 1.0, rounds=4).exact_zero_out == local.Setting(2.0, 1.0, rounds=4).exact
    assert local.Setting(2.0, 1.0).exact < 1.0 < local.Setting(1.0, 1.0).exact
    assert local.Setting(2.0, 1.0, scalar=True).exact == math.inf


@pytest.mark.parametrize(
    ("setting", "refuted"),
    [
        (local.Setting(1.0, 10.0, clients=400), True),
        (local.Setting(2.0, 10.0, clients=400), False),
        (local.Setting(2.0, 1.0, clients=100, scalar=True), True),
    ],
)
def test_flowers_local_mod_is_refuted_where_its_epsilon_is_too_small(setting: local.Setting, refuted: bool) -> None:
    act_as_task()
    found = local.audit(setting, 0)
    assert found.refuted == refuted
    if setting.scalar:
        assert "temperature" in found.refuted_by
    else:
        assert 1.0 < found.shown_gaussian.epsilon < setting.exact


@pytest.mark.parametrize("number", range(len(central.SETTINGS)))
def test_flowers_central_strategies_show_more_than_their_claim(number: int) -> None:
    act_as_task()
    setting = central.SETTINGS[number]
    found = central.audit(replace(setting, runs=120 if setting.one else 12), 0)
    assert found.refuted
    assert found.shown_gaussian.epsilon < gaussian_epsilon(2 * setting.distance / central.NOISE, central.DELTA)
