"""Gradients per example of layers against ``torch.func``, and what a watched pass must leave alone."""

import gc
import itertools
import math
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from clients.models.classifiers import build_model
from defenses.base import DefenseError
from defenses.training import layer_gradients
from defenses.training.dp_sgd import DPSGD
from defenses.training.example_gradients import GHOST, PER_EXAMPLE
from tests.defenses.training.test_dp_sgd import (
    cross_entropy,
    data,
    mean_of_clipped,
    one_step,
    protect,
    run,
    set_up,
    weights,
)

CONVOLUTIONS: tuple[tuple[tuple[int, int], dict[str, Any]], ...] = (
    ((3, 4), {"kernel_size": 5, "padding": 2, "stride": 2}),
    ((3, 4), {"kernel_size": (2, 3), "padding": (0, 2), "stride": (3, 1), "dilation": (2, 1)}),
    ((4, 6), {"kernel_size": 3, "padding": "same", "groups": 2, "bias": False}),
    ((4, 4), {"kernel_size": 4, "padding": "same", "groups": 4, "dilation": 2}),
    ((4, 6), {"kernel_size": 1, "stride": 2}),
    ((16, 32), {"kernel_size": 3, "padding": 1, "stride": 2}),
    ((32, 32), {"kernel_size": 3, "padding": "same", "groups": 2}),
    ((16, 16), {"kernel_size": 12}),
)


@pytest.mark.numeric
def test_gradients_of_a_convolution_are_those_of_each_image_whatever_another_holds() -> None:
    rounding = ((torch.float64, 1e-12), (torch.float32, 1e-5))
    for (channels, sizes), (dtype, most) in itertools.product(CONVOLUTIONS, rounding):
        layer: Any = nn.Conv2d(*channels, **sizes).to(dtype)
        images = torch.randn(3, channels[0], 12, 13, dtype=dtype)
        slopes = torch.randn_like(layer(images).detach())

        def along(one: dict[str, Tensor], image: Tensor, slope: Tensor, layer: nn.Module = layer) -> Tensor:
            return (functional_call(layer, one, image[None])[0] * slope).sum()  # type: ignore[no-any-return]

        expected = vmap(grad(along), (None, 0, 0))(dict(layer.named_parameters()), images, slopes)
        found = dict(layer_gradients.example_rows(layer, [images], slopes))
        images[1, 0, 0, 0], slopes[1, 0, 0, 0] = math.nan, math.inf
        beside = dict(layer_gradients.example_rows(layer, [images], slopes))
        assert len(found) == len(expected)
        for name, weight in layer.named_parameters():
            assert found[weight].shape == expected[name].shape
            assert (found[weight] - expected[name]).abs().max() <= most * expected[name].abs().max(), (
                sizes,
                name,
                dtype,
            )
            torch.testing.assert_close(beside[weight][::2], found[weight][::2], rtol=0, atol=0)


