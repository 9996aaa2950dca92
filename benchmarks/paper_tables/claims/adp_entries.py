"""Tables and figures of ADP (Higgins et al., delta protection)."""

from __future__ import annotations

from adp_claims import (
    COMPONENTS,
    DRAWING,
    EPOCHS,
    FIVE_FULL,
    FIVE_RUN,
    INVERSE,
    PAPER,
    PCA,
    PROMISES,
    RESNET,
    RETRAIN,
    SIX_FULL,
    SIX_RUN,
    THREE,
    THREE_RUN,
    VGG,
    trends,
)
from adp_quotes import FIVE_QUOTED, FOUR_QUOTED, SIX_QUOTED, THREE_QUOTED
from entry import Entry, Run

LAYERS = (
    "The paper's fourth, eighth and twelfth convolution of VGG16 are conv2, conv4 and conv6 of our smaller network."
)
ENTRIES = (
    Entry(
        PAPER, "Table 1", "Settings of the experiments with autoencoders.", why="A list of settings, without a result."
    ),
    Entry(
        PAPER,
        "Table 2",
        "Settings of the experiments with principal components.",
        why="A list of settings, without a result.",
    ),
    Entry(
        PAPER,
        "Table 3",
        "Behind every autoencoder the white-box inversion fails (MS-SSIM at most 0.35).",
        (THREE_RUN,),
        THREE,
        "inference.md#delta-protection-adp",
        "50 images",
        "0",
        THREE_QUOTED,
        f"{INVERSE} {LAYERS}",
    ),
    Entry(
        PAPER,
        "Table 4",
        "Behind VGG, max with black-out takes server and adversary to chance; min and blur-out cost less.",
        (Run("adp_table4", seconds=400),),
        trends("extra_deep", 24, VGG),
        "inference.md#delta-protection-adp",
        "400 test images",
        "0",
        FOUR_QUOTED,
        RETRAIN,
    ),
    Entry(
        PAPER,
        "Table 5",
        "Behind ResNet the same, and min with black-out and a full offline adversary satisfies Equation 1.",
        (FIVE_RUN, FIVE_FULL),
        (*trends("decreasing", 16, RESNET), *PROMISES),
        "inference.md#delta-protection-adp",
        "400 test images",
        "0",
        FIVE_QUOTED,
        RETRAIN,
    ),
    Entry(
        PAPER,
        "Table 6",
        "A deeper autoencoder at the first cut takes server and adversary towards chance.",
        (SIX_RUN, SIX_FULL),
        (
            *trends("extra_deep", 24, RESNET[:1]),
            *trends("extra_deep", 24, RESNET[:1], SIX_FULL.name, ", full adversary"),
        ),
        "inference.md#delta-protection-adp",
        "400 test images",
        "0",
        SIX_QUOTED,
        RETRAIN,
    ),
    Entry(PAPER, "Figure 1", "The architecture of edge and cloud.", why=DRAWING),
    Entry(PAPER, "Figure 2", "A split model with two tasks.", why=DRAWING),
    Entry(PAPER, "Figure 3", "The approach.", why=DRAWING),
    Entry(
        PAPER,
        "Figure 4",
        "One image at layer 4 is reconstructed without the plug-in and not with it.",
        (THREE_RUN,),
        THREE[0:2],
        "inference.md#delta-protection-adp",
        "50 images",
        "0",
        THREE_QUOTED[0:2],
        f"{INVERSE} {LAYERS}",
        repeats="Table 3",
    ),
    Entry(
        PAPER,
        "Figure 5",
        "ADP satisfies Equation 1 at the first two cuts, principal components at the last alone.",
        (FIVE_FULL, COMPONENTS),
        (*PROMISES, *PCA),
        beyond=EPOCHS,
    ),
    Entry(
        PAPER,
        "Figure 6",
        "The accuracies of Figure 5, server against adversary.",
        (FIVE_FULL, COMPONENTS),
        (*PROMISES, *PCA),
        beyond=RETRAIN,
        repeats="Figure 5",
    ),
)
