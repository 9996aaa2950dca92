"""How a defence changes the test accuracy, with an interval."""

from __future__ import annotations

import math
from collections.abc import Sequence

from attacks.metrics.training import TEST_ACCURACY
from simulations.report.studies.score import Score, interval, wilson
from simulations.report.studies.study import Study
from simulations.run_folder.rows import Row


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
    changes = {seed: _value(deployed[seed]) - _value(plain[seed]) for seed in seeds}
    shares = [
        (_mean([_value(of[seed]) for seed in seeds]), min(of[seed].n for seed in seeds)) for of in (deployed, plain)
    ]
    ends = [interval(list(changes.values()))] if len(seeds) > 1 else []
    if all(0 <= share <= 1 <= n for share, n in shares):
        ends.append(newcombe(*shares))
    return Score(
        mean=_mean(list(changes.values())),
        low=max(min(lows), -1.0) if (lows := [low for low, _ in ends if low is not None]) else None,
        high=min(max(highs), 1.0) if (highs := [high for _, high in ends if high is not None]) else None,
        n=sum(deployed[seed].n for seed in seeds),
        by_seed=changes,
    )


def newcombe(one: tuple[float, int], other: tuple[float, int]) -> tuple[float, float]:
    """95 % interval of the share ``one`` less ``other``, each with its number of independent yes/no results; within [-1, 1].

    Newcombe 1998, method 10, from Wilson's intervals of both.
    """
    (share, _), (other_share, _) = one, other
    (low, high), (other_low, other_high) = wilson(*one), wilson(*other)
    change = share - other_share
    return (
        max(change - math.hypot(share - low, other_high - other_share), -1.0),
        min(change + math.hypot(high - share, other_share - other_low), 1.0),
    )


def _by_seed(study: Study, defense: str, at: int | None) -> dict[int, Row]:
    """Seed -> the row of its accuracy as deployed: on protected images where test images are protected, too."""
    rows = [r for r in study.rows if (r.defense, r.attack, r.metric, r.round) == (defense, "", TEST_ACCURACY.name, at)]
    clean, protected = (
        {row.seed: row for row in rows if row.reference == of and row.value is not None}
        for of in ("original", "transformed")
    )
    return clean | protected


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _value(row: Row) -> float:
    assert row.value is not None
    return row.value
