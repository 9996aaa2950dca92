"""Gradients of single examples against a loop of autograd over examples."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clients.models.classifiers import build_model
from simulations.search import gradients as module
from simulations.search.gradients import ExampleGradients
from simulations.settings.errors import ConfigError


def images_and_targets(
    count: int, shape: tuple[int, int, int] = (3, 32, 32), classes: int = 5
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    labels = torch.randint(classes, (count,), generator=generator)
    return torch.randn(count, *shape, generator=generator), F.one_hot(labels, classes).float()


def by_loop(model: nn.Module, images: Tensor, targets: Tensor) -> list[list[Tensor]]:
    """The gradients of each example by all parameters, one backward pass each."""
    model = model.eval()
    parameters = list(model.parameters())
    return [
        [g.flatten() for g in torch.autograd.grad(F.cross_entropy(model(x[None]), y[None]), parameters)]
        for x, y in zip(images, targets, strict=True)
    ]


class Odd(nn.Module):
    """Layers that the named models lack: groups, dilation, stride without bias, LayerNorm over tokens, a linear layer on tokens."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False)
        self.grouped = nn.Conv2d(8, 8, 3, padding=2, dilation=2, groups=4)
        self.norm = nn.LayerNorm(8)
        self.tokens = nn.Linear(8, 6)
        self.last = nn.Linear(6, 5)

    def forward(self, images: Tensor) -> Tensor:
        found = self.grouped(F.relu(self.first(images))).flatten(2).transpose(1, 2)
        return self.last(F.gelu(self.tokens(self.norm(found))).mean(1))


MODELS = {
    "cnn": lambda: build_model("cnn", num_classes=5, input_shape=(3, 32, 32)),
    "resnet20, BatchNorm": lambda: trained(
        build_model("resnet20", num_classes=5, input_shape=(3, 32, 32), norm="batch")
    ),
    "resnet20, GroupNorm": lambda: build_model("resnet20", num_classes=5, input_shape=(3, 32, 32)),
    "odd": Odd,
}


def trained(model: nn.Module) -> nn.Module:
    """Running statistics that are not those of initialisation."""
    with torch.no_grad():
        model.train()(torch.randn(16, 3, 32, 32, generator=torch.Generator().manual_seed(1)) * 2 + 1)
    return model


@pytest.mark.parametrize("name", MODELS)
def test_they_are_those_of_a_loop_over_examples(name: str) -> None:
    model = MODELS[name]().double()
    images, targets = images_and_targets(4)
    ours = list(ExampleGradients(model).of(images.double(), targets.double()))
    theirs = [torch.stack(column) for column in zip(*by_loop(model, images.double(), targets.double()), strict=True)]
    assert len(ours) == len(theirs)
    for mine, known in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, known, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("per_tensor", [False, True])
@pytest.mark.parametrize("with_starts", [False, True])
def test_similarities_are_the_cosines_of_a_loop(name: str, per_tensor: bool, with_starts: bool) -> None:
    model = MODELS[name]().double()
    images, targets = images_and_targets(2 * 4)
    points, targets = images.double().unflatten(0, (2, 4)), targets[:2].double()
    engine = ExampleGradients(model)
    starts = list(engine.of(points[:, 0], targets)) if with_starts else None
    given = points[:, 1:] if with_starts else points
    both = engine.similarities(given, targets, starts)
    found = both.per_tensor if per_tensor else both.whole
    expected = []
    for way, target in zip(points, targets, strict=True):
        *others, last = by_loop(model, way, target.expand(4, -1))
        if per_tensor:
            pairs = [zip(one, last, strict=True) for one in others]
            expected.append([torch.stack([F.cosine_similarity(a, b, 0) for a, b in pair]).mean() for pair in pairs])
        else:
            expected.append([F.cosine_similarity(torch.cat(one), torch.cat(last), 0) for one in others])
    torch.testing.assert_close(found, torch.stack([torch.stack(row) for row in expected]), rtol=1e-8, atol=1e-10)


def test_passes_that_fit_into_memory_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model = MODELS["cnn"]()
    images, targets = images_and_targets(3 * 4)
    points, targets = images.unflatten(0, (3, 4)), targets[:3]
    starts = ExampleGradients(model).of(images[:3], targets)
    known = ExampleGradients(model).similarities(points, targets, starts)
    monkeypatch.setattr(module, "MOST_BYTES", 1)
    single = ExampleGradients(model)
    assert single._at_once == 1
    for part, whole in zip(single.similarities(points, targets, starts), known, strict=True):
        torch.testing.assert_close(part, whole, rtol=1e-5, atol=1e-6)


