"""The two kinds of tasks: their losses and counts against slow obvious versions, and accuracies against shares counted by hand."""

from __future__ import annotations

import math

import pytest
import torch

from attacks.scoring.confusion import share_of_labels
from attacks.scoring.objective import MANY_LABELS, ONE_CLASS, objective_of

LOGITS = torch.randn(7, 4, generator=torch.Generator().manual_seed(0))
CLASSES = torch.tensor([0, 1, 2, 3, 1, 1, 0])
VECTORS = torch.randint(2, (7, 4), generator=torch.Generator().manual_seed(1))


def test_one_class_is_cross_entropy_of_the_most_likely_class() -> None:
    targets = ONE_CLASS.targets(CLASSES, 4)
    slow = [
        math.log(sum(math.exp(x) for x in row)) - row[label]
        for row, label in zip(LOGITS.tolist(), CLASSES.tolist(), strict=True)
    ]
    assert float(ONE_CLASS.loss(LOGITS, targets)) == pytest.approx(sum(slow) / 7, rel=1e-5)
    right = [row.index(max(row)) == label for row, label in zip(LOGITS.tolist(), CLASSES.tolist(), strict=True)]
    assert ONE_CLASS.hits(LOGITS, targets).tolist() == [float(one) for one in right]


def test_many_labels_are_a_binary_cross_entropy_each_and_count_alike() -> None:
    targets = MANY_LABELS.targets(VECTORS, 4)
    slow, right = [], []
    for row, labels in zip(LOGITS.tolist(), VECTORS.tolist(), strict=True):
        for logit, label in zip(row, labels, strict=True):
            probability = 1 / (1 + math.exp(-logit))
            slow.append(-math.log(probability if label else 1 - probability))
            right.append((logit > 0) == bool(label))
    assert float(MANY_LABELS.loss(LOGITS, targets)) == pytest.approx(sum(slow) / 28, rel=1e-5)
    assert float(MANY_LABELS.hits(LOGITS, targets).mean()) == pytest.approx(sum(right) / 28)


@pytest.mark.parametrize(("objective", "truth"), [(ONE_CLASS, CLASSES), (MANY_LABELS, VECTORS)])
def test_accuracy_from_counts_is_the_mean_of_hits(objective, truth) -> None:
    targets = objective.targets(truth, 4)
    said, true = objective.answers(LOGITS), targets > 0
    tp, fp, fn = ((one & other).sum(0).tolist() for one, other in ((said, true), (said, ~true), (~said, true)))
    assert objective.accuracy(tp, fp, fn, 7) == pytest.approx(float(objective.hits(LOGITS, targets).mean()))
    assert objective.fits(tp, fp, fn, 7)
    assert not objective.fits([count + 7 for count in tp], fp, fn, 7)


def test_who_has_one_class_cannot_count_as_who_has_many_labels() -> None:
    assert MANY_LABELS.fits([2, 2], [0, 1], [0, 0], 3)
    assert not ONE_CLASS.fits([2, 2], [0, 1], [0, 0], 3)
    assert (objective_of(False).one_class, objective_of(True).one_class) == (True, False)


@pytest.mark.parametrize(("fp", "fn", "total"), [([1], [1, 0], 2), ([], [], 2), ([2], [1], 2), ([0], [0], 0)])
def test_counts_of_no_labels_have_no_share(fp: list[int], fn: list[int], total: int) -> None:
    with pytest.raises(ValueError, match="wrong answers of"):
        share_of_labels(fp, fn, total)
