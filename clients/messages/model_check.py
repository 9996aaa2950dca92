"""The model check: refuse models that no honest round could have made; no Flower here.

A client cannot recompute the averaged model of a round. In order: names, shapes and numbers are those of the architecture; all
models of one round are the same; the first one is that of the agreed seed; and then each limit below.

An average of updates moves by no more than the longest; of weights the ratio was at most 1.1 over honest rounds
(benchmarks/results/exact_and_active.md).

The number of the round is the server's word. So that it buys little, the last round is what the first order said, and no count of
rounds lets weights turn by more than ``MOST_TURN``; what a client knows of its own updates counts for all pipelines of a run.

It does not hold against a server that moves the model by no more than training does, round after round, or skips rounds to move it
by as much at once; nor fully before the client's first own update, when how far models move has no measure; nor against a server
that agreed on a seed or an architecture of its choice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor

from defenses.tensors import NamedTensors, Numbers
from defenses.updates.local_statistics import is_statistic

MOST_CHANGE = 4.0
"""Times this client's own updates (root mean square per parameter tensor) by which a layer may move in a round."""
MOST_TURNS = 2.5
"""Times this client's own turn, as 1 - cosine, by which a layer may turn in a round."""
MOST_GROWTH = 10.0
"""Times its initial size that a layer may have."""
MOST_COPIES = 0.1
"""Share of a layer's rows (or columns) that may be multiples of one another, or zero."""
MOST_HEAD = 10.0
"""Times the median row of the last layer that the row of a class may be."""
MOST_LOSS = 4.0
"""Times the loss of the last accepted model (or of a null baseline, if that is more) on own examples."""
LEAST_ACTIVE = 0.1
"""Share of the ReLUs of a linear layer that are on, if they were before."""
PARALLEL = 0.999
"""|cosine| of two rows of a layer from which they count as multiples of one another."""
FEWEST = 8
"""Rows and columns of a layer below which nothing is said about its rows: few numbers are parallel by chance."""
LEAST_SCALE = 0.1
"""Root mean square that weights may have in any layer, times ``MOST_GROWTH``: some begin at zero."""
LEAST_TURN = 0.02
"""1 - cosine by which weights may turn in a round, times ``MOST_TURNS``, whatever own updates did: a defence may keep all of
a tensor's own update back."""
MOST_TURN = 0.5
"""Most by which weights may turn, as 1 - cosine, for any number of rounds reported by the server, which clients cannot check."""
ROUNDING = 1e-4
"""Relative difference of two models that are the same, but for another processor's rounding."""

Weights = NamedTensors
"""Name -> tensor: parameters and floating-point buffers, as clients and server exchange them."""


@dataclass(frozen=True)
class Remembered:
    """A client's record of the models that it accepted.

    Attributes:
        round: Of the last one; 0: none yet, and ``weights`` are those that the agreed seed gives.
        weights: The last one.
        moved: Parameter -> largest root mean square of this client's own updates of a local round; empty before the first.
        turned: Parameter -> largest 1 - cosine of the weights before and after such an update.
    """

    round: int
    weights: Weights
    moved: Mapping[str, float] = field(default_factory=dict)
    turned: Mapping[str, float] = field(default_factory=dict)

    def measured_by(self, others: Iterable[Remembered]) -> Remembered:
        """The record with the changes of ``others``, of the same architecture, where no own update is known."""
        if self.moved:
            return self
        moved, turned = Numbers(), Numbers()
        for other in others:
            for mine, theirs in ((moved, other.moved), (turned, other.turned)):
                mine.update({name: max(value, mine.get(name, 0.0)) for name, value in theirs.items()})
        return replace(self, moved=moved, turned=turned)

    def after(self, update: Weights) -> Remembered:
        """The record after own training of the last model ended in ``update``."""
        own = {name: value for name, value in update.items() if not is_statistic(name)}
        moved = {name: max(rms(value), self.moved.get(name, 0.0)) for name, value in own.items()}
        turned = {
            name: max(turn(self.weights[name], self.weights[name] + value), self.turned.get(name, 0.0))
            for name, value in own.items()
        }
        return replace(self, moved=moved, turned=turned)


@dataclass(frozen=True)
class Tried:
    """A model's results on the client's own examples: mean cross-entropy, smallest share of active values behind a ReLU."""

    loss: float
    active: float = 1.0


def fault(
    sent: Weights, initial: Weights, last: Remembered, at: int, tried: Callable[[Weights], Tried] | None, classes: int
) -> str:
    """Reason why the server's model of round ``at`` is not the agreed one, or "".

    ``initial`` follows from the agreed seed, ``last`` is what the client remembers, ``tried`` tries a model on the
    client's own examples; None: no model is tried.
    """
    if why := architecture_fault(sent, initial):
        return why
    if at <= last.round or at == 1:
        same = "that of the agreed seed" if last.round == 0 else f"the one of round {last.round}"
        return "" if equal(sent, last.weights) else f"it is not {same}"
    by_weights = (
        change_fault(sent, last, at) or magnitude_fault(sent, initial) or rows_fault(sent) or head_fault(sent, classes)
    )
    return by_weights or (tried and behaviour_fault(tried(sent), tried(last.weights), classes)) or ""


