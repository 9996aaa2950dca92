"""The positive control: an attack counts only where it succeeds without a defence, on enough images."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from attacks.metrics.guesses import LABEL_ACCURACY, MEMBERSHIP_AUC, MEMBERSHIP_TPR
from attacks.metrics.images import IDENTIFIED, PSNR, RECOGNITION
from attacks.metrics.metric import IMAGES, LABELS, LEAST_IMAGES, REPRESENTATIVES, Family
from attacks.metrics.names import Role
from attacks.metrics.registry import METRICS, metric_of
from simulations.report.studies.baselines import Audit, Nulls, audit_of, closest, leaks
from simulations.report.studies.intervals import LEVEL, by_chance
from simulations.report.studies.messages import MessageSize
from simulations.report.studies.plain import plain_words
from simulations.report.studies.rows import grouped
from simulations.report.studies.score import attacked, same_images
from simulations.report.studies.stages import first_stage
from simulations.run_folder.rows import Row

CLASS_METRICS = frozenset(metric.name for metric in METRICS.values() if metric.family is REPRESENTATIVES)


def family(row: Row, drawn: Collection[str] = ()) -> Family | None:
    """The family of a row's score, for all rows of which one control decides; None needs no control.

    Recognition of ``drawn`` attacks (``class_attacks``) is a kind of its own.
    """
    return REPRESENTATIVES if row.metric == RECOGNITION.name and row.attack in drawn else metric_of(row.metric).family


def decides(row: Row, drawn: Collection[str] = ()) -> bool:
    """Whether the row's score decides the verdict on its family; ``drawn`` as in ``family``."""
    if row.metric == RECOGNITION.name:
        return row.attack in drawn
    kind = family(row, drawn)
    return kind is not None and (row.metric, row.reference) == kind.decides


def class_attacks(rows: Iterable[Row]) -> frozenset[str]:
    """Texts of attacks that draw class representatives, not images of one person."""
    return frozenset(row.attack for row in rows if row.metric in CLASS_METRICS)


LEAST_OTHERS = 100
"""Non-members from which a false positive rate of 1 % can be reached at all without being 0."""


def significance(rows: Sequence[Row]) -> float:
    """``by_chance`` of rows of ``IDENTIFIED`` or ``RECOGNISABLE``, over all seeds; 1 where it cannot be known.

    What is recognisable is identified, too, so that the same chance bounds both. Where seeds attack the same images it is of the
    seed with the most, corrected for the number of seeds.
    """
    counts = [
        (round(row.value * row.n), row.n, row.card.chance)
        for row in rows
        if row.value is not None and row.status != "failed" and row.card.chance is not None and row.n
    ]
    if not counts or len(counts) < len(rows):
        return 1.0
    if len(counts) > 1 and all(map(same_images, rows)):
        return min(1.0, len(counts) * min(by_chance(*count) for count in counts))
    hits, images, chances = zip(*counts, strict=True)
    return by_chance(sum(hits), sum(images), max(chances))


@dataclass(frozen=True)
class Control:
    """Verdict of the positive control: whether one attack succeeded on the undefended run in one round.

    Attributes:
        row: The undefended row that decides: images identified, label accuracy or membership AUC.
        null: The best null baseline as (name, mean), or None where there is none.
        reason: Why the control failed, or "".
        too_few: There are too few images for a verdict, whatever the others say.
        open: Nobody can say whether the control passed: there are too few other images to look for the true ones among.
    """

    row: Row
    null: tuple[str, float] | None
    reason: str = ""
    too_few: bool = False
    open: bool = False

    @property
    def passed(self) -> bool:
        """The lower end of the row's interval is above the null baseline's mean; images are identified beyond chance."""
        return not self.reason


def images_behind(row: Row) -> int:
    """Number of attacked images behind a score; for labels, whose n counts batches, all images of those batches."""
    images = row.card.images
    return row.n * images if row.metric == LABEL_ACCURACY.name and images is not None else attacked(row)


def too_few(row: Row, drawn: Collection[str] = ()) -> bool:
    """Whether a score that counts images has too few for a verdict; ``drawn`` as in ``family``."""
    kind = family(row, drawn)
    return kind is not None and kind.counts_images and row.value is not None and images_behind(row) < LEAST_IMAGES


