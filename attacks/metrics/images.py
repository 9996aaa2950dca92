"""Metrics of reconstructed images."""

from attacks.image_measures import correlation, mse, psnr, ssim
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
STRUCTURE = Metric("structure", range=_SIMILAR, family=IMAGES, measure=correlation, shown=REFERENCES)
"""Correlation of a guess and its image, mean and contrast removed."""
LEAST_STRUCTURE = 0.8
"""From which on an identified image above its own colour counts as recognisable. Chosen by agreement with a classifier of clean
images on degraded copies (``benchmarks/verdict_calibration.py``): best at this value on digits and on faces, on photographs at 0.5,
which costs them 4 points of balanced accuracy. Correlation separates what the classifier sees from what it does not better on
average than SSIM, SSIM at several scales and the correlation of edges or of luminance do."""

IDENTIFIED = Hit("identified", family=IMAGES, shown=REFERENCES)
"""1 where a guess correlates more with its image than with any other candidate of its class, mean and contrast removed."""
IDENTIFIED_CHANCE = Share("identified-chance", range=(0.01, 0.999), in_rows=False)
"""Beside ``IDENTIFIED``: the highest chance of a null guess that knows the class; the most where there are no other images."""
PLACE = Metric("image-place", range=(0.0, 1e9), in_rows=False)
"""Beside ``IDENTIFIED``: which of the client's attacked images it is, the same under every defence."""
FLAT_PSNR = Metric("psnr-flat", range=_DB, in_rows=False)
"""Beside ``PSNR``: the PSNR of the image's own mean colour, in dB."""
RECOGNISABLE = Hit("recognisable", family=IMAGES, shown=REFERENCES)
"""1 where ``is_recognisable`` holds; the server derives it from the client's scores."""

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


JUDGED = (IDENTIFIED.of("original"), PSNR.of("original"), FLAT_PSNR.of(), STRUCTURE.of("original"))
"""Scores that decide whether an image is recognisable, as ``is_recognisable`` takes them."""


def is_recognisable(identified: float, psnr: float, flat: float, structure: float) -> bool:
    """The rule for one image: identified, above the PSNR ``flat`` of its own mean colour, and similar in structure."""
    return identified == 1 and psnr > flat and structure >= LEAST_STRUCTURE
