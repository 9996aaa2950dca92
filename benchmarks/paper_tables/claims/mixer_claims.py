"""Runs and claims of VisualMixer (Li et al., NDSS 2024)."""

from __future__ import annotations

from dataclasses import replace

from entry import Cell, Claim, Run, at_least, at_most, costs_at_most, less, more

PAPER = "VisualMixer"
MIXER = "VisualMixer(window_lower=2, window_upper=16, first_regions='nearest')"
OUTSOURCED = "VisualMixer(window_lower=2, window_upper=16)"
WHOLE = f"{OUTSOURCED} | STAdam()"
"""With the paper's own optimizer."""
READABLE = (
    "The server recovers 16 of 16 uploads, 15 of them as they are ([uploads](outsourced.md)); "
    "a learned restorer identifies 15 and 16 of 16 ([windows](defenses.md#visualmixer-on-fashion-mnist))."
)
DRAWING = "A drawing of the method, without a number to check."


def uniform(size: int) -> str:
    """Shuffling in windows of one size."""
    return f"VisualMixer(window_lower={size}, window_upper={size})"


def accuracy(defense: str = "", paper: str = "", run: str = "") -> Cell:
    """Accuracy as deployed, after the last round."""
    return Cell("test-accuracy", defense, reference="deployed", paper=paper, run=run)


MODELS = (("cnn", 150, 5), ("mlp", 100, 5), ("lenet", 150, 5), ("vgg_small", 400, 3), ("resnet20", 1500, 1))
TABLE2 = tuple(
    Run("vm_table2", () if model == "cnn" else (f"model={model}",), "" if model == "cnn" else model, seconds, seeds)
    for model, seconds, seeds in MODELS
)
SMALL = TABLE2[:3]
UPLOADS = Run("outsourced", seconds=280)
STRONG_NOISE, INSTAHIDE = "ImageNoise(std=0.196)", "InstaHide(num_mixed=4)"
TWO = (
    *(
        costs_at_most(
            f"VisualMixer costs at most 7.1 points, the paper's most, with {model} and {optimizer}.",
            accuracy(f"{MIXER}{extra}", "81.0 to 99.1", run.name),
            accuracy(base, "81.4 to 99.9", run.name),
            7.1,
        )
        for run, (model, _, _) in zip(TABLE2, MODELS, strict=True)
        for optimizer, base, extra in (("SGD", "", ""), ("ST-Adam", "STAdam()", " | STAdam()"))
    ),
    Claim(
        "In the mean of cnn, mlp and lenet with ST-Adam VisualMixer costs at most 2.4 points, the paper's mean.",
        tuple(
            (weight / len(SMALL), accuracy(defense, "", run.name))
            for run in SMALL
            for weight, defense in ((1.0, f"{MIXER} | STAdam()"), (-1.0, "STAdam()"))
        ),
        "above",
        -0.024,
        "points",
        100.0,
    ),
    more(
        "VisualMixer keeps more accuracy than noise of 50 of 255, on photographs.",
        accuracy(OUTSOURCED, "90.2", UPLOADS.name),
        accuracy(STRONG_NOISE, "62.7", UPLOADS.name),
        unit="points",
        scale=100,
    ),
    costs_at_most(
        "InstaHide costs at most 7.2 points, the paper's most of a convolutional network on CIFAR-10, on photographs.",
        accuracy(INSTAHIDE, "90.0", UPLOADS.name),
        accuracy("", "97.2", UPLOADS.name),
        7.2,
    ),
)
FOUR_LENET = Run("vm_table4", ("model=lenet",), "lenet", 300, 3)
FOUR_CNN = Run("vm_table4", (), "", 300, 3)
FOUR = tuple(
    costs_at_most(
        f"VisualMixer costs at most 6.2 points, the paper's most, with {model} and {optimizer}.",
        accuracy(f"{MIXER}{extra}", "57.7 to 97.4", run.name),
        accuracy(base, "60.0 to 99.5", run.name),
        6.2,
    )
    for model, run in (("lenet", FOUR_LENET), ("cnn", FOUR_CNN))
    for optimizer, base, extra in (("SGD", "", ""), ("ST-Adam", "STAdam()", " | STAdam()"))
)
WINDOWS = Run("vm_windows", seconds=500)
NOISE = tuple(f"ImageNoise(std={std})" for std in (0.1, 0.3, 0.6))
VFE = "defenses.md#visualmixer-on-fashion-mnist"
AS_IT_IS = "AsUploaded()"
SHREDDER = "AsUploaded() | Shredder()"
JIGSAW = "AsUploaded() | Jigsaw()"


def image(defense: str, attack: str) -> Cell:
    """PSNR to the original in dB, of uploads."""
    return Cell("psnr", defense, attack, "original", observation="uploaded images")


