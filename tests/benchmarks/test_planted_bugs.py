"""Flower's own classes are what the tables say, and an account with a planted bug has less noise."""

import logging
import math
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import flower_central_dp as central
import flower_local_dp as local
import pytest
from broken_clients import BROKEN_CLIENTS, ShortClientAccount

from clients.flower_private import act_as_task
from defenses.base import DEFENSES
from defenses.smashed.gaussian_mechanism import gaussian_epsilon
from defenses.updates.client_dp import ClientDP

# benchmarks/results/dp_audit.md has the bounds of 20 seeds and more at the budgets of these tests.
CLAIM: dict[str, Any] = {"target_epsilon": 2.0, "rounds": 2}


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


@pytest.mark.long
@pytest.mark.numeric
def test_flowers_mod_and_strategies_are_refuted_where_their_epsilon_is_too_small(subtests: pytest.Subtests) -> None:
    act_as_task()
    for setting, refuted in (
        (local.Setting(1.0, 10.0, clients=400), True), (local.Setting(2.0, 10.0, clients=400), False),
        (local.Setting(2.0, 1.0, clients=100, scalar=True), True),
    ):  # fmt: skip
        with subtests.test(setting=setting):
            found = local.audit(setting, 0)
            assert found.refuted == refuted
            if setting.scalar:
                assert "temperature" in found.refuted_by
            else:
                assert 1.0 < found.shown_gaussian.epsilon < setting.exact
    for setting in central.SETTINGS:
        with subtests.test(setting=setting):
            found = central.audit(replace(setting, runs=120 if setting.one else 12), 0)
            assert found.refuted
            assert found.shown_gaussian.epsilon < gaussian_epsilon(2 * setting.distance / central.NOISE, central.DELTA)


def test_flowers_noise_has_the_gaussian_epsilon_and_an_account_of_a_round_less_has_less_noise() -> None:
    std = math.sqrt(2 * math.log(1.25e5))
    assert local.Setting(1.0, 1.0, rounds=4).exact == pytest.approx(gaussian_epsilon(4 / std, 1e-5))
    assert local.Setting(1.0, 1.0, rounds=4).exact_zero_out == local.Setting(2.0, 1.0, rounds=4).exact
    assert local.Setting(2.0, 1.0).exact < 1.0 < local.Setting(1.0, 1.0).exact
    assert local.Setting(2.0, 1.0, scalar=True).exact == math.inf
    short, correct = ShortClientAccount(**CLAIM), ClientDP(**CLAIM)
    assert short.privacy(short.recorded(short.recorded({})))["epsilon"] == pytest.approx(2.0, rel=1e-6)
    assert short.noise == pytest.approx(correct.noise / math.sqrt(2))
    assert not {kind.__name__ for kind in BROKEN_CLIENTS} & set(DEFENSES)
