"""One line per defence: its cost, the recovery by the strongest attack, and one careful sentence."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from attacks.metrics.guesses import MEMBERSHIP_TPR
from attacks.metrics.metric import ATTRIBUTES, LABELS, MEMBERSHIP
from attacks.metrics.training import EPSILON_BY, TEST_ACCURACY
from clients.wire.schema import readable
from defenses.neighbours import BUDGET
from defenses.training.accounting import MEANING
from simulations.report.analysis.adaptive import adapted, adaptive_caveats, once_per_update, out_of_reach, untested
from simulations.report.analysis.line import TERMS, Line, largest
from simulations.report.analysis.paired import PairedDifference, differences
from simulations.report.analysis.shown import (
    CLIENTS,
    NO_COST,
    audit_warnings,
    canaries_in,
    neighbours_of,
    shown_epsilon,
)
from simulations.report.analysis.verdict import Judged, Verdict, judge, verdict_of
from simulations.report.analysis.windows import window_counts
from simulations.report.studies.cell import FOUND, Cell
from simulations.report.studies.control import LEAST_IMAGES
from simulations.report.studies.intervals import LEVEL, Range, by_chance, interval, newcombe
from simulations.report.studies.left_out import left_out, same_cell
from simulations.report.studies.plain import plain_words
from simulations.report.studies.score import PARTLY_FAILED, Score, Scored
from simulations.report.studies.study import Study
from simulations.report.text import percent, percentage, within
from simulations.run_folder.rows import Row
from strategies.audit.threat_card import KEPT_STATISTICS, KnownLabels
from strategies.external_app.claim import CLAIMED, REPORTED, AppAccuracy, Claim


def accuracy_change(study: Study, defense: str, at: int | None) -> Score | None:
    """Accuracy as deployed, less that of no defence in the same round and seeds; in [-1, 1]. None without a common seed.

    Both are taken as of different test images (Newcombe 1998, method 10). As they are of the same ones, the interval is rather
    too wide than too narrow. Over several seeds it is Student's t of their differences, and never narrower than that of one
    seed's images, because all seeds test the same ones.
    """
    plain, deployed = _by_seed(study, "", at), _by_seed(study, defense, at)
    seeds = sorted(plain.keys() & deployed.keys())
    if not seeds:
        return None
    changes = {seed: deployed[seed][0] - plain[seed][0] for seed in seeds}
    shares = [(_mean([of[seed][0] for seed in seeds]), min(of[seed][1] for seed in seeds)) for of in (deployed, plain)]
    ends = [interval(list(changes.values()))] if len(seeds) > 1 else []
    if all(0 <= share <= 1 <= n for share, n in shares):
        ends.append(newcombe(*shares))
    return Score(
        mean=_mean(list(changes.values())),
        low=max(min(lows), -1.0) if (lows := [low for low, _ in ends if low is not None]) else None,
        high=min(max(highs), 1.0) if (highs := [high for _, high in ends if high is not None]) else None,
        n=sum(deployed[seed][1] for seed in seeds),
        by_seed=changes,
    )


def _by_seed(study: Study, defense: str, at: int | None) -> dict[int, tuple[float, int]]:
    """Seed -> accuracy as deployed, and of how many images: of protected ones where test images are protected, too."""
    rows = [r for r in study.rows if (r.defense, r.attack, r.metric, r.round) == (defense, "", TEST_ACCURACY.name, at)]
    clean, protected = (
        {row.seed: (row.value, row.n) for row in rows if row.reference == of and row.value is not None}
        for of in ("original", "transformed")
    )
    return clean | protected


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


INITIAL_AVERAGES = (
    "tests of membership read models with the initial running averages of BatchNorm, because clients keep theirs: a membership AUC "
    "near 0.5 shows nothing"
)
"""Caveat on membership where a defence keeps running averages at the client and no test found members."""
_KNOWN_LABELS = (KnownLabels.KNOWN, KnownLabels.SOME)


def strongest(cells: Sequence[Cell], metric: Scored) -> Cell | None:
    """The strongest attack by a deciding score other than that of images. Upper bounds do not count.

    An attack whose interval lies above its null baselines comes first, validated or not; then attacks that did not fail on
    everything, then validated ones. Labels are ranked by what lies over chance, which depends on the number of images.
    """
    scored = [cell for cell in cells if cell.mean(*metric) is not None and not cell.is_upper_bound]
    return max(scored, key=lambda cell: _strength(cell, metric), default=None)


def _strength(cell: Cell, metric: Scored) -> tuple[bool, bool, bool, float]:
    score, leaks = cell.scores[metric], metric in cell.leaking
    height = score.mean or 0.0
    if metric == LABELS.decides:
        height -= cell.null(metric) or 0.0
    return leaks, not score.all_failed, leaks or score.status == "ok", height


def summarise(study: Study, defenses: Mapping[str, Any], *, running: bool = False) -> list[Line]:
    """One line per pipeline, in order.

    Args:
        study: The rows.
        defenses: Pipeline text -> {"adaptive_attacks": [...], "sources": [...]} of the configuration.
        running: The run goes on: attacks wait, and the model has not been tested as it will be.
    """
    without = left_out(study)
    judged = {defense: judge(study.cells_of(defense)) for defense in study.pipelines}
    changed = differences(judged)
    plain = {one.title: one.cell for one in judged.get("", ())}
    return [
        _line(study, defense, found, changed, plain, defenses.get(defense), without, running=running)
        for defense, found in judged.items()
    ]


def _line(
    study: Study,
    defense: str,
    judged: Sequence[Judged],
    changed: Mapping[tuple[str, str], PairedDifference],
    plain: Mapping[str, Cell | None],
    known: Any,
    without: Mapping[str, Study],
    *,
    running: bool,
) -> Line:
    at = study.complete_round(defense)
    clean, protected = (_at(study, defense, TEST_ACCURACY.name, of, at) for of in ("original", "transformed"))
    cells, tried = study.cells_of(defense), [row for row in study.rows if row.defense == defense]
    membership, windows = strongest(cells, MEMBERSHIP.decides), window_counts(study, defense)
    seconds, seconds_ratio = _cost(study, defense, "train-seconds")
    size, size_ratio = _cost(study, defense, "update-bytes")
    probed, trained = (_spent(study, defense, metric) for metric in ("epsilon-with-probes", "epsilon"))
    failed = sum(row.status == "failed" for row in study.utility.get((defense, "client", ""), ()))
    counted = (row.value or 0.0 for row in study.utility.get((defense, "clients-failed", ""), ()))
    untaught = "" if running else _untaught(study, at)
    canaries = canaries_in(study, defense)
    caveats = audit_warnings(study, defense) + ([NO_COST] if canaries else []) + ([untaught] if not defense else [])
    caveats += _caveats(defense, cells, known, running=running) + _membership_doubts(membership)
    return Line(
        defense=defense,
        round=at,
        clean=clean,
        protected=protected,
        change=accuracy_change(study, defense, at) if defense and not untaught and canaries != CLIENTS else None,
        canaries=canaries,
        untaught=untaught,
        judged=tuple(judged),
        differences={title: one for (of, title), one in changed.items() if of == defense},
        adaptive=frozenset(one.title for one in judged if adapted(one.cells, known)),
        attributes=strongest(cells, ATTRIBUTES.decides),
        labels=strongest([cell for cell in cells if cell.card.labels not in _KNOWN_LABELS], LABELS.decides),
        membership=membership,
        membership_rate=strongest(cells, MEMBERSHIP_TPR.of()),
        epsilon=trained,
        # Probes cost on top: both together have spent no less than training alone.
        epsilon_with_probes=max(probed, trained) if probed is not None and trained is not None else probed,
        epsilon_all_cuts=_spent(study, defense, "epsilon-all-cuts"),
        delta=_spent(study, defense, "delta"),
        by_accountant=largest(study, defense, EPSILON_BY.name, MEANING),
        terms=largest(study, defense, BUDGET, TERMS),
        neighbours=neighbours_of(study, defense),
        seconds=seconds,
        seconds_ratio=seconds_ratio if defense else None,
        bytes=size,
        bytes_ratio=size_ratio if defense else None,
        failed_clients=max(failed, int(sum(filter(math.isfinite, counted)))),
        bounds=tuple(dict.fromkeys(cell.card.upper_bound for cell in cells if cell.is_upper_bound)),
        cells=tuple(cell for cell in cells if not cell.is_upper_bound),
        apart=study.apart,
        claims=_claims(study, defense),
        shown=shown_epsilon(study, defense),
        reported=_reported(study, defense),
        caveats=tuple(filter(None, (*caveats, windows.caveat if windows else ""))),
        caveats_of={
            one.title: found
            for one in judged
            if (found := _caveats_of(one, judged, known, without, plain.get(one.title), tried))
        },
        at_size=_at_size(known),
        windows=windows,
    )


def _caveats_of(
    one: Judged,
    judged: Sequence[Judged],
    known: Any,
    without: Mapping[str, Study],
    plain: Cell | None,
    rows: Sequence[Row],
) -> tuple[str, ...]:
    """Caveats on one kind and size of message."""
    if one.cell is None:
        return ()
    others = [cell for other in judged if other is not one for cell in other.cells]
    lacks = untested(one.cells, others, known) if one.cell.defense else []
    lacks += out_of_reach(one.cell, plain, rows) if one.verdict is Verdict.NOTHING else []
    found = (*_doubts(one.cell), *once_per_update(one.cell), *lacks, _hangs_on(one, without))
    return tuple(filter(None, found))


def _at_size(known: Any) -> tuple[str, ...]:
    found = known.get("at_size") if isinstance(known, Mapping) else None
    return tuple(map(str, found)) if isinstance(found, list) else ()


def _at(study: Study, defense: str, metric: str, reference: str, at: int | None) -> Score | None:
    score = study.series(defense, metric, reference).get(at) if at is not None else None
    return score if score and score.mean is not None else None


def _spent(study: Study, defense: str, metric: str) -> float | None:
    """A budget only grows: the largest of all rounds."""
    return max((s.mean for s in study.series(defense, metric).values() if s.mean is not None), default=None)


def _claims(study: Study, defense: str) -> tuple[Claim, ...]:
    """Those of all seeds, each once; whatever else stands in the column is left out."""
    columns = (row.extra.get("claims") for row in study.utility.get((defense, CLAIMED, ""), ()))
    found = (Claim.from_json(one) for column in columns if isinstance(column, list) for one in column)
    return tuple(dict.fromkeys(one for one in found if one is not None))


def _reported(study: Study, defense: str) -> AppAccuracy | None:
    """The accuracy that an app reports itself; None where it reports none, or where several seeds do."""
    rows = study.utility.get((defense, REPORTED, ""), ())
    return readable(AppAccuracy, rows[0].extra.get("reported")) if len(rows) == 1 else None


def _untaught(study: Study, at: int | None) -> str:
    plain = _at(study, "", TEST_ACCURACY.name, "original", at)
    chance = next((1 / row.card.num_classes for row in study.rows if row.card.num_classes), None)
    if plain is None or chance is None or plain.low is None or plain.low > chance:
        return ""
    shown = f"{percent(plain.mean)}, {within(plain.low, plain.high, percentage)}; chance {percent(chance)}"
    return f"the model has not learned without a defence (accuracy {shown}): the cost of a defence cannot be measured"


def _cost(study: Study, defense: str, metric: str) -> Range:
    """Mean over rounds, and its ratio to no defence."""
    own, plain = study.over_rounds(defense, metric), study.over_rounds("", metric)
    return own, own / plain if own is not None and plain else None


def _caveats(defense: str, cells: Sequence[Cell], known: Any, *, running: bool) -> list[str]:
    """Caveats on a defence, whatever was attacked: the adaptive attacks that it lacks, and what its configuration says."""
    found = adaptive_caveats(cells, known, running=running) if defense else []
    further = known.get("caveats") if isinstance(known, Mapping) else None
    return found + [str(caveat) for caveat in further or ()]


def _doubts(cell: Cell) -> list[str]:
    """Why the score of an attack may say little."""
    found, plain = [], plain_words(cell.card)
    if cell.status == "not-validated" and verdict_of(cell) is Verdict.UNKNOWN:
        if cell.defense == "":
            found.append(f"positive control failed: this attack does not break the {plain.run}")
        elif plain.alone:
            found.append(f"not validated: there is no run without {plain.acting} beside this one")
        else:
            found.append(
                f"not validated: this attack did not break the {plain.run} either, so its failure shows nothing"
            )
    looked = cell.scores.get(FOUND)
    if looked and looked.n and by_chance(looked.n, looked.n, 1.0 if cell.chance is None else cell.chance) > LEVEL:
        found.append("could not be judged: there are too few other images to look for the true ones among")
    elif looked and looked.attacked < LEAST_IMAGES and verdict_of(cell) is Verdict.UNKNOWN:
        found.append(f"too few images for a verdict: {looked.attacked} were attacked, and {LEAST_IMAGES} are needed")
    if cell.status == PARTLY_FAILED:
        found.append("partly failed: some seeds have no score, and the mean leaves them out")
    further = cell.card.more.get("caveats")
    return found + (list(map(str, further)) if isinstance(further, list) else [])


def _hangs_on(one: Judged, without: Mapping[str, Study]) -> str:
    """The clients without one of which the verdict would be another; "" where it hangs on none."""
    changed = []
    for name, study in without.items():
        cells = [found for cell in one.cells if (found := same_cell(cell, study)) is not None]
        other = next((found for found in judge(cells) if found.title == one.title), None)
        if other is not None and other.verdict is not one.verdict:
            changed.append(f"without {name} {other.verdict}")
    return f"this verdict ({one.verdict}) hangs on one client: it is {'; '.join(changed)}" if changed else ""


def _membership_doubts(cell: Cell | None) -> list[str]:
    """Why a test of membership that found no members may say little."""
    kept = cell is not None and cell.card.more.get("batch_norm_statistics") == KEPT_STATISTICS
    return [INITIAL_AVERAGES] if cell and kept and MEMBERSHIP.decides not in cell.leaking else []
