"""Ghost clipping against clipping of gradients that are kept for each example."""

import copy
import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from defenses.base import DefenseError
from defenses.pipeline import Pipeline
from defenses.training.dp_sgd import DPSGD
from defenses.training.example_gradients import GHOST, PER_EXAMPLE
from defenses.training.precode import Precode
from tests.defenses.training.test_dp_sgd import Scaled, data, no_gradient, one_step, protect, run, set_up, weights

NOISY = DPSGD(noise_multiplier=1.0, clipping=GHOST)


def convolutional() -> nn.Module:
    """Layers of every kind in the built-in networks; only linear ones have a norm by a shortcut."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(inplace=True), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(64, 20), nn.ReLU(), nn.Linear(20, 3)
    )  # fmt: skip


class Tokens(nn.Module):
    """Linear layers on sequences, whose norms do not factor over the positions, with a LayerNorm and a frozen layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm, self.mix, self.head = nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.mix.requires_grad_(False)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.mix(self.norm(self.embed(images[:, 0]))).tanh().mean(1))  # type: ignore[no-any-return]


class Tied(nn.Module):
    """A linear layer that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.head = nn.Linear(36, 36), nn.Linear(36, 3)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.mix(self.mix(images.flatten(1)).relu()))  # type: ignore[no-any-return]


class Skipping(nn.Module):
    """A second layer that takes no part in every second forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head, self.passes = nn.Linear(36, 8), nn.Linear(8, 8), nn.Linear(8, 3), 0

    def forward(self, images: Tensor) -> Tensor:
        self.passes += 1
        hidden = self.first(images.flatten(1)).tanh()
        return self.head(hidden + self.second(hidden) if self.passes % 2 else hidden)  # type: ignore[no-any-return]


def trained(build: Callable[[], nn.Module], clipping: str, **more: Any) -> tuple[list[int], dict[str, Tensor], Any]:
    torch.manual_seed(0)
    training = set_up(count=12, batch_size=3, epochs=2, model=build().train())
    protected = protect(DPSGD(clipping=clipping, **more), training)
    return list(run(protected)), weights(training.model), protected.state


class Centred(nn.Module):
    """Tokens less their mean: the server's weights can make the terms of a gradient cancel."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix, self.head = nn.Linear(6, 16), nn.Linear(16, 16), nn.Linear(96, 3)
        with torch.no_grad():
            self.embed.bias.fill_(1e3)
            self.mix.weight.sub_(self.mix.weight.mean(1, keepdim=True)).mul_(1e-3)
            self.head.weight.mul_(1e3)

    def forward(self, images: Tensor) -> Tensor:
        mixed = self.mix(self.embed(images[:, 0]))
        return self.head((mixed - mixed.mean(1, keepdim=True)).flatten(1))  # type: ignore[no-any-return]


class Steep(nn.Module):
    """Gradients at the outputs whose squares are 0 in float32, beside inputs that make up for it."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.head = nn.Linear(36, 36, bias=False), nn.Linear(36, 3, bias=False)
        with torch.no_grad():
            self.mix.weight.fill_(1e16)
            self.head.weight.zero_()[0] = 50 / (36 * 1e16 * 18)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.mix(images.flatten(1)))  # type: ignore[no-any-return]


def flat(scale: float) -> nn.Module:
    """Weights of the head that are equal over the classes: the gradient that reaches the layer before is rounding alone."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, 3))
    with torch.no_grad():
        model[1].weight.zero_()
        model[1].bias.fill_(1e-6)
        model[3].weight.fill_(scale)
    return model


def opposed(scale: float) -> nn.Module:
    """A convolution whose gradient's terms cancel over the positions, up to rounding."""
    model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(144, 3))
    with torch.no_grad():
        model[0].weight.mul_(1e-9)
        model[0].bias.zero_()
        away = torch.randn(4, 6, 6)
        model[3].weight.zero_()[0] = (scale * (away - away.double().mean((1, 2), keepdim=True).float())).flatten()
    return model


@pytest.mark.numeric
def test_rounding_lengthens_no_share_of_an_example() -> None:
    for build, scale in itertools.product((flat, opposed), (1e8, 1e12, 1e20, 1e30)):
        for clipping, count in itertools.product((PER_EXAMPLE, GHOST), (1, 4)):
            for seed in range(8):
                torch.manual_seed(seed)
                model, labels, sums = build(scale).train(), torch.randint(3, (count,)), []
                for first in (0.4242, math.nan):  # which has no share
                    images = torch.full((count, 1, 6, 6), 0.4242)
                    images[0] = first
                    given = (copy.deepcopy(model), images, labels, loss_of, 1.0)
                    found, _ = DPSGD(noise_multiplier=0.0, clipping=clipping)._sum_without_noise(*given)
                    sums.append(torch.cat([one.flatten() for one in found.values()]))
                assert float((sums[0] - sums[1]).norm()) <= 1.001, (build.__name__, scale, clipping, count, seed)


