"""Content of the report's long tables: the positive control, failures and other numbers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from attacks.metrics.guesses import COLUMN
from attacks.metrics.images import IDENTIFIED
from attacks.metrics.names import Role
from attacks.metrics.registry import known_metric
from simulations.report.analysis.finding import Finding
from simulations.report.section import sections
from simulations.report.studies.control import Control, images_behind
from simulations.report.studies.messages import MessageSize
from simulations.report.studies.rows import grouped
from simulations.report.studies.score import Score, merge
from simulations.report.studies.study import Study
from simulations.report.text import round_mark
from simulations.run_folder.rows import Row, shown_name


@dataclass(frozen=True)
class Check:
    """The positive control of one attack in one round: how many seeds passed, the scores, and the reason of a failure.

    Attributes:
        passed: Seeds that passed.
        seeds: Seeds that have a verdict, or too few images for one.
        value: The score, mean over seeds.
        null: Names and mean of the best null baselines.
        reasons: Why seeds failed.
        n: Images (or records) behind the score.
        judged: There is a verdict: enough images, and enough others to look for the true ones among.
    """

    passed: int
    seeds: int
    value: float | None
    null: tuple[str, float] | None
    reasons: tuple[str, ...]
    n: int = 0
    judged: bool = True

    @property
    def failed(self) -> bool:
        """Whether there is a verdict and at least one seed did not pass."""
        return self.judged and self.passed < self.seeds


@dataclass(frozen=True)
class ControlTable:
    """The positive control.

    Attributes:
        columns: (round, whether it is the final model, message and its size).
        rows: (attack, metric) -> its checks by column, None where it did not run.
    """

    columns: Sequence[tuple[int, bool, str]]
    rows: Mapping[tuple[str, str], Sequence[Check | None]]

    @property
    def tests(self) -> int:
        """Number of tests that have a verdict."""
        return sum(bool(one and one.judged) for checks in self.rows.values() for one in checks)

    @property
    def failed(self) -> dict[str, list[str]]:
        """Score -> attack of each test that failed, so that a folded table does not hide failures."""
        found: dict[str, list[str]] = {}
        for (attack, metric), checks in self.rows.items():
            if failed := sum(bool(one and one.failed) for one in checks):
                found.setdefault(metric, []).extend([attack] * failed)
        return found


def control_table(study: Study) -> ControlTable:
    """The positive control of a study; scores of images come first."""
    found = grouped(study.controls, lambda one: (one.row.attack, one.row.metric))
    places = {
        key: grouped(of, lambda one: (one.row.round, one.row.final, _message(one.row))) for key, of in found.items()
    }
    columns = sorted({at for of in places.values() for at in of})
    order = sorted(places, key=lambda key: key[1] != IDENTIFIED.name)
    return ControlTable(columns, {key: [_check(places[key].get(at)) for at in columns] for key in order})


def _message(row: Row) -> str:
    return ", ".join(filter(None, (row.card.observation, str(MessageSize.of(row.card)))))


def _check(of: Sequence[Control] | None) -> Check | None:
    if of is None:
        return None
    nulls = [control.null for control in of if control.null]
    names = "/".join(dict.fromkeys(name for name, _ in nulls))
    return Check(
        passed=sum(control.passed for control in of),
        seeds=len(of),
        value=merge([control.row for control in of]).mean,
        null=(names, sum(value for _, value in nulls) / len(nulls)) if nulls else None,
        reasons=tuple(dict.fromkeys(control.reason for control in of if control.reason)),
        n=sum(images_behind(control.row) for control in of if control.row.value is not None),
        judged=not any(control.too_few or control.open for control in of),
    )


def fewer_images(findings: Sequence[Finding]) -> str:
    """What counts on a kind and size of message may be of fewer images than others for; "" where all are of as many."""
    attacked = grouped(
        ((one.title, one.score.attacked) for of in findings for one in of.messages if one.score), lambda pair: pair[0]
    )
    fewer = {str(n) for of in attacked.values() for _, n in of if 0 < n < max(most for _, most in of)}
    why = "batches are of random size, or some images, clients or seeds have no score"
    return f"Counts of fewer images (of {', '.join(sorted(fewer))}): {why}." if fewer else ""


def others(study: Study) -> dict[tuple[str, str, str, str, str], Score]:
    """(defence, attack, round, metric, reference) -> the score, of metrics without a place of their own."""
    of_sections = {name for section in sections() for name in section.metrics}

    def place(row: Row) -> tuple[str, str, str, str, str]:
        at, guess = round_mark(row.round, row.final), shown_name(row.role, row.attack)
        return row.defense, guess, at, row.metric, row.reference

    groups = grouped((row for row in study.rows if not _has_place(row, of_sections)), place)
    return {key: merge(of) for key, of in groups.items()}


def _has_place(row: Row, of_sections: Collection[str]) -> bool:
    """Whether the page, or one of its sections, shows a row elsewhere."""
    if (of_training := row.role is Role.TRAINING) and row.metric in of_sections:
        return row.reference == ""
    metric = known_metric(row.metric)
    if metric is None or row.reference not in metric.shown:
        return False
    return metric.of_training == of_training or metric is COLUMN
