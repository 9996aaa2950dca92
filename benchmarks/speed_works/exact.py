"""Exact recovery of a batch: directions learned together beside SPEAR's samples, and a head's features beside matching.

SPEAR's side is its published search in our own words. Seconds are means over ``SEEDS`` networks.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from statistics import mean, median

import torch
from speed import Took, Work

sys.path.append(str(Path(__file__).resolve().parents[1] / "exact"))

from spear import Spear

from attacks import ClientUpdate, GradientInversion, HeadInversion, SpearPlusPlus, optimal_assignment
from attacks.base import AnyAttack
from attacks.guesses import found_nothing
from attacks.image_measures import psnr
from clients.data.datasets import load_dataset
from clients.data.images import to_float
from clients.models.classifiers import build_model

SEEDS, RATE, RECOVERED = range(4), 0.1, 30.0


def observed(model: str, batch: int, seed: int, device: str) -> tuple[ClientUpdate, torch.Tensor]:
    """A one-step update of a new network on random digits, and the digits."""
    data = load_dataset("mnist-5k")
    chosen = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(seed))[:batch]
    images, labels = to_float(data.train.images[chosen]), data.train.labels[chosen]
    width = 1000 if model == "mlp" else 0
    network = build_model(
        model, num_classes=10, input_shape=tuple(data.input_shape), width=width, norm="group", seed=seed
    )
    mean_of, std = (torch.tensor(values).view(-1, 1, 1) for values in (data.mean, data.std))
    loss = torch.nn.functional.cross_entropy(network((images - mean_of) / std), labels)
    slopes = torch.autograd.grad(loss, list(network.parameters()))
    update = {n: -RATE * slope for (n, _), slope in zip(network.named_parameters(), slopes, strict=True)}
    seen = ClientUpdate(
        network.to(device), {n: u.to(device) for n, u in update.items()}, tuple(data.input_shape), tuple(data.mean),
        tuple(data.std), num_examples=batch, batch_size=batch, local_steps=1, learning_rate=RATE, train_mode=False,
    )  # fmt: skip
    return seen, images


def attacked(attack: AnyAttack, model: str, batch: int, device: str) -> Took:
    """Seconds for a batch, and how many images were recovered."""
    attack(observed(model, batch, 99, device)[0], torch.Generator().manual_seed(0))
    seconds, quality = [], list[float]()
    for seed in SEEDS:
        seen, images = observed(model, batch, seed, device)
        start = time.perf_counter()
        guess = attack(seen, torch.Generator().manual_seed(seed))
        seconds.append(time.perf_counter() - start)
        if not found_nothing(guess):
            own, theirs = optimal_assignment(guess.images.cpu(), images)
            quality += psnr(guess.images.cpu()[own], images[theirs]).tolist()
    recovered = sum(value >= RECOVERED for value in quality)
    return Took(
        mean(seconds), f"{recovered} of {batch * len(SEEDS)} above 30 dB, median {median(quality or [0.0]):.1f} dB"
    )


def work(name: str, beside: str, goal: float, ours: AnyAttack, theirs: AnyAttack, model: str, batch: int) -> Work:
    """Two attacks on the same updates."""
    sides = (lambda device, attack=attack: attacked(attack, model, batch, device) for attack in (ours, theirs))
    return Work(name, beside, goal, *sides)


WORKS = [
    work("exact recovery, 2NN of width 1,000, 16 digits", "SPEAR's samples", 1 / 3, SpearPlusPlus(), Spear(), "mlp", 16),
    work(
        "a digit from the head of FedAvg's CNN", "matching gradients (ours)", 1 / 3,
        HeadInversion(), GradientInversion(), "cnn", 1,
    ),
]  # fmt: skip
