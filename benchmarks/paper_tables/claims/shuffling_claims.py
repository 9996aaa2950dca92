"""Runs and claims of PatchShuffling (Yao et al., ICDM 2022)."""

from __future__ import annotations

from dataclasses import replace

from entry import Cell, Claim, Run, costs_at_most, less, more

PAPER = "PatchShuffling"
DECODER = "TokenDecoder()"
PS, BS, PLUS = "PatchShuffle()", "BatchShuffle(k=0.4)", "SpectralShuffle()"
ADV, BLUR, GN = "AdversarialTraining(weight=1.0)", "Downsample(factor=4)", "FeatureNoise(std=1.0)"
DP = "FeatureDP(clip=1.0, noise_multiplier=1.0)"
BROKEN = (
    "Attacks that know the defence recover 25 or more of 32 digits behind PS, BS, PS+, Downsample and FeatureNoise "
    "([split audit](split.md#the-split-audit)), at 16 tokens an image. At the paper's 196 tokens, behind random weights, PS "
    "with 224 pixels is broken on squares of eight photographs. PS+ with 56 pixels is broken by a server that holds other "
    "squares of the same photographs. BS is open ([196 tokens](split.md#196-tokens-the-papers-number))."
)
INTERSECTION = (
    "`TokenIntersection` breaks BS with the transmissions of a run ([split audit](split.md#the-split-audit))."
)
FIELDS = (
    "`FieldReading` recovers every cell behind PS ([census](split.md#table-iii-of-the-shuffling-paper-on-the-census))."
)
EARLY = "Training ends early here, so that accuracies compare how fast these models learn."
DRAWING = "A drawing of the method, without a number to check."


def accuracy(defense: str, paper: str = "", **where: str) -> Cell:
    """Accuracy as deployed, after the last round."""
    return Cell("test-accuracy", defense, reference="deployed", paper=paper, **where)


def psnr(defense: str, paper: str = "", attack: str = DECODER, at: str | int = "last", run: str = "") -> Cell:
    """PSNR in the paper's convention."""
    return Cell("psnr-paper", defense, attack, at=at, run=run, paper=paper)


ONE = (
    costs_at_most("BS costs at most 3 points of accuracy.", accuracy(BS, "89.18"), accuracy("", "91.05"), 3),
    replace(
        costs_at_most("PS+ costs at most 3 points of accuracy.", accuracy(PLUS, "88.21"), accuracy("", "91.05"), 3),
        note="the network without a defence is under-trained",
    ),
    less(
        "DP costs more than 3 points.",
        accuracy(DP, "80.67"),
        accuracy("", "91.05"),
        by=0.03,
        unit="points",
        scale=100,
        favours="DP",
    ),
    less("The decoder sees less behind BS than without a defence.", psnr(BS, "9.62"), psnr("", "18.64"), unit="dB"),
    less("The decoder sees less behind PS+ than without a defence.", psnr(PLUS, "4.33"), psnr("", "18.64"), unit="dB"),
    less("The decoder sees less behind BS than behind noise.", psnr(BS, "9.62"), psnr(GN, "15.28"), unit="dB"),
    less("The decoder sees less behind PS+ than behind noise.", psnr(PLUS, "4.33"), psnr(GN, "15.28"), unit="dB"),
    less("The decoder sees less behind PS+ than behind Blur.", psnr(PLUS, "4.33"), psnr(BLUR, "15.66"), unit="dB"),
    Claim(
        "Adv hides less than 1 dB.",
        ((1.0, psnr(ADV, "18.69")), (-1.0, psnr("", "18.64"))),
        "above",
        -1.0,
        "dB",
        favours="Adv",
    ),
    less("DP hides as well: PSNR is below that behind noise.", psnr(DP, "4.17"), psnr(GN, "15.28"), unit="dB"),
)
TWO = (
    costs_at_most("PS costs at most 3 points of accuracy.", accuracy(PS, "96.99"), accuracy("", "98.36"), 3),
    costs_at_most(
        "BS costs at most 3 points of accuracy.", accuracy("BatchShuffle(k=0.75)", "96.16"), accuracy("", "98.36"), 3
    ),
    less("The decoder sees less behind PS than without a defence.", psnr(PS, "1.67"), psnr("", "4.64"), unit="dB"),
    less(
        "The decoder sees less behind BS than behind PS.",
        psnr("BatchShuffle(k=0.75)", "1.46"),
        psnr(PS, "1.67"),
        unit="dB",
    ),
)
SMALL_NOISE = "FeatureNoise(std=0.38)"


