"""Why no verdict follows from scores on a final model: folders that differ, a model that was read wrongly, equal scores."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from attacks.membership.loss_threshold import Membership
from attacks.metrics.guesses import MEMBER_SCORE, MEMBERSHIP_AUC, OTHER_SCORE
from attacks.scoring.intervals import Estimate
from attacks.scoring.roc import auc, auc_interval
from clients.scoring.audit import membership_scores
from clients.task.auxiliary import Auxiliary
from clients.task.local_data import Client
from clients.training.evaluation import evaluate
from defenses.random_draws import generator_for
from simulations.external_app.released.records import Records, ReleasedPlan
from simulations.report.studies.intervals import wilson
from simulations.run_folder.rows import Row
from strategies.training.central_training import train_alone

DIFFER = "cannot tell: folders differ"
WORSE = "cannot tell: the model knows its members less than models that saw none; check class order and normalisation"
UNCOMPARED = "cannot tell: models that saw no tested record learned too little to compare the folders"
INCONSISTENT = "inconsistent: check class order and normalisation"
TIED = "cannot tell: all scores are equal"
NULL_MODELS = 4
"""Models that saw neither members nor tested non-members."""
LEVEL = 0.01
"""Of the test of class counts."""


class Null(NamedTuple):
    """What models that saw no tested record tell: the AUC by their losses, and their accuracy on non-members."""

    area: Estimate
    accuracy: float


def null_of(plan: ReleasedPlan, records: Records) -> Null | None:
    """By models that trained on non-members set aside, for folders that are alike an area of 0.5; None without such models."""
    own, sums = Auxiliary(plan).examples(), dict.fromkeys((MEMBER_SCORE.of(), OTHER_SCORE.of()), torch.zeros(()))
    right = 0.0
    for at in range(NULL_MODELS if len(own) else 0):
        half = torch.randperm(len(own), generator=generator_for("null", plan.seed, at))[: len(own) // 2]
        try:
            model = train_alone(plan, own.rows(half), at)
        except (RuntimeError, ValueError):  # it diverged, or takes no such batch
            return None
        scores = membership_scores(Client(records), Membership(model))
        right += evaluate(records, model)["test-accuracy-transformed"]
        sums = {name: total + torch.tensor(scores[name]) for name, total in sums.items()}
    both = tuple(sums.values())
    return Null(Estimate(auc(*both), *auc_interval(*both)), right / NULL_MODELS) if len(own) else None


def general_doubt(records: Records, null: Null | None, right: float) -> str:
    """The verdict in place of every attack's, or ""; ``right`` is the model's accuracy on members."""
    from scipy.stats import chi2_contingency  # slow to import

    chance, (low, high) = 1 / records.card.num_classes, wilson(right, records.num_train)
    if low <= chance:
        return INCONSISTENT
    both = (records.train_labels(), records.test_labels())
    counts = torch.stack([of.bincount(minlength=records.card.num_classes) for of in both])
    counts = counts[:, counts.sum(0) > 0]
    if counts.shape[1] > 1 and chi2_contingency(counts.numpy()).pvalue < LEVEL:
        return DIFFER
    if null is None:
        return ""
    least, _ = wilson(null.accuracy, records.num_test)
    if null.area.low == null.area.high or least <= chance:
        return UNCOMPARED
    if not null.area.low <= 0.5 <= null.area.high:
        return DIFFER
    return WORSE if high < least else ""


def doubted(rows: Sequence[Row], general: str) -> list[Row]:
    """Rows of attacks without a verdict say why on their cards, and count as not validated."""
    why = dict.fromkeys((row.attack for row in rows if row.is_attack), general)
    ends = {
        row.attack: (row.ci_low, row.ci_high) for row in rows if row.is_attack and row.metric == MEMBERSHIP_AUC.name
    }
    known = {attack: (low, high) for attack, (low, high) in ends.items() if low is not None and high is not None}
    below = any(high < 0.5 for _, high in known.values())  # by one attack: what was read wrongly is so for all
    for attack, (low, high) in known.items():
        why[attack] = TIED if low == high else general or (INCONSISTENT if below and low <= 0.5 else "")
    return [
        replace(
            row,
            card=row.card.but(no_verdict=why[row.attack]),
            status="not-validated" if row.status == "ok" else row.status,
        )
        if why.get(row.attack)
        else row
        for row in rows
    ]
