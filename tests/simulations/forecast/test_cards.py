"""Shares of graphics cards: all processes of a run find room at the same time, whatever order they start in."""

from __future__ import annotations

import math

import pytest

from simulations.experiment.experiment import Experiment
from simulations.forecast.cards import MOST_CLIENTS, CardShares, card_shares, shares_of
from simulations.report.page import page
from simulations.run_folder.run_times import RunTimes
from simulations.settings.chosen_shares import attack_share, environment_of
from simulations.settings.common import CHOSEN_SHARE
from simulations.settings.errors import ConfigError


@pytest.mark.parametrize("cards", [1, 2, 3, 8])
@pytest.mark.parametrize("workers", [1, 2, 3, 7, 16, 61])
@pytest.mark.parametrize("attackers", [0, 1, 2, 5])
def test_clients_and_attacks_find_room_together(cards: int, workers: int, attackers: int) -> None:
    found = card_shares(cards, workers, attackers)
    on_one = math.floor(1 / found.client)  # Ray takes no share from two cards
    assert on_one >= min(math.ceil(workers / cards), MOST_CLIENTS)
    assert on_one <= MOST_CLIENTS
    started = math.floor(cards / found.client)  # as Flower reckons, if there are processors for so many
    if attackers:
        assert started <= on_one * cards, "Flower would wait for a client process that finds no room"
        beside = math.floor((1 - on_one * found.client) / found.attack + 1e-9)
        assert beside * cards >= attackers, "an attack worker would wait for ever"
    else:
        assert found.attack == 0


def test_without_a_card_nothing_is_reserved() -> None:
    assert card_shares(0, 4, 2) == CardShares(0)
    assert "processor" in str(CardShares(0))


def test_shares_that_are_given_are_kept() -> None:
    assert card_shares(1, 4, 2, client=0.25) == CardShares(1, 0.25, 0.0)  # which leaves nothing to reserve
    assert card_shares(1, 4, 2, client=0.3) == CardShares(1, 0.3, 0.05)
    assert card_shares(1, 4, 2, client=0.0) == CardShares(1)
    assert card_shares(1, 4, 2, attack=0.4) == CardShares(1, 0.0, 0.4)
    assert card_shares(2, 4, 2, client=0.1, attack=0.0) == CardShares(2, 0.1, 0.0)


def test_auto_is_the_default_and_a_share_is_none_below_0() -> None:
    assert Experiment.of(attack_gpus="auto").attack_gpus == Experiment.of().attack_gpus == CHOSEN_SHARE
    with pytest.raises(ConfigError, match=r"attack-gpus is -0\.5; allowed: auto, or at least 0"):
        Experiment.of(attack_gpus=-0.5)
    assert shares_of(Experiment.of(), 3, None, 1) == card_shares(1, 3, 2)
    assert shares_of(Experiment.of(attack_rounds=""), 3, None, 1) == card_shares(1, 3, 0)


def test_the_server_takes_the_share_that_was_chosen_and_a_setting_before_it() -> None:
    chosen = environment_of(0.125, "1 x card")
    assert attack_share(CHOSEN_SHARE, chosen) == 0.125
    assert attack_share(0.5, chosen) == 0.5
    assert attack_share(CHOSEN_SHARE, {}) == 0.0


def test_a_run_names_its_machines_and_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment_of(0.0, "Ray cluster h:1: 2 nodes").items():
        monkeypatch.setenv(name, value)
    about = RunTimes().about()
    assert about["machines"] == "Ray cluster h:1: 2 nodes"
    assert page.about(about)[-1] == "Ray cluster h:1: 2 nodes"
