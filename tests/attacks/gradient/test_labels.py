"""What the last layer tells of labels and of the learning rate: where theory promises it, and where nothing proves it."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from attacks.gradient.labels import (
    LabelInference,
    estimate_learning_rate,
    exact_learning_rate,
    infer_labels,
    infer_observed_labels,
    last_linear,
)
from attacks.guesses import Labels
from attacks.observations import AttackError, ClientUpdate
from tests.attacks.gradient.clients import normalised
from tests.attacks.wire import CLASSES, SIDE, classes, generators, linear_net, observe, pictures, sigmoid_net


def relu_net(*, bias: bool) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv2d(1, 4, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, CLASSES, bias=bias))


def layer_norm_net() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 32), nn.LayerNorm(32), nn.Linear(32, CLASSES))


NETS: dict[str, Callable[[], nn.Module]] = {
    "sigmoid": sigmoid_net, "linear": linear_net, "relu": lambda: relu_net(bias=True),
    "relu without bias": lambda: relu_net(bias=False), "layer norm": layer_norm_net,
}  # fmt: skip


def infer(seen: ClientUpdate, **settings: int) -> Labels:
    return LabelInference(**settings)(seen, generators(1)[0])


def test_one_example_is_always_recovered() -> None:
    for name, build in NETS.items():
        model, images, labels = build(), pictures(20), classes(20)
        seen = [observe(model, images[i : i + 1], labels[i : i + 1]) for i in range(20)]
        guesses = infer(seen[0]), *LabelInference().attack_many(seen[1:], generators(19))
        assert [guess.classes.tolist() for guess in guesses] == labels[:, None].tolist(), name
        if name == "relu without bias":  # the argmin of row sums, as of iDLG
            for one in seen:
                gradient = one.gradient()
                assert infer_labels(gradient, model, 1).tolist() == [gradient["3.weight"].sum(1).argmin().item()]
    bare = nn.Linear(6, 3)
    loss = F.cross_entropy(bare(torch.rand(1, 6)), torch.tensor([2]))
    gradient = dict(zip(("weight", "bias"), torch.autograd.grad(loss, list(bare.parameters())), strict=True))
    assert infer_labels(gradient, bare, 1).tolist() == [2]


@pytest.mark.numeric
def test_a_head_with_a_frozen_bias_is_read_by_typical_features() -> None:
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
    assert right >= 9  # by chance 4 of 20, and 9 or more in 1 of 100 draws; 11 at the worst of four seeds


def test_counts_are_exact_when_all_examples_share_features_and_probabilities() -> None:
    """Zero last-layer weights make every probability 1/K; equal images make every feature vector equal."""
    model, image = relu_net(bias=True), pictures(1)
    with torch.no_grad():
        model[3].weight.zero_()
        model[3].bias.zero_()
    for seed in range(10):
        labels = classes(12, seed)
        guess = infer(observe(model, image.expand(12, -1, -1, -1), labels))
        assert guess.classes.tolist() == labels.sort().values.tolist()


def test_the_estimate_of_llg_is_its_formula() -> None:
    """Without bias and features: row sums, and an impact of -(1 + 1/K) / batch times the sum of the negative ones."""
    gradient = {"weight": torch.tensor([[-0.5, -0.075], [0.3, -0.3], [-0.2, -0.125]])}
    # The impact is 0.9 * (1 + 1/3) / 4 = 0.3. Signals -0.575, 0, -0.325 become -0.275, 0, -0.025; then the first 0.025.
    assert infer_labels(gradient, nn.Linear(2, 3, bias=False), 4).tolist() == [0, 2, 0, 2]


def test_what_cannot_be_read_is_refused_with_the_reason_and_leaves_the_others_alone() -> None:
    model, image, label = sigmoid_net(), pictures(2), classes(2)
    good = observe(model, image, label)
    broken = {name: value * torch.nan for name, value in good.update.items()}
    silent = {name: torch.zeros_like(value) for name, value in good.update.items()}
    seen = [observe(model, image, label, update=broken), good, observe(model, image, label, update=silent)]
    for guess, why in zip(LabelInference().attack_many(seen, generators(3)), ("NaN", "", "zero"), strict=True):
        assert why in guess.failure
        assert (guess.classes.tolist() == [-1, -1]) == bool(guess.failure) == bool(why)
    convolutional = nn.Sequential(nn.Conv2d(1, CLASSES, SIDE), nn.Flatten())
    assert "nn.Linear" in infer(observe(convolutional, pictures(1), classes(1))).failure
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, CLASSES), nn.ReLU(), nn.Linear(CLASSES, CLASSES), nn.Linear(CLASSES, 7))
    assert [last_linear(model)[0], last_linear(model, CLASSES)[0], last_linear(nn.Linear(3, 2))[0]] == ["3", "2", ""]
    with pytest.raises(AttackError, match=r"last nn.Linear with 9 outputs, and Sequential has none"):
        last_linear(model, 9)


def mlp(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(SIDE**2, 32), nn.ReLU(), nn.Linear(32, CLASSES))


BUILDS = (mlp, sigmoid_net)


def scaled(seen: ClientUpdate, rate: float) -> ClientUpdate:
    """What the client would have sent at another learning rate; the observation does not tell it."""
    update = {name: value * (rate / seen.learning_rate) for name, value in seen.update.items()}
    return replace(seen, update=update, learning_rate=float("nan"))


def test_exact_where_the_logits_ignore_the_image_with_decay_and_steps_counted() -> None:
    model, labels = linear_net(), classes(3, seed=1)
    with torch.no_grad():
        model[1].weight.zero_()
    seen = observe(model, pictures(3), labels)
    assert estimate_learning_rate(scaled(seen, 0.037), labels) == pytest.approx(0.037, rel=1e-4)
    decayed = {n: seen.update[n] - 0.1 * 0.5 * p.detach() for n, p in model.named_parameters()}
    guess = estimate_learning_rate(replace(seen, update=decayed, weight_decay=0.5), labels)
    assert guess == pytest.approx(0.1, rel=1e-4)
    assert estimate_learning_rate(replace(seen, local_steps=4), labels) == pytest.approx(0.025, rel=1e-4)
    ahead = replace(seen, momentum=0.6, nesterov=True)
    assert estimate_learning_rate(ahead, labels) == pytest.approx(0.1 / 1.6, rel=1e-4)


def test_one_example_proves_the_exact_rate() -> None:
    for build in BUILDS:
        for rate in (1e-3, 0.3):
            for seed in range(5):
                seen = observe(build(seed), pictures(1, seed=seed), classes(1, seed=seed))
                assert exact_learning_rate(scaled(seen, rate)) == pytest.approx(rate, rel=1e-3)
            ahead = replace(scaled(seen, rate * 1.9), momentum=0.9, nesterov=True)
            assert exact_learning_rate(ahead) == pytest.approx(rate, rel=1e-3)


def test_what_is_no_single_step_of_cross_entropy_proves_no_rate() -> None:
    model, images, labels = mlp(0), pictures(1), classes(1)
    seen = observe(model, images, labels)
    several = observe(model, pictures(3), classes(3))
    noisy = {name: value + 0.05 * value.norm() * torch.randn(value.shape) for name, value in seen.update.items()}
    loss = F.cross_entropy(model(normalised(images)), labels, label_smoothing=0.2)
    smooth = torch.autograd.grad(loss, list(model.parameters()))
    smoothed = {name: -0.1 * value for (name, _), value in zip(model.named_parameters(), smooth, strict=True)}
    torch.manual_seed(0)
    two_classes = nn.Sequential(nn.Flatten(), nn.Linear(SIDE**2, 2))
    for wrong in (
        replace(several, num_examples=1),  # a client that says one example
        replace(seen, update=noisy),
        replace(seen, update=smoothed),
        replace(seen, update={name: -value for name, value in seen.update.items()}),
        replace(seen, update={name: torch.zeros_like(value) for name, value in seen.update.items()}),
        replace(seen, local_steps=2),
        replace(seen, weight_decay=0.1),
        observe(two_classes, images, torch.tensor([1])),
    ):
        with pytest.raises(AttackError, match=r"learning rate|not that of one step"):
            exact_learning_rate(wrong)


def test_an_estimate_refuses_what_says_nothing() -> None:
    labels = classes(2)
    bare = nn.Sequential(nn.Flatten(), nn.Linear(SIDE**2, CLASSES, bias=False))
    seen = observe(linear_net(), pictures(2), labels)
    for wrong, told, why in (
        (observe(bare, pictures(2), labels), labels, "bias"), (replace(seen, update={}), labels, "bias"),
        (scaled(seen, -0.1), labels, "positive"), (scaled(seen, 0.0), labels, "positive"),
        (seen, torch.tensor([CLASSES]), "classes"), (seen, torch.tensor([-1]), "classes"),
    ):  # fmt: skip
        with pytest.raises(AttackError, match=why):
            estimate_learning_rate(wrong, told)
