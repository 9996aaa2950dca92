"""Failures of a run and their reasons, for the report and for the end of the command."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from attacks.metrics.costs import ATTACK
from attacks.metrics.metric import MEMBERSHIP
from attacks.metrics.registry import metric_of
from attacks.observations import NOT_APPLICABLE, UNTRIED
from simulations.report.studies.rows import grouped, read_rows
from simulations.report.text import numbered, round_mark
from simulations.run_folder.rows import Row
from strategies.audit.jobs import FIT

FITS = "fit of defences"
NUMBER = re.compile(r"\d+(\.\d+)?(e[-+]?\d+)?")


@dataclass(frozen=True)
class Failure:
    """A failure for one reason, with all rounds and metrics that it affects."""

    defense: str
    what: str
    rounds: tuple[str, ...]
    trials: int
    seed: int
    metrics: tuple[str, ...]
    message: str

    def __str__(self) -> str:
        where = f"{self.what} on {self.defense or 'no defence'}, {numbered('round', self.rounds)}"
        return f"{where}: {self.message or 'no reason given'}"


def failures(rows: Iterable[Row]) -> list[Failure]:
    """Failed and refused rows, and rows with failed trials; rows that differ only by round or metric are one failure."""
    return _by_reason(row for row in rows if row.status in ("failed", "refused") or row.failures)


def not_applicable(rows: Iterable[Row]) -> list[Failure]:
    """The attacks that had no place on a network or message, which is no failure; rows are taken together as by ``failures``."""
    return _by_reason(row for row in rows if row.status == NOT_APPLICABLE)


def not_run(rows: Sequence[Row]) -> list[tuple[str, list[str], list[str]]]:
    """(reason, attacks, defences) of attacks that have no place on a network or message, or that an exact attack made needless."""
    left_out = [row for row in rows if row.status in UNTRIED]
    of_attack = grouped(left_out, lambda row: (NUMBER.sub("", row.message), row.attack))
    alike = grouped(of_attack.items(), lambda item: (item[0][0], tuple(dict.fromkeys(row.defense for row in item[1]))))
    return [
        (of[0][1][0].message, [attack for (_, attack), _ in of], list(defenses)) for (_, defenses), of in alike.items()
    ]


def _by_reason(rows: Iterable[Row]) -> list[Failure]:
    lost = []
    for (defense, what, seed, message), of in grouped(rows, _reason).items():
        # Metrics of one round share their trials.
        trials = grouped(of, lambda row: (row.round, row.final))
        failed = sum(max(row.failures for row in at) for at in trials.values())
        rounds, metrics = tuple(round_mark(*at) for at in sorted(trials)), tuple(dict.fromkeys(r.metric for r in of))
        lost.append(Failure(defense, what, rounds, failed, seed, metrics, message))
    return lost


def _reason(row: Row) -> tuple[str, str, int, str]:
    client = FITS if row.metric == FIT else "" if row.client is None else f"client {row.client}"
    message = row.message or "; ".join(each_once(row.card.attack_failures))
    return row.defense, row.attack or client, row.seed, message


def each_once(reasons: Sequence[str]) -> list[str]:
    """The first of all reasons that differ in their numbers alone, and the count of the others."""
    alike = grouped(reasons, lambda reason: NUMBER.sub("", reason))
    return [of[0] + (f" (and {len(of) - 1} more with other numbers)" if len(of) > 1 else "") for of in alike.values()]


def failed_attacks(directory: Path) -> list[Failure]:
    """Failures without a score: attacks that ended with an error or failed on all images, and defences that cannot learn.

    That an attack was tried and found no image is a result. That it does not apply counts where the defence has no other attack.
    """
    rows, _ = read_rows(directory / "rows.jsonl")
    tried = {row.defense for row in rows if row.is_attack and row.status != NOT_APPLICABLE}
    lost = failures([row for row in rows if row.metric == FIT or (row.is_attack and _gave_nothing(row))])
    return lost + [failure for failure in not_applicable(rows) if failure.defense not in tried]


def _gave_nothing(row: Row) -> bool:
    # The n of a score of membership counts records, its failures count tests.
    if row.metric == ATTACK.name or metric_of(row.metric).family is MEMBERSHIP:
        return row.status == "failed"
    return 0 < row.n <= row.failures and not row.card.in_vain
