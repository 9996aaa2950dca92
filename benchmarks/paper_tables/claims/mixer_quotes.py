"""Claims on VisualMixer (Li et al., NDSS 2024) that numbers of earlier pages decide."""

from __future__ import annotations

from dataclasses import replace

from entry import Quoted
from quoting import by_seed, of_means, of_shares, shares_by_seed, widened

TWO_QUOTED = (
    shares_by_seed(
        "VisualMixer keeps more accuracy than noise of 50 of 255, on photographs.",
        ((69.3, 66.4), (66.4, 63.5)),
        137,
        "above",
        0.0,
        "| `VisualMixer(window_lower=2, window_upper=16)` | 69.3 / 66.4 % |",
    ),
    shares_by_seed(
        "InstaHide costs at most 7.2 points, the paper's most of a convolutional network on CIFAR-10, on photographs.",
        ((21.2, 66.4), (30.7, 63.5)),
        137,
        "above",
        -7.2,
        "| `InstaHide(num_mixed=4)` | 21.2 / 30.7 % |",
    ),
)

FOUR_QUOTED = (
    widened(
        Quoted(
            "VisualMixer costs at most 6.2 points, the paper's most, with lenet and SGD.",
            -7.0,
            -8.8,
            -5.3,
            "above",
            -6.2,
            "-7.0 (-8.8 to -5.3)",
            "points",
        ),
        73.4,
        80.4,
        2000,
    ),
    widened(
        Quoted(
            "VisualMixer costs at most 6.2 points, the paper's most, with lenet and ST-Adam.",
            -7.6,
            -9.4,
            -5.7,
            "above",
            -6.2,
            "-7.6 (-9.4 to -5.7)",
            "points",
        ),
        76.8,
        84.4,
        2000,
    ),
    of_shares(
        "VisualMixer costs at most 6.2 points, the paper's most, with cnn and SGD.",
        77.5,
        82.2,
        2000,
        "above",
        -6.2,
        "77.5 % (-4.7)",
        "0",
    ),
    of_shares(
        "VisualMixer costs at most 6.2 points, the paper's most, with cnn and ST-Adam.",
        76.4,
        83.7,
        2000,
        "above",
        -6.2,
        "76.4 % (-7.2)",
        "0",
        -7.2,
    ),
)
NOISIER_QUOTED = (
    shares_by_seed(
        "Noise of 0.3 costs more accuracy than 0.1.",
        ((80.2, 84.4), (79.5, 85.5)),
        2000,
        "below",
        0,
        "80.2 / 79.5 %",
    ),
    shares_by_seed(
        "Noise of 0.6 costs more accuracy than 0.3.",
        ((72.2, 80.2), (71.0, 79.5)),
        2000,
        "below",
        0,
        "72.2 / 71.0 %",
    ),
)
WIDER_QUOTED = (
    shares_by_seed(
        "Windows of 8 pixels cost more accuracy than windows of 4.",
        ((74.9, 81.2), (74.9, 82.0)),
        2000,
        "below",
        0,
        "74.9 / 74.9 %",
    ),
    shares_by_seed(
        "Windows of 16 pixels cost more accuracy than windows of 8.",
        ((62.1, 74.9), (62.0, 74.9)),
        2000,
        "below",
        0,
        "62.1 / 62.0 %",
    ),
    shares_by_seed(
        "Windows of 32 pixels cost more accuracy than windows of 16.",
        ((31.3, 62.1), (31.4, 62.0)),
        2000,
        "below",
        0,
        "31.3 / 31.4 %",
    ),
    by_seed(
        "At the VFE of noise of 0.3 (9.1) windows keep more accuracy, interpolated between 4 and 8 pixels.",
        [0.216 * 81.2 + 0.784 * 74.9 - 80.2, 0.216 * 82.0 + 0.784 * 74.9 - 79.5],
        "above",
        0,
        "74.9 / 74.9 %",
        "points",
    ),
    by_seed(
        "At their VFE (7.3) windows by VFE keep more accuracy than uniform ones, interpolated between 4 and 8 pixels.",
        [78.1 - 0.77 * 81.2 - 0.23 * 74.9, 79.1 - 0.77 * 82.0 - 0.23 * 74.9],
        "above",
        0,
        "78.1 / 79.1 %",
        "points",
    ),
)
OPTIMIZERS_QUOTED = (
    of_means(
        "ST-Adam is more accurate than Adam on mixed images, at 0.001.",
        (78.8, 2.75),
        (78.1, 3.4),
        "above",
        0,
        "78.1 % (74.7 to 81.5)",
        "points",
    ),
    widened(
        Quoted(
            "ST-Adam is more accurate than Adam on mixed images, at 0.001, in the mean of rounds 5 to 8.",
            0.9,
            0.0,
            1.8,
            "above",
            0,
            "means of rounds 5 to 8; interval 0.0 to 1.8",
            "points",
        ),
        78.8,
        78.1,
        2000,
    ),
    widened(
        Quoted(
            "ST-Adam is more accurate than Adam on mixed images, at 0.0002.",
            1.7,
            0.4,
            2.9,
            "above",
            0,
            "0.4 to 2.9",
            "points",
        ),
        76.3,
        74.6,
        2000,
    ),
)
SHREDDED_QUOTED = (
    Quoted(
        "The shredder's result is no better than the upload as it is.",
        28.3 - 24.0,
        None,
        None,
        "below",
        0.0,
        "| 23.1 / 24.0 | 15 / 15 | `AsUploaded() \\| WindowMean()` / `AsUploaded() \\| Shredder()` | 26.1 / 28.3 |",
        "dB",
        n="16 images",
        seeds="1",
        note="not-validated, and the page has no interval",
        page="outsourced.md#outsourced-training",
    ),
    Quoted(
        "The shredder identifies no more images among 100 than the upload as it is does.",
        None,
        None,
        None,
        "below",
        0.0,
        "by `Shredder` 47 of 48 images are identified",
        note="47 of 48 are identified, and no page has that number of the uploads as they are",
    ),
)
_MEMBERS = (
    by_seed(
        "Without a defence the AUC is above 0.6.",
        [0.73, 0.78],
        "above",
        0.6,
        "0.73 / 0.78",
    ),
    by_seed("Under VisualMixer with ST-Adam the AUC is below 0.55.", [0.65, 0.70], "below", 0.55, "0.65 / 0.70"),
    by_seed(
        "The AUC is lower under VisualMixer with ST-Adam than with ST-Adam alone.",
        [0.65 - 0.74, 0.70 - 0.69],
        "below",
        0,
        "0.74 / 0.69",
    ),
    by_seed("Under VisualMixer with SGD the AUC is below 0.55.", [0.72, 0.71], "below", 0.55, "0.72 / 0.71"),
    by_seed(
        "With SGD the AUC is lower under VisualMixer than without a defence.",
        [0.72 - 0.73, 0.71 - 0.78],
        "below",
        0,
        "0.72 / 0.71",
    ),
)
MEMBERS_QUOTED = tuple(
    replace(one, possible=(0.0, 1.0) if " lower " not in one.says else (-1.0, 1.0)) for one in _MEMBERS
)
"""Each AUC is the larger of two attacks' on the same images, so that it lies above either's in the mean."""
VFE_NOISE = (
    Quoted(
        "Noise of 0.3 has a larger VFE than 0.1.",
        5.58,
        5.45,
        5.72,
        "above",
        0.0,
        "9.10 (9.01 to 9.19)",
        n="500 images a seed",
        seeds="three",
    ),
    Quoted(
        "Noise of 0.6 has a larger VFE than 0.3.",
        10.85,
        10.58,
        11.11,
        "above",
        0.0,
        "19.95 (19.77 to 20.12)",
        n="500 images a seed",
        seeds="three",
    ),
)
VFE_WINDOWS = (
    replace(
        by_seed(
            "Noise of 0.6, of the larger VFE, leaves at most as many of 16 images identified as windows of 8 do.",
            [15 - 10, 15 - 8],
            "below",
            0.5,
            "Identification does: under noise of 0.6 15 images of 16 are identified in both seeds",
            "images",
            n="16 images a seed",
        ),
        possible=(-16.0, 16.0),
    ),
    Quoted(
        "Windows of 8 pixels have a larger VFE than windows of 4.",
        3.24,
        2.92,
        3.54,
        "above",
        0.0,
        "9.80 (9.61 to 9.98)",
        n="500 images a seed",
        seeds="three",
    ),
)
