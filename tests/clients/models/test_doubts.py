"""Networks with random output, and those that mix the images of a batch: found by what they answer."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clients.models.classifiers import build_model
from clients.models.doubts import MIXES, MIXES_IN_TRAINING, RANDOM, doubts

SHAPE = (1, 8, 8)


class Net(nn.Module):
    """A linear layer behind something odd."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(64, 10)

    def odd(self, features: Tensor) -> Tensor:
        return features

    def forward(self, images: Tensor) -> Tensor:
        answers: Tensor = self.last(self.odd(images.flatten(1)))
        return answers


class Dropped(Net):
    def odd(self, features: Tensor) -> Tensor:
        return F.dropout(features, 0.1, training=True)


class Noisy(Net):
    def odd(self, features: Tensor) -> Tensor:
        return features + 0.01 * torch.randn_like(features)


class PythonsNoise(Net):
    def odd(self, features: Tensor) -> Tensor:
        return features * (1 + random.SystemRandom().random())


class Counting(Net):
    calls = 0

    def odd(self, features: Tensor) -> Tensor:
        self.calls += 1
        return features / self.calls


class Shuffled(Net):
    def odd(self, features: Tensor) -> Tensor:
        return features[torch.randperm(len(features))]


class Reversed(Net):
    def odd(self, features: Tensor) -> Tensor:
        return features.flip(0)


class Softmax(Net):
    def odd(self, features: Tensor) -> Tensor:
        return features.softmax(0)


class Statistics(Net):
    def odd(self, features: Tensor) -> Tensor:
        return (features - features.mean(0)) / (features.std(0) + 1e-5)


class Attends(Net):
    """Behind a gate that starts with zero."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(64))

    def odd(self, features: Tensor) -> Tensor:
        return features + self.gate * ((features @ features.T / 64).softmax(1) @ features)


class Averaging(Net):
    """Subtracts a moving average of the images, of which a step moves it before or after it is read."""

    def __init__(self, *, first: bool) -> None:
        super().__init__()
        self.first = first
        self.average = nn.Parameter(torch.zeros(64), requires_grad=False)

    def odd(self, features: Tensor) -> Tensor:
        before = self.average.clone()
        if self.training:
            with torch.no_grad():
                self.average.mul_(0.9).add_(0.1 * features.mean(0))
        return features - (self.average if self.first else before)


class InTraining(Net):
    def odd(self, features: Tensor) -> Tensor:
        return features.flip(0) if self.training else features


class ShuffledInTraining(Net):
    def odd(self, features: Tensor) -> Tensor:
        return features[torch.randperm(len(features))] if self.training else features


class Dropout(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 10))


class Normed(nn.Sequential):
    def __init__(self, **given: bool) -> None:
        super().__init__(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4, **given), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10))


class Alone(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Conv2d(1, 4, 3), nn.InstanceNorm2d(4), nn.Flatten(), nn.LayerNorm(144), nn.Linear(144, 10))


class Zero(Net):
    def __init__(self) -> None:
        super().__init__()
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)

    def odd(self, features: Tensor) -> Tensor:
        return features.softmax(0)


@pytest.mark.parametrize(
    ("model", "found"),
    [
        (Net(), []),
        (Dropout(), []),  # off in eval mode
        (Alone(), []),
        (Normed(), []),  # what BatchNorm does in train mode is known
        (Normed(track_running_stats=False), [MIXES, MIXES_IN_TRAINING]),
        (Dropped(), [RANDOM]),
        (Noisy(), [RANDOM]),
        (PythonsNoise(), [RANDOM]),
        (Counting(), [RANDOM]),
        (Shuffled(), [MIXES, MIXES_IN_TRAINING, RANDOM]),
        (Reversed(), [MIXES, MIXES_IN_TRAINING]),
        (Softmax(), [MIXES, MIXES_IN_TRAINING]),
        (Statistics(), [MIXES, MIXES_IN_TRAINING]),
        (Attends(), [MIXES, MIXES_IN_TRAINING]),
        (Zero(), [MIXES, MIXES_IN_TRAINING]),
        (Averaging(first=True), [MIXES_IN_TRAINING]),
        (Averaging(first=False), [MIXES_IN_TRAINING]),
        (InTraining(), [MIXES_IN_TRAINING]),
        (ShuffledInTraining(), [MIXES_IN_TRAINING]),
    ],
    ids=lambda one: type(one).__name__ if isinstance(one, nn.Module) else "",
)
def test_what_a_model_does_is_found_and_nothing_else(model: nn.Module, found: list[str]) -> None:
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert doubts(model, SHAPE) == sorted(found)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("name", ["mlp", "cnn", "lenet", "convnet", "resnet20", "vgg_small", "vit_lite"])
@pytest.mark.parametrize("norm", ["group", "batch"])
def test_there_is_no_doubt_about_our_own_models(name: str, norm: str) -> None:
    width = 8 if name == "vit_lite" else 0
    model = build_model(name, num_classes=10, input_shape=(3, 32, 32), norm=norm, width=width)
    assert doubts(model, (3, 32, 32)) == []
