"""The search of white-box inversions by AMSGrad, which keeps the best iterate of each image, and reports of how far a search is."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from attacks.observations import AttackError
from defenses.tensors import TensorMap

Watch = Callable[[int, int], None]
"""(steps done, steps of this search) after every step; an attack may search several times, each from 0 on."""

_watch: ContextVar[Watch | None] = ContextVar("watch", default=None)


@contextmanager
def watched(watch: Watch) -> Iterator[None]:
    """Within, and in this thread, every search reports to ``watch`` how far it is."""
    token = _watch.set(watch)
    try:
        yield
    finally:
        _watch.reset(token)


def reported(steps: Iterable[int], count: int) -> Iterator[int]:
    """Iterate over ``count`` steps of a search, and report each step when the next one begins."""
    watch = _watch.get()
    for step in steps:
        yield step
        if watch is not None:
            watch(step + 1, count)


@dataclass(frozen=True)
class StepRule:
    """Steps of Adam with AMSGrad (Reddi, Kale, Kumar, "On the Convergence of Adam and Beyond", ICLR 2018).

    Attributes:
        learning_rate: In the unit of the images.
        epsilon: Of Adam.
        in_range: Images are put back into [0, 1] behind every step, and the learning rate falls to zero along a half cosine.
    """

    learning_rate: float
    epsilon: float = 1e-8
    in_range: bool = False


def step_down(optimizer: Optimizer, loss: Tensor, schedule: LRScheduler | None = None) -> None:
    """One step of a network's optimizer along the gradient of a loss, and of its learning rate."""
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    if schedule is not None:
        schedule.step()


def minimise(objective: TensorMap, start: Tensor, iterations: int, rule: StepRule) -> tuple[Tensor, Tensor]:
    """Descends from one start (B, ...).

    Returns:
        The iterate with the lowest objective, and that objective: of each image for itself where ``objective`` gives (B,), of all
        together where it gives a number.

    Raises:
        AttackError: When an objective was never finite.
    """
    images = start.clone().requires_grad_()
    optimizer = torch.optim.Adam([images], rule.learning_rate, eps=rule.epsilon, amsgrad=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, iterations) if rule.in_range else None
    best, lowest = start.clone(), start.new_tensor(float("inf"))
    for _ in reported(range(iterations), iterations):
        values = objective(images)
        better = values.detach() < lowest
        best = torch.where(better.view(-1, *[1] * (images.dim() - 1)), images.detach(), best)
        lowest = torch.where(better, values.detach(), lowest)
        # A sum, so that no image's step depends on how many others there are. Not backward(): weights need no gradient.
        (images.grad,) = torch.autograd.grad(values.sum(), [images])
        optimizer.step()
        if schedule is not None:
            schedule.step()
            with torch.no_grad():
                images.clamp_(0, 1)
    if not torch.isfinite(lowest).all():
        raise AttackError("the objective was never finite")
    return best, lowest
