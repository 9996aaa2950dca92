"""The known break of Soteria: without the defended layer the matching is as if there were no defence."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from attacks import InvertingGradients, Knowledge, OmittedLayerInversion, Reconstruction, score
from attacks.base import Attack
from attacks.observations import ClientUpdate
from defenses import Soteria, Training, parse
from defenses.base import Batch
from defenses.random_draws import generator_for
from tests.attacks.wire import CLASSES, MEAN, STD, classes, generators, observe, pictures, sigmoid_net

COUNT = 3


def knowledge(pipeline: str) -> Knowledge:
    def train(batch: Batch, seed: int) -> nn.Module:
        raise NotImplementedError

    return Knowledge(Batch(torch.zeros(0, 1, 12, 12), torch.zeros(0, 5)), parse(pipeline), MEAN, STD, train)


def defended(defense: Soteria, decay: float = 0.0) -> tuple[list[ClientUpdate], torch.Tensor]:
    """One step of SGD of each of COUNT clients, through the defence's own training."""
    images, labels = pictures(COUNT), classes(COUNT)
    seen = []
    for at in range(COUNT):
        model = sigmoid_net()
        made = Training(
            model=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=decay),
            loader=DataLoader(TensorDataset(images)),
            loss=lambda model, images, targets: F.cross_entropy(model(images), targets),
            epochs=1,
            total_epochs=1,
        )
        made = defense.protect_training(made, generator_for(at))
        one = (images[at : at + 1] - MEAN[0]) / STD[0]
        made.loss(model, one, F.one_hot(labels[at : at + 1], CLASSES).float()).backward()
        before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
        made.optimizer.step()
        update = {name: weight.detach() - before[name] for name, weight in model.named_parameters()}
        plain = observe(sigmoid_net(), images[at : at + 1], labels[at : at + 1], weight_decay=decay)
        seen.append(replace(plain, update=update))
    return seen, images


def psnr(attack: Attack, seen: list[ClientUpdate], images: torch.Tensor) -> float:
    guesses = attack.attack_many(seen, generators(COUNT))
    assert not any(guess.failure for guess in guesses)
    return sum(score(guess, images[i : i + 1])["psnr"][0] for i, guess in enumerate(guesses)) / COUNT


def quick(attack: type[InvertingGradients | OmittedLayerInversion]) -> Attack:
    return attack(iterations=150, total_variation=1e-4, prior_decay=False)


@pytest.mark.long
def test_leaving_the_layer_out_breaks_what_the_plain_attack_does_not() -> None:
    seen, images = defended(Soteria())
    plain, adaptive = psnr(quick(InvertingGradients), seen, images), psnr(quick(OmittedLayerInversion), seen, images)
    undefended, _ = defended(Soteria(fraction=0.0))
    without = psnr(quick(InvertingGradients), undefended, images)
    assert adaptive > plain + 5
    assert adaptive > without - 3


@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_it_finds_the_defended_layer_and_leaves_only_that_out(decay: float) -> None:
    for fraction, expected in ((0.8, ["5.weight"]), (0.0, [])):
        seen, _ = defended(Soteria(fraction=fraction), decay)
        for one in seen:
            assert OmittedLayerInversion().defended(one) == expected
            found, plain = OmittedLayerInversion().observed_gradient(one), one.gradient()
            for name, value in found.items():
                if name in expected:
                    assert not value.any()
                else:
                    assert (value != 0).all()
                    assert torch.equal(value, plain[name])


def test_a_named_layer_is_left_out_where_noise_has_erased_its_zeros() -> None:
    (seen, *_), _ = defended(Soteria())
    noisy = replace(seen, update=parse("GaussianNoise(std=0.001, per='update')").protect_update(seen.update, ("n",)))
    assert OmittedLayerInversion().defended(noisy) == []
    for text, layer in (("Soteria()", "5.weight"), ("Soteria(layer='5')", "5.weight")):
        fitted = OmittedLayerInversion().fit(
            knowledge(f"{text} | GaussianNoise(std=0.001, per='update')"), torch.Generator()
        )
        assert fitted.defended(noisy) == [layer]
        assert fitted == OmittedLayerInversion()
    assert OmittedLayerInversion().fit(knowledge(""), torch.Generator()).defended(noisy) == []


def test_labels_are_inferred_from_the_bias() -> None:
    seen, _ = defended(Soteria())
    hidden = [replace(one, labels=None) for one in seen]
    guesses = OmittedLayerInversion(iterations=2).attack_many(hidden, generators(COUNT))
    assert [int(guess.labels) for guess in guesses] == classes(COUNT).tolist()


@pytest.mark.long
def test_an_update_of_noise_gives_nothing() -> None:
    seen, images = defended(Soteria())
    stream = torch.Generator().manual_seed(5)
    blind = [
        replace(one, update={name: torch.randn(v.shape, generator=stream) for name, v in one.update.items()})
        for one in seen
    ]
    mean = score(mean_image(images), images)["psnr"]
    assert psnr(quick(OmittedLayerInversion), blind, images) < sum(mean) / COUNT


def mean_image(images: torch.Tensor) -> Reconstruction:
    return Reconstruction(images.mean(0, keepdim=True).expand_as(images), torch.zeros(len(images), dtype=torch.int64))