def controls(rows: Sequence[Row]) -> list[Control]:
    """The verdict on every attack on the undefended run.

    A label attack without a chance baseline gets no verdict, nor a GAN attack whose threat card does not give the number of
    classes.
    """

    def alike(row: Row) -> tuple[object, ...]:
        return row.study, row.seed, row.card.observation, MessageSize.of(row.card)

    nulls, drawn = Nulls(rows), class_attacks(rows)
    plain = [row for row in rows if row.is_attack and row.defense == ""]
    tried = Counter(alike(row) for row in plain if _of_images(row))
    verdicts = []
    for row in plain:
        if _of_images(row):
            verdicts.append(_control_of_images(row, tried[alike(row)], drawn))
        elif decides(row, drawn) and row.metric != PSNR.name and (null := nulls.best(row)) is not None:
            verdicts.append(Control(row, null, _reason(row, null), too_few(row, drawn)))
    return verdicts


def _of_images(row: Row) -> bool:
    return (row.metric, row.reference) == IDENTIFIED.of("original")


def _failed(row: Row) -> str:
    """Why a row without a score passes no control."""
    failed = row.status == "failed" or row.value is None
    return f"the attack failed on the {plain_words(row.card).run}" if failed else ""


def _control_of_images(row: Row, tried: int, drawn: Collection[str]) -> Control:
    """By the verdict's own rule: images are identified beyond chance, corrected for all attacks tried on such messages."""
    chance, few = row.card.chance, too_few(row, drawn)
    null = None if chance is None else ("chance", chance)
    if reason := _failed(row):
        return Control(row, null, reason, few)
    if chance is None or tried * by_chance(row.n, row.n, chance) > LEVEL:
        return Control(row, null, "there are too few other images to tell a hit from chance", few, open=not few)
    hits = round((row.value or 0.0) * row.n)
    expected = f"expected by chance: {row.n * chance:.2g}; {tried} tried"
    failed = tried * by_chance(hits, row.n, chance) > LEVEL
    return Control(row, null, f"{hits} of {row.n} images are identified ({expected})" if failed else "", few)


def _reason(row: Row, null: tuple[str, float]) -> str:
    """Why a row of other numbers passes no control; "" where its whole interval lies above the null baseline."""
    run = plain_words(row.card).run
    if (reason := _failed(row)) or (leaks(row, null) and row.ci_low is not None):
        return reason
    if (row.value or 0.0) <= null[1]:
        return f"the {run} scores no better than {null[0]}"
    if row.ci_low is None:
        return f"n = {row.n} gives no interval; attack more images"
    return f"the interval of the {run} reaches down to {null[0]}"


def under_powered(row: Row, deciding: Iterable[Control]) -> bool:
    """Whether a membership score has too few records to distinguish a leak from none.

    An AUC under a defence does if its interval holds both chance and the score of every undefended run in ``deciding``. A true
    positive rate at 1 % false positives does with fewer than ``LEAST_OTHERS`` non-members, where the threshold lies above all of
    them (Carlini et al. 2022).
    """
    if row.metric == MEMBERSHIP_TPR.name:
        return row.card.others is not None and row.card.others < LEAST_OTHERS
    if row.metric != MEMBERSHIP_AUC.name or row.defense == "" or row.ci_low is None or row.ci_high is None:
        return False
    ends = [end for test in deciding for end in (test.null and test.null[1], test.row.value) if end is not None]
    return bool(ends) and row.ci_low <= min(ends) and max(ends) <= row.ci_high


def _broken(rows: Sequence[Row]) -> set[tuple[Audit, str]]:
    """(Audit, chain) that breaks a defence which its first stage leaves standing, or breaks less.

    It identifies images beyond chance under a defence, and its whole interval of PSNR lies above what its first stage has.
    """
    able = [row for row in rows if row.is_attack and row.status == "ok"]
    psnr, hits = (
        {(audit_of(row), row.defense, row.attack): row for row in able if (row.metric, row.reference) == of}
        for of in (PSNR.of("original"), IDENTIFIED.of("original"))
    )
    broken = set()
    for (at, defense, attack), row in psnr.items():
        first, hit = psnr.get((at, defense, first_stage(attack))), hits.get((at, defense, attack))
        more = first is not None and first.value is not None and row.ci_low is not None and row.ci_low > first.value
        if more and hit is not None and len(hits) * significance([hit]) <= LEVEL:
            broken.add((at, attack))
    return broken


