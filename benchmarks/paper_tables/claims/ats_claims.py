"""Runs and claims of ATS (Gao et al., CVPR 2021)."""

from __future__ import annotations

from dataclasses import replace

from entry import Cell, Claim, Run, costs_at_most, less, more

PAPER = "ATS"
IG = "InvertingGradients()"
KNOWING = f"{IG} | PolicyInversion()"
BLACK = "InvertingGradients(init='black')"
MEAN = "mean"
DRAWING = "A drawing of the method, without a number to check."
INPUTS = "Pictures of the images that are attacked, without a result."
KNOWN = (
    "An attack that undoes the policy or restores its images still recovers some of 16 images "
    "([default audit](federated.md#the-default-audit))."
)

CARRIED_OVER = (
    "The authors searched 3-1-7 and 43-18-18 on CIFAR-100 with ResNet20. Here they are carried over from CIFAR-100 to tiles of "
    "eight photographs and a small CNN of 16 rounds. The paper claims transfer in Table 4, from CIFAR-100 to Fashion-MNIST."
)


def policies(text: str) -> str:
    """Pipeline text."""
    return f"ATS(policies='{text}')" if text else ""


def psnr(text: str, paper: str = "", at: str | int = "first", attack: str = IG, run: str = "") -> Cell:
    """PSNR to the transformed image, the paper's measure."""
    return Cell("psnr", policies(text), attack, "deployed", at, run=run, paper=paper)


def accuracy(text: str, paper: str = "", at: str | int = "last") -> Cell:
    """Accuracy on clean test images."""
    return Cell("test-accuracy", policies(text), reference="deployed", at=at, paper=paper)


def than_random(says: str, text: str, at: str | int, run: str = "") -> Claim:
    """The claim that a policy hides more than two random hybrids do in the mean."""
    return Claim(
        says,
        ((1.0, psnr(text, at=at, run=run)), *((-0.5, psnr(one, at=at, run=run)) for one in RANDOM)),
        "below",
        0.0,
        "dB",
    )


RANDOM = ("24-48-26+2-16-32", "8-36-48+4-16-7")
HYBRID = "3-1-7+43-18-18"
GARMENTS = "42-28-42+14-48-48"
PAPERS = (("3-1-7", "6.58", "70.56"), ("43-18-18", "8.56", "77.27"), (HYBRID, "7.64", "77.92"))
STATES = (("initial", "first"), ("final", "last"))
ONE = (
    *(
        less(
            f"{text} hides more than no policy, {state} model.", psnr(text, paper, at), psnr("", "13.88", at), unit="dB"
        )
        for text, paper, _ in PAPERS
        for state, at in STATES
    ),
    *(than_random(f"The hybrid hides more than random hybrids, {state} model.", HYBRID, at) for state, at in STATES),
    costs_at_most(
        "The hybrid costs at most 3 points of accuracy.", accuracy(HYBRID, "77.92"), accuracy("", "76.88"), 3
    ),
    *(
        less(
            f"The random hybrid {text} costs accuracy.",
            accuracy(text),
            accuracy(""),
            unit="points",
            scale=100,
            favours="random policies",
        )
        for text in RANDOM
    ),
)
TABLE1 = Run("ats_table1", seconds=470)
GRADIENTS = (
    ("AdamCosine(iterations=1200)", "13.88", "7.64"),
    ("AdamL1(iterations=1200)", "9.99", "6.97"),
    ("AdamL2(iterations=1200)", "10.55", "7.61"),
    ("SGDCosine(iterations=1200)", "14.04", "7.71"),
)
LBFGS = (("LBFGSL2", "6.93", "4.79"), ("LBFGSCosine", "10.33", "6.16"))
PHOTOS = Run("ats_table2_photos", seconds=800, most_seeds=3)
SMALL = Run("ats_table2", seconds=1200, most_seeds=2)


def six(run: Run, text: str, steps: int, where: str, ours: str = "") -> tuple[Claim, ...]:
    """The hybrid against each of six attacks; the paper's numbers stand beside unless the data are of our choice."""
    attacks = (
        *GRADIENTS,
        *((f"{name}(iterations={steps}, restarts=2)", plain, hybrid) for name, plain, hybrid in LBFGS),
    )
    return tuple(
        replace(
            less(
                f"The hybrid lowers the PSNR of {attack.partition('(')[0]} {where}.",
                psnr(text, "" if ours else hybrid, "first", attack, run.name),
                psnr("", "" if ours else plain, "first", attack, run.name),
                unit="dB",
            ),
            ours=ours,
        )
        for attack, plain, hybrid in attacks
    )


