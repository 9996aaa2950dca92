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


def test_losses_and_hits_are_those_of_a_loop() -> None:
    losses, hits = [], []
    for row, label in zip(LOGITS.tolist(), CLASSES.tolist(), strict=True):
        losses.append(math.log(sum(math.exp(x) for x in row)) - row[label])
        hits.append(float(row.index(max(row)) == label))
    targets = ONE_CLASS.targets(CLASSES, 4)
    assert float(ONE_CLASS.loss(LOGITS, targets)) == pytest.approx(sum(losses) / 7, rel=1e-5)
    assert ONE_CLASS.hits(LOGITS, targets).tolist() == hits
    losses, hits = [], []
    for logit, label in zip(LOGITS.flatten().tolist(), VECTORS.flatten().tolist(), strict=True):
        losses.append(math.log1p(math.exp(-logit if label else logit)))
        hits.append((logit > 0) == bool(label))
    targets = MANY_LABELS.targets(VECTORS, 4)
    assert float(MANY_LABELS.loss(LOGITS, targets)) == pytest.approx(sum(losses) / 28, rel=1e-5)
    assert float(MANY_LABELS.hits(LOGITS, targets).mean()) == pytest.approx(sum(hits) / 28)


def test_accuracy_from_counts_is_the_mean_of_hits() -> None:
    for objective, truth in ((ONE_CLASS, CLASSES), (MANY_LABELS, VECTORS)):
        targets = objective.targets(truth, 4)
        said, true = objective.answers(LOGITS), targets > 0
        tp, fp, fn = ((one & other).sum(0).tolist() for one, other in ((said, true), (said, ~true), (~said, true)))
        assert objective.accuracy(tp, fp, fn, 7) == pytest.approx(float(objective.hits(LOGITS, targets).mean()))
        assert objective.fits(tp, fp, fn, 7)
        assert not objective.fits([count + 7 for count in tp], fp, fn, 7)
    assert MANY_LABELS.fits([2, 2], [0, 1], [0, 0], 3)
    assert not ONE_CLASS.fits([2, 2], [0, 1], [0, 0], 3)
    assert (objective_of(False).one_class, objective_of(True).one_class) == (True, False)
    for fp, fn, total in (([1], [1, 0], 2), ([], [], 2), ([2], [1], 2), ([0], [0], 0)):
        with pytest.raises(ValueError, match="wrong answers of"):
            share_of_labels(fp, fn, total)
