"""An inversion that chooses its settings on the server's own images: better than bad defaults, blind to the client's update."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from attacks import AttackError, InvertingGradients, Reconstruction, TunedInversion
from attacks.learned.learning_to_invert import noise_like
from attacks.learned.tuned_inversion import PRIORS, between
from defenses import Pruning
from tests.attacks.learned.test_learning_to_invert import decibels, knowledge, of_mean, seeded, victims

FLAT = {"total_variation": 100.0, "prior_decay": False, "iterations": 80}
"""Defaults under which every guess is one colour."""


@cache
def fitted(size: int = 1, tune: int = 12) -> TunedInversion:
    return TunedInversion(tune=tune, updates=2, **FLAT).fit(knowledge(size), seeded(1))


@pytest.mark.long
@pytest.mark.parametrize("size", [1, 2])
def test_what_is_chosen_on_own_images_serves_for_those_of_others(size: int) -> None:
    updates, truth = victims(size, None, count=6)
    tuned, plain = (decibels(attack, updates, truth) for attack in (fitted(size), InvertingGradients(**FLAT)))
    assert tuned.mean() > plain.mean() + 2
    assert tuned.mean() > of_mean(truth).mean()


def guesses(attack: TunedInversion, updates: list[Any]) -> list[Reconstruction]:
    return attack.attack_many(updates, [seeded(at) for at in range(len(updates))])


@pytest.mark.long
def test_the_client_s_update_does_not_enter_the_choice() -> None:
    (update,), _ = victims(1, None, count=1)
    noise = replace(update, update=noise_like(update.update, seeded(3)))
    told = [guesses(fitted(), [one])[0].diagnostics for one in (update, noise)]
    chosen = [{name: value for name, value in one.items() if name.startswith("tuned")} for one in told]
    assert chosen[0] == chosen[1]
    assert len(chosen[0]) == 5


@pytest.mark.long
def test_the_defaults_are_among_what_is_tried() -> None:
    """So that no choice is worse than they are, on the images by which it is made."""
    updates, _ = victims(1, None, count=1)
    told = guesses(fitted(), updates)[0].diagnostics
    assert told["tuned_psnr"] >= told["tuned_psnr_default"]
    good = TunedInversion(tune=2, updates=2, iterations=80).fit(knowledge(), seeded(1))
    assert good.learned is not None
    hopeless = {"total_variation": 100.0, "prior_decay": False}
    only = replace(good, learned=replace(good.learned, settings=({}, hopeless)))
    assert guesses(only, updates)[0].diagnostics["tuned_total_variation"] == good.total_variation


def test_it_is_fitted_to_what_the_clients_defences_send() -> None:
    pruned = Pruning(fraction=0.9, per="update")
    learned = TunedInversion(tune=2, updates=3).fit(knowledge(1, pruned), seeded(1)).learned
    assert learned is not None
    shares = [
        sum(int((v == 0).sum()) for v in u.values()) / sum(v.numel() for v in u.values()) for u in learned.updates
    ]
    assert min(shares) > 0.85


@pytest.mark.long
def test_the_same_seeds_give_the_same_guess() -> None:
    updates, _ = victims(1, None, count=2)
    both = guesses(fitted(), updates)
    alone = TunedInversion(tune=12, updates=2, **FLAT).fit(knowledge(), seeded(1)).attack_many(updates[1:], [seeded(1)])
    torch.testing.assert_close(both[1].images, alone[0].images, rtol=0, atol=1e-5)


def test_what_it_cannot_do_is_said() -> None:
    updates, _ = victims(2, None, count=1)
    with pytest.raises(AttackError, match="call fit first"):
        TunedInversion().attack_many(updates, [seeded(0)])
    with pytest.raises(AttackError, match="covers 2 examples; allowed: 1"):
        guesses(fitted(1), updates)
    with pytest.raises(AttackError, match="only probes of federated learning"):
        TunedInversion().fit(knowledge(probes=None), seeded(0))
    for wrong in ({"tune": 1}, {"updates": 0}, {"tune": 2.5}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            TunedInversion(**wrong)


def test_draws_are_even_in_the_logarithm() -> None:
    assert [between(PRIORS, share) for share in (0.0, 0.4, 1.0)] == [1e-4, 1e-2, 10.0]
