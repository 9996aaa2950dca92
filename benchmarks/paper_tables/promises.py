"""What the four papers promise above all, each half of a promise with the claims that decide it, which are named by hand."""

from __future__ import annotations

from dataclasses import dataclass

DIGITS = "digits for faces, 16 tokens an image for 196"
MILDER = "noise of std 1.0 for the paper's N(0, 4)"
CARRIED = (
    "the paper's hybrid, which its authors searched on CIFAR-100 with ResNet20, carried over from CIFAR-100 to tiles of eight "
    "photographs and a small CNN of 16 rounds. The paper claims transfer in Table 4"
)
NATIVE = "6 of 16 tokens native for the paper's 78 of 196"
PRETRAINED = "random weights for the paper's network, which is pretrained on ImageNet"


@dataclass(frozen=True)
class Promise:
    """One half of what a paper promises.

    Attributes:
        title: The table or figure that shows it.
        says: The promise in one sentence.
        deciding: The claims of that table by which the promise is judged, word by word.
        size: What these claims were measured on, beside the paper's size.
        known: What else is known of the promise, with a link; "" for nothing.
        beside: Claims of that table that stand in the line as well, controls and comparisons of ours, word by word. They cannot
            refute the promise, and a control that is not confirmed leaves it open.
        where: Where the paper promises it, if not in its abstract.
        quotes: (page, text) of the numbers in ``known`` and ``size``, as they stand on the page.
    """

    title: str
    says: str
    deciding: tuple[str, ...]
    size: str
    known: str = ""
    quotes: tuple[tuple[str, str], ...] = ()
    beside: tuple[str, ...] = ()
    where: str = ""


