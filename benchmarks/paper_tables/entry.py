"""What the catalogue holds: a table or figure, the runs that measure it, and the claims that rows decide."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

NULLS = ("grey", "mean")
"""Names of null baselines, which stand in rows as attacks do."""
DEPLOYED = "deployed"
"""Reference of an accuracy: on test images protected as in deployment, or plain ones where nothing protects them."""
ANY = (-math.inf, math.inf)
POINTS = (-100.0, 100.0)
"""Between these lies a difference of two shares in per cent."""


@dataclass(frozen=True)
class Run:
    """One configuration with settings over it, repeated with several seeds.

    Attributes:
        config: Stem of a file in ``simulations/configs``.
        settings: "key=value" over the file, without the seed.
        label: Part of the name that separates settings of one configuration; "" for the file as it is.
        seconds: Rough cost of one seed in seconds, by which cheaper runs go first.
        most_seeds: No more seeds than this are run, those with a small file counted, as the run is too long for more.
        script: File beside this one that writes the small file itself; ``config`` is then the run's name alone.
    """

    config: str
    settings: tuple[str, ...] = ()
    label: str = ""
    seconds: int = 300
    most_seeds: int = 5
    script: str = ""

    @property
    def name(self) -> str:
        """The configuration's stem, and the label where there is one."""
        return f"{self.config}-{self.label}" if self.label else self.config


@dataclass(frozen=True)
class Cell:
    """One number of a run; a paper's number for it may stand beside.

    Attributes:
        metric: Name of the metric in rows.
        defense: Pipeline text as rows have it; "" is no defence.
        attack: Attack text as rows have it, or the name of a null baseline; "" for a number about training.
        reference: What images were compared with, or ``DEPLOYED``.
        at: "first" or "last" round that has the number, or the number of a round.
        cut: Where the model is cut; "" for any.
        observation: What was attacked, as threat cards name it; "" for any.
        run: Name of the run; "" for the first of the entry.
        paper: What the paper has for it, as text; "" where it has none.
    """

    metric: str
    defense: str = ""
    attack: str = ""
    reference: str = ""
    at: str | int = "last"
    cut: str = ""
    observation: str = ""
    run: str = ""
    paper: str = ""


@dataclass(frozen=True)
class Claim:
    """A sum of cells with factors, which a paper says to lie above or below a number.

    Attributes:
        says: The claim in one sentence.
        terms: (factor, cell); the sum of the products is compared.
        side: "above" or "below": where the sum lies by the claim.
        bound: The number that the sum is compared with.
        unit: Of the sum, for the page.
        scale: What the sum is multiplied by on the page, such as 100 for points.
        control: Whether the claim is that the attack works without a defence. Its rows then decide it also where they are
            not validated, since not to be validated is to fail there. It is no claim about a defence, and refutes no table.
        variant: Whether it is of a configuration beside the paper's own method. It is shown, and decides nothing.
        favours: The defence that is better than the paper says where the claim is refuted; "" where a refutation speaks
            against the paper's defence or for none.
        ours: Why the comparison or its bound is no claim of the paper, in words; it is shown, and decides nothing. "" where it is.
        note: Why the claim is open whatever its interval; "" where the interval decides.
    """

    says: str
    terms: tuple[tuple[float, Cell], ...]
    side: str
    bound: float = 0.0
    unit: str = ""
    scale: float = 1.0
    control: bool = False
    variant: bool = False
    favours: str = ""
    ours: str = ""
    note: str = ""


