"""Gradient inversion until it ends: ours with settings chosen on other images, beside the published iterations of two peers.

All attack the updates of one step on the same photographs of 3 x 32 x 32 and know the labels; networks have GroupNorm where they
normalise. A peer's whole schedule would take hours: its seconds are those of one iteration, from the difference between a run of
eight and a longer one, times the published number. Its PSNR is that of the longer run, over whose iterations its schedule
stretches; more iterations could raise it. Each of its rows says how many there were.
"""

from __future__ import annotations

import copy
import logging
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from speed import Took, Work

sys.path.append(str(Path(__file__).resolve().parents[1] / "inversion"))

import peer_breaching
import peer_leakpro
from peer_strength import Cell
from torch import Tensor

from attacks.gradient.presets import InvertingGradients

BREACHING, LEAKPRO = "breaching 0.1.2", "LeakPro of November 2026"
PUBLISHED, SHORT = {BREACHING: 24_000, LEAKPRO: 8_000}, 8
"""Iterations of the peers' Inverting Gradients, and of the run that shows what it takes to begin."""


def on(device: str, cell: str, batch: int) -> Cell:
    """Updates of so many images on a device, with the images behind them; the cell is as ``peer_strength.Cell`` has it."""
    logging.disable(logging.INFO)
    made = Cell(f"{cell}:{batch}", 0, UPDATES[cell] * batch, auxiliary=False, averages=False)
    model = copy.deepcopy(made.model).to(device)
    for at, one in enumerate(made.seen):
        update = {name: value.to(device) for name, value in one.update.items()}
        made.seen[at] = replace(
            one, model=model, update=update, labels=None if one.labels is None else one.labels.to(device)
        )
    return made


def ours(cell: str, batch: int, device: str) -> Took:
    """Our attack until it ends."""
    seen, attack = on(device, cell, batch), InvertingGradients(labels="known", total_variation=0.1, signed=False)

    def run(attack: InvertingGradients) -> list[Tensor]:
        generators = [torch.Generator().manual_seed(number) for number in range(len(seen.seen))]
        return [found.images for found in attack.attack_many(seen.seen, generators)]

    run(replace(attack, iterations=2))
    seconds, guesses = waited(lambda: run(attack))
    return Took(seconds, quality(seen, guesses))


def theirs(peer: str, cell: str, batch: int, device: str) -> Took:
    """Seconds of the published iterations, and the PSNR after fewer."""
    seen, reduced = on(device, cell, batch), REDUCED[peer].get(cell, 600)

    def run(iterations: int) -> list[Tensor]:
        if peer == LEAKPRO:
            return peer_leakpro.reconstructed(seen.seen, [images for images, _ in seen.batches], iterations)
        return peer_breaching.reconstructed(peer_breaching.THEIRS, seen.seen, seen.num_classes, iterations)

    run(2)
    begin, _ = waited(lambda: run(SHORT))
    seconds, guesses = waited(lambda: run(reduced))
    each = (seconds - begin) / (reduced - SHORT)
    published = PUBLISHED[peer]
    return Took(each * published, f"{quality(seen, guesses)} after {reduced:,} of {published:,} iterations")


def waited(work: Callable[[], list[Tensor]]) -> tuple[float, list[Tensor]]:
    """Wall seconds until the device has done the work, and its result."""
    start = time.perf_counter()
    result = [guess.cpu() for guess in work()]  # A copy to the host waits for the device.
    return time.perf_counter() - start, result


def quality(cell: Cell, guesses: list[Tensor]) -> str:
    """Mean PSNR of the guesses, paired with the true images."""
    psnr = cell.scores(guesses)["psnr"]
    return f"{sum(psnr) / len(psnr):.1f} dB of {len(psnr)}"


REDUCED = {
    BREACHING: {"convnet:group:photos": 100, "resnet20:group:photos": 100},
    LEAKPRO: {"resnet20:group:photos": 300},  # It looks at its guess every 250.
}
"""Peer -> cell -> iterations of its longer run where 600 would take minutes on a processor."""
UPDATES = {"lenet:none:photos": 4, "cnn:none:photos": 4, "convnet:group:photos": 2, "resnet20:group:photos": 1}
"""Cell -> how many updates are attacked."""
ROWS = {
    BREACHING: [(cell, batch) for cell in UPDATES for batch in ((1, 4) if cell.split(":")[1] == "none" else (1,))],
    LEAKPRO: [("lenet:none:photos", 1), ("cnn:none:photos", 4), ("resnet20:group:photos", 1)],
}
"""Peer -> cells with the images of an update."""
WORKS = [
    Work(f"inversion, {cell.split(':')[0]}, batch of {batch}{', LeakPro' * (peer == LEAKPRO)}", peer, 0.1,
         partial(ours, cell, batch), partial(theirs, peer, cell, batch))
    for peer, rows in ROWS.items() for cell, batch in rows
]  # fmt: skip