SPLIT_AUDIT = "[split audit](split.md#the-split-audit)"
NOT_CONVERGED = "20 passes, not shown to have converged: 75.9 and 77.2 % without a defence"
UNDEFENDED = (
    ("split.md", "| none | 32 of 32 (89 to 100 %) | 75.9 % |"),
    ("split.md", "| 77.2 % | `FeatureInversion()`"),
)
PROMISES = (
    Promise(
        "PatchShuffling, Table 1",
        "Batch shuffling (BS) keeps accuracy.",
        ("BS costs at most 3 points of accuracy.",),
        f"{DIGITS}; {NATIVE}. Here are {PRETRAINED}; {NOT_CONVERGED}",
        "What a pretrained network keeps is not measured.",
        UNDEFENDED,
    ),
    Promise(
        "PatchShuffling, Table 1",
        "Spectral shuffling (PS+) keeps accuracy.",
        ("PS+ costs at most 3 points of accuracy.",),
        f"{DIGITS}. Here are {PRETRAINED}; {NOT_CONVERGED}",
        "PS+ reaches 91.1 % in either seed: the gain is over an under-trained baseline, and says nothing of the cost.",
        (
            *UNDEFENDED,
            ("split.md", "| 91.1 % (+15.2) |"),
            ("split.md", "| 91.1 % (+13.9) |"),
        ),
    ),
    Promise(
        "PatchShuffling, Table 2",
        "Patch shuffling (PS) keeps accuracy.",
        ("PS costs at most 3 points of accuracy.",),
        f"tiles of photographs for CIFAR-10, 137 test images. Here are {PRETRAINED}",
        f"On 1,000 digits PS gains 1.4 and 0.0 points after 20 passes ({SPLIT_AUDIT}).",
        (("split.md", "(+1.4)"), ("split.md", "(+0.0)")),
    ),
    Promise(
        "PatchShuffling, Table 1",
        "BS and PS+ hide images from a trained decoder, better than noise does.",
        (
            "The decoder sees less behind BS than behind noise.",
            "The decoder sees less behind PS+ than behind noise.",
        ),
        f"{DIGITS}; {MILDER}",
        "The decoder recovers 0 of 32 digits behind BS and 30 of 32 behind PS+ "
        "([in small](split.md#table-i-of-the-shuffling-paper-in-small)).",
        (
            ("split.md", "| `BatchShuffle(k=0.4)` | 0 of 32 (0 to 11 %) |"),
            ("split.md", "| `SpectralShuffle()` | 30 of 32 (79 to 99 %) |"),
        ),
    ),
    Promise(
        "PatchShuffling, Table 4",
        "An inversion that knows the model and takes shuffled tokens as they come sees less.",
        tuple(f"White-box inversion sees less behind {name} than without a defence." for name in ("PS", "BS", "PS+")),
        DIGITS,
        f"Attacks that know the shuffle recover 25 or more of 32 digits ({SPLIT_AUDIT}).",
        (("../../docs/findings.md", "the server recovers 25 or more of 32 digits under PS, BS, PS+"),),
    ),
    Promise(
        "PatchShuffling, Table 4",
        "An inversion with a jigsaw solver does not recover images behind BS.",
        ("A solved jigsaw recovers at most 5 % of the images behind BS.",),
        f"{DIGITS}. Even none of 64 images leaves an upper end above 5 %, a bound of ours, so that 64 cannot confirm it. The paper "
        "has a jigsaw behind BS alone, and concedes in section IV-B that neighbouring patches of PS are correlated",
        "At 196 tokens of 4 pixels `TokenJigsaw` recovers 2 and 0 of 16 squares behind PS "
        "([196 tokens](split.md#196-tokens-the-papers-number)).",
        (
            ("split.md", "| PS | `TokenJigsaw()` | 0 | 2 of 16 (2 to 38 %) |"),
            ("split.md", "| PS | `TokenJigsaw()` | 1 | 0 of 16 (0 to 21 %) |"),
        ),
        tuple(f"A solved jigsaw gains at most 1 dB against {name}." for name in ("BS", "PS")),
    ),
    Promise(
        "PatchShuffling, Table 5",
        "The transmissions of a whole training do not help an attack on BS.",
        ("Transmissions of all rounds gain at most 1 dB against BS.",),
        DIGITS,
        f"`TokenIntersection` recovers 25 and 26 of 32 digits behind BS from the transmissions of a run ({SPLIT_AUDIT}).",
        (
            ("split.md", "| `BatchShuffle(k=0.4)` | `TokenIntersection()` | final model | 32 | 29.2 ± 5.6 | 25 of 32"),
            ("split.md", "| 25.6 ± 5.5 | 26 of 32 (64 to 93 %) |"),
        ),
    ),
    Promise(
        "PatchShuffling, Table 6",
        "Shuffles have negligible overhead at the client.",
        (
            *(f"{name} needs no more multiply-accumulates at the client than no defence." for name in ("PS", "BS")),
            "PS+ has fewer parameters at the client than no defence.",
        ),
        "counted for one image of 224 pixels, the paper's size",
    ),
    Promise(
        "ADP, Table 3",
        "Images cannot be reconstructed from the features that an autoencoder sends.",
        tuple(
            f"Behind max, black images are not reconstructed on average, at {cut}: MS-SSIM below 0.35."
            for cut in ("conv2", "conv4", "conv6")
        ),
        "the strongest autoencoder at each of three cuts; garments and digits of 28 pixels for faces of 224",
        "A network that learns to invert the features recovers all of 50 images at each cut "
        "([delta protection](inference.md#delta-protection-adp)).",
        (("inference.md", "it recovers every one of the 50 images behind each of them, at 0.80 to 0.98"),),
    ),
    Promise(
        "ADP, Figure 5",
        "The server keeps its accuracy (Equation 1).",
        tuple(
            f"Behind min, black the server loses at most 9 points, at {cut}, full adversary."
            for cut in ("block2", "block5")
        ),
        "garments and digits of 28 pixels for faces of 224",
    ),
    Promise(
        "ADP, Figure 5",
        "The adversary falls towards chance (Equation 1).",
        tuple(
            f"Behind min, black the static adversary is right on at most 60 %, at {cut}, full adversary."
            for cut in ("block2", "block5")
        ),
        "garments and digits of 28 pixels for faces of 224",
        "No defence of the delta audit is shown to satisfy Equation 1 ([delta protection](inference.md#delta-protection-adp)).",
        (("inference.md", "No defence of this table is shown to satisfy Equation 1, with either adversary."),),
    ),
    Promise(
        "ATS, Table 1",
        "Searched policies hide images from gradient inversion.",
        tuple(f"3-1-7+43-18-18 hides more than no policy, {state} model." for state in ("initial", "final")),
        CARRIED,
    ),
    Promise(
        "ATS, Table 1",
        "Searched policies cost no accuracy.",
        ("The hybrid costs at most 3 points of accuracy.",),
        CARRIED,
    ),
    Promise(
        "ATS, Table 4",
        "Policies carry over from CIFAR-100 to Fashion-MNIST: they hide images and keep accuracy.",
        (
            "3-1-7+43-18-18 hides more than no policy.",
            "The hybrid costs at most 6.8 points of accuracy, the paper's most (with ConvNet).",
        ),
        "5,000 garments, a small CNN and 12 rounds",
        quotes=(("policies.md", "5,000 images of four clients, 12 rounds of 2 passes"),),
        where="in the introduction",
    ),
    Promise(
        "ATS, Figure 2",
        "The score of the search, S_pri, predicts what an attack recovers.",
        (
            "The correlation with PSNR to the transformed image is above 0.",
            "The correlation is as high as in the paper, 0.697 or more.",
        ),
        "tiles of eight photographs; 300 iterations for 2,500, 60 policies for 100",
        quotes=(
            ("policies.md", "The paper has 0.697 with PSNR to the transformed image (100 policies, 2,500 iterations"),
        ),
    ),
    Promise(
        "VisualMixer, Table 2",
        "Training on mixed images costs little accuracy.",
        (
            "In the mean of cnn, mlp and lenet with ST-Adam VisualMixer costs at most 2.4 points, the paper's mean.",
            *(
                f"VisualMixer costs at most 7.1 points, the paper's most, with {model} and ST-Adam."
                for model in ("cnn", "mlp", "lenet")
            ),
        ),
        "garments, three small networks and one seed, where the paper's 2.4 is a mean of 18 models and data sets",
    ),
    Promise(
        "VisualMixer, Table 3",
        "Training on mixed images loses almost no throughput.",
        tuple(
            f"At most 1.3 % of the throughput is lost by {model}."
            for model in ("shufflenet_v2_x1_0", "mobilenet_v2", "resnet18", "vgg11", "vit_b_16")
        ),
        "nine rounds a model on a processor, where the paper has a GPU",
    ),
    Promise(
        "VisualMixer, Figure 3",
        "Visual feature entropy (VFE) measures how much of an image can be seen.",
        (
            "Windows of 8 pixels have a larger VFE than windows of 4.",
            "Noise of 0.6, of the larger VFE, leaves at most as many of 16 images identified as windows of 8 do.",
        ),
        "garments of 28 pixels, by the strongest of our attacks",
        "VFE rises with noise and with windows, and ranks noise and windows the other way round than our attacks do "
        "([windows](defenses.md#visualmixer-on-fashion-mnist)).",
        (
            (
                "defenses.md",
                "So VFE does not compare different kinds of obfuscation here, against the paper's claim.",
            ),
        ),
    ),
    Promise(
        "VisualMixer, Figure 8",
        "Attacks that reassemble images do not restore mixed ones.",
        (
            "The shredder's result is no better than the upload as it is.",
            "The jigsaw solver's result is no better than the upload as it is.",
        ),
        "tiles of photographs of 32 pixels, windows of 2 to 16 pixels, smaller beside the image than in the paper's pictures",
        "No restoring is needed there: from the uploads as they are 15 of 16 images of either seed are recovered "
        "([uploads](outsourced.md)).",
        (("outsourced.md", "| 69.3 / 66.4 % | 23.1 / 24.0 | 15 / 15 |"),),
    ),
    Promise(
        "VisualMixer, Figure 10",
        "Membership is hardly inferred from a model of mixed images.",
        ("The AUC is lower under VisualMixer with ST-Adam than with ST-Adam alone.",),
        "tiles of photographs of 32 pixels, the larger AUC of two attacks, held against one bound. The paper has ROC curves on "
        "MNIST and CIFAR-10, and no AUC",
        "With SGD, beside the paper's method, it is 0.72 and 0.71, and without a defence 0.73 and 0.78 ([uploads](outsourced.md)).",
        (("outsourced.md", "| 16 / 16 | 0.72 / 0.71 |"), ("outsourced.md", "| 16 / 16 | 0.73 / 0.78 |")),
        ("Without a defence the AUC is above 0.6.", "Under VisualMixer with ST-Adam the AUC is below 0.55."),
        "a claim of the evaluation",
    ),
)
