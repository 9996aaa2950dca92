"""Matthews correlation against scikit-learn; losses and hits against slow obvious versions."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from attacks.scoring.objective import MANY_LABELS, ONE_CLASS, macro_mcc, matthews, micro_mcc, objective_of

metrics = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed: uv sync --group dev")
pytestmark = pytest.mark.filterwarnings("ignore:A single label was found")
COUNTS = st.integers(0, 12)
Marks = NDArray[np.bool_]


def table(truth: Marks, guess: Marks) -> tuple[list[int], list[int], list[int], int]:
    """True positives, false positives and false negatives of each row, and the number of columns."""
    counts = (truth & guess, ~truth & guess, truth & ~guess)
    tp, fp, fn = (one.sum(1).tolist() for one in counts)
    return tp, fp, fn, truth.shape[1]


@given(COUNTS, COUNTS, COUNTS, COUNTS)
@settings(max_examples=80, deadline=None)
def test_it_is_that_of_scikit_learn_and_symmetric(tp: int, tn: int, fp: int, fn: int) -> None:
    truth = np.repeat([True, False, False, True], [tp, tn, fp, fn])
    guess = np.repeat([True, False, True, False], [tp, tn, fp, fn])
    expected = metrics.matthews_corrcoef(truth, guess) if len(truth) else 0.0
    assert matthews(tp, tn, fp, fn) == pytest.approx(expected, abs=1e-12)
    assert matthews(tn, tp, fn, fp) == matthews(tp, tn, fp, fn), "names of the two classes do not matter"
    assert matthews(fn, fp, tn, tp) == -matthews(tp, tn, fp, fn), "the opposite answers"


def test_huge_counts_are_exact() -> None:
    for power in (0, 6, 15, 90):
        counts = (10**power * count for count in (50, 30, 10, 10))
        assert matthews(*counts) == pytest.approx(1400 / 2400, abs=1e-15)
    # A difference that doubles would round away.
    big = 10**17
    assert matthews(big, big + 1, big, big) == pytest.approx(0.25 / big, rel=1e-9)


def test_pooled_and_mean_correlation_of_several_classes() -> None:
    draw, cases = np.random.default_rng(3), []
    for classes in (2, 3, 10):
        truth = draw.integers(classes, size=60)
        guess = np.where(draw.random(60) < 0.5, truth, draw.integers(classes, size=60))
        columns = np.arange(classes)[:, None]
        cases.append((truth == columns, guess == columns))
        counts = table(*cases[-1])
        share = ONE_CLASS.accuracy(*counts)
        assert share == pytest.approx(np.mean(truth == guess), abs=1e-15)
        assert micro_mcc(*counts) == pytest.approx((classes * share - 1) / (classes - 1), abs=1e-12)
    # 40 attributes, of which an example may have any number, as CelebA has; one never occurs and is never said.
    many = draw.random((40, 50)) < draw.random((40, 1))
    cases.append((many, many ^ (draw.random((40, 50)) < 0.2)))
    cases[-1][0][7] = cases[-1][1][7] = False
    for true, said in cases:
        counts = table(true, said)
        assert micro_mcc(*counts) == pytest.approx(metrics.matthews_corrcoef(true.ravel(), said.ravel()), abs=1e-12)
        each = [metrics.matthews_corrcoef(*pair) for pair in zip(true, said, strict=True)]
        assert macro_mcc(*counts) == pytest.approx(np.mean(each), abs=1e-12)


# ---- the two kinds of tasks

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
