"""Gradient inversion of updates of several local steps, against a client that runs torch's own SGD."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attacks.gradient.costs import COSTS
from attacks.gradient.inversion import GradientInversion
from attacks.gradient.presets import DLG
from attacks.gradient.trial_gradients.local_steps import local_orders
from attacks.gradient.trial_gradients.matching import GradientMatching, MatchingProblem, attackable, unrolled_client
from attacks.observations import ClientUpdate
from attacks.scoring.metrics import null_baselines, score
from tests.attacks.wire import CLASSES, MEAN, STD, generators, observe, pictures, sigmoid_net

QUASI_NEWTON: dict[str, Any] = {
    "cost": "l2",
    "optimizer": "lbfgs",
    "signed": False,
    "learning_rate": 1.0,
    "line_search": True,
    "step_decay": False,
    "total_variation": 0.0,
    "iterations": 80,
}


def normalised(images: Tensor) -> Tensor:
    return (images - MEAN[0]) / STD[0]


def trained(
    model: nn.Module, images: Tensor, labels: Tensor, order: list[list[int]], rate: float = 0.1, **options: float
) -> ClientUpdate:
    """What a client sends after these batches, in the mode that ``model`` is in."""
    client = copy.deepcopy(model)
    optimizer = torch.optim.SGD(client.parameters(), lr=rate, **options)
    inputs = normalised(images).to(next(client.parameters()))
    for batch in order:
        optimizer.zero_grad()
        F.cross_entropy(client(inputs[batch]), labels[batch]).backward()
        optimizer.step()
    weights = dict(model.named_parameters())
    update = {name: (p - weights[name]).detach() for name, p in client.named_parameters()}
    told = {"batch_size": len(order[0]), "local_steps": len(order), "learning_rate": rate, **options}
    return replace(observe(model, images, labels), update=update, **told)


def psnr(attack: GradientInversion, observation: ClientUpdate, images: Tensor) -> float:
    scores = score(attack(observation, generators(1)[0]), images)["psnr"]
    return sum(scores) / len(scores)


def case(seed: int, batches: str, rate: float = 0.1) -> tuple[ClientUpdate, Tensor]:
    """Two images, alone in their batches, as in "0110" for two epochs."""
    images = pictures(2, seed=seed)
    order = [[int(index)] for index in batches]
    return trained(sigmoid_net(seed=1).double(), images, torch.tensor([0, 1]), order, rate), images


@pytest.mark.parametrize("cost", ["cosine", "l2", "l1"])
@pytest.mark.parametrize("options", [{}, {"momentum": 0.9, "weight_decay": 0.1}], ids=repr)
def test_objective_is_zero_at_the_truth_and_only_when_unrolled(cost, options):
    model, images, labels = sigmoid_net().double(), pictures(5), torch.tensor([0, 1, 2, 3, 4])
    order = local_orders(5, 2, 7, torch.Generator().manual_seed(0))
    seen = trained(model, images, labels, order, 0.3, **options)
    private = attackable(model, train_mode=False)
    targets = {name: value[None] for name, value in seen.gradient().items()}
    truth = normalised(images).double().flatten()[None]
    losses = [
        GradientMatching(
            MatchingProblem(private, tuple(images.shape), CLASSES, targets, labels[None], COSTS[cost], 0.0, client)
        )(truth, torch.tensor([0]))[0].item()
        for client in (unrolled_client(private, seen), None)
    ]
    assert abs(losses[0]) < 1e-10
    assert losses[1] > 1e-4


def test_one_unrolled_step_is_the_gradient_itself():
    """Costs keep their scale: the same number, whichever way one step is written."""
    model, images, labels = sigmoid_net().double(), pictures(3), torch.tensor([0, 1, 2])
    seen = trained(model, images, labels, [[0, 1, 2]], 0.02, weight_decay=0.1)
    private = attackable(model, train_mode=False)
    guess = normalised(pictures(3, seed=1)).double()
    soft = F.one_hot(labels, CLASSES).double()
    weights = {name: p.detach() for name, p in private.named_parameters()}
    simulated = unrolled_client(private, seen)(weights, guess, soft)
    direct = torch.autograd.grad(F.cross_entropy(private(guess), labels), list(private.parameters()))
    assert all(torch.allclose(a, b, atol=1e-10) for a, b in zip(simulated.values(), direct, strict=True))


@pytest.mark.long
@pytest.mark.parametrize("batches", ["01", "0101"])
def test_unrolling_beats_the_mean_gradient(batches):
    found = []
    for seed in (3, 4):
        observation, images = case(seed, batches)
        attack = GradientInversion(**QUASI_NEWTON | {"cost": "cosine"})
        found.append([psnr(replace(attack, max_unrolled_steps=steps), observation, images) for steps in (16, 0)])
        print(f"{batches} seed {seed}: psnr unrolled {found[-1][0]:.1f} dB, as one mean gradient {found[-1][1]:.1f} dB")
    assert all(unrolled > averaged + 5 and unrolled > 18 for unrolled, averaged in found)


@pytest.mark.long
def test_a_wrong_deal_of_labels_is_found_out_by_restarts():
    """The client met class 1 first. The deal is chosen by the objective, which only the right one brings to zero."""
    observation, images = case(3, "10")
    guess = GradientInversion(**QUASI_NEWTON, restarts=4)(observation, generators(1)[0])
    scores = score(guess, images)["psnr"]
    print(f"psnr {sum(scores) / 2:.1f} dB, restart {guess.diagnostics['restart']}")
    assert guess.labels.tolist() == [1, 0]
    assert sum(scores) / 2 > 18


@pytest.mark.parametrize("attack", [GradientInversion(iterations=6), DLG(iterations=6)], ids=repr)
def test_together_equals_one_by_one(attack):
    seen = [case(seed, batches)[0] for seed, batches in ((3, "01"), (4, "01"), (3, "0110"))]
    seen += [replace(seen[0], learning_rate=0.05), replace(seen[0], labels=None)]
    together = attack.attack_many(seen, generators(5))
    for observation, generator, expected in zip(seen, generators(5), together, strict=True):
        alone = attack(observation, generator)
        assert expected.failure == ""
        assert expected.diagnostics["unrolled"] == 1
        assert torch.allclose(alone.images, expected.images, atol=1e-6)
        assert alone.labels.tolist() == expected.labels.tolist()


def test_unrolls_only_what_fits():
    observation, _ = case(3, "01")
    for attack, expected in (
        (GradientInversion(iterations=1), 1),
        (GradientInversion(iterations=1, max_unrolled_steps=1), 0),
        (GradientInversion(iterations=1, max_images=1), 0),
    ):
        assert attack(observation, generators(1)[0]).diagnostics["unrolled"] == expected
    one_step = replace(observation, local_steps=1)
    assert "unrolled" not in GradientInversion(iterations=1)(one_step, generators(1)[0]).diagnostics


def test_noise_is_not_reconstructed():
    observation, images = case(3, "01")
    noise = {name: torch.randn(p.shape, generator=generators(1)[0]).double() for name, p in observation.update.items()}
    grey = score(null_baselines(images, images.mean(0))["grey"], images)["psnr"]
    assert psnr(GradientInversion(**QUASI_NEWTON), replace(observation, update=noise), images) < sum(grey) / 2 + 1
