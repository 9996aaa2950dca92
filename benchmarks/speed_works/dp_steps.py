"""A step of DP-SGD beside Opacus' own engine on the same network and batch, with a step of plain SGD as the floor.

Seconds are the median of a side's steps after two that warm up: processor time on the CPU, with one thread, and time on the clock
on another device. ``got`` says how many steps of plain SGD the same process makes in that time.
"""

from __future__ import annotations

import itertools
import statistics
import time
import warnings
from collections.abc import Callable
from functools import partial
from importlib.metadata import version

import torch
from speed import Took, Work
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from clients.models.classifiers import build_model
from defenses.base import Training
from defenses.random_draws import generator_for
from defenses.training.dp_sgd import DPSGD
from defenses.training.example_gradients import GHOST, PER_EXAMPLE

SHAPE, CLASSES, RATE, NOISE, NORM = (3, 32, 32), 10, 0.01, 1.0, 1.0
WIDTHS = {"lenet": 0, "cnn": 0, "resnet20": 0, "vit_lite": 64}
"""Network -> its width; ResNet-20 has GroupNorm."""
GOALS = {"lenet": 0.67, "cnn": 0.67, "resnet20": 0.67, "vit_lite": 1.0}
BATCH = 32
OPACUS = {PER_EXAMPLE: "hooks", GHOST: "ghost"}
"""Way of clipping -> the engine of Opacus that does the same."""

Step = Callable[[], None]


def model_of(name: str, device: str) -> nn.Module:
    model = build_model(name, num_classes=CLASSES, input_shape=SHAPE, width=WIDTHS[name], norm="group", seed=0)
    return model.train().to(device)


def data_of(device: str) -> tuple[Tensor, Tensor]:
    images = torch.rand(BATCH, *SHAPE, generator=generator_for("images"))
    return images.to(device), (torch.arange(BATCH) % CLASSES).to(device)


def cross_entropy(model: nn.Module, images: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(model(images), targets)


def plain(name: str, device: str) -> Step:
    model, data = model_of(name, device), data_of(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)

    def step() -> None:
        optimizer.zero_grad()
        cross_entropy(model, *data).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def of_fedveil(name: str, clipping: str, device: str) -> Step:
    model, data = model_of(name, device), data_of(device)
    given = Training(model, torch.optim.SGD(model.parameters(), lr=RATE), DataLoader(TensorDataset(*data), BATCH),
                     cross_entropy, 1, 1)  # fmt: skip
    defense = DPSGD(noise_multiplier=NOISE, max_grad_norm=NORM, clipping=clipping)  # type: ignore[arg-type]
    training = defense.protect_training(given, generator_for("noise"))

    def step() -> None:
        loss = training.loss(model, *data)
        training.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        training.optimizer.step()

    return step


def of_opacus(name: str, clipping: str, device: str) -> Step:
    from opacus import PrivacyEngine

    model, data = model_of(name, device), data_of(device)
    made = PrivacyEngine().make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=RATE), criterion=nn.CrossEntropyLoss(),
        data_loader=DataLoader(TensorDataset(*data), BATCH), noise_multiplier=NOISE, max_grad_norm=NORM,
        poisson_sampling=False, grad_sample_mode=OPACUS[clipping],
    )  # fmt: skip
    private, optimizer = made[:2]
    criterion = made[2] if clipping == GHOST else F.cross_entropy

    def step() -> None:
        loss = criterion(private(data[0]), data[1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def seconds_of(step: Step, device: str) -> float:
    """Median of at least five steps, and of as many as fit into two seconds."""
    clock, taken = time.process_time if device == "cpu" else time.perf_counter, list[float]()
    while len(taken) < 7 or (sum(taken) < 2 and len(taken) < 200):
        begin = clock()
        step()
        if device != "cpu":
            torch.cuda.synchronize()
        taken.append(clock() - begin)
    return statistics.median(taken[2:])


def side(of: Callable[..., Step], name: str, clipping: str, device: str) -> Took:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    seconds = seconds_of(of(name, clipping, device), device)
    return Took(seconds, f"{seconds / seconds_of(plain(name, device), device):.1f} x SGD")


WORKS = [
    Work(
        f"DP-SGD step, {name}, {clipping}", f"Opacus {version('opacus')}, {OPACUS[clipping]}", GOALS[name],
        *(partial(side, of, name, clipping) for of in (of_fedveil, of_opacus)),
    )
    for name, clipping in itertools.product(WIDTHS, OPACUS)
]  # fmt: skip
