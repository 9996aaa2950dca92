"""Claims on PatchShuffling (Yao et al., ICDM 2022) that numbers of earlier pages decide."""

from __future__ import annotations

from entry import Quoted
from quoting import by_seed, of_means, of_shares

from simulations.report.studies.score import wilson

IN_SMALL = "split.md#table-i-of-the-shuffling-paper-in-small"

DECODED = {
    "none": (29.7, 0.6),
    "Adv": (29.2, 0.6),
    "Blur": (17.8, 0.7),
    "DP": (11.9, 0.3),
    "noise": (17.7, 0.5),
    "BS": (12.3, 0.4),
    "PS+": (17.8, 0.8),
}
"""PSNR in dB on the page, with half the width of its interval."""


def decoded(says: str, left: str, right: str, side: str = "below", bound: float = 0.0) -> Quoted:
    """A claim about two defences' PSNR on the page."""
    value, half = DECODED[left]
    return of_means(says, DECODED[left], DECODED[right], side, bound, f"{value} ± {half}", "dB")


ONE_QUOTED = (
    by_seed(
        "BS costs at most 3 points of accuracy.",
        [-36.4, -38.3],
        "above",
        -3,
        "38.9 % (-38.3)",
        "points",
        n="1,000 test digits",
    ),
    by_seed(
        "PS+ costs at most 3 points of accuracy.",
        [15.2, 13.9],
        "above",
        -3,
        "91.1 % (+13.9)",
        "points",
        n="1,000 test digits",
    ),
    of_shares("DP costs more than 3 points.", 10.0, 60.2, 400, "below", -3, "10.0 % (-50.3)", value=-50.3),
    decoded("The decoder sees less behind BS than without a defence.", "BS", "none"),
    decoded("The decoder sees less behind PS+ than without a defence.", "PS+", "none"),
    decoded("The decoder sees less behind BS than behind noise.", "BS", "noise"),
    decoded("The decoder sees less behind PS+ than behind noise.", "PS+", "noise"),
    decoded("The decoder sees less behind PS+ than behind Blur.", "PS+", "Blur"),
    decoded("Adv hides less than 1 dB.", "Adv", "none", "above", -1.0),
    decoded("DP hides as well: PSNR is below that behind noise.", "DP", "noise"),
)

FOUR_QUOTED = (
    Quoted(
        "A solved jigsaw recovers at most 5 % of the images behind BS.",
        0.0,
        *(100 * end for end in wilson(0.0, 64)),
        "below",
        5.0,
        "10.3 ± 0.6 | 0 of 32 (0 to 11 %) | 9 of 32 | 8 of 32 | 10.4 ± 0.6 | 0 of 32",
        "%",
    ),
)
"""The paper says that the jigsaw fails there; in its convention of PSNR a constant image gains as much as ours did."""
BEST_OF_64 = 100 * wilson(0.0, 64)[1]
"""Upper end in per cent where an attack recovers none of these 64 images: above 5, so that they cannot confirm the claim."""

CENSUS = "split.md#table-iii-of-the-shuffling-paper-on-the-census"

THREE_QUOTED = (
    of_shares("PS costs at most 1 point of accuracy.", 93.5, 95.0, 8000, "above", -1, "| 0.809 | 93.5 %"),
    of_means(
        "The attacker's error is larger behind PS than without.",
        (0.321, 0.030),
        (0.127, 0.017),
        "above",
        0.0,
        "0.321 (0.291 to 0.351)",
    ),
    of_means(
        "The attacker's error is larger behind PS than behind small noise.",
        (0.321, 0.030),
        (0.171, 0.017),
        "above",
        0.0,
        "0.171 (0.155 to 0.188)",
    ),
    of_means(
        "The attacker's error is larger behind PS than behind large noise, N(0, 1) read as std 380.0.",
        (0.321, 0.030),
        (0.432, 0.022),
        "above",
        0.0,
        "0.432 (0.410 to 0.454)",
    ),
    of_means(
        "The attacker's error is larger behind PS than behind large noise, N(0, 1) read as std 1.0.",
        (0.321, 0.030),
        (0.280, 0.023),
        "above",
        0.0,
        "0.280 (0.257 to 0.303)",
    ),
)
