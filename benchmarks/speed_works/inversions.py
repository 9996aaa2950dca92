"""Gradient inversion as each side ships it: a default attack of ours until it ends, beside breaching's published 24,000 iterations.

Both attack the update of one step on the same photographs of 3 x 32 x 32 and know the labels; networks have GroupNorm where they
normalise. breaching's whole schedule would take hours: its seconds are those of one iteration, from the difference between a run of
eight and a longer one, times 24,000. Its PSNR is that of the longer run, over whose iterations its schedule stretches; more
iterations could raise it. Each of its rows says how many there were.
"""

from __future__ import annotations

import copy
import logging
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from speed import Took, Work

sys.path.append(str(Path(__file__).resolve().parents[1] / "inversion"))

from peer_breaching import THEIRS, reconstructed
from peer_strength import Cell
from torch import Tensor

from attacks.gradient.presets import InvertingGradients

PUBLISHED, SHORT = 24_000, 8
"""Iterations of breaching's ``invertinggradients``, and of the run that shows what it takes to begin."""
GOAL = 0.1


@dataclass(frozen=True)
class Inversion:
    """One update that both invert.

    Attributes:
        cell: Network, normalisation, data set and batch, as ``peer_strength.Cell`` has them.
        batch: Images of the update.
        reduced: Iterations of breaching's longer run.
    """

    cell: str
    batch: int
    reduced: int

    def on(self, device: str) -> Cell:
        """The update on a device, with the images behind it."""
        logging.disable(logging.INFO)
        cell = Cell(f"{self.cell}:{self.batch}", 0, self.batch, auxiliary=False, averages=False)
        model = copy.deepcopy(cell.model).to(device)
        cell.seen = [
            replace(
                one,
                model=model,
                update={name: value.to(device) for name, value in one.update.items()},
                labels=None if one.labels is None else one.labels.to(device),
            )
            for one in cell.seen
        ]
        return cell

    def ours(self, device: str) -> Took:
        """Our default attack until it ends."""
        cell, attack = self.on(device), InvertingGradients(labels="known")

        def run(attack: InvertingGradients) -> list[Tensor]:
            return [found.images for found in attack.attack_many(cell.seen, [torch.Generator().manual_seed(0)])]

        run(replace(attack, iterations=2))
        seconds, guesses = waited(lambda: run(attack))
        return Took(seconds, quality(cell, guesses))

    def theirs(self, device: str) -> Took:
        """Seconds of the published iterations, and the PSNR after fewer."""
        cell = self.on(device)

        def run(iterations: int) -> list[Tensor]:
            return reconstructed(THEIRS, cell.seen, cell.num_classes, iterations)

        run(2)
        begin, _ = waited(lambda: run(SHORT))
        seconds, guesses = waited(lambda: run(self.reduced))
        each = (seconds - begin) / (self.reduced - SHORT)
        return Took(each * PUBLISHED, f"{quality(cell, guesses)} after {self.reduced:,} of {PUBLISHED:,} iterations")


def waited(work: Callable[[], list[Tensor]]) -> tuple[float, list[Tensor]]:
    """Wall seconds until the device has done the work, and its result."""
    start = time.perf_counter()
    result = [guess.cpu() for guess in work()]  # A copy to the host waits for the device.
    return time.perf_counter() - start, result


def quality(cell: Cell, guesses: list[Tensor]) -> str:
    """Mean PSNR of the guesses, paired with the true images."""
    psnr = cell.scores(guesses)["psnr"]
    return f"{sum(psnr) / len(psnr):.1f} dB"


REDUCED = {"lenet:none": 600, "cnn:none": 600, "convnet:group": 100, "resnet20:group": 100}
"""Network -> iterations of breaching's longer run: a few seconds on a processor."""
BATCHES = {"lenet:none": (1, 4), "cnn:none": (1, 4), "convnet:group": (1,), "resnet20:group": (1,)}
INVERSIONS = [Inversion(f"{network}:photos", batch, n) for network, n in REDUCED.items() for batch in BATCHES[network]]
WORKS = [
    Work(
        f"inversion, {one.cell.split(':')[0]}, " + ("one image" if one.batch == 1 else f"batch of {one.batch}"),
        "breaching 0.1.2, as published", GOAL, one.ours, one.theirs,
    )
    for one in INVERSIONS
]  # fmt: skip