def auc(defense: str, attack: str) -> Cell:
    """Area under the curve of a test of membership."""
    return Cell("membership-auc", defense, attack)


OPTIMIZERS = Run("vm_optimizers", seconds=430)
SIX = (
    more(
        "ST-Adam is more accurate than Adam on mixed images, at 0.001.",
        accuracy(f"{MIXER} | STAdam()"),
        accuracy(f"{MIXER} | STAdam(bias_correction=True)"),
        unit="points",
        scale=100,
    ),
    more(
        "ST-Adam is more accurate than Adam on mixed images, at 0.0002.",
        accuracy(f"{MIXER} | STAdam(learning_rate=0.0002)"),
        accuracy(f"{MIXER} | STAdam(learning_rate=0.0002, bias_correction=True)"),
        unit="points",
        scale=100,
    ),
)
RATES = (
    ("shufflenet_v2_x1_0", -2.4, -10.2, 26.1, "-2.4 (-10.2 to +26.1)"),
    ("mobilenet_v2", 1.1, -11.7, 13.7, "+1.1 (-11.7 to +13.7)"),
    ("resnet18", 0.2, -7.1, 2.2, "+0.2 (-7.1 to +2.2)"),
    ("vgg11", -0.9, -1.6, 1.7, "-0.9 (-1.6 to +1.7)"),
    ("vit_b_16", -0.1, -1.5, 2.9, "-0.1 (-1.5 to +2.9)"),
)
NOISIER = (
    *(
        less(
            f"Noise of {b} costs more accuracy than {a}.",
            accuracy(f"ImageNoise(std={b})"),
            accuracy(f"ImageNoise(std={a})"),
            unit="points",
            scale=100,
        )
        for a, b in ((0.1, 0.3), (0.3, 0.6))
    ),
)
WIDER = (
    *(
        less(
            f"Windows of {b} pixels cost more accuracy than windows of {a}.",
            accuracy(uniform(b)),
            accuracy(uniform(a)),
            unit="points",
            scale=100,
        )
        for a, b in ((4, 8), (8, 16), (16, 32))
    ),
    Claim(
        "At the VFE of noise of 0.3 (9.1) windows keep more accuracy, interpolated between 4 and 8 pixels.",
        ((0.216, accuracy(uniform(4))), (0.784, accuracy(uniform(8))), (-1.0, accuracy(NOISE[1]))),
        "above",
        0.0,
        "points",
        100.0,
    ),
    Claim(
        "At their VFE (7.3) windows by VFE keep more accuracy than uniform ones, interpolated between 4 and 8 pixels.",
        ((1.0, accuracy(MIXER)), (-0.77, accuracy(uniform(4))), (-0.23, accuracy(uniform(8)))),
        "above",
        0.0,
        "points",
        100.0,
    ),
)
REASSEMBLY = (
    less(
        "The shredder's result is no better than the upload as it is.",
        image(OUTSOURCED, SHREDDER),
        image(OUTSOURCED, AS_IT_IS),
        unit="dB",
    ),
    less(
        "The jigsaw solver's result is no better than the upload as it is.",
        image(OUTSOURCED, JIGSAW),
        image(OUTSOURCED, AS_IT_IS),
        unit="dB",
    ),
)
"""An attack that reassembles restores something where its result is better than the upload, which is the null baseline here."""
GAN = (
    at_least(
        "More than 20 % of the GAN's images of a plain model are recognised as their class.",
        Cell("recognition", "", "ClassGAN()"),
        0.2,
        unit="%",
        scale=100,
        control=True,
    ),
    less(
        "Under VisualMixer fewer of the GAN's images are recognised.",
        Cell("recognition", OUTSOURCED, "ClassGAN()"),
        Cell("recognition", "", "ClassGAN()"),
        unit="points",
        scale=100,
    ),
)
BOUND = "a bound of ours"
MEMBERSHIP = (
    at_least("Without a defence the AUC is above 0.6.", auc("", "LossThreshold()"), 0.6, control=True),
    replace(
        at_most("Under VisualMixer with ST-Adam the AUC is below 0.55.", auc(WHOLE, "LossThreshold()"), 0.55),
        ours=BOUND,
    ),
    less(
        "The AUC is lower under VisualMixer with ST-Adam than with ST-Adam alone.",
        auc(WHOLE, "LossThreshold()"),
        auc("STAdam()", "LossThreshold()"),
    ),
    *(
        replace(claim, variant=True)
        for claim in (
            replace(
                at_most("Under VisualMixer with SGD the AUC is below 0.55.", auc(OUTSOURCED, "LossThreshold()"), 0.55),
                ours=BOUND,
            ),
            less(
                "With SGD the AUC is lower under VisualMixer than without a defence.",
                auc(OUTSOURCED, "LossThreshold()"),
                auc("", "LossThreshold()"),
            ),
        )
    ),
)
