"""Batch statistics that a client's running averages reveal."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from attacks import InvertingGradients
from attacks.gradient.trial_gradients.batch_statistics import batch_norms, sent_statistics, statistics_distance
from attacks.observations import AttackError, ClientUpdate
from tests.attacks.gradient.clients import bn_net, close, direct_statistics, normalised, sent, trained, two_layers
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


def test_statistics_of_several_steps_are_left_alone() -> None:
    seen = trained(two_layers().float().train(), pictures(3), classes(3), [[0, 1, 2]] * 2)
    assert InvertingGradients(iterations=3)(seen, generators(1)[0]).diagnostics["batch_norm_layers"] == 0


def test_clients_that_keep_and_clients_that_send_are_attacked_together_as_alone() -> None:
    model = two_layers().float()
    whole = sent(model, pictures(3), classes(3))

    def without(*layers: str) -> ClientUpdate:
        gone = [f"{layer}.running_{what}" for layer in layers for what in ("mean", "var")]
        return replace(whole, update={name: value for name, value in whole.update.items() if name not in gone})

    implausible = replace(whole, update={name: value.clone() for name, value in whole.update.items()})
    implausible.update["4.running_var"][0] = -5.0
    seen = [without("1", "4"), whole, without("1"), implausible]
    attack = InvertingGradients(iterations=8, normalise_by="sent")
    together = attack.attack_many(seen, generators(4))
    for one, generator, found in zip(seen, generators(4), together, strict=True):
        torch.testing.assert_close(found.images, attack(one, generator).images, atol=1e-6, rtol=0)
    for counted, layers in (("batch_norm_layers", [0, 2, 1, 2]), ("normalised_by_sent", [0, 2, 1, 1])):
        assert [found.diagnostics[counted] for found in together] == layers, counted
    assert "normalised_by_sent" not in replace(attack, normalise_by="batch")(whole, generators(1)[0]).diagnostics
    for other in (replace(attack, second_order="exact"), replace(attack, batch_norm_prior=0.0)):
        assert other(whole, generators(1)[0]).diagnostics["normalised_by_sent"] == 0
    assert not attack(replace(whole, train_mode=False), generators(1)[0]).diagnostics["batch_norm_layers"]
