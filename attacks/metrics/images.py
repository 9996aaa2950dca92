"""Metrics of reconstructed images."""

from __future__ import annotations

from attacks.image_measures import mse, psnr, ssim
from attacks.metrics.metric import IMAGES, Hit, Metric, OverSeeds, Values

REFERENCES = ("original", "transformed")
"""What images are compared with: what the person loses, and what entered the model."""

MAX_PSNR = 100.0
"""dB; an exact recovery would be infinite, and an average must not drop it. float32 images end near 140 dB."""

MSE = Metric("mse", "MSE", higher_leaks=False, family=IMAGES, measure=mse, shown=REFERENCES)
PSNR = Metric("psnr", "PSNR, dB", family=IMAGES, measure=psnr, most=MAX_PSNR, shown=REFERENCES)
SSIM = Metric("ssim", "SSIM", family=IMAGES, measure=ssim, shown=REFERENCES)

RETRIEVAL = Hit("retrieval", family=IMAGES, shown=REFERENCES)
"""1 where the true image is nearest to its guess among the candidates."""
RETRIEVAL_CHANCE = Metric("retrieval-chance", values=Values.SHARE, in_rows=False)
"""Chance of a null guess, beside ``RETRIEVAL``."""
RECOVERED = Hit("recovered", over_seeds=OverSeeds.CLUSTERED, family=IMAGES, shown=REFERENCES)
"""1 where an image counts as recovered; the report derives it from ``RETRIEVAL`` and ``PSNR``."""
NULL_PSNR = Metric("psnr-null", in_rows=False)
"""Beside ``PSNR``: for each guess, the PSNR of the best null baseline for the same image, in dB."""
FLAT_PSNR = Metric("psnr-flat", in_rows=False)
"""Beside ``PSNR``: the PSNR of the image's own mean colour, in dB; a measure of flatness, not a null baseline."""

PSNR_PAPER = Metric("psnr-paper", family=IMAGES)
SSIM_PAPER = Metric("ssim-paper", family=IMAGES)
MSE_PAPER = Metric("mse-paper", higher_leaks=False, family=IMAGES)
"""In the convention of the shuffling paper (Yao et al., ICDM 2022), whose scale ``paper_convention`` on the threat card names."""
MS_SSIM = Metric("ms-ssim", family=IMAGES)
"""SSIM at several scales (delta protection paper)."""
MS_SSIM_SUCCESS = Hit("ms-ssim-success", family=IMAGES)
"""1 where the delta protection paper counts a reconstruction as a success."""

RECOGNITION = Metric("recognition", values=Values.HIT, over_seeds=OverSeeds.CLUSTERED, family=IMAGES)
"""1 where a classifier of clean images sees the true class in a guess."""
FEATURE_SIMILARITY = Metric("feature-similarity", family=IMAGES)
"""|cosine| of such a classifier's features of a guess and of its image."""
IDENTIFICATION = Metric("identification", values=Values.HIT, over_seeds=OverSeeds.CLUSTERED, family=IMAGES)
"""1 where no other true image has more similar features."""
ORACLE_ACCURACY = Metric("oracle-accuracy", values=Values.SHARE)
"""Of that classifier, on images that it was not trained on."""
