"""One line per defence: what it costs, what the strongest attack recovered, and one careful sentence about it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simulations.report.analysis.control import CHAIN, LEAST_IMAGES
from simulations.report.analysis.metrics import CELLS
from simulations.report.analysis.score import PARTLY_FAILED, Score
from simulations.report.analysis.study import Cell, Study
from simulations.report.analysis.windows import WindowCounts, window_counts
from simulations.report.text import count, decibel
from simulations.rows import null_name
from strategies.audit.threat_card import KnownLabels, Strength

UNTESTED = "untested against an adaptive attacker"
_TOLD_LABELS = (KnownLabels.KNOWN, KnownLabels.SOME)


@dataclass(frozen=True)
class Line:
    """What the report says about one defence.

    Attributes:
        defense: Pipeline text.
        round: Last round that every seed has finished; utility numbers are of this round. Of several cuts of one model, the one
            with the lowest accuracy.
        clean: Test accuracy on clean images.
        protected: Test accuracy on images protected as in deployment, where the defence protects them.
        drop: Accuracy lost against no defence in the same round and seeds, as deployed; in [-1, 1].
        strongest: Cell of the strongest attack; None when no attack has a score.
        labels: Cell that recovered most labels over chance, among attacks that did not know them.
        membership: Cell with the highest membership AUC.
        epsilon: Budget spent by training (in split learning evaluation too) so far, in edge-cloud inference by the queries at one
            cut; None or infinite where there is no guarantee.
        epsilon_with_probes: Budget with the audit's probe messages.
        epsilon_all_cuts: Budget of all that a run sent of an image where it serves the same images at several cuts.
        delta: The delta of all three.
        seconds: Seconds that a client computes in a round, mean over rounds.
        seconds_ratio: The same over no defence.
        bytes: Bytes that a client sends in a round, mean over rounds.
        bytes_ratio: The same over no defence.
        failed_clients: Failed client replies, all rounds and seeds.
        attacks: Number of cells, without upper bounds.
        bounds: What upper bounds were given, in words, where there are any.
        caveats: What a reader must know besides, each a short clause.
        windows: Windows that VisualMixer shuffled and their VFE, where clients counted them.
        reading: Of rows of a table, the attack that has most cells right; None for images.
    """

    defense: str
    round: int | None
    clean: Score | None
    protected: Score | None
    drop: float | None
    strongest: Cell | None
    labels: Cell | None
    membership: Cell | None
    epsilon: float | None
    epsilon_with_probes: float | None
    epsilon_all_cuts: float | None
    delta: float | None
    seconds: float | None
    seconds_ratio: float | None
    bytes: float | None
    bytes_ratio: float | None
    failed_clients: int
    attacks: int
    bounds: tuple[str, ...]
    caveats: tuple[str, ...]
    windows: WindowCounts | None = None
    reading: Cell | None = None

    @property
    def deployed(self) -> Score | None:
        """Test accuracy as deployed: on protected images where test images are protected too."""
        return self.protected or self.clean

    @property
    def label_score(self) -> Score | None:
        """Label accuracy of ``labels``."""
        return self.labels.scores["label-accuracy", ""] if self.labels else None


def strongest(cells: Sequence[Cell], metric: tuple[str, str] = ("psnr", "original")) -> Cell | None:
    """The attack of the headline: the highest mean PSNR against the original (or another score that decides).

    An attack whose interval lies above its null baselines, or that picks true images out of others far more often than chance,
    comes before one that does neither (another round's images may have easier baselines), and one that does both before it. Such a
    leak counts whether validated or not: the control guards against attacks
    that are too weak. Of the others, attacks that ran come before attacks that failed on everything, then validated
    ones come first. Labels are ranked by what lies over chance, which depends on the number of images. An upper
    bound knows what no server knows, and never counts.
    """
    scored = [cell for cell in cells if cell.mean(*metric) is not None and not cell.is_upper_bound]
    return max(scored, key=lambda cell: _strength(cell, metric)) if scored else None


def _strength(cell: Cell, metric: tuple[str, str]) -> tuple[int, bool, bool, float]:
    # Few images have intervals so wide that they would choose by luck: there the mean decides.
    score, few = cell.scores[metric], metric[0] == "psnr" and cell.too_few
    leaks = 0 if few else (metric in cell.leaking) + (metric[0] == "psnr" and cell.picks)
    height = score.mean or 0.0
    if metric[0] == "label-accuracy":
        height -= max(cell.null_scores.get(metric, {}).values(), default=0.0)
    return leaks, not _all_failed(score), leaks > 0 or score.status == "ok", height


def _all_failed(score: Score) -> bool:
    return 0 < score.n <= score.failures


def summarise(study: Study, defenses: Mapping[str, Any]) -> list[Line]:
    """One line per pipeline, in order.

    Args:
        study: The rows.
        defenses: Pipeline text -> {"adaptive_attacks": [...], "sources": [...]} of the configuration.
    """
    return [_line(study, defense, defenses.get(defense)) for defense in study.pipelines]


def _line(study: Study, defense: str, known: Any) -> Line:
    at, cut = _judged_round(study, defense)
    clean, protected = (_at(study, defense, "test-accuracy", of, at) for of in ("original", "transformed"))
    cells = study.cells_of(defense)
    best, windows = strongest(cells), window_counts(study, defense)
    seconds, seconds_ratio = _cost(study, defense, "train-seconds")
    size, size_ratio = _cost(study, defense, "update-bytes")
    failed = sum(row.metric == "client" for row in study.rows if row.defense == defense and row.status == "failed")
    counted = sum(
        row.value
        for row in study.rows
        if (row.defense, row.metric) == (defense, "clients-failed") and row.value and math.isfinite(row.value)
    )
    return Line(
        defense=defense,
        round=at,
        clean=clean,
        protected=protected,
        drop=_drop(study, defense, at) if defense else None,
        strongest=best,
        reading=strongest(cells, (CELLS, "")),
        labels=strongest(
            [cell for cell in cells if cell.card.labels not in _TOLD_LABELS],
            ("label-accuracy", ""),
        ),
        membership=strongest(cells, ("membership-auc", "")),
        epsilon=_spent(study, defense, "epsilon"),
        epsilon_with_probes=_spent(study, defense, "epsilon-with-probes"),
        epsilon_all_cuts=_spent(study, defense, "epsilon-all-cuts"),
        delta=_spent(study, defense, "delta"),
        seconds=seconds,
        seconds_ratio=seconds_ratio if defense else None,
        bytes=size,
        bytes_ratio=size_ratio if defense else None,
        failed_clients=max(failed, int(counted)),
        attacks=sum(not cell.is_upper_bound for cell in cells),
        bounds=tuple(dict.fromkeys(cell.card.upper_bound for cell in cells if cell.is_upper_bound)),
        caveats=tuple(filter(None, (cut, *_caveats(defense, best, cells, known), windows.caveat if windows else ""))),
        windows=windows,
    )


def _judged_round(study: Study, defense: str) -> tuple[int | None, str]:
    """The round of the utility numbers; and of which of several cuts of one model they are, in words."""
    last, cuts = study.complete_round(defense), study.cuts(defense)
    scores = study.series(defense, "test-accuracy", "transformed")
    means = {at: scores[at].mean for at in cuts if last is not None and at <= last}
    found = {at: mean for at, mean in means.items() if mean is not None}
    if len(found) < 2:
        return last, ""
    lowest = min(found, key=lambda at: found[at])
    return lowest, f"accuracy as deployed is that of cut {cuts[lowest]}, the lowest of {len(found)} cuts"


def _at(study: Study, defense: str, metric: str, reference: str, at: int | None) -> Score | None:
    score = study.series(defense, metric, reference).get(at) if at is not None else None
    return score if score and score.mean is not None else None


def _spent(study: Study, defense: str, metric: str) -> float | None:
    """A budget only grows: the largest of all rounds."""
    return max((s.mean for s in study.series(defense, metric).values() if s.mean is not None), default=None)


def _drop(study: Study, defense: str, at: int | None) -> float | None:
    """Mean over the seeds that both have: accuracy without a defence - accuracy as deployed."""
    plain = _by_seed(study, "", at)
    deployed = _by_seed(study, defense, at)
    lost = [plain[seed] - deployed[seed] for seed in sorted(plain.keys() & deployed.keys())]
    return sum(lost) / len(lost) if lost else None


def _by_seed(study: Study, defense: str, at: int | None) -> dict[int, float]:
    rows = [r for r in study.rows if (r.defense, r.attack, r.metric, r.round) == (defense, "", "test-accuracy", at)]
    found = {row.seed: row.value for row in rows if row.reference == "original" and row.value is not None}
    return found | {row.seed: row.value for row in rows if row.reference == "transformed" and row.value is not None}


def _cost(study: Study, defense: str, metric: str) -> tuple[float | None, float | None]:
    """Mean over rounds, and its ratio to no defence."""
    own, plain = study.over_rounds(defense, metric), study.over_rounds("", metric)
    return own, own / plain if own is not None and plain else None


def _caveats(defense: str, best: Cell | None, cells: Sequence[Cell], known: Any) -> list[str]:
    found = []
    best = best or strongest(cells, (CELLS, ""))
    if best and best.status == "not-validated":
        if defense == "":
            found.append("positive control failed: this attack does not break the undefended run")
        elif best.leaks or best.picks:
            found.append("not validated: this attack did not break the undefended run in that round")
        else:
            found.append(
                "not validated: this attack did not break the undefended run either, so its failure shows nothing"
            )
    if best and best.status == PARTLY_FAILED:
        found.append("partly failed: some seeds have no score, and the mean leaves them out")
    if best and best.card.defense_strength == Strength.ONE_STEP:
        found.append(
            "not the strength of the accuracy beside it: the defence acts once per update, on a probe of one step as strongly as "
            "on all steps of a round; compare training updates, or choose per='step'"
        )
    if defense:
        found += _adaptive(cells, known)
    told = known.get("caveats") if isinstance(known, Mapping) else None
    return found + [str(caveat) for caveat in told or ()]


def is_adaptive(cell: Cell, known: Any) -> bool:
    """Whether the attack was made against its cell's defence, as ``known``, the configuration of that defence, says."""
    return any(_runs(name, cell) for name in _adaptive_names(known))


def _adaptive_names(known: Any) -> list[str]:
    names = known.get("adaptive_attacks") if isinstance(known, Mapping) else None
    return [str(name) for name in names] if isinstance(names, list | tuple) else []


def _adaptive(cells: Sequence[Cell], known: Any) -> list[str]:
    names = _adaptive_names(known)
    if not names:
        return [UNTESTED]
    able = [cell for cell in cells if cell.has_result and not cell.is_upper_bound]
    by_name = {name: [cell for cell in able if _runs(name, cell)] for name in names}
    missing = [name for name, found in by_name.items() if not found]
    if len(missing) == len(by_name):
        return [f"{UNTESTED}: {', '.join(missing)} did not run"]
    caveats = [f"adaptive attacks that did not run: {', '.join(missing)}"] if missing else []
    if all(cell.psnr is None and (CELLS, "") not in cell.scores for found in by_name.values() for cell in found):
        caveats.append("adaptive attacks ran on membership only; on the images it is untested against them")
    return caveats


def _runs(name: str, cell: Cell) -> bool:
    """Whether the attack, or any stage of a chain, is the named one; a word inside of its arguments is not."""
    return any(re.match(r"\s*(\w*)", stage)[1] == name for stage in cell.attack.split(CHAIN))  # type: ignore[index]


def sentence(line: Line, seeds: int = 1) -> str:
    """The headline of one defence, without its name: what the strongest attack recovered, and against what.

    Never says that something is private: an attack that fails shows only that this attack fails.
    """
    best = line.strongest
    if line.reading is not None:
        return f"the strongest attack {_read(line.reading)}."
    if best is None or best.psnr is None or best.psnr.mean is None:
        if not line.attacks:
            if line.bounds:
                return f"only attacked by what no server can do ({'; '.join(line.bounds)}), which says nothing of one that can."
            return "not attacked yet."
        return "no attack on the images has a score, so nothing is known about them."
    score = best.psnr
    if _all_failed(score):
        return f"the attack failed on all {score.n} images, so nothing is known about them."
    details = [f"n = {score.n}" + (f" over {seeds} seeds" if seeds > 1 else "")]
    details += [f"worst {decibel(score.worst)}"] if score.worst is not None else []
    details += [f"{count(score.failures, 'failure')} scored as a grey image"] if score.failures else []
    shown = f"{decibel(score.mean)} dB ({', '.join(details)})"
    return f"the strongest attack {_verdict(best, score, shown)}."


def _read(cell: Cell) -> str:
    """What a score says of the rows of a table."""
    score = cell.scores[CELLS, ""]
    null = max(cell.null_scores.get((CELLS, ""), {}).values(), default=None)
    shown = f"{100 * (score.mean or 0):.1f} % of the cells (n = {score.n} rows"
    shown += f", worst row {100 * score.worst:.1f} %)" if score.worst is not None else ")"
    if score.n < LEAST_IMAGES:
        return f"has right {shown}: too few rows for a verdict, which needs {LEAST_IMAGES} or more"
    if null is None:
        return f"has right {shown}; there is no null baseline to compare with"
    told = f"each column's most frequent category: {100 * null:.1f} %"
    return (
        f"read {shown}, above {told}" if (CELLS, "") in cell.leaking else f"has right {shown}, not clearly above {told}"
    )


def _verdict(cell: Cell, score: Score, shown: str) -> str:
    """What a score says of the images, by their number, the null baselines and the true images that were picked out."""
    hits = ""
    if cell.picked and cell.chance_of_retrieval:
        hits = f"{picked(cell)} true images picked out of {1 / cell.chance_of_retrieval:.3g} candidates"
    if cell.too_few:
        told = f"scored {shown}, {hits}" if hits else f"scored {shown}"
        return f"{told}: too few images for a verdict, which needs {LEAST_IMAGES} or more"
    if cell.best_null is None:
        return f"scored {shown}; there is no null baseline to compare with"
    if cell.leaks and cell.picks:
        return f"recovered the images at {shown}, {hits}"
    if cell.leaks:
        above = f"above the {null_name(cell.best_null[0])} image ({decibel(cell.best_null[1])} dB)"
        but = f"but with no more than {hits}" if hits else "but nobody looked for the true images among others"
        return f"scored {shown}, {above}, {but}"
    failed = f"scored {shown}, {_failed(cell, score)}"
    return f"{failed}, {'yet' if cell.picks else 'and'} {hits}" if hits else failed


def picked(cell: Cell) -> str:
    """How many true images an attack picked out, such as "15 of 16"; "" where nobody looked."""
    return f"{cell.picked[0]} of {cell.picked[1]}" if cell.picked else ""


def _failed(cell: Cell, score: Score) -> str:
    """How an attack that does not clear its null baselines compares with them."""
    null = cell.best_null
    assert null is not None
    assert score.mean is not None
    grey = cell.nulls.get("baseline:grey")
    if grey is not None and score.mean <= grey:
        text = "no better than a grey image"
    elif score.mean <= null[1]:
        text = f"no better than the {null_name(null[0])} image ({decibel(null[1])} dB)"
    else:
        text = f"not clearly better than the {null_name(null[0])} image ({decibel(null[1])} dB)"
    if score.worst is not None and score.worst > null[1] and score.n > 1:
        text += "; its worst image is above that baseline's mean"
    return text
