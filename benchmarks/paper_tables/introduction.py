"""What the page of tables and figures says before its results: the rule, and the abbreviations of the papers."""

from __future__ import annotations

ABBREVIATIONS = (
    ("PS", "patch shuffling, `PatchShuffle`: it hides the order of an image's tokens."),
    (
        "BS",
        "batch shuffling, `BatchShuffle`: it also exchanges tokens within the batch; *native* tokens stay with their image.",
    ),
    ("PS+", "spectral shuffling, `SpectralShuffle`: shuffled patches of the image's Fourier spectrum are sent."),
    ("Adv", "`AdversarialTraining`: the client half is trained against a simulated attacker."),
    ("Blur, noise, DP", "`Downsample` of the image; `FeatureNoise`; `FeatureDP`, noise with a stated epsilon."),
    ("the decoder", "`TokenDecoder`, a network that learned to turn tokens into images."),
    (
        "min, max",
        "ADP masks what the adversary uses and the server does not (min), or all that the server does not use (max).",
    ),
    ("blur, black", "what replaces masked pixels in the images from which ADP's autoencoder learns."),
    (
        "static adversary",
        "it infers a sensitive attribute and learned from unprotected features; a retrained one, from protected ones.",
    ),
    ("full adversary", "ADP's masks follow an adversary that is a whole network (`offline-adversary=full`)."),
    ("Equation 1", "the aim of ADP: the server's accuracy stays while the adversary's falls by much more."),
    ("PSNR, SSIM, MS-SSIM", "likeness of two images, in dB or up to 1; a larger number means that more is recovered."),
    ("PSNR in the paper's convention", "of images as they enter the network, as in the code of PatchShuffling."),
    (
        "policy, hybrid",
        "a policy is a sequence of up to three of 50 transforms, such as 3-1-7; a hybrid is a set of policies.",
    ),
    (
        "S_pri, S_acc",
        "scores of ATS: how little a policy's gradients reveal, and how well a model distinguishes its images.",
    ),
    ("VFE", "visual feature entropy: how much neighbouring pixels differ; VisualMixer chooses windows by it."),
    ("ST-Adam", "VisualMixer's optimizer, Adam without bias correction (`STAdam`)."),
    ("shredder", "`Shredder`: it swaps pixels of a window until neighbours differ little."),
    ("AUC", "area under the curve of a membership attack: 0.5 is chance, 1 is perfect."),
    ("mAP50", "mean average precision of a detector such as SSD, at an overlap of 50 %."),
)
"""Abbreviation or term of the papers, and its meaning."""
HEAD = """# Every table and figure of the four papers

Part of the [measured results](../../docs/findings.md), which name the machine.

Each table and figure of PatchShuffling (Yao et al., ICDM 2022), ADP (Higgins et al., delta protection), ATS (Gao et al., CVPR
2021) and VisualMixer (Li et al., NDSS 2024) has a line and, where something was compared, a section. The claims of a table are
comparisons of numbers. A claim is confirmed or refuted where the whole 95 % interval lies on one side of what is claimed, and
open otherwise ([the rule](#the-rule)). Verdicts are about our small networks and data, not about the papers' own numbers."""
AFTER_MAIN = """A promise stands in the paper's abstract unless its line says otherwise. For each half of a promise the deciding
claims are named by hand, in `benchmarks/paper_tables/promises.py`. The promise is refuted if one of them is, confirmed if all
are, and open otherwise. Controls and comparisons of ours stand beside them and refute nothing. Attacks that know the defence are
stronger than most of the papers' attacks: the [findings](../../docs/findings.md) begin with them."""
RULE = """Where something runs, the claims of a table are comparisons of numbers of a run at a small size. A claim is
**confirmed** where the 95 % interval of the compared number lies wholly on the claimed side, **refuted** where it
lies wholly on the other side, and **open** else. With two seeds or more the interval of a run is Student's t over
the seeds, paired by seed. Where all seeds test the same images (accuracies, replies to queries), it is never
narrower than the intervals of one seed allow: seeds that agree say nothing of other images. With one seed it is the
widest that the intervals of the single numbers allow. It holds for other images then, not for other weights or
data. The same holds for numbers of earlier pages: where a page has several seeds, its interval within seeds decides
nothing. Where such a page has only the intervals of the two compared means, the widest difference that they allow
stands here, unpaired. A number of an earlier page decides a claim until a run has measured the same claim with as
many seeds. Intervals of shares, areas under curves and correlations end at the smallest and largest possible value.

A claim is also open where an attack is not validated, which is to fail without a defence, too, or is under-powered, which is to
have fewer than 16 images. The claim that an attack works without a defence is that control itself, and its interval alone
decides it. A claim with a seed without a number is open. A table is refuted if any claim is, confirmed if all are, and open
else. Controls are not counted among the claims of a table, and none refutes it: an attack that fails without a defence says
nothing of the defence. Claims on a configuration beside the paper's method are shown and decide nothing. So do
comparisons of ours, which their verdict names. A claim is also open where its verdict names a reason why its interval decides
nothing. Where a defence is
better than the paper says, the claim is refuted in favour of that defence, and the verdict says so.

Where the paper gives no bound in words ("hardly", "keeps accuracy"), the bound is ours: 3 points of accuracy (1 in Table 3 of
PatchShuffling), 1 dB, 0.1 of a loss, 60 % of two classes, and 20 % of generated images. Bounds that a claim calls "the paper's
most" are the paper's. A verdict whose interval ends near such a bound depends on it.

The number tables are of runs of today's code, and claims beside them may be of an earlier page with more seeds. Both can call
themselves seed 0 and differ: on another processor sums round differently, and training goes another way, which moves some results
as much as another seed does. An interval of one seed does not hold that.

Tables have up to 14 claims, and intervals are not corrected for their number. If 14 independent quantities lay exactly at their
bounds, three such tables in ten would have a claim refuted by chance.

PSNR of ATS is to the transformed image, the paper's measure; without a policy that is the original.

A picture of a table, or a figure of the same numbers, has the word of that table and is not counted again. Drawings, lists of
settings and pictures without a number have nothing to check.

A verdict is about our small networks and data, not about the paper's own numbers. "Confirmed" of a weak attack is no
protection: where a stronger attack breaks the defence, the line links the result. The comments of a configuration in
`simulations/configs` say what differs from the paper: mostly digits, garments and tiles of photographs for faces, CIFAR and
ImageNet, and short training.

`python benchmarks/paper_tables/run.py --out FOLDER --hours 4` runs what is left; sections with claims that were not run have
the command for these alone, with rough minutes on two cores. `python benchmarks/paper_tables/write.py` writes this page."""


def abbreviations() -> str:
    """A list with a line for each abbreviation."""
    return "\n".join(f"- **{short}**: {meaning}" for short, meaning in ABBREVIATIONS)
