"""The known breaks of Soteria and PRECODE: what a defence changes is left out, and the rest is matched as without it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from attacks import BottleneckInversion, InvertingGradients, OmittedLayerInversion
from attacks.gradient.inversion_target import Victim
from defenses import Precode, Soteria, parse
from defenses.random_draws import generator_for
from tests.attacks.gradient.clients import blind, defended, knowledge, mean_psnr, normalised, null_psnr
from tests.attacks.wire import classes, generators, observe, pictures, sigmoid_net

DEFENSE = Precode(size=16)
SETTINGS: dict[str, Any] = {"iterations": 150, "total_variation": 1e-4, "prior_decay": False}


def net() -> nn.Module:
    return DEFENSE.extended(sigmoid_net(), generator_for("first"))


def test_at_the_true_image_what_is_matched_agrees_exactly_whatever_was_drawn() -> None:
    seen, images = defended(DEFENSE, net)
    for at, one in enumerate(seen):
        victim, truth = Victim.of(one), normalised(images[at : at + 1]).view(1, -1)
        losses = []
        for attack in (BottleneckInversion, InvertingGradients):
            plain = attack(total_variation=0.0, prior_decay=False)
            trials = [(plain.prepare(0, one, victim, torch.Generator()), 0)]
            losses.append(float(plain._objective(trials, victim)(truth, torch.tensor([0]))[0]))
        assert losses[0] < 1e-5
        assert losses[1] > 0.02


@pytest.mark.long
@pytest.mark.numeric
def test_it_breaks_what_the_plain_attack_does_not_and_recovers_nothing_from_noise() -> None:
    seen, images = defended(DEFENSE, net)
    adaptive = mean_psnr(BottleneckInversion(**SETTINGS), seen, images)
    assert adaptive > 30
    assert adaptive > mean_psnr(InvertingGradients(**SETTINGS), seen, images) + 8
    assert mean_psnr(BottleneckInversion(**SETTINGS), blind(seen), images) < null_psnr("mean", images)


def test_labels_are_inferred_from_the_bias_and_several_examples_behind_a_bottleneck_are_refused() -> None:
    for attack, defense, build in (
        (BottleneckInversion, DEFENSE, net),
        (OmittedLayerInversion, Soteria(), sigmoid_net),
    ):
        hidden = [replace(one, labels=None) for one in defended(defense, build)[0]]
        guesses = attack(iterations=1).attack_many(hidden, generators(3))
        assert [int(guess.labels) for guess in guesses] == classes(3).tolist(), attack
    pair, _ = defended(DEFENSE, net, size=2)
    assert "covers 2 examples" in BottleneckInversion(iterations=2)(pair[0], generators(1)[0]).failure


def test_without_a_bottleneck_it_is_the_plain_attack() -> None:
    one = observe(sigmoid_net(), pictures(1), classes(1))
    found, plain = (
        attack(iterations=20)(one, generators(1)[0]).images for attack in (BottleneckInversion, InvertingGradients)
    )
    assert torch.equal(found, plain)


# ---- Soteria

NOISE = "GaussianNoise(std=0.001, per='update')"


@pytest.mark.long
@pytest.mark.numeric
def test_leaving_the_layer_out_breaks_what_the_plain_attack_does_not_and_noise_gives_nothing() -> None:
    seen, images = defended(Soteria(), sigmoid_net)
    plain, attack = InvertingGradients(**SETTINGS), OmittedLayerInversion(**SETTINGS)
    adaptive = mean_psnr(attack, seen, images)
    assert adaptive > mean_psnr(plain, seen, images) + 5
    assert adaptive > mean_psnr(plain, *defended(Soteria(fraction=0.0), sigmoid_net)) - 3
    assert mean_psnr(attack, blind(seen), images) < null_psnr("mean", images)


def test_it_finds_the_defended_layer_and_leaves_only_that_out() -> None:
    for decay in (0.0, 0.01):
        for fraction, expected in ((0.8, ["5.weight"]), (0.0, [])):
            for one in defended(Soteria(fraction=fraction), sigmoid_net, decay=decay)[0]:
                assert OmittedLayerInversion().defended(one) == expected, (decay, fraction)
                plain = one.gradient()
                for name, value in OmittedLayerInversion().observed_gradient(one).items():
                    assert value.any() != (name in expected)
                    if name not in expected:
                        assert (value != 0).all()
                        assert torch.equal(value, plain[name])
    # At least half of the columns: 144 of 288.
    (one, *_), _ = defended(Soteria(fraction=0.0), sigmoid_net)
    for columns, expected in ((144, ["5.weight"]), (143, [])):
        weight = one.update["5.weight"].clone()
        weight[:, :columns] = 0
        assert OmittedLayerInversion().defended(replace(one, update=one.update | {"5.weight": weight})) == expected


def test_a_named_layer_is_left_out_where_noise_has_erased_its_zeros() -> None:
    (seen, *_), _ = defended(Soteria(), sigmoid_net)
    noisy = replace(seen, update=parse(NOISE).protect_update(seen.update, ("n",)))
    assert OmittedLayerInversion().defended(noisy) == []
    for pipeline, layers in (
        (f"Soteria() | {NOISE}", ["5.weight"]),
        (f"Soteria(layer='5') | {NOISE}", ["5.weight"]),
        ("", []),
    ):
        fitted = OmittedLayerInversion().fit(knowledge(pipeline), torch.Generator())
        assert fitted.defended(noisy) == layers, pipeline
        assert fitted == OmittedLayerInversion()
