"""Metrics of guesses that are no images of one person: labels, cells of a table, members, attributes, class representatives."""

from __future__ import annotations

from attacks.metrics.metric import (
    ATTRIBUTES,
    CELLS,
    LABELS,
    MEMBERSHIP,
    REPRESENTATIVES,
    Interval,
    Metric,
    OverSeeds,
    Values,
)

LABEL_ACCURACY = Metric(
    "label-accuracy",
    "label accuracy",
    Values.SHARE,
    interval=Interval.BATCHES,
    over_seeds=OverSeeds.CLUSTERED,
    family=LABELS,
)
"""Share of the classes of a batch, or of an image's, that were guessed."""

CELLS_RIGHT = Metric(
    "cells-right", values=Values.SHARE, interval=Interval.CELLS, over_seeds=OverSeeds.CLUSTERED, family=CELLS
)
"""Of each row of a table the share of its columns whose category is right."""
COLUMN = Metric("column ", values=Values.HIT, interval=Interval.EXACT, prefix=True)
"""Before a column's name: 1 where its category was found."""
MSE_EMBEDDING = Metric("mse-embedding", higher_leaks=False)

MEMBERSHIP_AUC = Metric("membership-auc", "AUC", Values.SHARE, over_seeds=OverSeeds.AREA, family=MEMBERSHIP)
MEMBERSHIP_TPR = Metric("membership-tpr", values=Values.SHARE, over_seeds=OverSeeds.AREA, family=MEMBERSHIP)
"""True positive rate at 1 % false positives."""
MEMBER_SCORE = Metric("member-score", in_rows=False)
OTHER_SCORE = Metric("other-score", in_rows=False)
"""Scores of a test of membership, of members and of other records; the server makes rows of both together."""

ATTRIBUTE_ACCURACY = Metric(
    "attribute-accuracy",
    values=Values.HIT,
    interval=Interval.EXACT,
    over_seeds=OverSeeds.EXACT,
    family=ATTRIBUTES,
)
"""1 for every image whose sensitive attribute was guessed."""

CLASS_MEAN_PSNR = Metric("class-mean-psnr", family=REPRESENTATIVES)
CLASS_MEAN_SSIM = Metric("class-mean-ssim", family=REPRESENTATIVES)
"""Of class representatives, against the mean image of a class; never a score of one person's image."""
