"""Claims on ADP (Higgins et al., delta protection) that numbers of an earlier page decide."""

from __future__ import annotations

from adp_claims import RESNET, THREE, VGG, autoencoder, trends
from entry import Claim, Quoted

MEASURED = (
    *((0.78, 0.02, 50), (0.77, 0.02, 50), (0.74, 0.02, 50), (0.73, 0.02, 50), (0.48, 0.05, 36)),
    *((0.62, 0.02, 50), (0.54, 0.02, 50), (0.48, 0.02, 50), (0.51, 0.02, 50), (0.29, 0.03, 16)),
    *((0.20, 0.02, 0), (0.18, 0.01, 0), (0.15, 0.01, 0), (0.19, 0.01, 0), (0.10, 0.01, 0)),
)
"""Of each claim of Table 3: MS-SSIM, half the width of its interval, and images of 50 above the paper's threshold."""
WITHOUT = tuple(at for at, claim in enumerate(THREE) if claim.control)
"""The rows without a defence."""


def _fails(at: int) -> bool:
    """Whether the attack fails without a defence at the cut of a row, so that its failure behind one shows nothing."""
    value, half, _ = MEASURED[max(row for row in WITHOUT if row <= at)]
    return value - half <= THREE[at].bound


THREE_QUOTED = tuple(
    Quoted(
        claim.says,
        value,
        value - half,
        value + half,
        claim.side,
        claim.bound,
        f"| {value:.2f} ± {half:.2f}; {images} of 50 |",
        paper=claim.terms[0][1].paper,
        note="not-validated" if _fails(at) and not claim.control else "",
    )
    for at, (claim, (value, half, images)) in enumerate(zip(THREE, MEASURED, strict=True))
)

Accuracy = tuple[float, float, float]
"""Per cent, with the ends of its 95 % interval."""
Measured = dict[tuple[str, str], tuple[Accuracy, Accuracy]]
"""Cut and kind of autoencoder ("" for none) -> accuracy of the server, and of the static adversary, on 400 test images."""

FOUR_MEASURED: Measured = {
    ("conv2", ""): ((84.5, 80.6, 87.7), (91.2, 88.0, 93.8)),
    ("conv2", "min, black"): ((84.5, 80.6, 87.7), (75.2, 70.7, 79.4)),
    ("conv2", "max, blur"): ((77.0, 72.6, 80.9), (71.2, 66.5, 75.6)),
    ("conv2", "max, black"): ((75.0, 70.5, 79.0), (65.0, 60.1, 69.7)),
    ("conv4", ""): ((84.5, 80.6, 87.7), (83.5, 79.5, 87.0)),
    ("conv4", "min, black"): ((82.0, 77.9, 85.5), (78.5, 74.1, 82.4)),
    ("conv4", "max, blur"): ((80.5, 76.3, 84.1), (72.5, 67.8, 76.8)),
    ("conv4", "max, black"): ((64.8, 59.9, 69.3), (57.5, 52.5, 62.4)),
    ("conv6", ""): ((84.5, 80.6, 87.7), (67.8, 62.9, 72.3)),
    ("conv6", "min, black"): ((74.0, 69.5, 78.1), (63.0, 58.1, 67.7)),
    ("conv6", "max, blur"): ((78.0, 73.7, 81.8), (56.8, 51.7, 61.7)),
    ("conv6", "max, black"): ((56.2, 51.4, 61.0), (51.5, 46.5, 56.5)),
}
FIVE_MEASURED: Measured = {
    ("block2", ""): ((85.8, 82.0, 88.8), (91.5, 88.3, 94.0)),
    ("block2", "min, black"): ((82.5, 78.5, 85.9), (65.0, 60.1, 69.7)),
    ("block2", "max, blur"): ((79.8, 75.5, 83.4), (55.5, 50.5, 60.4)),
    ("block2", "max, black"): ((78.7, 74.5, 82.5), (54.2, 49.2, 59.2)),
    ("block5", ""): ((85.8, 82.0, 88.8), (81.0, 76.8, 84.7)),
    ("block5", "min, black"): ((75.2, 70.8, 79.2), (51.2, 46.2, 56.2)),
    ("block5", "max, blur"): ((80.8, 76.6, 84.3), (64.0, 59.1, 68.7)),
    ("block5", "max, black"): ((49.2, 44.4, 54.1), (53.2, 48.2, 58.2)),
    ("block8", ""): ((85.8, 82.0, 88.8), (52.0, 47.0, 57.0)),
    ("block8", "min, black"): ((67.8, 63.0, 72.1), (51.2, 46.2, 56.2)),
    ("block8", "max, blur"): ((81.5, 77.4, 85.0), (52.0, 47.0, 57.0)),
    ("block8", "max, black"): ((50.2, 45.4, 55.1), (53.8, 48.7, 58.7)),
}
SIX_MEASURED: Measured = {
    ("block2", ""): ((85.8, 82.0, 88.8), (91.5, 88.3, 94.0)),
    ("block2", "min, black"): ((83.8, 79.8, 87.0), (51.7, 46.7, 56.7)),
    ("block2", "max, blur"): ((80.0, 75.8, 83.6), (52.5, 47.5, 57.5)),
    ("block2", "max, black"): ((51.3, 46.4, 56.1), (54.8, 49.7, 59.7)),
}
CHANCE = 50.0
"""Per cent of the test images of which the most frequent value of the sensitive attribute is right."""
NOT_VALIDATED = "not-validated: the adversary is at chance without a defence"


def line(cut: str, kind: str, measured: Measured) -> str:
    """The beginning of a row of the page."""
    shown = ", ".join(f"`{word}`" for word in kind.split(", ")) if kind else "none"
    cells = (f"{value:.1f} ({low:.1f} to {high:.1f})" for value, low, high in measured[cut, kind])
    return f"| {' | '.join((cut, shown, *cells))} |"


def _quoted(claim: Claim, measured: Measured, variant: str, epochs: int) -> Quoted:
    """A claim on one or two accuracies of a table, decided by what the page has for them.

    Of a difference stands the widest interval that those of the two accuracies allow.
    """
    kinds = {autoencoder(variant, *kind.split(", "), epochs): kind for _, kind in measured if kind}
    value = low = high = 0.0
    for factor, cell in claim.terms:
        attacked = bool(cell.attack)
        one, least, most = measured[cell.cut, kinds[cell.defense]][attacked]
        ends = sorted((factor * least, factor * most))
        value, low, high = value + factor * one, low + ends[0], high + ends[1]
    first = claim.terms[0][1]
    fails = bool(first.attack) and measured[first.cut, ""][1][1] <= CHANCE
    return Quoted(
        claim.says,
        value,
        low,
        high,
        claim.side,
        claim.bound * claim.scale,
        line(first.cut, kinds[first.defense], measured),
        claim.unit,
        first.paper,
        note=NOT_VALIDATED if fails else "",
    )


FOUR_QUOTED, FIVE_QUOTED, SIX_QUOTED = (
    tuple(_quoted(claim, measured, variant, epochs) for claim in trends(variant, epochs, cuts))
    for measured, variant, epochs, cuts in (
        (FOUR_MEASURED, "extra_deep", 24, VGG),
        (FIVE_MEASURED, "decreasing", 16, RESNET),
        (SIX_MEASURED, "extra_deep", 24, RESNET[:1]),
    )
)
