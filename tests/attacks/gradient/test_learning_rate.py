from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from attacks.gradient.labels import LabelInference
from attacks.gradient.learning_rate import estimate_learning_rate, exact_learning_rate
from attacks.gradient.presets import DLG, AdamL2, InvertingGradients
from attacks.observations import AttackError
from clients.models.classifiers import build_model
from tests.attacks.wire import CLASSES, SIDE, classes, linear_net, observe, pictures, sigmoid_net


def mlp(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(SIDE**2, 32), nn.ReLU(), nn.Linear(32, CLASSES))


def lenet(seed):
    return build_model("lenet", num_classes=CLASSES, input_shape=(1, SIDE, SIDE), seed=seed)


def scaled(observation, rate):
    """What the client would have sent at another learning rate; the observation does not tell it."""
    update = {name: value * (rate / observation.learning_rate) for name, value in observation.update.items()}
    return replace(observation, update=update, learning_rate=float("nan"))


@pytest.mark.parametrize("build", [mlp, lenet, sigmoid_net])
@pytest.mark.parametrize("count", [1, 4])
def test_within_a_factor_at_initialisation(build, count):
    ratios = []
    for seed in range(10):
        labels = classes(count, seed=seed)
        seen = observe(build(seed), pictures(count, seed=seed), labels)
        ratios += [estimate_learning_rate(scaled(seen, rate), labels) / rate for rate in (1e-3, 0.3)]
    print(f"{build.__name__} batch {count}: ratio {min(ratios):.3f} to {max(ratios):.3f}")
    assert min(ratios) > 0.6
    assert max(ratios) < 1.6


def test_exact_where_the_logits_ignore_the_image():
    model = linear_net()
    with torch.no_grad():
        model[1].weight.zero_()
    labels = classes(3, seed=1)
    seen = observe(model, pictures(3), labels)
    assert estimate_learning_rate(scaled(seen, 0.037), labels) == pytest.approx(0.037, rel=1e-4)


def test_weight_decay_and_steps_are_counted():
    model, labels = linear_net(), classes(3, seed=1)
    with torch.no_grad():
        model[1].weight.zero_()
    seen = observe(model, pictures(3), labels)
    decayed = {n: seen.update[n] - 0.1 * 0.5 * p.detach() for n, p in model.named_parameters()}
    guess = estimate_learning_rate(replace(seen, update=decayed, weight_decay=0.5), labels)
    assert guess == pytest.approx(0.1, rel=1e-4)
    assert estimate_learning_rate(replace(seen, local_steps=4), labels) == pytest.approx(0.025, rel=1e-4)


def test_is_too_low_for_a_trained_model():
    model, images, labels = mlp(0), pictures(8), classes(8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    for _ in range(2):
        optimizer.zero_grad()
        F.cross_entropy(model((images - 0.4) / 0.3), labels).backward()
        optimizer.step()
    assert estimate_learning_rate(observe(model, images, labels), labels) < 0.05  # it was 0.1


def test_refuses_what_says_nothing():
    labels = classes(2)
    bare = nn.Sequential(nn.Flatten(), nn.Linear(SIDE**2, CLASSES, bias=False))
    with pytest.raises(AttackError, match="bias"):
        estimate_learning_rate(observe(bare, pictures(2), labels), labels)
    seen = observe(linear_net(), pictures(2), labels)
    with pytest.raises(AttackError, match="positive"):
        estimate_learning_rate(scaled(seen, -0.1), labels)
    with pytest.raises(AttackError, match="positive"):
        estimate_learning_rate(scaled(seen, 0.0), labels)
    with pytest.raises(AttackError, match="classes"):
        estimate_learning_rate(seen, torch.tensor([CLASSES]))
    with pytest.raises(AttackError, match="bias"):
        estimate_learning_rate(replace(seen, update={}), labels)


@pytest.mark.parametrize("build", [mlp, lenet, sigmoid_net])
@pytest.mark.parametrize("rate", [1e-3, 0.3])
def test_one_example_proves_the_exact_rate(build, rate):
    for seed in range(5):
        seen = observe(build(seed), pictures(1, seed=seed), classes(1, seed=seed))
        assert exact_learning_rate(scaled(seen, rate)) == pytest.approx(rate, rel=1e-3)
    ahead = replace(scaled(seen, rate * 1.9), momentum=0.9, nesterov=True)
    assert exact_learning_rate(ahead) == pytest.approx(rate, rel=1e-3)


def test_what_is_no_single_step_of_cross_entropy_proves_no_rate():
    model, images, labels = mlp(0), pictures(1), classes(1)
    seen = observe(model, images, labels)
    several = observe(model, pictures(3), classes(3))
    noisy = {name: value + 0.05 * value.norm() * torch.randn(value.shape) for name, value in seen.update.items()}
    smooth = torch.autograd.grad(
        F.cross_entropy(model((images - 0.4) / 0.3), labels, label_smoothing=0.2), list(model.parameters())
    )
    smoothed = {name: -0.1 * value for (name, _), value in zip(model.named_parameters(), smooth, strict=True)}
    for wrong in (
        replace(several, num_examples=1),  # a client that says one example
        replace(seen, update=noisy),
        replace(seen, update=smoothed),
        replace(seen, update={name: -value for name, value in seen.update.items()}),
        replace(seen, update={name: torch.zeros_like(value) for name, value in seen.update.items()}),
        replace(seen, local_steps=2),
        replace(seen, weight_decay=0.1),
        several,
    ):
        with pytest.raises(AttackError, match=r"learning rate|not that of one step"):
            exact_learning_rate(wrong)


def test_attacks_on_directions_need_no_rate():
    assert DLG().needs_learning_rate
    assert AdamL2().needs_learning_rate
    assert not InvertingGradients().needs_learning_rate
    assert not LabelInference().needs_learning_rate
