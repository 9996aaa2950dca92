"""Metrics of reconstructed images."""

from __future__ import annotations

from attacks.image_measures import mse, psnr, ssim
from attacks.metrics.metric import FROM_0, IMAGES, UNIT, Binary, Hit, Metric, OverSeeds, Share

REFERENCES = ("original", "transformed")
"""What images are compared with: what the person loses, and what entered the model."""

MAX_PSNR = 100.0
"""dB; an exact recovery would be infinite, and an average must not drop it. float32 images end near 140 dB."""
_DB, _SIMILAR = (0.0, MAX_PSNR), (-1.0, 1.0)
"""Ranges of PSNR of images in [0, 1], and of SSIM."""

MSE = Metric("mse", "MSE", higher_leaks=False, range=UNIT, family=IMAGES, measure=mse, shown=REFERENCES)
PSNR = Metric("psnr", "PSNR, dB", family=IMAGES, measure=psnr, range=_DB, shown=REFERENCES)
SSIM = Metric("ssim", "SSIM", range=_SIMILAR, family=IMAGES, measure=ssim, shown=REFERENCES)

RETRIEVAL = Hit("retrieval", family=IMAGES, shown=REFERENCES)
"""1 where the true image is nearest to its guess among the candidates."""
RETRIEVAL_CHANCE = Share("retrieval-chance", range=(0.01, 0.999), in_rows=False)
"""Chance of a null guess among at most 100 candidates, beside ``RETRIEVAL``. Where it is 1, nothing is looked for."""
RECOVERED = Hit("recovered", over_seeds=OverSeeds.CLUSTERED, family=IMAGES, shown=REFERENCES)
"""1 where an image counts as recovered; the report derives it from ``RETRIEVAL`` and ``PSNR``."""
NULL_PSNR = Metric("psnr-null", range=_DB, in_rows=False)
"""Beside ``PSNR``: for each guess, the PSNR of the best null baseline for the same image, in dB."""
FLAT_PSNR = Metric("psnr-flat", range=_DB, in_rows=False)
"""Beside ``PSNR``: the PSNR of the image's own mean colour, in dB; a measure of flatness, not a null baseline."""

PSNR_PAPER = Metric("psnr-paper", range=(-MAX_PSNR, MAX_PSNR), family=IMAGES)
SSIM_PAPER = Metric("ssim-paper", range=_SIMILAR, family=IMAGES)
MSE_PAPER = Metric("mse-paper", higher_leaks=False, range=FROM_0, family=IMAGES)
"""In the convention of the shuffling paper (Yao et al., ICDM 2022), whose scale ``paper_convention`` on the threat card names."""
MS_SSIM = Metric("ms-ssim", range=UNIT, family=IMAGES)
"""SSIM at several scales (delta protection paper)."""
MS_SSIM_SUCCESS = Hit("ms-ssim-success", family=IMAGES)
"""1 where the delta protection paper counts a reconstruction as a success."""

RECOGNITION = Binary("recognition", over_seeds=OverSeeds.CLUSTERED, family=IMAGES)
"""1 where a classifier of clean images sees the true class in a guess."""
FEATURE_SIMILARITY = Metric("feature-similarity", range=UNIT, family=IMAGES)
"""|cosine| of such a classifier's features of a guess and of its image."""
IDENTIFICATION = Binary("identification", over_seeds=OverSeeds.CLUSTERED, family=IMAGES)
"""1 where no other true image has more similar features."""
ORACLE_ACCURACY = Share("oracle-accuracy")
"""Of that classifier, on images that it was not trained on."""