def validate(rows: Sequence[Row]) -> list[Row]:
    """Mark scores of attacks that failed on the undefended run as "not-validated".

    An attack that identifies no images without a defence says nothing about a defence. It counts on a round's messages of one kind
    and size if the same attack identifies undefended images beyond chance in that round from such messages, or from smaller ones
    where it was not tried on such. Without a defence, a smaller message controls a larger one: so the page shows where a leak
    ends. If not, or if there is no undefended run, its "ok" image rows get the status "not-validated". Label accuracy is judged by
    the null baseline "uniform" where there is one, a sensitive attribute by its most frequent value, membership by an AUC of 0.5,
    and class representatives by one over ``num_classes``, each by the whole interval.

    A chain such as ``InvertingGradients() | LearnedRestorer()`` undoes a defence: where it has no undefended row of its own, the
    control of its first stage is its control. It says that the inversion is strong enough to hand something on, and nothing about
    the refinement. Where the server sees the undefended images themselves (``undefended`` on the threat card), the first stage
    controls nothing: a chain must itself recover more under one of the run's defences (``_broken``), and is "not-validated" under
    all if it does under none.

    With fewer than ``LEAST_IMAGES`` images, or too few others to look for the true images among, the status is "under-powered", and
    that of scores of membership that pass on too few records (``under_powered``). Failed rows stay failed; ``rows`` are unchanged.
    """
    drawn = class_attacks(rows)
    verdicts = grouped(controls(rows), lambda test: _attempt(test.row, test.row.attack, family(test.row, drawn)))
    has_chance = {audit_of(row) for row in rows if row.role is Role.NULL_BASELINE and row.metric == LABEL_ACCURACY.name}
    broken = _broken(rows) if any(row.card.undefended for row in rows) else set()

    def judged(row: Row) -> Row:
        kind = family(row, drawn)
        if kind is None or not row.is_attack or row.status != "ok":
            return row
        if (kind == LABELS and audit_of(row) not in has_chance) or (
            kind == REPRESENTATIVES and row.card.chance_of_recognition is None
        ):
            return row
        first = first_stage(row.attack)
        if row.card.undefended and row.attack != first:
            return row if (audit_of(row), row.attack) in broken else replace(row, status="not-validated")
        own = verdicts.get(_attempt(row, row.attack, kind)) or verdicts.get(_attempt(row, first, kind), [])
        deciding = _deciding(row, own, kind)
        if any(control.too_few or control.open for control in deciding) or (deciding and too_few(row, drawn)):
            return replace(row, status="under-powered")
        if not deciding or not all(control.passed for control in deciding):
            return replace(row, status="not-validated")
        return replace(row, status="under-powered") if under_powered(row, deciding) else row

    return [judged(row) for row in rows]


def _attempt(row: Row, attack: str, kind: Family | None) -> tuple[Any, ...]:
    """What a control is of; of images whatever was sent, as smaller messages control larger ones."""
    at = (*row.study, row.seed, row.round, row.card.clients) if kind == IMAGES else audit_of(row)
    return at, attack, kind


def _deciding(row: Row, own: Sequence[Control], kind: Family) -> list[Control]:
    """The controls that decide for a row: of messages like its own; of images the one that passed on smaller messages, where none
    is of such messages, or where the row is itself the one that failed there.
    """
    if kind != IMAGES:
        return closest(row, own, lambda control: control.row)
    size = MessageSize.of(row.card)
    alike = [
        one for one in own if (one.row.card.observation, MessageSize.of(one.row.card)) == (row.card.observation, size)
    ]
    if alike and (row.defense or all(control.passed for control in alike)):
        return alike  # without a defence the attack fails on such messages, so that its failure under one shows nothing
    smaller = [control for control in own if MessageSize.of(control.row.card).within(size)]
    return [control for control in smaller if control.passed and not (control.too_few or control.open)][:1] or alike
