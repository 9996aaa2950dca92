"""Rows grouped into what the report shows: studies, cells (one attack, one defence, one round), scores over seeds."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from simulations.report.control import Control, Nulls, beats, controls
from simulations.report.rows import NULL_PREFIX, Row

UTILITY_METRICS = (
    "test-accuracy",
    "test-loss",
    "train-loss",
    "epsilon",
    "epsilon-with-probes",
    "delta",
    "train-seconds",
    "update-bytes",
    "clients-failed",
    "client",
)
ATTACK_METRICS = ("psnr", "ssim", "mse", "label-accuracy", "matching-cost", "attack-seconds")
WORST_IS_HIGHEST = (
    "psnr",
    "ssim",
    "label-accuracy",
    "membership-auc",
    "membership-tpr",
    "epsilon",
    "epsilon-with-probes",
)
BOUNDS = ("epsilon", "epsilon-with-probes", "delta")
"""Metrics of a guarantee: over clients and seeds the weakest counts, never the mean."""


@dataclass(frozen=True)
class Score:
    """One metric, averaged over seeds.

    Attributes:
        mean: Mean over seeds; None when no seed has a number.
        low: Lower end of the 95 % interval: the row's own with one seed, Student's t over seeds with several.
        high: Upper end of that interval.
        worst: The worst example of any seed.
        n: Examples over all seeds.
        failures: Failed trials over all seeds.
        seeds: Seeds that have a number.
        status: "failed" if no seed has a number, "not-validated" if any seed is, else "ok".
        messages: Why rows failed.
    """

    mean: float | None
    low: float | None = None
    high: float | None = None
    worst: float | None = None
    n: int = 0
    failures: int = 0
    seeds: tuple[int, ...] = ()
    status: str = "ok"
    messages: tuple[str, ...] = ()


def merge(rows: Sequence[Row]) -> Score:
    """The score of rows of one metric; rows of the same seed (clients) are averaged first."""
    by_seed: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        if row.value is not None and row.status != "failed":
            by_seed[row.seed].append(row)
    bound = rows[0].metric in BOUNDS
    means = {seed: _combine([r.value for r in of if r.value is not None], bound) for seed, of in by_seed.items()}
    used = [row for of in by_seed.values() for row in of]
    worst = [row.worst for row in used if row.worst is not None]
    pick = max if rows[0].metric in WORST_IS_HIGHEST else min
    low, high = (used[0].ci_low, used[0].ci_high) if len(used) == 1 else (None, None)
    if len(means) > 1 and not bound:
        low, high = interval(list(means.values()))
    failed = any(row.status == "failed" for row in rows)
    return Score(
        mean=_combine(list(means.values()), bound) if means else None,
        low=low,
        high=high,
        worst=pick(worst) if worst else None,
        n=sum(row.n for row in used),
        failures=sum(row.failures for row in rows),
        seeds=tuple(sorted(means)),
        status="failed" if failed and not means else _status(used),
        messages=tuple(dict.fromkeys(row.message for row in rows if row.message)),
    )


def _status(rows: Sequence[Row]) -> str:
    unusual = [row.status for row in rows if row.status != "ok"]
    return "not-validated" if "not-validated" in unusual else unusual[0] if unusual else "ok"


def _combine(values: Sequence[float], bound: bool) -> float:
    return max(values) if bound else math.fsum(values) / len(values) if all(map(math.isfinite, values)) else sum(values)


def interval(values: Sequence[float]) -> tuple[float | None, float | None]:
    """95 % interval of the mean of independent runs: mean ± t(0.975, k - 1) s / sqrt(k), s with divisor k - 1."""
    from scipy.special import stdtrit

    count = len(values)
    if count < 2 or not all(map(math.isfinite, values)):
        return None, None
    mean = math.fsum(values) / count
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    half = float(stdtrit(count - 1, 0.975)) * spread / math.sqrt(count)
    return mean - half, mean + half


@dataclass(frozen=True)
class Cell:
    """One attack on one defence in one round under one threat card.

    Attributes:
        defense: Pipeline text.
        attack: Attack text.
        round: Attacked round.
        card: The threat card as JSON, without what changes from round to round.
        scores: (metric, reference) -> score.
        null_scores: (metric, reference) -> null baseline -> mean, for the same images.
        beats: In at least one seed, the whole interval of the PSNR lies above the best null baseline.
        model_accuracy: Test accuracy of the attacked model, mean over seeds.
    """

    defense: str
    attack: str
    round: int
    card: str
    scores: dict[tuple[str, str], Score]
    null_scores: dict[tuple[str, str], dict[str, float]] = field(default_factory=dict)
    beats: bool = False
    model_accuracy: float | None = None

    @property
    def psnr(self) -> Score | None:
        """PSNR against the original images, in dB."""
        return self.scores.get(("psnr", "original"))

    @property
    def nulls(self) -> dict[str, float]:
        """Null baseline -> PSNR against the original, in dB."""
        return self.null_scores.get(("psnr", "original"), {})

    @property
    def status(self) -> str:
        """Status of the PSNR against the original, or else of the first score."""
        first = self.psnr or next(iter(self.scores.values()))
        return first.status

    @property
    def best_null(self) -> tuple[str, float] | None:
        """(name, PSNR) of the highest null baseline."""
        return max(self.nulls.items(), key=lambda item: item[1]) if self.nulls else None

    @property
    def gap(self) -> float | None:
        """PSNR over the best null baseline, in dB."""
        score, null = self.psnr, self.best_null
        return score.mean - null[1] if score and score.mean is not None and null else None


@dataclass(frozen=True)
class Study:
    """All rows that share experiment, scenario, data set and model; they differ by seed, defence, attack and round.

    Attributes:
        name: (experiment, scenario, dataset, model).
        rows: Validated rows.
        pipelines: Pipeline texts in the order of the configuration, "" first.
    """

    name: tuple[str, str, str, str]
    rows: tuple[Row, ...]
    pipelines: tuple[str, ...]

    @cached_property
    def seeds(self) -> tuple[int, ...]:
        """All seeds, sorted."""
        return tuple(sorted({row.seed for row in self.rows}))

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        """All cells: pipelines in order, then rounds, then attacks in order of appearance."""
        return self._cells([row for row in self.rows if row.attack and not row.is_null], Nulls(self.rows))

    @cached_property
    def null_cells(self) -> tuple[Cell, ...]:
        """The null baselines, as cells."""
        return self._cells([row for row in self.rows if row.is_null], Nulls(()))

    def _cells(self, rows: Sequence[Row], nulls: Nulls) -> tuple[Cell, ...]:
        groups: dict[tuple[str, str, int, str], list[Row]] = defaultdict(list)
        for row in rows:
            groups[row.defense, row.attack, row.round, card_of(row)].append(row)
        cells = [_cell(*key, of, nulls) for key, of in groups.items()]
        attacks = list(dict.fromkeys(row.attack for row in rows))
        return tuple(sorted(cells, key=lambda c: (self.pipelines.index(c.defense), c.round, attacks.index(c.attack))))

    @cached_property
    def attacks(self) -> tuple[str, ...]:
        """Attack texts in order of appearance, without null baselines."""
        return tuple(dict.fromkeys(row.attack for row in self.rows if row.attack and not row.is_null))

    @cached_property
    def controls(self) -> tuple[Control, ...]:
        """Verdicts of the positive control."""
        return tuple(controls(self.rows))

    def cells_of(self, defense: str) -> list[Cell]:
        """Cells under one defence."""
        return [cell for cell in self.cells if cell.defense == defense]

    def series(self, defense: str, metric: str, reference: str = "") -> dict[int, Score]:
        """Round -> score of a number about training."""
        rounds: dict[int, list[Row]] = defaultdict(list)
        for row in self._utility.get((defense, metric, reference), ()):
            rounds[row.round].append(row)
        return {at: merge(rounds[at]) for at in sorted(rounds)}

    def complete_round(self, defense: str) -> int | None:
        """The last round that every seed of this defence has a test accuracy for."""
        last: dict[int, int] = {}
        for reference in ("original", "transformed"):
            for row in self._utility.get((defense, "test-accuracy", reference), ()):
                if row.value is not None:
                    last[row.seed] = max(row.round, last.get(row.seed, row.round))
        return min(last.values()) if last else None

    def mean_nulls(self) -> dict[str, float]:
        """Null baseline -> PSNR against the original, mean over rounds and seeds of the undefended run (or of all)."""
        found = [row for row in self.rows if row.is_null and (row.metric, row.reference) == ("psnr", "original")]
        chosen = [row for row in found if row.defense == ""] or found
        return _means({row.attack: row.value} for row in chosen if row.value is not None)

    @cached_property
    def _utility(self) -> dict[tuple[str, str, str], list[Row]]:
        found: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
        for row in self.rows:
            if not row.attack:
                found[row.defense, row.metric, row.reference].append(row)
        return found


def card_of(row: Row) -> str:
    """The threat card as JSON text, without the round and the model's accuracy, which are shown beside each score."""
    kept = {key: value for key, value in row.setting.items() if key not in {"round", "model_accuracy"}}
    return json.dumps(kept, sort_keys=True, default=str)