OTHERS = (
    ("pruning of 70 %", "Pruning(fraction=0.7, per='step')", "12.00", "77.12"),
    ("pruning of 95 %", "Pruning(fraction=0.95, per='step')", "10.07", "70.12"),
    ("pruning of 99 %", "Pruning(fraction=0.99, per='step')", "10.93", "58.33"),
    ("Laplace noise of 0.001", "LaplaceNoise(scale=0.001, per='step')", "11.85", "74.12"),
    ("Laplace noise of 0.01", "LaplaceNoise(scale=0.01, per='step')", "9.67", "39.59"),
    ("Gaussian noise of 0.001", "GaussianNoise(std=0.001, per='step')", "12.71", "75.67"),
    ("Gaussian noise of 0.01", "GaussianNoise(std=0.01, per='step')", "11.44", "48.2"),
)
THREE = (
    *(
        less(
            f"The hybrid leaves the inversion less than {name}.",
            psnr(HYBRID, "7.64"),
            Cell("psnr", defense, IG, "deployed", "first", paper=paper),
            unit="dB",
        )
        for name, defense, paper, _ in OTHERS
    ),
    *(
        more(
            f"The hybrid keeps more accuracy than {name}.",
            accuracy(HYBRID, "77.92"),
            Cell("test-accuracy", defense, reference="deployed", paper=kept),
            unit="points",
            scale=100,
        )
        for name, defense, _, kept in OTHERS
        if "0.01" in name or "99" in name
    ),
)
CARRIED = (("3-1-7", "7.5", "87.95"), ("43-18-18", "8.13", "91.29"), (HYBRID, "8.14", "91.49"))
FOUR = (
    *(
        less(f"{text} hides more than no policy.", psnr(text, paper, "last"), psnr("", "10.04", "last"), unit="dB")
        for text, paper, _ in CARRIED
    ),
    costs_at_most(
        "The hybrid costs at most 6.8 points of accuracy, the paper's most (with ConvNet).",
        accuracy(HYBRID, "91.49, 87.51"),
        accuracy("", "95.03, 94.25"),
        6.8,
    ),
)
FURTHER = (
    ("3-18-28", "7.3", "72.09"),
    ("7-3", "7.64", "71.63"),
    ("15-43", "8.27", "68.66"),
    ("37-33-3", "7.83", "67.89"),
)
SIX = (
    *(
        less(f"{text} hides more than no policy.", psnr(text, paper), psnr("", "13.88, 13.07"), unit="dB")
        for text, paper, _ in FURTHER
    ),
    *(
        costs_at_most(
            f"{text} costs at most 5.3 points, the paper's most on CIFAR-100.",
            accuracy(text, kept),
            accuracy("", "76.88, 70.13"),
            5.3,
        )
        for text, _, kept in FURTHER
    ),
)
SEVEN = tuple(
    Claim(
        f"A black start gains at most 0.5 dB under {text}.",
        ((1.0, psnr(text, paper, attack=BLACK)), (-1.0, psnr(text, base))),
        "below",
        0.5,
        "dB",
        ours=ours,
    )
    for text, base, paper, ours in (
        ("3-1-7", "6.58", "6.64", ""),
        (HYBRID, "", "", "ours: the paper's second policy is 21-13-3, with ConvNet"),
    )
)
BATCHES = Run("ats_table7", ("probe-images=8", "probe-targets=1"), "batch8", 280, 2)
RECOVERED = Claim(
    "Without a policy the inversion beats the mean image.",
    ((1.0, psnr("", "13.88")), (-1.0, Cell("psnr", "", MEAN, "deployed", "first"))),
    "above",
    0.0,
    "dB",
    control=True,
)
EARLY = Run("ats_early_steps", seconds=3000, most_seeds=1)


LOWEST = (3, 15, 18, 26, 1)


def single(index: int) -> Cell:
    """Privacy score of one transformation alone."""
    return Cell("privacy-score", policies(str(index)))


SINGLE = (
    Claim(
        "The mean score of these five is below that of the other 45.",
        (
            *((1 / 5, single(index)) for index in LOWEST),
            *((-1 / 45, single(index)) for index in range(50) if index not in LOWEST),
        ),
        "below",
        0.0,
    ),
    Claim(
        "Transformation 3 (a shift by half of the image) has a score below the mean of all others.",
        ((1.0, single(3)), *((-1 / 49, single(index)) for index in range(50) if index != 3)),
        "below",
        0.0,
    ),
)
