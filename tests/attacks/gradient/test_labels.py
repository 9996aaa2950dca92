"""Label inference where theory promises it, and where it must fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attacks.gradient.labels import LabelInference, infer_labels, infer_observed_labels, last_linear
from attacks.guesses import Labels
from attacks.observations import AttackError
from attacks.scoring.metrics import score
from tests.attacks.wire import CLASSES, SIDE, classes, generators, linear_net, observe, pictures, sigmoid_net


def relu_net(*, bias: bool) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv2d(1, 4, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, CLASSES, bias=bias))


def layer_norm_net() -> nn.Module:
    """Features that sum to zero, where plain row sums say nothing."""
    torch.manual_seed(2)
    return nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 32), nn.LayerNorm(32), nn.Linear(32, CLASSES))


def negative_net() -> nn.Module:
    torch.manual_seed(3)

    class Negative(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return -x.sigmoid()

    return nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 16), Negative(), nn.Linear(16, CLASSES))


NETS: dict[str, Callable[[], nn.Module]] = {
    "sigmoid": sigmoid_net,
    "linear": linear_net,
    "relu": lambda: relu_net(bias=True),
    "relu without bias": lambda: relu_net(bias=False),
    "layer norm": layer_norm_net,
    "negative features": negative_net,
}


@pytest.mark.parametrize("name", NETS)
def test_one_example_is_always_recovered(name):
    model, images, labels = NETS[name](), pictures(30), classes(30)
    seen = [observe(model, images[i : i + 1], labels[i : i + 1]) for i in range(30)]
    guesses = LabelInference()(seen[0], generators(1)[0]), *LabelInference().attack_many(seen[1:], generators(29))
    assert [guess.classes.tolist() for guess in guesses] == labels[:, None].tolist()


def test_one_example_without_bias_is_the_argmin_of_row_sums():
    model = relu_net(bias=False)
    for i in range(10):
        image, label = pictures(1, seed=i), classes(1, seed=i)
        gradient = observe(model, image, label).gradient()
        assert (
            infer_labels(gradient, model, 1).tolist() == [gradient["3.weight"].sum(1).argmin().item()] == label.tolist()
        )


@pytest.mark.parametrize(("name", "at_least"), [("relu", 0.95), ("relu without bias", 0.9), ("layer norm", 0.83)])
def test_batches_are_recovered_as_multisets_far_above_chance(name, at_least):
    model = NETS[name]()
    hits = []
    for seed in range(20):
        labels = classes(8, seed)
        guess = LabelInference()(observe(model, pictures(8, seed=seed), labels), generators(1)[0])
        assert guess.classes.tolist() == sorted(guess.classes.tolist())
        hits.append(score(guess, labels)["label-accuracy"])
    # Guessing eight labels evenly over five classes scores about 0.66.
    assert sum(hits) / len(hits) >= at_least


def test_a_head_with_a_frozen_bias_is_read_by_typical_features():
    """Row sums say nothing behind a LayerNorm: they gave 6 of 10 single classes of such a network."""
    model, right = layer_norm_net(), 0
    model[3].bias.requires_grad_(False)
    for seed in range(20):
        label = classes(1, seed)
        loss = F.cross_entropy(model(pictures(1, seed=seed)), label)
        trained = {name: one for name, one in model.named_parameters() if one.requires_grad}
        gradient = dict(zip(trained, torch.autograd.grad(loss, list(trained.values())), strict=True))
        seen = observe(layer_norm_net(), pictures(1, seed=seed), label)
        right += infer_observed_labels(replace(seen, model=model), gradient).tolist() == label.tolist()
    assert right >= 18


def test_typical_features_beat_the_estimate_of_llg_without_a_bias():
    model, ours, llg = relu_net(bias=False), 0.0, 0.0
    for seed in range(20):
        labels = classes(16, seed)
        observation = observe(model, pictures(16, seed=seed), labels)
        gradient = observation.gradient()
        ours += score(LabelInference()(observation, generators(1)[0]), labels)["label-accuracy"]
        llg += score(Labels(infer_labels(gradient, model, 16)), labels)["label-accuracy"]
    assert ours > llg + 1


def test_counts_are_exact_when_all_examples_share_features_and_probabilities():
    """Zero last-layer weights make every probability 1/K; equal images make every feature vector equal."""
    model = relu_net(bias=True)
    with torch.no_grad():
        model[3].weight.zero_()
        model[3].bias.zero_()
    image = pictures(1)
    for seed in range(10):
        labels = classes(12, seed)
        guess = LabelInference()(observe(model, image.expand(12, -1, -1, -1), labels), generators(1)[0])
        assert guess.classes.tolist() == labels.sort().values.tolist()


def test_fresh_noise_gives_chance():
    model = sigmoid_net()
    labels = classes(200)
    right = 0
    for i in range(200):
        noise = {n: torch.randn(p.shape, generator=generators(1, seed=i)[0]) for n, p in model.named_parameters()}
        guess = LabelInference()(
            replace(observe(model, pictures(1), labels[i : i + 1]), update=noise, labels=None), generators(1)[0]
        )
        right += guess.classes.tolist() == labels[i : i + 1].tolist()
    # Binomial(200, 1/5): mean 40, standard deviation 5.7.
    assert 20 < right < 62


def test_max_labels_keeps_the_surest():
    model, labels = relu_net(bias=True), torch.tensor([3, 3, 3, 3, 3, 3, 1, 0])
    observation = observe(model, pictures(8), labels)
    assert LabelInference(max_labels=3)(observation, generators(1)[0]).classes.shape == (3,)
    assert 3 in LabelInference(max_labels=1)(observation, generators(1)[0]).classes.tolist()


def test_refused_updates_become_failures_and_leave_the_others_alone():
    model, image, label = sigmoid_net(), pictures(2), classes(2)
    good = observe(model, image, label)
    broken = {name: value * torch.nan for name, value in good.update.items()}
    silent = {name: torch.zeros_like(value) for name, value in good.update.items()}
    seen = [observe(model, image, label, update=broken), good, observe(model, image, label, update=silent)]
    first, second, third = LabelInference().attack_many(seen, generators(3))
    assert first.classes.tolist() == [-1, -1]
    assert "NaN" in first.failure
    assert second.failure == ""
    assert third.classes.tolist() == [-1, -1]
    assert "zero" in third.failure


def test_last_linear_is_found_by_width_and_its_absence_is_explained():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, CLASSES), nn.ReLU(), nn.Linear(CLASSES, CLASSES), nn.Linear(CLASSES, 7))
    assert last_linear(model)[0] == "3"
    assert last_linear(model, CLASSES)[0] == "2"
    assert last_linear(nn.Linear(3, 2))[0] == ""
    with pytest.raises(AttackError, match=r"last nn.Linear with 9 outputs, and Sequential has none"):
        last_linear(model, 9)
    convolutional = nn.Sequential(nn.Conv2d(1, CLASSES, SIDE), nn.Flatten())
    guess = LabelInference()(observe(convolutional, pictures(1), classes(1)), generators(1)[0])
    assert "nn.Linear" in guess.failure


def test_a_bare_linear_layer_works():
    model = nn.Linear(6, 3)
    loss = F.cross_entropy(model(torch.rand(1, 6)), torch.tensor([2]))
    gradient = dict(zip(("weight", "bias"), torch.autograd.grad(loss, list(model.parameters())), strict=True))
    assert infer_labels(gradient, model, 1).tolist() == [2]


def test_bad_fields_are_refused():
    for value in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match="max_labels"):
            LabelInference(max_labels=value)
