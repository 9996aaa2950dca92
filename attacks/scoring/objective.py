"""What a classifier is trained for: the loss between its logits and what is true, and what counts as right.

One object for each kind of task; a run has one (``clients.task.task.Plan.objective``).
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F


def matthews(tp: int, tn: int, fp: int, fn: int) -> float:
    """Matthews correlation coefficient of a binary classifier, in [-1, 1].

        (tp tn - fp fn) / sqrt((tp + fp) (tp + fn) (tn + fp) (tn + fn))

    of true and false positives and negatives. 0 where the denominator is: a constant answer, or a test of one class alone, shows
    no correlation.

    Source: Matthews, "Comparison of the predicted and observed secondary structure of T4 phage lysozyme", 1975; Eq. 10 of Yao et
    al., ICDM 2022.
    """
    product = (tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)
    if not product:
        return 0.0
    difference = tp * tn - fp * fn
    # One rounding of the exact square: nothing overflows, and a perfect classifier has exactly 1.
    return math.copysign(math.sqrt(Fraction(difference**2, product)), difference)


def micro_mcc(tp: Sequence[int], fp: Sequence[int], fn: Sequence[int], total: int) -> float:
    """Matthews correlation of the counts of all K classes taken together, one against the others.

    ``tp``, ``fp`` and ``fn`` are K numbers each, of ``total`` examples, each of which counts once for every class. Where each has
    one class and gets one answer, this is (K accuracy - 1) / (K - 1).
    """
    return matthews(*(sum(counts) for counts in zip(*_tables(tp, fp, fn, total), strict=True)))


def macro_mcc(tp: Sequence[int], fp: Sequence[int], fn: Sequence[int], total: int) -> float:
    """Mean over classes of the Matthews correlation of one class against the others; arguments as ``micro_mcc``."""
    return math.fsum(matthews(*table) for table in _tables(tp, fp, fn, total)) / len(tp)


def _tables(tp: Sequence[int], fp: Sequence[int], fn: Sequence[int], total: int) -> Iterator[tuple[int, int, int, int]]:
    """(tp, tn, fp, fn) of each class."""
    for hits, alarms, misses in zip(tp, fp, fn, strict=True):
        yield hits, total - hits - alarms - misses, alarms, misses


class _Task(ABC):
    one_class: ClassVar[bool]

    @abstractmethod
    def answers(self, logits: Tensor) -> Tensor:
        """What logits (B, K) say is true: (B, K) bool."""

    def hits(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Of every example the share of its classes or labels that are answered rightly: (B,) in [0, 1]."""
        right = self.answers(logits) == self.answers(targets - 0.5)
        return right.all(1).float() if self.one_class else right.float().mean(1)


class OneClass(_Task):
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
        return sum(tp) / total

    def fits(self, tp: Sequence[float], fp: Sequence[float], fn: Sequence[float], total: int) -> bool:
        """Every example has one class and gets one answer."""
        hits, alarms, misses = (torch.tensor(counts, dtype=torch.float64) for counts in (tp, fp, fn))
        agree = bool((hits + alarms).sum() == (hits + misses).sum() == total)
        return agree and float((hits + alarms + misses).max()) <= total


class ManyLabels(_Task):
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
        return 1 - (sum(fp) + sum(fn)) / (len(fp) * total)

    def fits(self, tp: Sequence[float], fp: Sequence[float], fn: Sequence[float], total: int) -> bool:
        """No label has more answers than there are examples."""
        return float(torch.tensor([tp, fp, fn], dtype=torch.float64).sum(0).max()) <= total


Objective = OneClass | ManyLabels
"""A kind of task. Truth is what ``clients.data.images.ImageData.truth`` gives, and ``targets`` makes of it what enters the loss:
(B, K) in [0, 1], possibly soft. ``loss`` is the mean over examples, of logits (B, K). ``accuracy`` and ``fits`` take counts of one
class (or label) against the others, K numbers each, on ``total`` examples. ``one_class``: every example has exactly one class,
which attacks on labels guess and recognition looks for."""
ONE_CLASS, MANY_LABELS = OneClass(), ManyLabels()


def objective_of(multi_label: bool) -> Objective:
    """That of data whose examples have several labels, or one class."""
    return MANY_LABELS if multi_label else ONE_CLASS
