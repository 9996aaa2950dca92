"""Claims on ATS (Gao et al., CVPR 2021) that numbers of earlier pages decide."""

from __future__ import annotations

from dataclasses import replace

from ats_claims import HYBRID, OTHERS, RANDOM
from entry import Quoted
from quoting import by_seed, of_means, shares_by_seed, widened

IN_137, IN_2000 = "137 test images a seed", "2,000 test images"


def means(says: str, left: tuple[float, float], right: tuple[float, float], text: str) -> Quoted:
    """A claim that one PSNR on the page is below another, by their intervals over seeds."""
    return of_means(says, left, right, "below", 0.0, text, "dB")


ONE_QUOTED = (
    means("3-1-7 hides more than no policy, initial model.", (15.2, 5.2), (17.3, 3.0), "15.2 ± 5.2 / 16.3 ± 4.6"),
    means("3-1-7 hides more than no policy, final model.", (16.3, 4.6), (16.3, 4.2), "17.3 ± 3.0 / 16.3 ± 4.2"),
    means("43-18-18 hides more than no policy, initial model.", (16.8, 3.4), (17.3, 3.0), "16.8 ± 3.4 / 17.1 ± 2.5"),
    means("43-18-18 hides more than no policy, final model.", (17.1, 2.5), (16.3, 4.2), "16.8 ± 3.4 / 17.1 ± 2.5"),
    means(f"{HYBRID} hides more than no policy, initial model.", (16.0, 5.6), (17.3, 3.0), "16.0 ± 5.6 / 16.7 ± 2.9"),
    means(f"{HYBRID} hides more than no policy, final model.", (16.7, 2.9), (16.3, 4.2), "16.0 ± 5.6 / 16.7 ± 2.9"),
    means(
        "The hybrid hides more than random hybrids, initial model.",
        (16.0, 5.6),
        (13.05, 2.1),
        "13.5 ± 2.9 / 13.6 ± 4.3",
    ),
    means(
        "The hybrid hides more than random hybrids, final model.", (16.7, 2.9), (13.4, 3.8), "12.6 ± 1.3 / 13.2 ± 3.3"
    ),
    widened(
        Quoted(
            "The hybrid costs at most 3 points of accuracy.",
            -12.2,
            -15.9,
            -8.4,
            "above",
            -3,
            "-12.2 (-15.9 to -8.4)",
            "points",
            "+1.0",
            IN_137,
        ),
        60.3,
        72.5,
        137,
    ),
    widened(
        Quoted(
            f"The random hybrid {RANDOM[0]} costs accuracy.",
            -17.3,
            -35.5,
            1.0,
            "below",
            0,
            "-17.3 (-35.5 to +1.0)",
            "points",
            "-2.9",
            IN_137,
        ),
        55.2,
        72.5,
        137,
    ),
    widened(
        Quoted(
            f"The random hybrid {RANDOM[1]} costs accuracy.",
            -28.2,
            -38.2,
            -18.2,
            "below",
            0,
            "-28.2 (-38.2 to -18.2)",
            "points",
            "-2.9",
            IN_137,
        ),
        44.3,
        72.5,
        137,
    ),
)
"""Three seeds; the intervals of the page are over them, and unpaired."""

BEATS = Quoted(
    "Without a policy the inversion beats the mean image.",
    5.2,
    2.2,
    8.2,
    "above",
    0.0,
    "17.3 ± 3.0 / 16.3 ± 4.2",
    "dB",
    note="the page has no interval of the mean image's score",
)

THREE_QUOTED = (
    *(
        by_seed(
            f"The hybrid leaves the inversion less than {name}.",
            [17.7 - first, 13.5 - second],
            "below",
            0.0,
            f"{first} / {second} |",
            "dB",
        )
        for (name, *_), first, second in zip(
            OTHERS, (17.3, 13.7, 12.1, 17.5, 11.9, 18.2, 12.7), (15.4, 12.7, 11.7, 16.0, 12.4, 16.3, 13.0), strict=True
        )
    ),
    *(
        shares_by_seed(
            f"The hybrid keeps more accuracy than {name}.",
            ((64.2, first), (57.7, second)),
            137,
            "above",
            0.0,
            f"{first} / {second} %",
            units=IN_137,
        )
        for name, first, second in (
            ("pruning of 99 %", 51.1, 36.5),
            ("Laplace noise of 0.01", 78.1, 70.1),
            ("Gaussian noise of 0.01", 78.1, 65.7),
        )
    ),
)

FOUR_QUOTED = (
    by_seed("3-1-7 hides more than no policy.", [16.8 - 14.7, 16.5 - 15.4], "below", 0.0, "| 16.8 / 16.5 |", "dB"),
    by_seed("43-18-18 hides more than no policy.", [17.4 - 14.7, 16.2 - 15.4], "below", 0.0, "| 17.4 / 16.2 |", "dB"),
    by_seed(f"{HYBRID} hides more than no policy.", [17.5 - 14.7, 16.7 - 15.4], "below", 0.0, "| 17.5 / 16.7 |", "dB"),
    shares_by_seed(
        "The hybrid costs at most 6.8 points of accuracy, the paper's most (with ConvNet).",
        ((58.7, 82.2), (57.6, 83.2)),
        2000,
        "above",
        -6.8,
        "58.7 / 57.6 %",
        "-3.5, -6.7",
        IN_2000,
    ),
)

SEVEN_QUOTED = (
    by_seed(
        "A black start gains at most 0.5 dB under 3-1-7.",
        [17.9 - 16.8, 14.1 - 12.8],
        "below",
        0.5,
        "| 16.8 / 12.8 | 17.9 / 14.1 |",
        "dB",
        "0.06",
    ),
    by_seed(
        f"A black start gains at most 0.5 dB under {HYBRID}.",
        [18.6 - 17.7, 14.8 - 13.5],
        "below",
        0.5,
        "| 17.7 / 13.5 | 18.6 / 14.8 |",
        "dB",
    ),
)

EIGHTS = Quoted(
    "Without a policy the inversion beats the mean image.",
    0.7,
    0.0,
    1.4,
    "above",
    0.0,
    "13.1 ± 0.7 dB where the mean image scores 12.4",
    "dB",
)

EIGHTS_UNDER = Quoted(
    "The hybrid hides more than no policy, batches of 8.",
    -0.9,
    None,
    None,
    "below",
    0.0,
    "11.9 to 12.5 dB",
    "dB",
    note="not-validated",
)

CORRELATED = tuple(
    replace(by_seed(says, [0.52, -0.51], "above", bound, text, paper=".697"), possible=(-1.0, 1.0))
    for says, bound, text in (
        ("The correlation with PSNR to the transformed image is above 0.", 0.0, "| +0.52 (+0.32 to +0.84) |"),
        ("The correlation is as high as in the paper, 0.697 or more.", 0.697, "| -0.51 (-0.81 to -0.05) |"),
    )
)
"""Two seeds with other models, images and policies each, whose correlations have opposite signs."""