def narrow() -> nn.Module:
    """A second convolution of one position, whose gradient has more numbers than its factors."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2), nn.Tanh(), nn.Conv2d(4, 8, 2), nn.Flatten(), nn.Linear(8, 8), nn.Linear(8, 3)
    )


def transformer() -> nn.Module:
    model = build_model("vit_lite", num_classes=3, input_shape=(1, 8, 8), width=8)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return nn.Sequential(nn.ZeroPad2d((0, 2, 0, 2)), model)


def test_a_step_of_layers_with_a_way_of_their_own_is_that_of_a_loop_over_examples() -> None:
    images, targets = data(6).tensors
    for build, clipping in itertools.product((narrow, transformer), (PER_EXAMPLE, GHOST)):
        training = set_up(count=6, batch_size=6, model=build().train())
        before, expected = weights(training.model), mean_of_clipped(training.model, images, targets, 0.4)
        one_step(protect(DPSGD(noise_multiplier=0.0, max_grad_norm=0.4, clipping=clipping), training), images, targets)
        for key, one in weights(training.model).items():
            said = f"{build} {clipping} {key}"
            torch.testing.assert_close(before[key] - one, 0.5 * expected[key], rtol=1e-4, atol=1e-6, msg=said)


def test_passes_outside_of_the_loss_change_no_step_and_failed_ones_leave_the_weights() -> None:
    images, targets = data(4).tensors
    for clipping in (PER_EXAMPLE, GHOST):
        ends = []
        for outside in (False, True):
            torch.manual_seed(0)
            training = set_up(count=4, batch_size=4, model=narrow().train())
            protected = protect(DPSGD(noise_multiplier=0.0, clipping=clipping), training)
            names = [*weights(training.model)]
            with pytest.raises(RuntimeError, match="expected input"):
                protected.loss(training.model, images.expand(-1, 2, -1, -1), targets)
            assert [*weights(training.model)] == names
            loss = protected.loss(training.model, images, targets)
            if outside:
                cross_entropy(training.model, images[:2], targets[:2]).backward()
            protected.optimizer.zero_grad()
            loss.backward()
            protected.optimizer.step()
            ends.append(weights(training.model))
        for name, tensor in ends[0].items():
            assert torch.equal(tensor, ends[1][name]), (clipping, name)


def test_gradients_of_two_batches_never_add_up_in_one_step() -> None:
    training = protect(DPSGD(noise_multiplier=0.0), set_up())
    first, second = (training.loss(training.model, *data(count).tensors) for count in (3, 4))
    first.backward()
    with pytest.raises(ValueError, match="each batch needs a step of its own"):
        second.backward()
    training.optimizer.step()
    assert len(list(run(training))) == 4


class Overwriting(nn.Module):
    """Changes what its first layer saw, which that layer's gradient needs."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.head = nn.Linear(36, 36), nn.Linear(36, 3)

    def forward(self, images: Tensor) -> Tensor:
        rows = images.flatten(1).clone()
        hidden = self.mix(rows)
        rows.mul_(2)
        return self.head(hidden + rows)  # type: ignore[no-any-return]


def test_an_operation_in_place_on_what_a_layer_saw_is_refused() -> None:
    for clipping in (PER_EXAMPLE, GHOST):
        training = protect(DPSGD(noise_multiplier=0.0, clipping=clipping), set_up(model=Overwriting().train()))
        with pytest.raises(ValueError, match="in place changed what a layer saw"):
            training.loss(training.model, *data(3).tensors).backward()


def test_a_step_on_a_gradient_that_no_layer_showed_is_refused() -> None:
    def by_the_model(training: Any, images: Tensor, targets: Tensor) -> None:
        cross_entropy(training.model, images, targets).backward()  # type: ignore[no-untyped-call]

    def in_eval_mode(training: Any, images: Tensor, targets: Tensor) -> None:
        training.model.eval()
        training.loss(training.model, images, targets).backward()

    def twice(training: Any, images: Tensor, targets: Tensor) -> None:
        training.loss(training.model, images, targets).backward()
        by_the_model(training, images, targets)

    def step(backward: Callable[..., None], clipping: str) -> None:
        training = protect(DPSGD(noise_multiplier=0.0, clipping=clipping), set_up(4))
        training.optimizer.zero_grad()
        backward(training, *data(4).tensors)
        training.optimizer.step()

    for clipping, backward in itertools.product((PER_EXAMPLE, GHOST), (by_the_model, in_eval_mode, twice)):
        with pytest.raises(DefenseError, match=r"outside of a layer|backward pass of its own"):
            step(backward, clipping)


def test_one_example_that_is_not_finite_takes_no_share_from_the_others_and_no_model_outlives_its_training() -> None:
    """The gradient of a sum of outputs is one tensor for all examples: what is cleared for one must not be theirs."""

    def total(model: nn.Module, images: Tensor, _: Tensor) -> Tensor:
        return model(images).sum() / len(images)  # type: ignore[no-any-return]

    images, targets = torch.randn(5, 3), torch.zeros(5)
    spoilt = images.index_fill(0, torch.tensor([2]), math.nan)
    for clipping in (PER_EXAMPLE, GHOST):
        sums = []
        for batch in (images, spoilt):
            model = nn.Sequential(nn.Linear(3, 4))
            nn.init.constant_(model[0].weight, 0.1)
            training = protect(
                DPSGD(noise_multiplier=0.0, max_grad_norm=0.5, clipping=clipping),
                replace(set_up(5), model=model, loss=total, optimizer=torch.optim.SGD(model.parameters(), 1.0)),
            )
            one_step(training, batch, targets)
            sums.append(
                torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None]) * 5
            )
        assert (sums[0] - sums[1]).norm() == pytest.approx(0.5, rel=1e-4)
        gone = weakref.ref(model)
        del model, training
        gc.collect()
        assert gone() is None
