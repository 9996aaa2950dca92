"""Kinds of scores: which metrics belong together, which of them decides, and what was attacked where they are there."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from simulations.report.studies.metrics import CELLS, MS_SSIM, MS_SSIM_SUCCESS, SMASHED_METRICS
from simulations.run_folder.rows import Row

IMAGE_METRICS = frozenset({"psnr", "ssim", "mse", "retrieval", "recovered"})
MEMBERSHIP_METRICS = frozenset({"membership-auc", "membership-tpr"})
"""Area under the ROC curve, and true positive rate at 1 % false positive rate."""
CLASS_METRICS = frozenset({"class-mean-psnr", "class-mean-ssim"})
"""Of class representatives (GAN attacks), against the mean image of a class; never a score of one person's image."""


@dataclass(frozen=True)
class Family:
    """Scores that one positive control decides for.

    Attributes:
        name: Short.
        decides: (metric, reference) by which the others are judged.
        metrics: All of them.
        attacked: What an attack with such a score was on, behind "on", such as "the images".
        counts_images: Its scores are of images or rows, and of fewer than ``LEAST_IMAGES`` nothing is said.
    """

    name: str
    decides: tuple[str, str]
    metrics: frozenset[str]
    attacked: str
    counts_images: bool = True

    def scored(self, scores: Collection[tuple[str, str]]) -> bool:
        """Whether its deciding score is among these (metric, reference)."""
        return self.decides in scores


IMAGES = Family(
    "images",
    ("psnr", "original"),
    frozenset({*IMAGE_METRICS, *SMASHED_METRICS, MS_SSIM, MS_SSIM_SUCCESS, "recognition"}),
    "the images",
)
LABELS = Family("labels", ("label-accuracy", ""), frozenset({"label-accuracy"}), "labels")
READING = Family("cells", (CELLS, ""), frozenset({CELLS}), "the rows")
MEMBERSHIP = Family("membership", ("membership-auc", ""), MEMBERSHIP_METRICS, "membership", counts_images=False)
REPRESENTATIVES = Family("representatives", ("recognition", ""), CLASS_METRICS, "classes")
ATTRIBUTES = Family(
    "attributes", ("attribute-accuracy", ""), frozenset({"attribute-accuracy"}), "the sensitive attribute"
)
FAMILIES = (IMAGES, LABELS, READING, MEMBERSHIP, REPRESENTATIVES, ATTRIBUTES)
"""In the order in which their deciding scores say how an attack did."""


def family(row: Row, drawn: Collection[str] = ()) -> Family | None:
    """The kind of score that a row belongs to; one control decides for all of a kind. None needs no control.

    Args:
        row: The row.
        drawn: Attacks that draw class representatives (``class_attacks``); their recognition is a kind of its own.
    """
    if row.metric == "recognition" and row.attack in drawn:
        return REPRESENTATIVES
    return next((one for one in FAMILIES if row.metric in one.metrics), None)


def decides(row: Row, drawn: Collection[str] = ()) -> bool:
    """Whether the row is the one by which its kind of score is judged; ``drawn`` as in ``family``."""
    if row.metric == "recognition":
        return row.attack in drawn
    found = family(row, drawn)
    return found is not None and (row.metric, row.reference) == found.decides


def class_attacks(rows: Iterable[Row]) -> frozenset[str]:
    """Texts of attacks that draw what classes look like, not what one person's image looks like."""
    return frozenset(row.attack for row in rows if row.metric in CLASS_METRICS)
