"""The positive control: an attack counts only where it succeeds without a defence, on enough images."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from attacks.metrics.guesses import LABEL_ACCURACY, MEMBERSHIP_AUC, MEMBERSHIP_TPR
from attacks.metrics.images import PSNR, RECOGNITION, RETRIEVAL
from attacks.metrics.metric import IMAGES, LABELS, REPRESENTATIVES, Family
from attacks.metrics.names import Role
from attacks.metrics.registry import METRICS, metric_of
from simulations.report.studies.baselines import (
    Audit,
    NoiseControl,
    Nulls,
    audit_of,
    chance_of_retrieval,
    closest,
    leaks,
    picked_out,
    unjudged,
)
from simulations.report.studies.plain import plain_words
from simulations.report.studies.rows import grouped
from simulations.report.studies.score import attacked
from simulations.report.studies.stages import first_stage
from simulations.run_folder.rows import Row

CLASS_METRICS = frozenset(one.name for one in METRICS.values() if one.family is REPRESENTATIVES)


def family(row: Row, drawn: Collection[str] = ()) -> Family | None:
    """The family of a row's score; one control decides for all rows of a family. None needs no control.

    Args:
        row: The row.
        drawn: Attacks that draw class representatives (``class_attacks``); their recognition is a kind of its own.
    """
    if row.metric == RECOGNITION.name and row.attack in drawn:
        return REPRESENTATIVES
    return metric_of(row.metric).family


def decides(row: Row, drawn: Collection[str] = ()) -> bool:
    """Whether the row's score decides the verdict on its family; ``drawn`` as in ``family``."""
    if row.metric == RECOGNITION.name:
        return row.attack in drawn
    found = family(row, drawn)
    return found is not None and (row.metric, row.reference) == found.decides


def class_attacks(rows: Iterable[Row]) -> frozenset[str]:
    """Texts of attacks that draw class representatives, not images of one person."""
    return frozenset(row.attack for row in rows if row.metric in CLASS_METRICS)


LEAST_IMAGES = 16
"""Attacked images below which there is no verdict. With 16, Student's factor is 2.1 (with 4 it is 3.2, with 2 it is 12.7, and an
interval may run from -33 to 96 dB), and the exact interval of 16 of 16 reaches down to 79 % (of 2 of 2 to 16 %)."""
LEAST_OTHERS = 100
"""Non-members from which a false positive rate of 1 % can be reached at all without being 0."""


