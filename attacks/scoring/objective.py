"""What a classifier is trained for: the loss between its logits and what is true, and what counts as right.

One object for each kind of task; a run has one (``clients.task.task.Plan.objective``).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from fractions import Fraction
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F


def matthews(tp: float, tn: float, fp: float, fn: float) -> float:
    """Matthews correlation coefficient of a binary classifier, in [-1, 1].

        (tp tn - fp fn) / sqrt((tp + fp) (tp + fn) (tn + fp) (tn + fn))

    of true and false positives and negatives. 0 where the denominator is: a constant answer, or a test of one class alone, shows
    no correlation.

    Raises:
        ValueError: When a count is negative or not whole.

    Source: Matthews, "Comparison of the predicted and observed secondary structure of T4 phage lysozyme", 1975; Eq. 10 of Yao et
    al., ICDM 2022.
    """
    hits, rejections, alarms, misses = map(_whole, ("tp", "tn", "fp", "fn"), (tp, tn, fp, fn))
    product = (hits + alarms) * (hits + misses) * (rejections + alarms) * (rejections + misses)
    if not product:
        return 0.0
    difference = hits * rejections - alarms * misses
    # One rounding of the exact square: nothing overflows, and a perfect classifier has exactly 1.
    return math.copysign(math.sqrt(Fraction(difference**2, product)), difference)


def micro_mcc(tp: Sequence[float], fp: Sequence[float], fn: Sequence[float], total: float) -> float:
    """Matthews correlation of the counts of all K classes taken together, one against the others.

    ``tp``, ``fp`` and ``fn`` are K numbers each, of ``total`` examples, each of which counts once for every class. Where each has
    one class and gets one answer, this is (K accuracy - 1) / (K - 1).

    Raises:
        ValueError: When the lists are empty or of different lengths, or counts do not fit into ``total``.
    """
    return matthews(*(sum(counts) for counts in zip(*_tables(tp, fp, fn, total), strict=True)))


def macro_mcc(tp: Sequence[float], fp: Sequence[float], fn: Sequence[float], total: float) -> float:
    """Mean over classes of the Matthews correlation of one class against the others. Arguments and errors as ``micro_mcc``."""
    tables = _tables(tp, fp, fn, total)
    return math.fsum(matthews(*table) for table in tables) / len(tables)


def accuracy(tp: Sequence[float], total: float) -> float:
    """Share of examples whose one answer is right, in [0, 1]: true positives of all classes over ``total``.

    Raises:
        ValueError: When there are no examples, or more true positives than examples.
    """
    hits, examples = sum(_whole("tp", count) for count in tp), _whole("total", total)
    if not 0 <= hits <= examples or not examples:
        raise ValueError(f"{hits} right answers on {examples} examples")
    return hits / examples


def share_of_labels(fp: Sequence[float], fn: Sequence[float], total: float) -> float:
    """Mean over K labels of the share of examples that are answered rightly, in [0, 1]; counts as in ``micro_mcc``.

    Raises:
        ValueError: When there are no examples or labels, or more wrong answers than answers.
    """
    wrong, answers = sum(_whole("fp or fn", count) for count in (*fp, *fn)), len(fp) * _whole("total", total)
    if not 0 <= wrong <= answers or not answers or len(fp) != len(fn):
        raise ValueError(f"{wrong} wrong answers of {answers}")
    return 1 - wrong / answers


def _tables(
    tp: Sequence[float], fp: Sequence[float], fn: Sequence[float], total: float
) -> list[tuple[int, int, int, int]]:
    """(tp, tn, fp, fn) of each class."""
    if not len(tp) == len(fp) == len(fn) or not len(tp):
        raise ValueError(f"{len(tp)}, {len(fp)} and {len(fn)} counts; expected one of each kind for every class")
    tables = []
    for at, counts in enumerate(zip(tp, fp, fn, strict=True)):
        hits, alarms, misses = map(_whole, ("tp", "fp", "fn"), counts)
        rejections = _whole("total", total) - hits - alarms - misses
        if rejections < 0:
            raise ValueError(f"class {at}: tp = {hits}, fp = {alarms} and fn = {misses} of {total} examples")
        tables.append((hits, rejections, alarms, misses))
    return tables


def _whole(name: str, count: float) -> int:
    if not math.isfinite(count) or count < 0 or count != int(count):
        raise ValueError(f"{name} is {count!r}; allowed: a whole number >= 0")
    return int(count)


class Objective(ABC):
    """A kind of task. Truth is what ``clients.data.images.ImageData.truth`` gives, targets what enters the loss, (B, K).

    Attributes:
        one_class: Every example has exactly one class, which attacks on labels guess and recognition looks for.
    """

    one_class: ClassVar[bool]

    @abstractmethod
    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The mean over examples.

        Args:
            logits: (B, K).
            targets: (B, K) in [0, 1], possibly soft.
        """

    @abstractmethod
    def targets(self, truth: Tensor, num_classes: int) -> Tensor:
        """Targets (B, K), float32, of examples whose truth is given."""

    @abstractmethod
    def answers(self, logits: Tensor) -> Tensor:
        """What logits (B, K) say is true: (B, K) bool."""

    @abstractmethod
    def accuracy(self, tp: Sequence[int], fp: Sequence[int], fn: Sequence[int], total: int) -> float:
        """Share of right answers, from counts of one class (or label) against the others, K numbers each, on ``total`` examples."""

    @abstractmethod
    def fits(self, tp: Sequence[float], fp: Sequence[float], fn: Sequence[float], total: int) -> bool:
        """Whether such counts can be those of ``total`` examples."""

    def hits(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Of every example the share of its classes or labels that are answered rightly: (B,) in [0, 1]."""
        right = self.answers(logits) == self.answers(targets - 0.5)
        return right.all(1).float() if self.one_class else right.float().mean(1)


class OneClass(Objective):
    """One of K classes: softmax and cross-entropy; truth is (B,) int64."""

    one_class = True

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy with class probabilities."""
        return F.cross_entropy(logits, targets)

    def targets(self, truth: Tensor, num_classes: int) -> Tensor:
        """One-hot."""
        return F.one_hot(truth, num_classes).float()

    def answers(self, logits: Tensor) -> Tensor:
        """The most likely class alone."""
        return F.one_hot(logits.argmax(1), logits.shape[1]).bool()

    def accuracy(self, tp: Sequence[int], fp: Sequence[int], fn: Sequence[int], total: int) -> float:
        """True positives over examples."""
        return accuracy(tp, total)

    def fits(self, tp: Sequence[float], fp: Sequence[float], fn: Sequence[float], total: int) -> bool:
        """Every example has one class and gets one answer."""
        hits, alarms, misses = (torch.tensor(counts, dtype=torch.float64) for counts in (tp, fp, fn))
        one = bool((hits + alarms).sum() == (hits + misses).sum() == total)
        return one and float((hits + alarms + misses).max()) <= total


class ManyLabels(Objective):
    """K labels, each of which an example has or has not: a sigmoid each and binary cross-entropy; truth is (B, K), 0 or 1.

    The loss is the mean over labels, as that of PyTorch and of the shuffling paper's code. A label is answered by yes where its
    logit is above 0 (the paper's code compares the logit with 0.5, which is a probability of 0.62). Accuracy is the mean over
    labels. If most faces lack most attributes, always answering no has a high accuracy, and Matthews' correlation is better.

    Source: Yao et al., ICDM 2022, CelebA's 40 attributes.
    """

    one_class = False

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Binary cross-entropy, the mean over examples and labels."""
        return F.binary_cross_entropy_with_logits(logits, targets)

    def targets(self, truth: Tensor, num_classes: int) -> Tensor:
        """The labels as floats."""
        return truth.float()

    def answers(self, logits: Tensor) -> Tensor:
        """Yes where a logit is above 0."""
        return logits > 0

    def accuracy(self, tp: Sequence[int], fp: Sequence[int], fn: Sequence[int], total: int) -> float:
        """Mean over labels of the share of examples that are answered rightly."""
        return share_of_labels(fp, fn, total)

    def fits(self, tp: Sequence[float], fp: Sequence[float], fn: Sequence[float], total: int) -> bool:
        """No label has more answers than there are examples."""
        counts = torch.tensor([tp, fp, fn], dtype=torch.float64)
        return float(counts.sum(0).max()) <= total


ONE_CLASS, MANY_LABELS = OneClass(), ManyLabels()


def objective_of(multi_label: bool) -> Objective:
    """That of data whose examples have several labels, or one class."""
    return MANY_LABELS if multi_label else ONE_CLASS