def _cell(defense: str, attack: str, at: int, card: str, rows: list[Row], nulls: Nulls) -> Cell:
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.metric, row.reference].append(row)
    accuracies = {row.seed: row.setting.get("model_accuracy") for row in rows}
    known = [value for value in accuracies.values() if isinstance(value, int | float)]
    return Cell(
        defense,
        attack,
        at,
        card,
        {key: merge(of) for key, of in groups.items()},
        null_scores={key: _means(nulls.of(row) for row in of) for key, of in groups.items()},
        beats=any(beats(row, nulls.best(row)) for row in groups.get(("psnr", "original"), ())),
        model_accuracy=sum(known) / len(known) if known else None,
    )


def _means(found: Iterable[Mapping[str, float]]) -> dict[str, float]:
    values: dict[str, list[float]] = defaultdict(list)
    for one in found:
        for name, value in one.items():
            values[name].append(value)
    return {name: math.fsum(of) / len(of) for name, of in values.items()}


def split(rows: Iterable[Row], order: Sequence[str]) -> list[Study]:
    """Studies in order of appearance; ``order`` gives the pipelines of the configuration."""
    groups: dict[tuple[str, str, str, str], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.study].append(row)
    studies = []
    for name, of in groups.items():
        present = dict.fromkeys(row.defense for row in of)
        known = [text for text in order if text in present]
        pipelines = sorted(dict.fromkeys([*known, *present]), key=lambda text: text != "")
        studies.append(Study(name, tuple(of), tuple(pipelines)))
    return studies


def null_name(attack: str) -> str:
    """``baseline:grey`` -> "grey"."""
    return attack.removeprefix(NULL_PREFIX)
