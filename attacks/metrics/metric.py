"""What a metric is: its name, values, direction and intervals, and the family that one positive control decides for."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from enum import Enum
from functools import partial

from torch import Tensor

from attacks.metrics.names import ScoreName

LEAST_IMAGES = 16
"""Attacked images below which there is no verdict. With 16, Student's factor is 2.1 (with 4 it is 3.2, with 2 it is 12.7, and an
interval may run from -33 to 96 dB), and the exact interval of 16 of 16 reaches down to 79 % (of 2 of 2 to 16 %)."""


class Values(Enum):
    """What one trial gives."""

    NUMBER = "numbers"
    SHARE = "numbers from 0 to 1"
    HIT = "ones and zeros"
    BOUND = "a guarantee: over clients and seeds the largest counts, never the mean"


class Interval(Enum):
    """How a row computes the 95 % interval of its mean."""

    MEAN = "Student's t over the trials"
    EXACT = "Clopper-Pearson over trials that are 1 or 0"
    BATCHES = "each batch is one trial"
    CELLS = "rows of a table are clusters, their columns the trials"


class OverSeeds(Enum):
    """How the report computes the 95 % interval of a mean over several seeds."""

    MEAN = "Student's t over seeds"
    EXACT = "Clopper-Pearson over the images of all seeds together"
    CLUSTERED = "seeds are clusters of distinct images, as each seed trains another model"
    AREA = "Student's t over seeds, never narrower than the seeds' own intervals"


UNIT, FINITE, FROM_0 = (0.0, 1.0), (-1e100, 1e100), (0.0, 1e100)
"""Ranges of metrics, both ends included. No number of a run is larger than 1e100; rows hold none."""


@dataclass(frozen=True)
class Family:
    """Scores that one positive control decides for.

    Attributes:
        name: Short.
        decides: (metric, reference) by which the others are judged.
        attacked: What an attack with such a score was on, behind "on", such as "the images".
        counts_images: Its scores are of images or rows, so that few of them allow no verdict.
    """

    name: str
    decides: tuple[str, str]
    attacked: str
    counts_images: bool = True

    def scored(self, scores: Collection[tuple[str, str]]) -> bool:
        """Whether its deciding score is among these (metric, reference)."""
        return self.decides in scores


IMAGES = Family("images", ("psnr", "original"), "the images")
LABELS = Family("labels", ("label-accuracy", ""), "labels")
CELLS = Family("cells", ("cells-right", ""), "the rows")
MEMBERSHIP = Family("membership", ("membership-auc", ""), "membership", counts_images=False)
REPRESENTATIVES = Family("representatives", ("recognition", ""), "classes")
ATTRIBUTES = Family("attributes", ("attribute-accuracy", ""), "the sensitive attribute")
FAMILIES = (IMAGES, LABELS, CELLS, MEMBERSHIP, REPRESENTATIVES, ATTRIBUTES)
"""In the order in which their deciding scores say how an attack did."""


@dataclass(frozen=True)
class Metric:
    """One measured quantity, as clients send it, the guard checks it, rows hold it and the report shows it.

    A client computes a metric that has a ``measure`` for every guessed image, against the original and against the transformed
    image: such a metric needs nothing but its declaration.

    Attributes:
        name: In messages and rows.
        label: On pages; "" for the name.
        values: What one trial gives.
        higher_leaks: The higher, the more a person lost (or the better an attack did); else the lower.
        interval: Of a row.
        over_seeds: Of a mean over seeds.
        family: Whose positive control decides for it; None for numbers that need none.
        measure: Guessed and true images (B, C, H, W) in [0, 1] -> (B,), pair by pair.
        range: Least and largest value of a trial. A client cuts what it measures to them, as an exact copy has an infinite PSNR;
            the server refuses a reply with any other value.
        shown: References under which a page has a place of its own for it; under others it is listed with the other numbers.
        of_training: It is about a run's training or cost, not about an attack.
        in_rows: Whether it has rows; else a client sends it beside another metric.
        prefix: Its name is only the beginning of the names in rows, such as that of one column's share.
    """

    name: str
    label: str = ""
    values: Values = Values.NUMBER
    higher_leaks: bool = True
    interval: Interval = Interval.MEAN
    over_seeds: OverSeeds = OverSeeds.MEAN
    family: Family | None = None
    measure: Callable[[Tensor, Tensor], Tensor] | None = None
    range: tuple[float, float] = FINITE
    shown: tuple[str, ...] = ("",)
    of_training: bool = False
    in_rows: bool = True
    prefix: bool = False

    def of(self, reference: str = "") -> ScoreName:
        """The name of its score against a reference."""
        return ScoreName(self.name, reference)

    def cut(self, values: Iterable[float]) -> list[float]:
        """Measured values, cut to the range; NaN stays NaN."""
        low, high = self.range
        return [max(min(value, high), low) for value in values]

    def allows(self, value: object) -> bool:
        """Whether a reported value can be one of this metric; NaN never is."""
        low, high = self.range
        return (
            isinstance(value, int | float) and low <= value <= high and (self.values is not Values.HIT or value in UNIT)
        )

    @property
    def allowed(self) -> str:
        """The values that ``allows`` lets pass, in words."""
        return self.values.value if self.values is Values.HIT else "numbers from {:g} to {:g}".format(*self.range)


Share = partial(Metric, values=Values.SHARE, range=UNIT)
"""A metric of trials from 0 to 1."""
Binary = partial(Metric, values=Values.HIT, range=UNIT)
"""A metric of trials that are 1 or 0."""
Hit = partial(Binary, interval=Interval.EXACT, over_seeds=OverSeeds.EXACT)
"""The same, with an exact interval."""
