"""Throughput of training under VisualMixer beside plain training, in images per second (Table III of Li et al. 2024).

For each model, in turn within every round so that what else runs on the machine hits all alike: a step of SGD on plain images, on
images that were protected ahead, on images that are protected on the fly, on InstaHide's mixtures made on the fly, and DP-SGD by
Opacus (per-example gradients, clipped, with noise; BatchNorm replaced by GroupNorm, which it needs). Ratios are taken within a
round; the median over rounds is printed with the smallest and largest. Goal: protecting ahead loses at most 1.5 %.

    python benchmarks/mixer/vm_throughput.py --rounds 9 --threads 2
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from visual_mixer import natural_images

from clients.models.classifiers import build_model
from defenses.base import Batch, Training
from defenses.images.instahide import InstaHide
from defenses.images.visual_mixer import VisualMixer
from defenses.random_draws import generator_for
from defenses.training.dp_sgd import DPSGD

MODELS = ("shufflenet_v2_x1_0", "mobilenet_v2", "resnet18", "vgg11", "vit_b_16")
GOAL = 0.015
Step = Callable[[], None]


def sgd_step(model: nn.Module, images: Callable[[], Batch]) -> Step:
    """A step of SGD on what ``images`` gives."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step() -> None:
        batch = images()
        optimizer.zero_grad()
        F.cross_entropy(model(batch.images), batch.targets).backward()
        optimizer.step()

    return step


def private_step(model: nn.Module, batch: Batch) -> Step:
    """A step of DP-SGD on the same batch."""

    def loss(model: nn.Module, images: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(model(images), targets)

    loader = DataLoader(TensorDataset(batch.images, batch.targets), batch_size=len(batch.images))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    training = Training(model, optimizer, loader, loss, epochs=1, total_epochs=1)
    private = DPSGD(noise_multiplier=1.0).protect_training(training, generator_for("noise"))

    def step() -> None:
        private.optimizer.zero_grad()
        private.loss(private.model, batch.images, batch.targets).backward()
        private.optimizer.step()

    return step


def arms(name: str, batch: Batch, defense: VisualMixer) -> dict[str, Step]:
    """What is timed, plain training first; every arm has a model of its own."""
    torch.manual_seed(0)
    generator = generator_for("throughput")
    protected, mixing = defense.protect_batch(batch, generator), InstaHide()
    model = torchvision.models.get_model
    found = {
        "plain": sgd_step(model(name), lambda: batch),
        "protected ahead": sgd_step(model(name), lambda: protected),
        "protected on the fly": sgd_step(model(name), lambda: defense.protect_batch(batch, generator)),
        "InstaHide on the fly": sgd_step(model(name), lambda: mixing.protect_batch(batch, generator)),
    }
    if not name.startswith(("vit", "swin")):  # Opacus knows no gradients of their attention in torchvision's form
        shape = (3, *batch.images.shape[2:])
        private = build_model(f"torchvision:{name}", num_classes=1000, input_shape=shape, norm="group")
        found["DP-SGD"] = private_step(private, batch)
    return found


def compare(name: str, chosen: argparse.Namespace) -> list[str]:
    """A line for each arm: images per second, and the loss of throughput against plain training."""
    count = chosen.batch_size
    targets = F.one_hot(torch.arange(count) % 1000, 1000).float()
    steps = arms(name, Batch(natural_images(count, chosen.size), targets), VisualMixer())
    seconds: dict[str, list[float]] = {arm: [] for arm in steps}
    for turn in range(chosen.rounds + 1):
        order = list(steps.items())
        for arm, step in order[turn % len(order) :] + order[: turn % len(order)]:  # no arm always follows the same one
            begin = time.perf_counter()
            step()
            if turn:  # the first round warms up
                seconds[arm].append(time.perf_counter() - begin)
    lines = []
    for arm, taken in seconds.items():
        change = [100 * (plain / own - 1) for plain, own in zip(seconds["plain"], taken, strict=True)]
        rate = count / statistics.median(taken)
        told = "" if arm == "plain" else f"{statistics.median(change):+.1f} ({min(change):+.1f} to {max(change):+.1f})"
        lines.append(f"| {name} | {arm} | {rate:.2f} | {told} |")
    return lines


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    print(
        f"batches of {chosen.batch_size} images of {chosen.size} x {chosen.size} x 3, {chosen.threads} threads,",
        end=" ",
    )
    print(f"{chosen.rounds} rounds, torch {torch.__version__}; goal ahead: at most {100 * GOAL:g} % lost\n")
    print("| model | training | images per second | change to plain, % |\n|---|---|---|---|")
    for name in chosen.models:
        for line in compare(name, chosen):
            print(line, flush=True)


if __name__ == "__main__":
    main()
