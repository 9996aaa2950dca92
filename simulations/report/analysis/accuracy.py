"""The accuracy under a defence, and what the defence costs of it."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import Any

from attacks.metrics.training import TEST_ACCURACY
from simulations.report.analysis.budget import CLIENTS, canaries_in
from simulations.report.studies.intervals import interval, newcombe
from simulations.report.studies.score import Score
from simulations.report.studies.study import Study
from simulations.report.text import percent, percentage, points


@dataclass(frozen=True)
class Accuracy:
    """Test accuracy after the last round that every seed has finished.

    Attributes:
        round: That round.
        clean: On clean images.
        protected: On images protected as in deployment, where the defence protects them.
        change: As deployed, against no defence in the same round and seeds (``accuracy_change``). None where the model without a
            defence has not learned, or where whole clients were canaries.
        canaries: What an audit had in training, "canaries" or "canary clients", which cost accuracy, too; "" for nothing.
    """

    round: int | None = None
    clean: Score | None = None
    protected: Score | None = None
    change: Score | None = None
    canaries: str = ""

    @classmethod
    def of(cls, study: Study, defense: str, *, running: bool) -> Accuracy:
        """Read from rows; while the run goes on, a model that has not learned yet may still learn."""
        at, canaries = study.complete_round(defense), canaries_in(study, defense)
        able = defense and canaries != CLIENTS and not (untaught(study, at) and not running)
        clean, protected = (_at(study, defense, of, at) for of in ("original", "transformed"))
        return cls(at, clean, protected, accuracy_change(study, defense, at) if able else None, canaries)

    @property
    def deployed(self) -> Score | None:
        """On protected images where test images are protected too."""
        return self.protected or self.clean

    @property
    def note(self) -> str:
        """That canaries were in training; "" without any."""
        return f"{self.canaries} in training" if self.canaries else ""

    @property
    def change_text(self) -> str:
        """The change with its interval; "" where it was not measured."""
        if self.change is None:
            return ""
        ends = self.change.within(points)
        return f"{points(self.change.mean)} points" + (f", {ends}" if ends else "")

    @property
    def text(self) -> str:
        """Accuracy, interval, change and note in a line; "" where it was not measured."""
        if self.deployed is None:
            return ""
        ends = self.deployed.within(percentage)
        shown = percent(self.deployed.mean) + (f" ({ends} %)" if ends else "")
        return ", ".join(filter(None, (shown, self.change_text, self.note)))

    def to_json(self) -> dict[str, Any] | None:
        """For programs; None where it was not measured."""
        if self.deployed is None:
            return None
        score, change = self.deployed, self.change or Score(None)
        return {
            "mean": score.mean, "low": score.low, "high": score.high, "n": score.n,
            "change": change.mean, "change_low": change.low, "change_high": change.high, "note": self.note,
        }  # fmt: skip


def _at(study: Study, defense: str, reference: str, at: int | None) -> Score | None:
    score = study.series(defense, TEST_ACCURACY.name, reference).get(at) if at is not None else None
    return score if score and score.mean is not None else None


def untaught(study: Study, at: int | None) -> str:
    """That the model without a defence is not shown to be above chance in a round; "" where it is, or where that is not known."""
    plain = _at(study, "", "original", at)
    chance = next((1 / row.card.num_classes for row in study.rows if row.card.num_classes), None)
    if plain is None or chance is None or plain.low is None or plain.low > chance:
        return ""
    shown = f"{percent(plain.mean)}, {plain.within(percentage)}; chance {percent(chance)}"
    return f"the model has not learned without a defence (accuracy {shown}): the cost of a defence cannot be measured"


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
    shares = [(fmean(of[seed][0] for seed in seeds), min(of[seed][1] for seed in seeds)) for of in (deployed, plain)]
    ends = [interval(list(changes.values()))] if len(seeds) > 1 else []
    if all(0 <= share <= 1 <= n for share, n in shares):
        ends.append(newcombe(*shares))
    return Score(
        mean=fmean(changes.values()),
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
