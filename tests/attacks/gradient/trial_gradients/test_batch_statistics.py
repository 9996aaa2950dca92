"""Batch statistics that a client's running averages reveal over one step or several."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

import attacks.gradient.trial_gradients.batch_statistics as averaged
from attacks import InvertingGradients
from attacks.gradient.inversion import GradientInversion
from attacks.gradient.inversion_target import Victim
from attacks.gradient.trial_gradients.batch_statistics import (
    Statistics,
    batch_norms,
    sent_statistics,
    statistics_distance,
)
from attacks.gradient.trial_gradients.local_steps import local_orders
from attacks.gradient.trial_gradients.matching import attackable
from attacks.observations import AttackError, ClientUpdate
from tests.attacks.gradient.clients import (
    bn_net,
    close,
    direct_statistics,
    moments,
    normalised,
    sent,
    trained,
    two_layers,
)
from tests.attacks.wire import CLASSES, classes, generators, linear_net, observe, pictures


def test_sent_statistics_are_those_of_the_batch() -> None:
    for count, momentum in ((1, 0.1), (4, 0.1), (3, 0.7)):
        model, images = bn_net(momentum), pictures(count)
        found = sent_statistics(sent(model, images, classes(count)))
        assert list(found) == list(batch_norms(model))
        assert close(found, direct_statistics(model, images), 1e-4), (count, momentum)
    vectors = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(144), nn.Linear(144, CLASSES))
    found, rows = sent_statistics(sent(vectors, pictures(5), classes(5))), normalised(pictures(5)).flatten(1)
    assert close(found, {"1": (rows.mean(0), rows.var(0, correction=0))}, 1e-4)


def test_the_distance_is_relative_to_the_observed_variance_and_leaves_out_noised_ones() -> None:
    layer = lambda mean, variance: {"layer": (torch.tensor(mean), torch.tensor(variance))}  # noqa: E731
    observed, dummy = layer([1.0, 2.0], [0.5, 0.25]), layer([1.5, 1.0], [1.0, 0.0])
    off = [0.25 / 0.5 + (0.5 / 0.5) ** 2, 1.0 / 0.25 + (0.25 / 0.25) ** 2]
    assert statistics_distance(observed, dummy).item() == pytest.approx(sum(off) / 2, rel=1e-4)
    assert statistics_distance(observed, observed) == 0
    with pytest.raises(AttackError, match="lack"):
        statistics_distance(observed, {})
    # Noise pushed a variance below zero. Relative to eps alone the truth would be at 5e7, the other batch at 5e3.
    noised = layer([0.0, 0.0], [0.1, 0.0])
    assert statistics_distance(noised, layer([0.0, 0.0], [0.1, 0.1])) == 0
    assert statistics_distance(noised, layer([0.0, 0.0], [0.3, 0.001])) > 1


def test_what_holds_no_statistics_is_refused() -> None:
    model, images, labels = bn_net(), pictures(2), classes(2)
    seen = sent(model, images, labels)
    for broken, why in (
        (replace(seen, train_mode=False), "eval mode"),
        (replace(seen, update={name: torch.zeros_like(v) for name, v in seen.update.items()}), "no running averages"),
        (replace(seen, update={name: torch.ones(1) for name in seen.update}), "shape"),
        (observe(linear_net(), images, labels), "no running averages"),
        (replace(seen, model=bn_net(None)), "plain average"),
    ):
        with pytest.raises(AttackError, match=why):
            sent_statistics(broken)
    noisy = replace(seen, update={name: value - 10 for name, value in seen.update.items()})
    assert all(value[1].min() >= 0 for value in sent_statistics(noisy).values())


# ---- over several local steps


def rounds(
    model: nn.Module, count: int, batch: int, steps: int, rate: float = 0.05, seed: int = 0
) -> tuple[ClientUpdate, list[Statistics]]:
    """What a client sends after local steps in train mode, and the biased statistics of each step as hooks saw them."""
    order = local_orders(count, batch, steps, torch.Generator().manual_seed(0))
    layers, entered = batch_norms(model), list[tuple[str, tuple[Tensor, Tensor]]]()
    handles = [
        layer.register_forward_hook(lambda _, x, __, name=name: entered.append((name, moments(x[0].detach()))))
        for name, layer in layers.items()
    ]
    seen = trained(model.train(), pictures(count, seed=seed), classes(count), order, rate)
    for handle in handles:
        handle.remove()
    return seen, [dict(entered[at * len(layers) : (at + 1) * len(layers)]) for at in range(steps)]


def test_an_update_reveals_the_weighted_mean_of_the_statistics_of_its_steps() -> None:
    for count, batch, steps in ((4, 4, 1), (4, 4, 3), (6, 2, 5), (5, 2, 6)):
        for momentum in (0.1, 0.7):
            observation, seen = rounds(bn_net(momentum).double(), count, batch, steps)
            found = sent_statistics(observation)
            assert list(found) == list(batch_norms(observation.model))
            assert close(averaged.AveragedSteps.of(observation).average(seen), found), (count, batch, steps, momentum)
            shares = averaged.averaging_shares(momentum, steps)
            assert sum(shares) == pytest.approx(1)
            means = {name: sum(s * one[name][0] for s, one in zip(shares, seen, strict=True)) for name in found}
            assert all(torch.allclose(means[name], found[name][0]) for name in found)
            # No step has it alone.
            assert steps == 1 or not any(close(one, found, 1e-4) for one in seen)


def objective(attack: GradientInversion, observation: ClientUpdate, seed: int = 0) -> float:
    victim = Victim.of(observation)
    matching = attack._objective([(attack.prepare(0, observation, victim, generators(1)[0]), 0)], victim)
    images = normalised(pictures(observation.num_examples, seed=seed)).to(next(observation.model.parameters()))
    return float(matching(images.flatten()[None], torch.tensor([0]))[0])


def test_the_unrolled_objective_is_zero_at_the_truth_and_its_statistics_count() -> None:
    observation, _ = rounds(two_layers(), 5, 2, 6)
    attack = GradientInversion(total_variation=0.0, batch_norm_prior=1.0, labels="known")
    assert abs(objective(attack, observation)) < 1e-9
    without, once, twice = (objective(replace(attack, batch_norm_prior=w), observation, 1) for w in (0.0, 1.0, 2.0))
    assert once > without + 0.01
    assert twice - without == pytest.approx(2 * (once - without), rel=1e-6)


@pytest.mark.numeric
def test_without_unrolling_the_statistics_are_those_on_the_line_between_the_models() -> None:
    """Exact where the weights do not move; where they move little, far nearer for the true images than for others."""
    for rate, worst in ((1e-9, 1e-9), (0.005, 0.02)):
        observation, _ = rounds(two_layers(), 5, 2, 6, rate)
        observed = averaged.observed_statistics([observation], [sent_statistics(observation)])
        prior = averaged.statistics_prior(attackable(observation.model, True), observation, 1.0)
        mine = tree_map(lambda values: values[0], observed)
        truth, other = (float(prior(normalised(pictures(5, seed=seed)).double(), mine)) for seed in (0, 1))
        assert truth < worst * other
        at_global = mine._replace(moves={name: torch.zeros_like(move) for name, move in mine.moves.items()})
        assert rate == 1e-9 or truth < float(prior(normalised(pictures(5)).double(), at_global)) / 3


def test_clients_that_keep_and_clients_that_send_are_attacked_together_as_alone() -> None:
    model = two_layers().float()
    whole = sent(model, pictures(3), classes(3))

    def without(*layers: str) -> ClientUpdate:
        gone = [f"{layer}.running_{what}" for layer in layers for what in ("mean", "var")]
        return replace(whole, update={name: value for name, value in whole.update.items() if name not in gone})

    seen = [without("1", "4"), whole, without("1")]
    attack = InvertingGradients(iterations=8, normalise_by="sent")
    together = attack.attack_many(seen, generators(3))
    for one, generator, found in zip(seen, generators(3), together, strict=True):
        torch.testing.assert_close(found.images, attack(one, generator).images, atol=1e-6, rtol=0)
    for counted in ("batch_norm_layers", "normalised_by_sent"):
        assert [found.diagnostics[counted] for found in together] == [0, 2, 1], counted
    assert not attack(replace(whole, train_mode=False), generators(1)[0]).diagnostics["batch_norm_layers"]
