"""The machine of a run: what fits on it, and what is refused."""

import itertools
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from simulations.experiment.experiment import Experiment
from simulations.run.hardware import MOST_CLIENTS, CardShares, Hardware, card_shares
from simulations.settings.common import CHOSEN_SHARE, attack_share, environment_of
from simulations.settings.errors import ConfigError
from tests.simulations.commands import refused

pytestmark = pytest.mark.usefixtures("as_its_own_process")

MACHINE = Hardware(cores=8, cards=2)


def test_workers_are_as_many_as_fit_and_one_at_least() -> None:
    assert [MACHINE.workers(*of) for of in ((100, 3), (2, 1), (9, 16))] == [2, 2, 1]


def test_a_worker_must_find_room() -> None:
    MACHINE.require(8, 2.0)
    MACHINE.require(1, 0.5)
    MACHINE.require_cards("attack-gpus", 2.0)
    refused: list[tuple[Callable[[], None], str]] = [
        (lambda: MACHINE.require(9, 0.0), "--cpus-per-client is 9; this machine has 8"),
        (lambda: MACHINE.require(1, 3.0), "--gpus-per-client is 3; allowed: 0 to 2, the graphics cards of this"),
        (lambda: MACHINE.require(1, -0.5), r"--gpus-per-client is -0\.5; allowed: 0 to 2"),
        (lambda: MACHINE.require_cards("attack-gpus", 3.0), "attack-gpus is 3; allowed: 0 to 2"),
        (lambda: MACHINE.require(1, 1.5), r"is 1\.5; allowed: 0 to 1, or a whole number of graphics cards"),
    ]
    for require, told in refused:
        with pytest.raises(ConfigError, match=told):
            require()


def test_a_cluster_of_other_machines_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert "RAY_ADDRESS is set, and a run uses the Ray of its own machine" in refused("run", "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


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
