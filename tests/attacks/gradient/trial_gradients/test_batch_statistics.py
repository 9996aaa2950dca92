"""Batch statistics that a client's running averages reveal over one step or several, and what stands in for kept ones."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_map

import attacks.gradient.trial_gradients.averaged_statistics as averaged
import attacks.gradient.trial_gradients.missing_statistics as missing
from attacks import InvertingGradients, Knowledge
from attacks.gradient.inversion import GradientInversion
from attacks.gradient.inversion_target import Target, Victim
from attacks.gradient.trial_gradients.batch_statistics import (
    Statistics,
    batch_norms,
    sent_statistics,
    statistics_distance,
)
from attacks.gradient.trial_gradients.local_steps import local_orders
from attacks.gradient.trial_gradients.matching import attackable
from attacks.observations import AttackError, ClientUpdate
from defenses.base import Batch
from defenses.pipeline import Pipeline
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
from tests.attacks.wire import CLASSES, MEAN, STD, classes, generators, linear_net, observe, pictures


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


def target_of(attack: GradientInversion, seen: ClientUpdate) -> Target:
    return attack.prepare(0, seen, Victim.of(seen), generators(1)[0])


def objective(attack: GradientInversion, observation: ClientUpdate, seed: int = 0) -> float:
    matching = attack._objective([(target_of(attack, observation), 0)], Victim.of(observation))
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


# ---- what stands in for statistics that a client kept

LAYERS = {"1", "4"}
STAND_INS = ("running", "proxy")
QUICK = InvertingGradients(iterations=3)


def guess(attack: Any, seen: ClientUpdate) -> Any:
    return attack(seen, generators(1)[0])


def kept(seen: ClientUpdate, layers: set[str] | None = None) -> ClientUpdate:
    """The observation of a client that sends no running averages, of some layers or all."""
    gone = [name for name in seen.update if "running" in name and (layers is None or name.rpartition(".")[0] in layers)]
    return replace(seen, update={name: value for name, value in seen.update.items() if name not in gone})


def case(count: int = 3) -> ClientUpdate:
    model = two_layers().float()
    model(2 * torch.randn(16, 1, 12, 12, generator=torch.Generator().manual_seed(2)) + 0.5)
    return sent(model, pictures(count), classes(count))


def knowledge(count: int = 40, defenses: tuple[Any, ...] = (), seed: int = 8) -> Knowledge:
    auxiliary = Batch(pictures(count, seed=seed), F.one_hot(classes(count, seed=seed), CLASSES).float())
    return Knowledge(auxiliary, Pipeline(defenses), MEAN, STD, lambda *_: two_layers())


def standing_in(what: str, attack: Any = QUICK, **known: Any) -> Any:
    return replace(attack, missing_statistics=what).fit(knowledge(**known), generators(1)[0])


def test_running_averages_of_the_global_model_become_biased_as_in_a_batch() -> None:
    seen = case(3)
    found = missing.running_statistics(seen, LAYERS)
    for name, positions in (("1", 36), ("4", 9)):
        layer, values = batch_norms(seen.model)[name], 3 * positions
        assert torch.equal(found[name][0], layer.running_mean)
        torch.testing.assert_close(found[name][1], layer.running_var * (values - 1) / values)
    assert list(missing.running_statistics(seen, {"4"})) == ["4"]
    assert missing.kept_layers(seen, {"1"}) == ["4"]
    assert missing.kept_layers(replace(seen, train_mode=False), set()) == []
    # Initial averages and those that are no numbers stand for nothing.
    initial = replace(case(), model=two_layers().float())
    assert missing.running_statistics(initial, LAYERS) == {}
    batch_norms(initial.model)["4"].running_mean[0] = 0.1
    assert list(missing.running_statistics(initial, LAYERS)) == ["4"]
    batch_norms(initial.model)["4"].running_var[0] = torch.nan
    assert missing.running_statistics(initial, LAYERS) == {}


def test_proxies_are_the_mean_over_whole_batches_of_the_clients_size() -> None:
    for size, count, batches in ((1, 5, 5), (3, 11, 3), (1, missing.PROXY_BATCHES + 9, missing.PROXY_BATCHES)):
        seen, images = case(size), pictures(count, seed=4)
        found = missing.proxy_statistics(seen, attackable(seen.model, True), images, LAYERS)
        each = [direct_statistics(seen.model, images[at * size : (at + 1) * size]) for at in range(batches)]
        mean = {name: tuple(torch.stack([one[name][at] for one in each]).mean(0) for at in (0, 1)) for name in LAYERS}
        assert close(found, mean, 1e-4), (size, count)  # type: ignore[arg-type]
        assert list(missing.proxy_statistics(seen, attackable(seen.model, True), images, {"4"})) == ["4"]
    # The client's own batch gives what it would have sent.
    found = missing.proxy_statistics(case(3), attackable(case(3).model, True), pictures(3), LAYERS)
    assert close(found, sent_statistics(case(3)), 1e-4)


def test_sent_statistics_are_preferred_in_every_layer() -> None:
    seen = case()
    plain = guess(QUICK, seen)
    for what in STAND_INS:
        attack = standing_in(what)
        found = guess(attack, seen)
        assert torch.equal(found.images, plain.images), what
        assert (found.diagnostics["batch_norm_layers"], found.diagnostics["batch_norm_stand_ins"]) == (2, 0)
        target = target_of(attack, kept(seen, {"4"}))
        assert target.stand_ins == {"4"}
        expected = (
            missing.running_statistics(seen, {"4"})
            if what == "running"
            else missing.proxy_statistics(seen, attackable(seen.model, True), attack.proxies.images, {"4"})
        )
        assert close(target.statistics, {"1": sent_statistics(seen)["1"]} | expected), what


def test_clients_that_keep_and_clients_that_send_are_attacked_together_as_alone() -> None:
    whole, attack = case(), standing_in("proxy")
    seen = [kept(whole), whole, kept(whole, {"1"})]
    together = attack.attack_many(seen, generators(3))
    for one, generator, found in zip(seen, generators(3), together, strict=True):
        torch.testing.assert_close(found.images, attack(one, generator).images, atol=1e-6, rtol=0)
    assert [found.diagnostics["batch_norm_stand_ins"] for found in together] == [2, 0, 1]
    assert not guess(attack, replace(seen[0], train_mode=False)).diagnostics["batch_norm_stand_ins"]
    # No layer is normalised by stand-ins.
    normalising = replace(attack, iterations=8, normalise_by="sent").attack_many(seen, generators(3))
    assert [found.diagnostics["normalised_by_sent"] for found in normalising] == [0, 2, 1]


def test_the_objective_adds_their_weighted_distance() -> None:
    """At the client's images, whose gradient matches: what is left is the distance to the stand-in alone."""
    seen = kept(case(3))
    attack = GradientInversion(total_variation=0.0, batch_norm_prior=2.0, labels="known", missing_statistics="running")
    truth, terms = direct_statistics(seen.model, pictures(3)), []
    for name, (mean, variance) in missing.running_statistics(seen, LAYERS).items():
        scale = variance + 1e-5
        terms.append(((truth[name][0] - mean) ** 2 / scale) + ((truth[name][1] - variance) / scale) ** 2)
    assert objective(attack, seen) == pytest.approx(2.0 * float(torch.cat(terms).mean()), rel=1e-3)
    assert abs(objective(replace(attack, missing_statistics="none"), seen)) < 1e-5


def test_only_proxies_need_auxiliary_images_and_unfit_ones_are_refused() -> None:
    for what, needs in (("none", False), ("running", False), ("proxy", True)):
        attack = replace(QUICK, missing_statistics=what)
        assert attack.needs_auxiliary is needs
        assert attack.threat_class == ("D" if needs else "C")
        assert attack.fit(knowledge(), generators(1)[0]) == attack
    seen = case(3)
    for images, why in (
        (pictures(2), "2 auxiliary images; .* at least 3"),
        (pictures(9, side=8), r"shape \(1, 8, 8\)"),
    ):
        with pytest.raises(AttackError, match=why):
            missing.proxy_statistics(seen, attackable(seen.model, True), images, LAYERS)
    assert "2 auxiliary images" in guess(standing_in("proxy", count=2), kept(seen)).failure
    with pytest.raises(AttackError, match="needs auxiliary images: call fit first"):
        guess(replace(QUICK, missing_statistics="proxy"), kept(seen))
