"""Tables and figures of PatchShuffling (Yao et al., ICDM 2022)."""

from __future__ import annotations

from dataclasses import replace

from entry import Entry, Run, attacked, less
from quoting import by_seed
from shuffling_claims import (
    BACK,
    BROKEN,
    BS,
    DRAWING,
    EARLY,
    EIGHT,
    EXPOSURE,
    FIELDS,
    FIVE,
    FOUR,
    INTERSECTION,
    NINE,
    ONE,
    PAPER,
    PLUS,
    SEVEN,
    SIX,
    TABLE1,
    TABLE2,
    TABLE4,
    TABLE5,
    TABLE7,
    TABLE8,
    TABLE9,
    TEN,
    THREE,
    TWO,
    loss,
)
from shuffling_quotes import BEST_OF_64, CENSUS, FOUR_QUOTED, IN_SMALL, ONE_QUOTED, THREE_QUOTED

UNTRAINED = (
    "The paper trains networks that are pretrained on ImageNet, ours start from random weights. Without a defence ours is "
    "under-trained: PS+ ends above it after as many passes. So PS+ and no defence cannot be compared. A better network without a "
    "defence could only raise what BS costs, unless BS gained from more passes as well. At k = 0.4 6 of 16 tokens are native here, "
    "and 78 of 196 in the paper."
)
MILDER = (
    "The paper's GN is N(0, 4) and its Blur keeps 1/14 of the resolution; ours are noise of std 1.0 and `Downsample` by a factor "
    "of 4."
)
JIGSAWS = (
    "The paper has the jigsaw's row for BS alone, 0.60 dB beside 0.39 dB, and concedes in section IV-B that neighbouring patches "
    "of PS are correlated. The jigsaw behind PS is ours. The paper gives no bound, and 5 % is ours. At none of 64 images the upper "
    f"end is {BEST_OF_64:.2f} %, so that 64 images cannot confirm it."
)
ENTRIES = (
    Entry(
        PAPER,
        "Table 1",
        "BS and PS+ keep accuracy and hide faces from a trained decoder; Adv, Blur and noise do not hide them.",
        (TABLE1,),
        ONE,
        page=IN_SMALL,
        page_n="32 images",
        page_seeds="0",
        quoted=ONE_QUOTED,
        beyond=f"{BROKEN} Accuracies of BS and PS+ are of 20 passes ([split audit](split.md#the-split-audit)). That of DP is of 4, "
        f"where accuracies still rise. {UNTRAINED} {MILDER}",
    ),
    Entry(
        PAPER,
        "Table 2",
        "PS and BS keep accuracy on CIFAR-10 and hide its pictures.",
        (TABLE2,),
        TWO,
        beyond=f"{BROKEN} {EARLY}",
    ),
    Entry(
        PAPER,
        "Table 3",
        "PS keeps the accuracy of click prediction and hides embeddings better than noise.",
        (Run("split_table3", seconds=190),),
        THREE,
        page=CENSUS,
        page_n="100 rows",
        page_seeds="0",
        quoted=THREE_QUOTED,
        beyond=f"{FIELDS} The paper's mean distance of two features and its MSE disagree by a factor of 170 about the unit of its "
        "embeddings, so N(0, 1) is read in both ways. As std 1.0 the order of the means is the paper's, as std 380 it is not. "
        "The constant answer is right on 93.8 % of the rows, above PS. AUC falls from 0.935 without a defence to 0.809 behind PS.",
    ),
    Entry(
        PAPER,
        "Table 4",
        "White-box inversion fails behind all shuffles, also behind a jigsaw solver.",
        (TABLE4,),
        FOUR,
        page="split.md#the-split-audit",
        page_n="64 images",
        page_seeds="0, 1",
        quoted=FOUR_QUOTED,
        beyond=f"{BROKEN} {JIGSAWS} {MILDER}",
    ),
    Entry(
        PAPER,
        "Table 5",
        "Adv protects only after training; BS withstands a decoder of many transmissions.",
        (TABLE5,),
        FIVE,
        beyond=INTERSECTION,
    ),
    Entry(
        PAPER,
        "Table 6",
        "Shuffles cost the client nothing; Adv costs more.",
        (Run("split_table6", seconds=60, most_seeds=1),),
        SIX,
        beyond="Counted for one image of 224 pixels; the paper's Macc are parameters in millions. "
        "The paper does not give the size of the simulated attacker of Adv, and ours is small: 3.3 times the arithmetic, of which "
        "training itself makes 3, stands beside the paper's 26 times.",
    ),
    Entry(
        PAPER,
        "Table 7",
        "A larger share of native tokens keeps more accuracy and shows more.",
        (TABLE7,),
        SEVEN,
        beyond=f"{BROKEN} {EARLY}",
    ),
    Entry(
        PAPER,
        "Table 8",
        "A decoder that learned from other data sees less behind BS, too.",
        (TABLE8, BACK),
        EIGHT,
        beyond=BROKEN,
    ),
    Entry(
        PAPER,
        "Table 9",
        "Pix2pix sees less behind the shuffles.",
        (TABLE9,),
        NINE,
        beyond=f"{BROKEN} {MILDER}",
    ),
    Entry(PAPER, "Figure 1", "Three ways of sharing work between edge and cloud.", why=DRAWING),
    Entry(PAPER, "Figure 2", "The framework.", why=DRAWING),
    Entry(PAPER, "Figure 3", "What the shuffles do to patches.", why=DRAWING),
    Entry(PAPER, "Figure 4", "How spectral shuffling works.", why=DRAWING),
    Entry(
        PAPER,
        "Figure 5",
        "Patches of a spectrum have no order that an attacker could learn.",
        page="split.md#196-tokens-the-papers-number",
        page_n="16 squares of eight photographs a seed",
        page_seeds="0, 1",
        quoted=(
            replace(
                by_seed(
                    "Of 196 tokens of a spectrum an attack places at most one (a random order places one).",
                    [175.2, 183.1],
                    "below",
                    1.0,
                    "183.1 ± 15.3",
                    "tokens",
                ),
                possible=(0.0, 196.0),
            ),
        ),
        beyond="Squares of 56 pixels and random weights; the server learns from other squares of the same eight photographs, and "
        "intervals over squares are too narrow. The figure itself shows position embeddings of a pretrained ViT, without a number.",
    ),
    Entry(
        PAPER,
        "Figure 6",
        "Pictures of Table 1.",
        (TABLE1,),
        attacked(ONE),
        page=IN_SMALL,
        page_n="32 images",
        page_seeds="0",
        quoted=ONE_QUOTED[3:],
        repeats="Table 1",
        beyond=BROKEN,
    ),
    Entry(PAPER, "Figure 7", "Pictures of Table 2.", (TABLE2,), attacked(TWO), beyond=BROKEN, repeats="Table 2"),
    Entry(PAPER, "Figure 8", "Which part of DIFM runs where.", why=DRAWING),
    Entry(
        PAPER,
        "Figure 9",
        "Pictures of Table 4.",
        (TABLE4,),
        FOUR,
        page="split.md#the-split-audit",
        page_n="64 images",
        page_seeds="0, 1",
        quoted=FOUR_QUOTED,
        beyond=BROKEN,
        repeats="Table 4",
    ),
    Entry(
        PAPER,
        "Figure 10",
        "Noise averages out over many transmissions; BS does not.",
        (EXPOSURE, TABLE5),
        TEN,
        beyond="The paper joins 30 rounds of 196 tokens in an MAE decoder, and averages 60 images under noise N(0, 4). Ours are "
        "digits of 16 tokens: `AdaptiveDecoder` joins the rounds of Table 5, and noise of std 1.0 is averaged over 24 "
        f"transmissions beside 6. {INTERSECTION} At 196 tokens it recovers 1 and 2 of 16 squares from 20 transmissions, so "
        "that BS is open there ([196 tokens](split.md#196-tokens-the-papers-number)).",
    ),
    Entry(
        PAPER,
        "Figure 11",
        "Training with shuffles converges as fast as without.",
        (TABLE1,),
        (
            less("The test loss under BS ends at most 0.1 above that without a defence.", loss(BS), loss(""), by=-0.1),
            less(
                "The test loss under PS+ ends at most 0.1 above that without a defence.", loss(PLUS), loss(""), by=-0.1
            ),
        ),
        beyond="Loss on test images after 4 rounds; the paper has curves of the training loss.",
    ),
    Entry(PAPER, "Figure 12", "Pictures of Table 7.", (TABLE7,), attacked(SEVEN), beyond=BROKEN, repeats="Table 7"),
    Entry(
        PAPER, "Figure 13", "Pictures of Table 8, first half.", (TABLE8,), EIGHT[:1], beyond=BROKEN, repeats="Table 8"
    ),
    Entry(
        PAPER, "Figure 14", "Pictures of Table 8, second half.", (BACK,), EIGHT[1:], beyond=BROKEN, repeats="Table 8"
    ),
    Entry(PAPER, "Figure 15", "Pictures of Table 9.", (TABLE9,), NINE, beyond=BROKEN, repeats="Table 9"),
)