def change_fault(sent: Weights, last: Remembered, at: int) -> str:
    """Whether a parameter moved or turned more than this client's own updates per round make plausible."""
    if not last.moved:
        return ""
    # A defence may have removed a tensor's own update entirely: then the update as a whole bounds the others' change.
    overall = math.sqrt(sum(value**2 for value in last.moved.values()) / len(last.moved))
    for name, value in sent.items():
        if name not in last.moved or is_statistic(name):
            continue
        rounds, before = at - last.round, last.weights[name]
        # Biases are few numbers, of which clients differ more: they may move as far as any tensor did.
        own = max(last.moved[name], overall) if value.dim() > 1 else max(last.moved.values())
        allowed = MOST_CHANGE * rounds * own
        if (moved := rms(value - before)) > allowed:
            return f"{name} moved by {moved:.2g} since round {last.round}, and own updates allow {allowed:.2g}"
        allowed = min(MOST_TURNS * rounds * max(last.turned[name], LEAST_TURN), MOST_TURN)
        if value.dim() > 1 and (turned := turn(before, value)) > allowed:
            return f"{name} turned by {turned:.2g} (1 - cosine) since round {last.round}, and own updates allow {allowed:.2g}"
    return ""


def magnitude_fault(sent: Weights, initial: Weights) -> str:
    """Whether a parameter is far larger than it began."""
    for name, value in sent.items():
        allowed = MOST_GROWTH * max(rms(initial[name]), LEAST_SCALE)
        if not is_statistic(name) and rms(value) > allowed:
            return f"{name} has a root mean square of {rms(value):.2g}, and {allowed:.2g} is allowed"
    return ""


def rows_fault(sent: Weights) -> str:
    """Whether rows or columns of a linear layer are multiples of one another, or zero."""
    for name, value in sent.items():
        if value.dim() != 2 or min(value.shape) < FEWEST:
            continue
        for what, rows in (("rows", value), ("columns", value.T)):
            if (share := share_of_copies(rows)) > MOST_COPIES:
                return f"{share:.0%} of the {what} of {name} are zero or multiples of others"
    return ""


def head_fault(sent: Weights, classes: int) -> str:
    """Whether one class' row of the last linear layer is far from the others."""
    heads = [(name, value) for name, value in sent.items() if value.dim() == 2 and len(value) == classes]
    for name, value in heads[-1:]:
        norms = value.norm(dim=1)
        if classes > 2 and float(norms.max()) > MOST_HEAD * float(norms.median()):
            return (
                f"one row of {name} is {float(norms.max() / norms.median().clamp(min=1e-12)):.3g} times the median row"
            )
    return ""


def behaviour_fault(now: Tried, before: Tried, classes: int) -> str:
    """Whether the model is far worse on own examples than the last one or than guessing, or newly has silent units.

    The reason holds no number: a server would read own examples in it.
    """
    if not now.loss <= MOST_LOSS * max(before.loss, math.log(classes)):
        return f"its loss on own examples is above {MOST_LOSS:g} times that of the last model and of guessing"
    if now.active < LEAST_ACTIVE <= before.active:
        return f"below {LEAST_ACTIVE:.0%} of the values of a layer are on for own examples, and more were"
    return ""


def architecture_fault(sent: Weights, initial: Weights) -> str:
    """Whether names, shapes and dtypes are other than agreed, or numbers are not finite."""
    if odd := sorted(set(sent) ^ set(initial)):
        return f"its weights are named otherwise than agreed at {odd[:3]}"
    for name, value in sent.items():
        if value.shape != initial[name].shape or value.dtype != initial[name].dtype:
            return f"{name} is {value.dtype}{tuple(value.shape)}, agreed is {initial[name].dtype}{tuple(initial[name].shape)}"
        if not value.isfinite().all():
            return f"{name} holds NaN or infinite values"
    return ""


def equal(weights: Weights, other: Weights) -> bool:
    """Whether two models of one architecture are the same, up to ``ROUNDING``."""
    return all(rms(weights[name] - value) <= ROUNDING * rms(value) for name, value in other.items())


def share_of_copies(rows: Tensor) -> float:
    """Share of ``rows`` (M, N) that are zero, or a multiple of another one."""
    norms = rows.norm(dim=1, keepdim=True)
    unit = rows / norms.clamp(min=1e-12)
    alike = (unit @ unit.T).abs().fill_diagonal_(0.0).amax(1) > PARALLEL
    return float((alike | (norms[:, 0] <= 1e-12)).double().mean())


def turn(vector: Tensor, other: Tensor) -> float:
    """1 - cosine, in [0, 2]; 0 where a vector is empty or zero."""
    a, b = vector.detach().flatten().double(), other.detach().flatten().double()
    return float(1 - a @ b / (a.norm() * b.norm()).clamp(min=1e-30)) if a.any() and b.any() else 0.0


def rms(value: Tensor) -> float:
    """Root mean square; 0 of nothing."""
    return float(value.detach().double().square().mean().sqrt()) if value.numel() else 0.0