def embedding(defense: str, paper: str) -> Cell:
    """Mean squared error of the embeddings."""
    return Cell("mse-embedding", defense, "EmbeddingReversal()", paper=paper)


THREE = (
    costs_at_most("PS costs at most 1 point of accuracy.", accuracy(PS, "77.78"), accuracy("", "77.81"), 1),
    more("The attacker's error is larger behind PS than without.", embedding(PS, ".0015"), embedding("", ".0012")),
    more(
        "The attacker's error is larger behind PS than behind small noise.",
        embedding(PS, ".0015"),
        embedding(SMALL_NOISE, ".0012"),
    ),
    *(
        replace(
            more(
                f"The attacker's error is larger behind PS than behind large noise, N(0, 1) read as std {std}.",
                embedding(PS, ".0015"),
                embedding(f"FeatureNoise(std={std})", ".0014"),
            ),
            note="the unit of the paper's noise is open",
        )
        for std in (1.0, 380.0)
    ),
)
INVERSION = "FeatureInversion()"
JIGSAW = "FeatureInversion(permutation='jigsaw')"
FOUR = (
    *(
        less(
            f"White-box inversion sees less behind {name} than without a defence.",
            psnr(defense, paper, INVERSION),
            psnr("", "19.74", INVERSION),
            unit="dB",
        )
        for name, defense, paper in (
            ("Blur", BLUR, "14.15"),
            ("DP", DP, "0.98"),
            ("noise", GN, "0.83"),
            ("PS", PS, "0.32"),
            ("BS", BS, "0.39"),
            ("PS+", PLUS, "1.45"),
        )
    ),
    *(
        replace(
            less(
                f"White-box inversion sees less behind {name} than behind noise.",
                psnr(defense, paper, INVERSION),
                psnr(GN, "0.83", INVERSION),
                unit="dB",
            ),
            note="a constant image exceeds all three, so that the attack failed and does not rank them",
        )
        for name, defense, paper in (("PS", PS, "0.32"), ("BS", BS, "0.39"))
    ),
    *(
        Claim(
            f"A solved jigsaw gains at most 1 dB against {name}.",
            ((1.0, psnr(defense, solved, JIGSAW)), (-1.0, psnr(defense, paper, INVERSION))),
            "below",
            1.0,
            "dB",
            ours=ours,
        )
        for name, defense, paper, solved, ours in (
            ("BS", BS, "0.39", "0.60", "a bound of ours, which a constant image exceeds"),
            ("PS", PS, "0.32", "", "ours, beyond the paper, at 16 tokens"),
        )
    ),
)
ADAPTIVE = "AdaptiveDecoder()"
TABLE5 = Run("split_table5", seconds=240)


def joined(run: str = "") -> Claim:
    """What the paper says of transmissions that a decoder joins."""
    return Claim(
        "Transmissions of all rounds gain at most 1 dB against BS.",
        ((1.0, psnr(BS, "9.59", ADAPTIVE, run=run)), (-1.0, psnr(BS, "9.62", run=run))),
        "below",
        1.0,
        "dB",
    )


FIVE = (
    Claim(
        "At the start Adv hides less than 1 dB.",
        ((1.0, psnr(ADV, "18.69", at="first")), (-1.0, psnr("", "18.64", at="first"))),
        "above",
        -1.0,
        "dB",
        favours="Adv",
    ),
    less(
        "After training Adv hides more than 1 dB, with a weight of 100.",
        psnr("AdversarialTraining(weight=100.0)", "4.29"),
        psnr(""),
        by=1.0,
        unit="dB",
    ),
    joined(),
)


def cost(metric: str, defense: str, paper: str) -> Cell:
    """A counted cost of the client half."""
    return Cell(metric, defense, at="first", paper=paper)