def test_a_gradient_is_like_itself_whatever_the_scale_of_the_loss_and_a_vanished_one_like_none() -> None:
    model = MODELS["cnn"]().double()
    images, targets = images_and_targets(2)
    points = torch.stack([images, images.flip(0), images], 1).double()
    found = ExampleGradients(model).similarities(points, targets.double())
    # Twice the targets is twice the loss.
    doubled = ExampleGradients(model).similarities(points, 2 * targets.double())
    vanished = ExampleGradients(model).similarities(points, 0 * targets.double())
    for one, twice, none in zip(found, doubled, vanished, strict=True):
        torch.testing.assert_close(one[:, 0], torch.ones(2).double())
        torch.testing.assert_close(twice, one)
        assert torch.equal(none, torch.zeros(2, 2).double())


def test_the_models_own_gradients_and_mode_of_the_caller_are_left_alone() -> None:
    model = MODELS["cnn"]().train().requires_grad_(False)
    engine = ExampleGradients(model)
    assert next(iter(engine.of(*images_and_targets(2)))).shape == (2, 6 * 3 * 25)
    assert model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())


class Shared(nn.Module):
    """Uses a layer twice."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.last = nn.Conv2d(3, 3, 1), nn.Linear(3, 5)

    def forward(self, images: Tensor) -> Tensor:
        return self.last(self.layer(F.relu(self.layer(images))).mean((2, 3)))


class Reused(nn.Module):
    """Its weights act outside of their layer's own pass, too."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.last = nn.Conv2d(3, 3, 1), nn.Linear(3, 5)

    def forward(self, images: Tensor) -> Tensor:
        return self.last(F.conv2d(self.layer(images), self.layer.weight).mean((2, 3)))


class Mixing(nn.Module):
    """What an example gives depends on the others of its batch."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.last = nn.Linear(3 * 32 * 32, 5)

    def forward(self, images: Tensor) -> Tensor:
        return self.last((images - images.mean(0) / 2).flatten(1))


class Noisy(nn.Linear):
    """Draws noise in eval mode, too."""

    def __init__(self) -> None:
        super().__init__(3 * 32 * 32, 5)

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images + torch.randn_like(images))


class Choosing(nn.Module):
    """What it does depends on the numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(3 * 32 * 32, 5)

    def forward(self, images: Tensor) -> Tensor:
        return self.last((images if images.sum() > 0 else -images).flatten(1))


@pytest.mark.parametrize("make", [Shared, Reused, Mixing])
def test_a_gradient_is_that_of_the_example_alone_however_a_model_uses_its_layers(make: Callable[[], nn.Module]) -> None:
    model = make().double()
    images, targets = (one.double() for one in images_and_targets(3))
    theirs = [torch.stack(column) for column in zip(*by_loop(model, images, targets), strict=True)]
    for mine, known in zip(ExampleGradients(model).of(images, targets), theirs, strict=True):
        torch.testing.assert_close(mine, known, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_models_that_can_be_scored_pass(name: str) -> None:
    ExampleGradients(MODELS[name]()).verify((3, 32, 32), 5)


@pytest.mark.parametrize(
    "make",
    [Choosing, lambda: nn.Sequential(nn.Flatten(), nn.Linear(7, 5)), lambda: nn.Sequential(nn.Flatten(), Noisy())],
)
def test_models_without_gradients_of_single_examples_are_refused(make: Callable[[], nn.Module]) -> None:
    with pytest.raises(ConfigError, match="of single examples cannot be computed by torch"):
        ExampleGradients(make()).verify((3, 32, 32), 5)


class WithUnusedHead(nn.Module):
    """A model with parameters that the loss does not depend on, such as an auxiliary head in eval mode."""

    def __init__(self, head: bool) -> None:
        super().__init__()
        self.used = nn.Linear(48, 4)
        self.head = nn.Linear(48, 4) if head else None

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.used(images.flatten(1))
        return found


def test_parameters_that_the_loss_does_not_reach_change_nothing() -> None:
    points = torch.rand(2, 3, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    plain, more = WithUnusedHead(False), WithUnusedHead(True)
    more.used.load_state_dict(plain.used.state_dict())
    targets = torch.eye(4)[:2]
    expected, found = (ExampleGradients(model).similarities(points, targets) for model in (plain, more))
    assert torch.equal(found.per_tensor, expected.per_tensor)
    assert torch.equal(found.whole, expected.whole)
