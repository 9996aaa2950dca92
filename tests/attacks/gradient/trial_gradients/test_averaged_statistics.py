"""Running averages after several local steps, against a client that really trains in train mode."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_map

from attacks.gradient.inversion import GradientInversion
from attacks.gradient.inversion_target import Victim
from attacks.gradient.trial_gradients.averaged_statistics import (
    AveragedSteps,
    averaging_shares,
    observed_statistics,
    statistics_prior,
)
from attacks.gradient.trial_gradients.batch_statistics import Statistics, batch_norms, sent_statistics
from attacks.gradient.trial_gradients.local_steps import local_orders
from attacks.gradient.trial_gradients.matching import attackable
from attacks.observations import AttackError, ClientUpdate
from tests.attacks.gradient.trial_gradients.test_batch_statistics import bn_net
from tests.attacks.wire import CLASSES, MEAN, STD, classes, generators, observe, pictures


def normalised(images: Tensor) -> Tensor:
    return ((images - MEAN[0]) / STD[0]).double()


def trained(
    model: nn.Module, images: Tensor, batch: int, steps: int, rate: float = 0.05
) -> tuple[ClientUpdate, list[Statistics]]:
    """What a client sends after local steps in train mode, and the biased statistics of each step as hooks saw them."""
    labels = classes(len(images))
    client, seen = copy.deepcopy(model).train(), list[Statistics]()
    for name, layer in batch_norms(client).items():
        layer.register_forward_hook(
            lambda _, x, __, name=name: seen[-1].update(
                {name: (x[0].detach().mean((0, 2, 3)), x[0].detach().var((0, 2, 3), correction=0))}
            )
        )
    optimizer = torch.optim.SGD(client.parameters(), lr=rate)
    for indices in local_orders(len(images), batch, steps, torch.Generator().manual_seed(0)):
        seen.append({})
        optimizer.zero_grad()
        F.cross_entropy(client(normalised(images)[indices]), labels[indices]).backward()
        optimizer.step()
    before = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    after = {**dict(client.named_parameters()), **dict(client.named_buffers())}
    update = {name: (value - before[name]).detach() for name, value in after.items() if value.is_floating_point()}
    recipe = {"batch_size": batch, "local_steps": steps, "learning_rate": rate, "train_mode": True}
    return replace(observe(model.eval(), images, labels), model=model, update=update, **recipe), seen


def two_layers() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        first = [nn.Conv2d(1, 6, 5, 2, 2), nn.BatchNorm2d(6), nn.ReLU()]
        second = [nn.Conv2d(6, 6, 3, 2, 1), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(54, CLASSES)]
        return nn.Sequential(*first, *second).double()


def close(one: Statistics, other: Statistics, tolerance: float = 1e-9) -> bool:
    pairs = [pair for name in other for pair in zip(one[name], other[name], strict=True)]
    return all(torch.allclose(a, b, rtol=tolerance, atol=tolerance) for a, b in pairs)


@pytest.mark.parametrize(("count", "batch", "steps"), [(4, 4, 1), (4, 4, 3), (6, 2, 5), (5, 2, 6)])
@pytest.mark.parametrize("momentum", [0.1, 0.7])
def test_an_update_reveals_the_weighted_mean_of_the_statistics_of_its_steps(count, batch, steps, momentum):
    observation, seen = trained(bn_net(momentum).double(), pictures(count), batch, steps)
    found = sent_statistics(observation)
    assert list(found) == list(batch_norms(observation.model))
    assert close(AveragedSteps.of(observation).average(seen), found)
    shares = averaging_shares(momentum, steps)
    assert sum(shares) == pytest.approx(1)
    means = {name: sum(s * one[name][0] for s, one in zip(shares, seen, strict=True)) for name in found}
    assert all(torch.allclose(means[name], found[name][0]) for name in found)
    if steps > 1:  # no step has it alone
        assert not any(close(one, found, 1e-4) for one in seen)


def test_a_plain_average_and_averages_that_did_not_move_are_refused():
    observation, _ = trained(bn_net(None).double(), pictures(4), 2, 4)
    with pytest.raises(AttackError, match="plain average"):
        sent_statistics(observation)
    observation, _ = trained(bn_net().double(), pictures(4), 2, 4)
    kept = {name: torch.zeros_like(v) if "running" in name else v for name, v in observation.update.items()}
    with pytest.raises(AttackError, match="no running averages"):
        sent_statistics(replace(observation, update=kept))


def objective(attack: GradientInversion, observation: ClientUpdate, images: Tensor) -> float:
    victim = Victim.of(observation)
    target = attack.prepare(0, observation, victim, generators(1)[0])
    matching = attack._objective([(target, 0)], victim)
    return float(matching(normalised(images).flatten()[None], torch.tensor([0]))[0])


def test_the_unrolled_objective_is_zero_at_the_truth_and_its_statistics_count():
    observation, _ = trained(two_layers(), pictures(5), 2, 6)
    attack = GradientInversion(total_variation=0.0, batch_norm_prior=1.0, labels="known")
    assert abs(objective(attack, observation, pictures(5))) < 1e-9
    other = pictures(5, seed=1)
    without = objective(replace(attack, batch_norm_prior=0.0), observation, other)
    with_statistics = objective(attack, observation, other)
    assert with_statistics > without + 0.01
    twice = objective(replace(attack, batch_norm_prior=2.0), observation, other)
    assert twice - without == pytest.approx(2 * (with_statistics - without), rel=1e-6)


def test_without_unrolling_the_statistics_are_those_on_the_line_between_the_models():
    """Exact where the weights do not move; where they move little, far nearer for the true images than for others."""
    for rate, worst in ((1e-9, 1e-9), (0.005, 0.02)):
        observation, _ = trained(two_layers(), pictures(5), 2, 6, rate)
        statistics = sent_statistics(observation)
        observed = observed_statistics([observation], [statistics])
        prior = statistics_prior(attackable(observation.model, True), observation, 1.0)
        mine = tree_map(lambda values: values[0], observed)
        truth, other = (float(prior(normalised(pictures(5, seed=seed)), mine)) for seed in (0, 1))
        print(f"rate {rate}: {truth:.3g} at the truth, {other:.3g} at other images")
        assert truth < worst * other
        at_global = mine._replace(moves={name: torch.zeros_like(move) for name, move in mine.moves.items()})
        assert rate == 1e-9 or truth < float(prior(normalised(pictures(5)), at_global)) / 8


@pytest.mark.parametrize("unrolled", [16, 0])
def test_an_attack_on_several_steps_matches_them_together_as_one_by_one(unrolled):
    model = two_layers()
    seen = [trained(model, pictures(2, seed=seed), 2, steps)[0] for seed, steps in ((0, 2), (1, 2), (2, 3))]
    attack = GradientInversion(iterations=3, batch_norm_prior=1.0, max_unrolled_steps=unrolled)
    for observation, generator, expected in zip(
        seen, generators(3), attack.attack_many(seen, generators(3)), strict=True
    ):
        alone = attack(observation, generator)
        assert expected.failure == ""
        assert expected.diagnostics["unrolled"] == float(unrolled > 0)
        assert expected.diagnostics["batch_norm_layers"] == len(batch_norms(observation.model))
        assert torch.allclose(alone.images, expected.images, atol=1e-6)


@pytest.mark.parametrize("unrolled", [16, 0])
def test_frozen_parameters_that_were_not_sent_take_no_part(unrolled):
    model = two_layers()
    observation, _ = trained(model, pictures(2), 2, 3)
    model[0].requires_grad_(False)
    update = {name: value for name, value in observation.update.items() if name not in ("0.weight", "0.bias")}
    attack = GradientInversion(iterations=3, batch_norm_prior=1.0, max_unrolled_steps=unrolled)
    found, whole = attack.attack_many([replace(observation, update=update), observation], generators(2))
    assert found.failure == whole.failure == ""
    assert found.diagnostics["batch_norm_layers"] == len(batch_norms(model))
    assert float(found.diagnostics["objective"]) > 0
