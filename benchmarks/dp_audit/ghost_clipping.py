"""Memory and processor time of a DP-SGD step with ghost clipping, over one that keeps gradients per example.

Each cell is a process of its own with one thread: ``STEPS`` full batches of ``BATCH`` random images. Memory is the largest resident
set less that before the first step. Time is the processor time of a step, the least of the steps after the first.

    python benchmarks/dp_audit/ghost_clipping.py
"""

from __future__ import annotations

import multiprocessing
import resource
import time
import warnings

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from clients.models.classifiers import build_model
from defenses.base import Training
from defenses.random_draws import generator_for
from defenses.training.dp_sgd import DPSGD
from defenses.training.example_gradients import GHOST, PER_EXAMPLE

BATCH, STEPS = 32, 3
MEBI = 2**20


def wide() -> nn.Module:
    """Three linear layers of 1,024 units: 5.3 M weights."""
    return nn.Sequential(nn.Flatten(), nn.Linear(3072, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024),
                         nn.ReLU(), nn.Linear(1024, 10))  # fmt: skip


def model_of(name: str) -> nn.Module:
    """The named network for images of (3, 32, 32) and ten classes."""
    if name == "wide":
        return wide()
    return build_model(name, num_classes=10, input_shape=(3, 32, 32), width=0, norm="group", seed=0)


def cross_entropy(model: nn.Module, images: Tensor, targets: Tensor) -> Tensor:
    """Mean over the batch."""
    return F.cross_entropy(model(images), targets)


def measure(name: str, clipping: str) -> tuple[float, float]:
    """MiB and seconds of a step."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    images = torch.rand(BATCH, 3, 32, 32, generator=generator_for("images"))
    data = TensorDataset(images, torch.arange(BATCH) % 10)
    model = model_of(name).train()
    plain = Training(
        model, torch.optim.SGD(model.parameters(), lr=0.01), DataLoader(data, BATCH), cross_entropy, STEPS, STEPS
    )
    training = DPSGD(noise_multiplier=1.0, clipping=clipping).protect_training(plain, generator_for("noise"))
    before, seconds = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, []
    for _ in range(STEPS):
        for batch, targets in training.loader:
            start = time.process_time()
            loss = training.loss(model, batch, targets)
            training.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            training.optimizer.step()
            seconds.append(time.process_time() - start)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 / MEBI, min(seconds[1:])


def main() -> None:
    """Print a table."""
    print(
        "| network | weights | memory, per example | memory, ghost | ratio | time, per example | time, ghost | ratio |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name in ("wide", "lenet", "resnet20"):
        cells = []
        for clipping in (PER_EXAMPLE, GHOST):
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                cells.append(pool.apply(measure, (name, clipping)))
        (kept, slow), (ghost, fast) = cells
        weights = sum(one.numel() for one in model_of(name).parameters())
        print(
            f"| {name} | {weights:,} | {kept:.0f} MiB | {ghost:.0f} MiB | {ghost / kept:.2f} | {slow:.3f} s | {fast:.3f} s | "
            f"{fast / slow:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
