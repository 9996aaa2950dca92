"""Metrics of guesses that are no images of one person: labels, cells of a table, members, attributes, class representatives."""

import math
from functools import partial

from attacks.metrics import metric
from attacks.metrics.images import MAX_PSNR
from attacks.metrics.metric import FROM_0, Binary, Hit, Interval, Metric, OverSeeds, Share

_Clustered = partial(Share, over_seeds=OverSeeds.CLUSTERED)

LABEL_ACCURACY = _Clustered("label-accuracy", "label accuracy", interval=Interval.BATCHES, family=metric.LABELS)
"""Share of the classes of a batch, or of an image's, that were guessed."""

CELLS_RIGHT = _Clustered("cells-right", interval=Interval.CELLS, family=metric.CELLS)
"""Of each row of a table the share of its columns whose category is right."""
COLUMN = Binary("column ", interval=Interval.EXACT, prefix=True)
"""Before a column's name: 1 where its category was found."""
MSE_EMBEDDING = Metric("mse-embedding", higher_leaks=False, range=FROM_0)

MEMBERSHIP_AUC = Share("membership-auc", "AUC", over_seeds=OverSeeds.AREA, family=metric.MEMBERSHIP)
MEMBERSHIP_TPR = Share("membership-tpr", over_seeds=OverSeeds.AREA, family=metric.MEMBERSHIP)
"""True positive rate at 1 % false positives."""
MEMBERSHIP_LOW_TPR = Share("membership-low-tpr", over_seeds=OverSeeds.AREA, family=metric.MEMBERSHIP)
"""True positive rate at 0.1 % false positives, of tests on so many non-members that one of them is no more than that."""
MEMBER_SCORE = Metric("member-score", range=(-math.inf, math.inf), in_rows=False)
OTHER_SCORE = Metric("other-score", range=(-math.inf, math.inf), in_rows=False)
"""Scores of a test of membership, of members and of other records; the server makes rows of both together."""
"""Of each client, whose shadow models have as many training records each."""

ATTRIBUTE_ACCURACY = Hit("attribute-accuracy", family=metric.ATTRIBUTES)
"""1 for every image whose sensitive attribute was guessed."""

CLASS_MEAN_PSNR = Metric("class-mean-psnr", range=(0.0, MAX_PSNR), family=metric.REPRESENTATIVES)
CLASS_MEAN_SSIM = Metric("class-mean-ssim", range=(-1.0, 1.0), family=metric.REPRESENTATIVES)
"""Of class representatives, against the mean image of a class; never a score of one person's image."""
