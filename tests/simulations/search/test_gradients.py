"""Gradients of single examples against a loop of autograd over examples."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clients.models.classifiers import build_model
from simulations.search import scores as module
from simulations.search.scores import ExampleGradients
from simulations.settings.errors import ConfigError


def images_and_targets(count: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    labels = torch.randint(5, (count,), generator=generator)
    return torch.randn(count, 3, 32, 32, generator=generator), F.one_hot(labels, 5).float()


def by_loop(model: nn.Module, images: Tensor, targets: Tensor) -> list[list[Tensor]]:
    """The gradients of each example by all parameters that its loss reaches, one backward pass each."""
    model, found = model.eval(), []
    for x, y in zip(images, targets, strict=True):
        loss = F.cross_entropy(model(x[None]), y[None])
        gradients = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
        found.append([one.flatten() for one in gradients if one is not None])
    return found


def along(engine: ExampleGradients, points: Tensor, targets: Tensor, starts: Sequence[Tensor] = ()) -> Tensor:
    """Of each path (I, J, C, H, W), with the gradients at one more point of each."""
    found = [
        engine.along(path, target, [one[at : at + 1] for one in starts])
        for at, (path, target) in enumerate(zip(points, targets, strict=True))
    ]
    return torch.stack(found)


class Odd(nn.Module):
    """What the named models lack: groups, dilation, stride, LayerNorm, a layer on tokens, one used twice, and one never used."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False)
        self.grouped = nn.Conv2d(8, 8, 3, padding=2, dilation=2, groups=4)
        self.norm = nn.LayerNorm(8)
        self.tokens = nn.Linear(8, 6)
        self.last, self.unused = nn.Linear(6, 5), nn.Linear(2, 2)

    def forward(self, images: Tensor) -> Tensor:
        found = self.grouped(self.grouped(F.relu(self.first(images)))).flatten(2).transpose(1, 2)
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
def test_gradients_and_their_similarities_are_those_of_a_loop_over_examples(name: str) -> None:
    model = MODELS[name]().double()
    ExampleGradients(model.float()).verify((3, 32, 32), 5)
    engine = ExampleGradients(model.double())
    images, targets = images_and_targets(2 * 3)
    points, targets = images.double().unflatten(0, (2, 3)), targets[:2].double()
    loops = [by_loop(model, way, target.expand(3, -1)) for way, target in zip(points, targets, strict=True)]
    starts = list(engine.of(points[:, 0], targets))
    assert len(starts) == len(loops[0][0])
    for mine, known in zip(starts, zip(*(loop[0] for loop in loops), strict=True), strict=True):
        torch.testing.assert_close(mine, torch.stack(known), rtol=1e-9, atol=1e-12)
    each = [
        [torch.stack([F.cosine_similarity(a, b, 0) for a, b in zip(one, last, strict=True)]).mean() for one in others]
        for *others, last in loops
    ]
    for found in (along(engine, points[:, 1:], targets, starts), along(engine, points, targets)):
        torch.testing.assert_close(found, torch.stack([torch.stack(row) for row in each]), rtol=1e-8, atol=1e-10)


def test_passes_that_fit_into_memory_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model = MODELS["cnn"]()
    images, targets = images_and_targets(3 * 4)
    points, targets = images.unflatten(0, (3, 4)), targets[:3]
    starts = ExampleGradients(model).of(images[:3], targets)
    known = along(ExampleGradients(model), points, targets, starts)
    monkeypatch.setattr(module, "MOST_BYTES", 1)
    single = ExampleGradients(model)
    assert single._at_once == 1
    torch.testing.assert_close(along(single, points, targets, starts), known, rtol=1e-5, atol=1e-6)


def test_a_vanished_gradient_is_like_none() -> None:
    model = MODELS["cnn"]().double()
    images, targets = images_and_targets(2)
    points = torch.stack([images, images.flip(0), images], 1).double()
    for found, alike in (
        (along(ExampleGradients(model), points, targets.double()), 1.0),
        (along(ExampleGradients(model), points, 0 * targets.double()), 0.0),
    ):
        torch.testing.assert_close(found[:, 0], torch.full((2,), alike).double())


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


def test_models_without_gradients_of_single_examples_are_refused() -> None:
    for model in (Choosing(), nn.Sequential(nn.Flatten(), nn.Linear(7, 5)), nn.Sequential(nn.Flatten(), Noisy())):
        with pytest.raises(ConfigError, match="of single examples cannot be computed by torch"):
            ExampleGradients(model).verify((3, 32, 32), 5)