@dataclass(frozen=True)
class Quoted:
    """A claim that numbers on a page of results decide.

    Attributes:
        says: The claim in one sentence. Of a claim that a run can measure ``control``, ``variant``, ``favours`` and ``ours`` are
            the run's, and ``note`` is the run's where it has one.
        value: The number that the page has for the compared quantity; None where the page has none.
        low: Lower end of its 95 % interval; None where the page has none.
        high: Upper end; None where the page has none.
        side: As of ``Claim``.
        bound: As of ``Claim``.
        text: What stands on the page, word by word: a test looks for it.
        unit: Of the number.
        paper: What the paper has, as text.
        n: Images or other units behind this number, in words; "" for the entry's ``page_n``.
        seeds: Seeds behind it, in words; "" for the entry's ``page_seeds``.
        note: Why the claim is open whatever its interval; "" where the interval decides.
        page: Page and anchor where the number stands; "" for the entry's ``page``.
        each: The numbers of single seeds, where the page has them; the interval then holds Student's t over these.
        possible: Smallest and largest value that the quantity can have, at which the interval ends.
        control: As of ``Claim``.
        variant: As of ``Claim``.
        favours: As of ``Claim``.
        ours: As of ``Claim``.
    """

    says: str
    value: float | None
    low: float | None
    high: float | None
    side: str
    bound: float
    text: str
    unit: str = ""
    paper: str = ""
    n: str = ""
    seeds: str = ""
    note: str = ""
    page: str = ""
    each: tuple[float, ...] = ()
    possible: tuple[float, float] = ANY
    control: bool = False
    variant: bool = False
    favours: str = ""
    ours: str = ""


@dataclass(frozen=True)
class Entry:
    """A table or figure of a paper.

    Attributes:
        paper: Short name of the paper.
        name: "Table 4" or "Figure 5", numbered as in the paper.
        says: What it claims, in one plain sentence.
        runs: Runs that measure it.
        claims: Decided by rows of the runs.
        page: Page and anchor of existing results, such as "split.md#the-split-audit"; "" where there are none.
        page_n: Images or other units behind the page's numbers, in words.
        page_seeds: Seeds behind them, in words.
        quoted: Claims decided by that page's numbers.
        beyond: A sentence about a stronger attack elsewhere, or another remark that belongs beside the verdict.
        why: Why nothing is compared; "" where something is.
        absent: Whether that is because it cannot be run here, and not because there is nothing to check.
        repeats: Name of the paper's table or figure that has all claims of this one, such as pictures of it; "" for none.
    """

    paper: str
    name: str
    says: str
    runs: tuple[Run, ...] = ()
    claims: tuple[Claim, ...] = ()
    page: str = ""
    page_n: str = ""
    page_seeds: str = ""
    quoted: tuple[Quoted, ...] = field(default=())
    beyond: str = ""
    why: str = ""
    absent: bool = False
    repeats: str = ""

    @property
    def title(self) -> str:
        """Paper and name."""
        return f"{self.paper}, {self.name}"


def attacked(claims: tuple[Claim, ...]) -> tuple[Claim, ...]:
    """The claims of a table about attacks alone, which the pictures of the same attacks show as well."""
    return tuple(claim for claim in claims if all(cell.attack for _, cell in claim.terms))


def less(
    says: str, left: Cell, right: Cell, *, by: float = 0.0, unit: str = "", scale: float = 1.0, favours: str = ""
) -> Claim:
    """The claim that ``left`` lies below ``right``, by more than ``by``."""
    return Claim(says, ((1.0, left), (-1.0, right)), "below", -by, unit, scale, favours=favours)


def more(says: str, left: Cell, right: Cell, *, by: float = 0.0, unit: str = "", scale: float = 1.0) -> Claim:
    """The claim that ``left`` lies above ``right``, by more than ``by``."""
    return Claim(says, ((1.0, left), (-1.0, right)), "above", by, unit, scale)


def costs_at_most(says: str, defended: Cell, plain: Cell, points: float) -> Claim:
    """The claim that the accuracy falls by at most so many points."""
    return Claim(says, ((1.0, defended), (-1.0, plain)), "above", -points / 100, "points", 100.0)


def at_most(says: str, cell: Cell, bound: float, *, unit: str = "", scale: float = 1.0, favours: str = "") -> Claim:
    """The claim that a number is at most ``bound``."""
    return Claim(says, ((1.0, cell),), "below", bound, unit, scale, favours=favours)


def at_least(
    says: str,
    cell: Cell,
    bound: float,
    *,
    unit: str = "",
    scale: float = 1.0,
    control: bool = False,
    favours: str = "",
) -> Claim:
    """The claim that a number is at least ``bound``."""
    return Claim(says, ((1.0, cell),), "above", bound, unit, scale, control, favours=favours)
