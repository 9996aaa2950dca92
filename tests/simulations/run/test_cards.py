"""Shares of graphics cards: all processes of a run find room at the same time, whatever order they start in."""

import itertools
import math

import pytest

from simulations.experiment.experiment import Experiment
from simulations.run.hardware import MOST_CLIENTS, CardShares, card_shares
from simulations.settings.common import CHOSEN_SHARE, attack_share, environment_of
from simulations.settings.errors import ConfigError


def test_clients_and_attacks_find_room_together() -> None:
    for case in itertools.product((1, 2, 3, 8), (1, 2, 3, 7, 16, 61), (0, 1, 2, 5)):
        cards, workers, attackers = case
        found = card_shares(*case)
        on_one = math.floor(1 / found.client)  # Ray takes no share from two cards
        assert min(math.ceil(workers / cards), MOST_CLIENTS) <= on_one <= MOST_CLIENTS, case
        started = math.floor(cards / found.client)  # as Flower reckons, if there are processors for so many
        if attackers:
            assert started <= on_one * cards, f"Flower would wait for a client process that finds no room: {case}"
            beside = math.floor((1 - on_one * found.client) / found.attack + 1e-9)
            assert beside * cards >= attackers, f"an attack worker would wait for ever: {case}"
        else:
            assert found.attack == 0, case


def test_shares_that_are_given_are_kept_and_without_a_card_none_is_reserved() -> None:
    assert card_shares(0, 4, 2) == CardShares(0)
    assert "processor" in str(CardShares(0))
    assert card_shares(1, 4, 2, client=0.25) == CardShares(1, 0.25, 0.0)  # which leaves nothing to reserve
    assert card_shares(1, 4, 2, client=0.3) == CardShares(1, 0.3, 0.05)
    assert card_shares(1, 4, 2, client=0.0) == CardShares(1)
    assert card_shares(1, 4, 2, client=1.0) == CardShares(1, 1.0, 0.0)
    assert card_shares(1, 4, 2, attack=0.4) == CardShares(1, 0.0, 0.4)
    assert card_shares(2, 4, 2, client=0.1, attack=0.0) == CardShares(2, 0.1, 0.0)
    assert card_shares(1, 2, 1) == CardShares(1, 0.3334, 0.3332)  # two of 10000 // 3 + 1, and what they leave


def test_shares_are_chosen_unless_they_are_set(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Experiment.of(attack_gpus="auto").attack_gpus == Experiment.of().attack_gpus == CHOSEN_SHARE
    with pytest.raises(ConfigError, match=r"attack-gpus is -0\.5; allowed: auto, or a number from 0"):
        Experiment.of(attack_gpus=-0.5)
    assert (Experiment.of().attackers, Experiment.of(attack_rounds="").attackers) == (2, 0)
    assert attack_share(CHOSEN_SHARE) == 0.0
    for name, value in environment_of(0.125, "1 x card").items():
        monkeypatch.setenv(name, value)
    assert attack_share(CHOSEN_SHARE) == 0.125
    assert attack_share(0.5) == 0.5