@dataclass(frozen=True)
class Control:
    """Verdict of the positive control: whether one attack succeeded on the undefended run in one round.

    Attributes:
        row: The undefended row that decides: PSNR against the original, label accuracy or membership AUC.
        null: The best null baseline as (name, mean), or None where there is none.
        reason: Why the control failed, or "".
        picked: Of images, the row that says how many were identified.
        too_few: There are too few images for a verdict, whatever the others say.
        open: Nobody can say whether the control passed: the score is above the null baseline, and there are too few other images to
            look for the true ones among.
    """

    row: Row
    null: tuple[str, float] | None
    reason: str = ""
    picked: Row | None = None
    too_few: bool = False
    open: bool = False

    @property
    def passed(self) -> bool:
        """The lower end of the row's interval is above the null baseline's mean; of images also of retrieval far above chance."""
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
    classes; an image attack without a null baseline fails.
    """
    nulls, noise, drawn = Nulls(rows), NoiseControl(rows), class_attacks(rows)
    plain = [row for row in rows if row.is_attack and row.defense == ""]
    retrieval = (row for row in plain if row.metric == RETRIEVAL.name)
    looked_for = grouped(retrieval, lambda row: (audit_of(row), row.attack))
    found = []
    for row in plain:
        of_images = row.metric == PSNR.name
        if not decides(row, drawn) or ((null := nulls.best(row)) is None and not of_images):
            continue
        same = closest(row, looked_for.get((audit_of(row), row.attack), []), lambda one: one)
        picked, reason, undecided = same[0] if same and of_images else None, _reason(row, null), False
        if of_images and not reason:
            wanting = unjudged(picked)
            undecided = bool(wanting)
            reason = f"could not be judged, as {wanting}" if wanting else _missed(picked) or noise.reason(row)
        found.append(Control(row, null, reason, picked, too_few(row, drawn), undecided))
    return found


def _missed(picked: Row | None) -> str:
    """Why the true images do not count as identified, where they could; or ""."""
    chance = chance_of_retrieval(picked) if picked is not None else None
    if picked is None or picked.value is None or chance is None or picked_out(picked):
        return ""
    hits = f"{round(picked.value * picked.n)} of {picked.n}"
    return f"{hits} images are identified, not far more than chance (1 in {1 / chance:.3g})"


def _reason(row: Row, null: tuple[str, float] | None) -> str:
    run = plain_words(row.card).run
    if row.status == "failed" or row.value is None:
        return f"the attack failed on the {run}"
    if null is None:
        return "there is no null baseline to compare with"
    if row.value <= null[1]:
        return f"the {run} scores no better than {null[0]}"
    if row.ci_low is None:
        return f"n = {row.n} gives no interval; attack more images"
    return "" if leaks(row, null) else f"the interval of the {run} reaches down to {null[0]}"


def under_powered(row: Row, deciding: Iterable[Control]) -> bool:
    """Whether a membership score has too few records to distinguish a leak from none.

    An AUC under a defence does if its interval holds both chance and the score of every undefended run in ``deciding``: the
    defence may have stopped all of the leak, or nothing of it. A true positive rate at 1 % false positives does with fewer than
    ``LEAST_OTHERS`` non-members, where the threshold lies above all of them (Carlini et al. 2022).
    """
    if row.metric == MEMBERSHIP_TPR.name:
        return row.card.others is not None and row.card.others < LEAST_OTHERS
    if row.metric != MEMBERSHIP_AUC.name or row.defense == "" or row.ci_low is None or row.ci_high is None:
        return False
    ends = [end for one in deciding for end in (one.null and one.null[1], one.row.value) if end is not None]
    return bool(ends) and row.ci_low <= min(ends) and max(ends) <= row.ci_high


def _broken(rows: Sequence[Row]) -> set[tuple[Audit, str]]:
    """(Audit, chain) that breaks a defence which its first stage leaves standing, or breaks less.

    It beats the null baselines, identifies the true images, and its whole interval of PSNR lies above what its first stage has.
    """
    nulls, psnr, hits = Nulls(rows), {}, {}
    for row in rows:
        if row.is_attack and row.status == "ok":
            place = (audit_of(row), row.defense, row.attack)
            if (row.metric, row.reference) == PSNR.of("original"):
                psnr[place] = row
            elif row.metric == RETRIEVAL.name:
                hits[place] = row
    found = set()
    for (at, defense, attack), row in psnr.items():
        first, picked = psnr.get((at, defense, first_stage(attack))), hits.get((at, defense, attack))
        more = first is not None and first.value is not None and row.ci_low is not None and row.ci_low > first.value
        if more and picked is not None and picked_out(picked) and leaks(row, nulls.best(row)):
            found.add((at, attack))
    return found


def validate(rows: Sequence[Row]) -> list[Row]:
    """Mark scores of attacks that failed on the undefended run as "not-validated".

    An attack that cannot recover undefended images says nothing about a defence. It counts, for a round and an
    observation, if without a defence (i) the 95 % interval of its mean PSNR against the original lies above the mean of
    the best null baseline (grey or mean image, what anyone can guess) and (ii) it identifies the true images among others
    far more often than chance (``picked_out``). If not, or if there is no undefended run, its "ok" image rows of that round and
    observation get the status "not-validated" under every defence. Label accuracy is judged in the same way against
    the null baseline "uniform" where there is one, a sensitive attribute against "majority" (its most frequent value), membership
    against an AUC of 0.5, and the class representatives of GAN attacks by their recognition against
    one over ``num_classes`` where the threat card gives it.

    A chain such as ``InvertingGradients() | LearnedRestorer()`` undoes a defence, and so has nothing to do on the undefended
    run: where it has no undefended row of its own, the control of its first stage in the same round and observation is its
    control. This says that the inversion is strong enough to hand something on; it says nothing about the refinement.

    An attack that knows images (``Row.learns_prior``: a learned denoiser, or a network from updates to images) could
    hallucinate one. No first stage answers for it: it needs an undefended row of its own, and ``NoiseControl`` must hold there.
    Where its guess from noise is itself a success under a defence, or was not scored, its image rows are "not-validated" there.

    Where what the server sees of the undefended run are the images themselves (``undefended`` on the threat card), the first stage
    hands on the truth and controls nothing: there a chain must itself recover more than its first stage, and enough, under one of
    the run's defences (``_broken``), and is "not-validated" under all of them if it does under none.

    Where there are fewer than ``LEAST_IMAGES`` images, on the undefended run or under the defence, there is no verdict: the status
    is "under-powered" whatever the scores are. So it is where there are too few others to look for the true images among, so that
    nobody can say whether the control passed (``Control.open``). Scores of membership that pass get the same status where they rest
    on too few records: see ``under_powered``.

    Args:
        rows: All rows of one or more runs; left unchanged.

    Returns:
        The same rows in the same order, with new statuses. Failed rows stay failed.
    """
    drawn = class_attacks(rows)
    verdicts = grouped(controls(rows), lambda one: (audit_of(one.row), one.row.attack, family(one.row, drawn)))
    noise = NoiseControl(rows)
    has_chance = {audit_of(row) for row in rows if row.role is Role.NULL_BASELINE and row.metric == LABEL_ACCURACY.name}
    broken = _broken(rows) if any(row.card.undefended for row in rows) else set()

    def judged(row: Row) -> Row:
        kind = family(row, drawn)
        if kind is None or not row.is_attack or row.status != "ok":
            return row
        if kind == LABELS and audit_of(row) not in has_chance:
            return row
        if kind == REPRESENTATIVES and row.card.chance_of_recognition is None:
            return row
        at, first = audit_of(row), first_stage(row.attack)
        if row.learns_prior and kind == IMAGES:
            first = row.attack
            if noise.success(row):
                return replace(row, status="not-validated")
        if row.card.undefended and row.attack != first:
            return row if (at, row.attack) in broken else replace(row, status="not-validated")
        own = verdicts.get((at, row.attack, kind)) or verdicts.get((at, first, kind), [])
        deciding = closest(row, own, lambda control: control.row)
        if any(one.too_few or one.open for one in deciding) or (deciding and too_few(row, drawn)):
            return replace(row, status="under-powered")
        passed = bool(deciding) and all(control.passed for control in deciding)
        if passed and not under_powered(row, deciding):
            return row
        return replace(row, status="under-powered" if passed else "not-validated")

    return [judged(row) for row in rows]