@pytest.mark.numeric
def test_no_weights_of_the_server_let_an_example_move_the_sum_by_more_than_its_norm() -> None:
    for build, norm in ((Centred, 1.0), (Steep, 1e-9)):
        for seed in range(4):
            torch.manual_seed(seed)
            model, images, labels = build().train(), torch.rand(4, 1, 6, 6), torch.zeros(4, dtype=torch.long)
            sums = []
            for count in (3, 4):
                defense = DPSGD(noise_multiplier=0.0, clipping=GHOST, max_grad_norm=norm)
                found, _ = defense._sum_without_noise(
                    copy.deepcopy(model), images[:count], labels[:count], loss_of, norm
                )
                sums.append(torch.cat([one.flatten() for one in found.values()]).double())
            assert float((sums[1] - sums[0]).norm()) <= norm * 1.001, (build.__name__, seed)


def loss_of(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(model(images), labels)


def test_both_ways_of_clipping_make_the_same_steps() -> None:
    by_norm: dict[float, dict[str, Tensor]] = {}
    for build in (Scaled, convolutional, Tokens):
        for max_grad_norm, noise in ((0.05, 1.0), (1.0, 0.5), (0.05, 0.0), (1e6, 0.0)):
            more = {"noise_multiplier": noise, "max_grad_norm": max_grad_norm}
            sizes, kept, state = trained(build, PER_EXAMPLE, **more)
            ghost_sizes, ghost, ghost_state = trained(build, GHOST, **more)
            assert (ghost_sizes, ghost_state) == (sizes, state)
            start = build()  # a step that changes nothing would agree, too
            assert any(not torch.equal(kept[name], one) for name, one in weights(start).items())
            for name, tensor in kept.items():
                torch.testing.assert_close(ghost[name], tensor, rtol=1e-4, atol=1e-5, msg=f"{build} {more} {name}")
            by_norm[max_grad_norm] = ghost
        assert any(not torch.allclose(by_norm[0.05][name], by_norm[1e6][name], atol=0.01) for name in kept)


def test_the_loss_is_that_of_the_model_and_no_gradients_per_example_are_left() -> None:
    model, (images, targets) = convolutional().train(), data(8).tensors
    plain = F.cross_entropy(model(images), targets)
    training = protect(NOISY, set_up(count=8, batch_size=8, model=model))
    loss = training.loss(model, images, targets)
    assert float(loss.detach()) == pytest.approx(float(plain.detach()), rel=1e-6)
    loss.backward()  # type: ignore[no-untyped-call]
    assert all(getattr(weight, "grad_sample", None) is None for weight in model.parameters())


def with_penalty(model: nn.Module, images: Tensor, targets: Tensor) -> Tensor:
    penalty = sum(weight.square().sum() for weight in model.parameters())
    return F.cross_entropy(model(images), targets) + penalty  # type: ignore[return-value]


def in_two_calls(model: nn.Module, images: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(model(images), targets) + F.cross_entropy(model(1 - images), targets)


def constant(model: nn.Module, images: Tensor, targets: Tensor) -> Tensor:
    return no_gradient(model, images, targets).detach().requires_grad_()


def test_a_loss_that_a_factor_for_each_output_would_not_clip_is_refused() -> None:
    for loss in (with_penalty, in_two_calls, constant):
        training = protect(NOISY, replace(set_up(), loss=loss))
        with pytest.raises(DefenseError, match="depends on the weights through one output of the model alone"):
            training.loss(training.model, *data(4).tensors)
    for beta in (0.0, 0.1):  # a bottleneck before it adds to the loss
        pipeline = Pipeline((Precode(size=4, beta=beta), NOISY))
        model = pipeline.extended(convolutional(), 0).train()
        training = pipeline.protect_training(set_up(model=model), ("test",))
        if beta:
            with pytest.raises(DefenseError, match="one output of the model alone"):
                training.loss(model, *data(4).tensors)
        else:
            assert len(list(run(training))) == 4


def test_a_layer_without_part_in_a_batch_has_a_gradient_of_zero_there() -> None:
    """Norms of an earlier batch would clip by examples that are not in this one; an error would be a message about the examples."""
    ends = [trained(Skipping, how, noise_multiplier=0.0, max_grad_norm=0.05)[1] for how in (PER_EXAMPLE, GHOST)]
    for name, tensor in ends[0].items():
        torch.testing.assert_close(ends[1][name], tensor, rtol=1e-4, atol=1e-5, msg=name)


def test_examples_whose_gradient_is_not_finite_have_no_share_in_a_step() -> None:
    """A factor of zero would not do: 0 times infinity is no number. One of a finite gradient, of infinite length, is too long."""
    images, targets = data(6).tensors
    for build, clipping in itertools.product((convolutional, Tokens, Tied), (PER_EXAMPLE, GHOST)):
        for odd in ((math.inf,), (math.nan,), (1e38, math.nan), (1e25,), (math.nan,) * 6):
            ends = []
            for drawn in (torch.arange(6), torch.arange(len(odd), 6)):
                torch.manual_seed(0)
                training = set_up(count=6, batch_size=6, model=build().train())
                protected = protect(DPSGD(noise_multiplier=0.0, max_grad_norm=0.05, clipping=clipping), training)
                given = torch.cat([images[:1] * one for one in odd] + [images[len(odd) :]])[drawn]
                one_step(protected, given, targets[drawn])
                ends.append(weights(training.model))
            for name, tensor in ends[0].items():
                torch.testing.assert_close(ends[1][name], tensor, rtol=0, atol=1e-6, msg=f"{build} {clipping} {odd}")
