"""Models that remember their training digits, and the scores of a membership test as cells of a table."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attacks.scoring.roc import Estimate, auc, auc_interval, tpr_at_fpr
from clients.data.datasets import load_dataset, to_float

DIGITS = "mnist-5k"
STEPS, RATE, HIDDEN = 100, 0.1, 64
RANDOM_LABELS = 0.2
"""Share of labels that are drawn at random, so that a model can only remember them."""
RATES = (0.01, 0.001)
"""False positive rates of the tables."""


def seeded(seed: int) -> torch.Generator:
    """A new stream."""
    return torch.Generator().manual_seed(seed)


def shuffled(seed: int) -> tuple[Tensor, Tensor]:
    """The 4,000 training digits (N, 1, 28, 28) in [0, 1] in random order, and their classes with ``RANDOM_LABELS``."""
    data, generator = load_dataset(DIGITS).train, seeded(seed)
    order = torch.randperm(len(data), generator=generator)
    labels = data.labels[order].long()
    wrong = torch.rand(len(labels), generator=generator) < RANDOM_LABELS
    drawn = torch.randint(10, labels.shape, generator=generator)
    return to_float(data.images[order]), torch.where(wrong, drawn, labels)


def normalised(images: Tensor) -> Tensor:
    """As the models see them."""
    data = load_dataset(DIGITS)
    return (images - data.mean[0]) / data.std[0]


def perceptron(seed: int) -> nn.Module:
    """``HIDDEN`` hidden units."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Flatten(), nn.Linear(784, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 10))


def overfit(model: nn.Module, images: Tensor, classes: Tensor) -> nn.Module:
    """Full-batch SGD with momentum 0.9, in place."""
    optimizer = torch.optim.SGD(model.parameters(), RATE, momentum=0.9)
    for _ in range(STEPS):
        optimizer.zero_grad()
        F.cross_entropy(model(normalised(images)), classes).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return model.eval()


def cells(members: Tensor, others: Tensor) -> tuple[str, ...]:
    """AUC and the true positive rates at ``RATES``, each with its 95 % interval; "-" where so few others have no such rate."""
    found = [Estimate(auc(members, others), *auc_interval(members, others))]
    shown = [f"{one.value:.3f} ({one.low:.3f} to {one.high:.3f})" for one in found]
    for rate in RATES:
        one = tpr_at_fpr(members, others, rate)
        enough = len(others) * rate >= 1
        shown.append(f"{one.value:.3f} ({one.low:.3f} to {one.high:.3f})" if enough else "-")
    return tuple(shown)


def table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A Markdown table."""
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
