"""Why no verdict follows from scores on a final model: folders that differ, a model that was read wrongly, equal scores."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from attacks.membership.loss_threshold import Membership
from attacks.metrics.guesses import MEMBER_SCORE, MEMBERSHIP_AUC, OTHER_SCORE
from attacks.scoring.intervals import Estimate
from attacks.scoring.roc import auc, auc_interval
from clients.scoring.audit import membership_scores
from clients.task.auxiliary import Auxiliary
from clients.task.local_data import Client
from defenses.random_draws import generator_for
from simulations.external_app.released.records import Records, ReleasedPlan
from simulations.report.studies.intervals import wilson
from simulations.run_folder.rows import Row
from strategies.training.central_training import DivergedError, train_alone

DIFFER = "cannot tell: folders differ"
INCONSISTENT = "inconsistent: check class order and normalisation"
TIED = "cannot tell: all scores are equal"
NULL_MODELS = 4
"""Models that saw neither members nor tested non-members."""
LEVEL = 0.01
"""Of the test of class counts."""


def null_area(plan: ReleasedPlan, records: Records) -> Estimate | None:
    """AUC by the losses of models that trained on non-members set aside: 0.5 for folders that are alike; None without such."""
    own, sums = Auxiliary(plan).examples(), dict.fromkeys((MEMBER_SCORE.of(), OTHER_SCORE.of()), torch.zeros(()))
    for at in range(NULL_MODELS if len(own) else 0):
        half = torch.randperm(len(own), generator=generator_for("null", plan.seed, at))[: len(own) // 2]
        try:
            scores = membership_scores(Client(records), Membership(train_alone(plan, own.rows(half), at)))
        except DivergedError:
            return None
        sums = {name: total + torch.tensor(scores[name]) for name, total in sums.items()}
    both = tuple(sums.values())
    return Estimate(*(round(end, 4) for end in (auc(*both), *auc_interval(*both)))) if len(own) else None


def general_doubt(records: Records, null: Estimate | None, right: float) -> str:
    """The verdict in place of every attack's, or ""; ``right`` is the model's accuracy on members."""
    if wilson(right, records.num_train)[0] <= 1 / records.card.num_classes:
        return INCONSISTENT
    if null:
        return "" if null.low <= 0.5 <= null.high else DIFFER
    from scipy.stats import chi2_contingency  # slow to import

    classes = records.originals().targets, records.test_plain(torch.arange(records.num_test)).targets
    counts = torch.stack([of.sum(0) for of in classes])
    counts = counts[:, counts.sum(0) > 0]
    return DIFFER if counts.shape[1] > 1 and chi2_contingency(counts.numpy()).pvalue < LEVEL else ""


def doubted(rows: Sequence[Row], general: str) -> list[Row]:
    """Rows of attacks without a verdict say why on their cards, and count as not validated."""
    why = dict.fromkeys((row.attack for row in rows if row.is_attack), general)
    for row in rows:
        if row.is_attack and row.metric == MEMBERSHIP_AUC.name and row.ci_low is not None and row.ci_high is not None:
            tied, below = row.ci_low == row.ci_high, row.ci_high < 0.5
            why[row.attack] = TIED if tied else general or (INCONSISTENT if below else "")
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