ADV_ONE = "AdversarialTraining(weight=1.0)"
SIX = (
    *(
        Claim(
            f"{name} needs no more multiply-accumulates at the client than no defence.",
            ((1.0, cost("edge-macs", defense, "3.10")), (-1.0, cost("edge-macs", "", "3.10"))),
            "below",
            1.0,
            "MACs",
        )
        for name, defense in (("PS", PS), ("BS", BS))
    ),
    Claim(
        "Adv needs more training arithmetic at the client than no defence.",
        ((1.0, cost("edge-training-macs", ADV_ONE, "81.63")), (-1.0, cost("edge-training-macs", "", "3.10"))),
        "above",
        0.0,
        "MACs",
        favours="Adv",
    ),
    less(
        "PS+ has fewer parameters at the client than no defence.",
        cost("edge-parameters", PLUS, "1.18"),
        cost("edge-parameters", "", "3.10"),
        unit="parameters",
    ),
    more(
        "Adv needs more memory at the client than no defence.",
        cost("edge-peak-bytes", ADV_ONE, "2.43"),
        cost("edge-peak-bytes", "", "0.97"),
        unit="bytes",
    ),
)
HALF, LITTLE = "BatchShuffle(k=0.5)", "BatchShuffle(k=0.15)"
SEVEN = (
    more(
        "More native tokens keep more accuracy.",
        accuracy(HALF, "90.29"),
        accuracy(LITTLE, "88.76"),
        unit="points",
        scale=100,
    ),
    more("More native tokens show the decoder more.", psnr(HALF, "11.47"), psnr(LITTLE, "7.35"), unit="dB"),
    more("0.4 shows more than 0.15.", psnr(BS, "9.62"), psnr(LITTLE, "7.35"), unit="dB"),
)
BACK = Run("split_table8", ("dataset=fashion-mnist", "auxiliary-data=mnist-5k"), label="back", seconds=120)
EIGHT = (
    less(
        "The decoder of the other data sees less behind BS than without a defence.",
        psnr(BS, "8.22"),
        psnr("", "19.31"),
        unit="dB",
    ),
    less(
        "With the data sets exchanged the decoder sees less behind BS than without a defence.",
        psnr(BS, "6.16", run=BACK.name),
        psnr("", "10.75", run=BACK.name),
        unit="dB",
    ),
)


def ssim(defense: str, paper: str) -> Cell:
    """SSIM of pix2pix's images."""
    return Cell("ssim", defense, "Pix2Pix()", "original", paper=paper)


NINE = tuple(
    less(f"Pix2pix sees less behind {name} than {other}.", ssim(defense, paper), ssim(than, base))
    for name, defense, paper, other, than, base in (
        ("noise", GN, ".209", "without a defence", "", ".453"),
        ("BS", BS, ".068", "without a defence", "", ".453"),
        ("PS+", PLUS, ".117", "without a defence", "", ".453"),
        ("BS", BS, ".068", "behind Blur", BLUR, ".360"),
    )
)
AVERAGE = "FeatureAveraging()"
EXPOSURE = Run("split_exposure", seconds=500)


def seen(defense: str, attack: str, at: str) -> Cell:
    """PSNR of an attack that joins transmissions, after few or all of them."""
    return Cell("psnr", defense, attack, "original", at=at)


TEN = (
    more(
        "Averaging transmissions under noise gains with their number.",
        seen(GN, AVERAGE, "last"),
        seen(GN, AVERAGE, "first"),
        unit="dB",
    ),
    joined(TABLE5.name),
    Claim(
        "24 transmissions in place of 6 gain an attack that knows the shuffle at most 1 dB against BS.",
        ((1.0, seen(BS, "TokenIntersection()", "last")), (-1.0, seen(BS, "TokenIntersection()", "first"))),
        "below",
        1.0,
        "dB",
        ours="ours, beyond the paper, at 16 tokens",
    ),
)


def loss(defense: str) -> Cell:
    """Loss on test images after the last round."""
    return Cell("test-loss", defense, reference="deployed")


TABLE1 = Run("split_table1", seconds=75)
TABLE2 = Run("split_table2", seconds=90)
TABLE4 = Run("split_table4", seconds=400)
TABLE7 = Run("split_table7", seconds=150)
TABLE8 = Run("split_table8", seconds=120)
TABLE9 = Run("split_table9", seconds=200)
