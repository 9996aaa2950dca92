"""Names of the numbers that have a place of their own on the page; every other one is listed under "Other numbers"."""

from __future__ import annotations

CLIENT_HALF_METRICS = ("edge-parameters", "edge-macs", "edge-training-macs", "edge-peak-bytes")
"""What the client half of a split model costs: MACs are of one image."""
MCC_METRICS = ("mcc-micro", "mcc-macro")
"""Matthews' correlation, from counts pooled over classes and as the mean over classes."""
SPLIT_METRICS = (
    *CLIENT_HALF_METRICS,
    *MCC_METRICS,
    *("log10-orders", "log10-target-share", "bytes-per-sample", "samples-per-second", "batches-lost"),
)
"""Numbers about split training."""
SMASHED_METRICS = ("psnr-paper", "ssim-paper", "mse-paper", "feature-similarity", "identification")
"""Further scores of images reconstructed from smashed data; ``paper_convention`` on a threat card names the scale of a paper's."""
MS_SSIM, MS_SSIM_SUCCESS = "ms-ssim", "ms-ssim-success"
"""MS-SSIM of reconstructed images, and the share of them that the delta protection paper counts as a success."""
SHARE_METRICS = ("recognition", "identification", "retrieval", "recovered", "attribute-accuracy", MS_SSIM_SUCCESS)
"""Scores that are 1 or 0 for each image."""

CELLS, COLUMN = "cells-right", "column "
"""Share of a row's (column, category) pairs that a guess has right; what stands before a column's name in its own share."""
TABLE_METRICS = (CELLS, "mse-embedding")
"""Scores of guessed rows of a table."""

SHARES = (
    *SHARE_METRICS,
    CELLS,
    *("test-accuracy", "test-auc", "label-accuracy", "oracle-accuracy", "membership-auc", "membership-tpr"),
)
"""Numbers that are shares, from 0 to 1, whatever they are shares of; so is every ``COLUMN``."""

COUNTED_IMAGES, WINDOWS = "counted-images", "windows-of-"
"""Training images over which a defence counted, and what stands before the sizes of windows that it shuffled."""
VFE_BEFORE, VFE_AFTER = "vfe-sum-before", "vfe-sum-after"
"""Visual feature entropy over 2 sigma^2, added up over these windows."""
KEYS = "log10-keys"
"""Decimal logarithm of the orders that an image can have been shuffled into, added up over images."""

ALL_CUTS = "epsilon-all-cuts"
"""Budget of all that a run sent of an image, at whatever cut."""

UTILITY_METRICS = (
    *(COUNTED_IMAGES, VFE_BEFORE, VFE_AFTER, KEYS),
    *("test-accuracy", "test-loss", "test-auc", "train-loss"),
    *("epsilon", "epsilon-with-probes", ALL_CUTS, "delta"),
    *("train-seconds", "update-bytes", "clients-failed", "client"),
    *SPLIT_METRICS,
)
COST_METRICS = ("objective", "feature_loss")
"""Names of the loss that an attack minimises."""
ATTACK_METRICS = (
    *("psnr", "ssim", "mse", MS_SSIM, MS_SSIM_SUCCESS),
    *("retrieval", "recovered", "recognition", "oracle-accuracy", "label-accuracy"),
    *COST_METRICS,
    *("attack-seconds", "attack"),
    *("membership-auc", "membership-tpr", "attribute-accuracy", "class-mean-psnr", "class-mean-ssim"),
    *SMASHED_METRICS,
    *TABLE_METRICS,
)
""""attack" is the row of an attack that gave no score at all."""
