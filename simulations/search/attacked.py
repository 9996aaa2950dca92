"""The run of ``audit.toml`` beside a search: attacks and accuracy test the scores."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attacks.metrics.images import PSNR
from attacks.metrics.metric import IMAGES
from attacks.metrics.training import TEST_ACCURACY
from defenses.images.ats import ATS
from simulations.report.analysis.adaptive import is_adaptive
from simulations.report.analysis.line import Line
from simulations.report.analysis.run import read_run
from simulations.report.studies.cell import Cell
from simulations.report.studies.study import Study
from simulations.report.text import decibel
from simulations.search.folder import AUDIT, SHARED, SearchFolder

MEAN_IMAGE = "mean"

MOST_LOST = 3.0
"""Points of accuracy that a policy may cost."""


@dataclass(frozen=True)
class HybridOutcome:
    """Results of one hybrid in the run.

    Attributes:
        policies: Its text; "" without a policy.
        accuracy: Test accuracy after the last round, in [0, 1]; None where the run has not come so far.
        drop: Accuracy lost against no policy.
        seen: PSNR in dB to the transformed image of the strongest attack that knows no policies, on the (initial, final) model.
        own: The same to the original.
        knowing: The same to the original, of the strongest attack that knows the policies.
        null: Of the mean image to the transformed image.
    """

    policies: str
    accuracy: float | None
    drop: float | None
    seen: tuple[float | None, float | None]
    own: tuple[float | None, float | None]
    knowing: tuple[float | None, float | None]
    null: tuple[float | None, float | None] = (None, None)

    @property
    def strongest(self) -> float | None:
        """The higher of ``seen``."""
        return _higher(self.seen)

    @property
    def gain(self) -> float | None:
        """Gain of the strongest attack without knowledge of the policies over the mean image, to the transformed image."""
        return _higher([a - b for a, b in zip(self.seen, self.null, strict=True) if a is not None and b is not None])

    @property
    def lost(self) -> float | None:
        """Recovery of the original by the strongest attack of all: a person's loss."""
        return _higher([*self.own, *self.knowing])


def _higher(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


@dataclass(frozen=True)
class Attacked:
    """The found hybrid beside no policy and random hybrids.

    Attributes:
        validated: Whether an attack that knows no policies breaks the run without one; else its numbers say nothing of policies.
        none: Without a policy.
        found: The result of the search.
        random: Random hybrids of the same lengths.
        images: Attacked images of each.
        seeds: Of the run.
        tested: Test images of an accuracy.
    """

    validated: bool
    none: HybridOutcome
    found: HybridOutcome
    random: tuple[HybridOutcome, ...]
    images: int
    seeds: tuple[int, ...]
    tested: int

    @property
    def half_width(self) -> float:
        """Half the 95 % interval of the difference of two accuracies near that value, in points."""
        share = self.none.accuracy or 0.5
        return 100 * 1.96 * math.sqrt(2 * share * (1 - share) / max(self.tested, 1))

    @property
    def verdicts(self) -> list[str]:
        """Whether attacks and accuracy confirm the search, with the numbers."""
        found = [
            self._beside(
                "The strongest attack that knows no policies reaches", " to the transformed image", "strongest"
            ),
            self._beside("That is", " above the mean image there", "gain"),
            self._beside("Of the original, the strongest of all attacks recovers", "", "lost"),
        ]
        if not self.validated:
            why = "the attack does not break the run without a policy either, and so says nothing of policies"
            found.insert(0, f"Not validated: {why}.")
        if self.found.drop is not None:
            lost = 100 * self.found.drop
            drops = [100 * one.drop for one in self.random if one.drop is not None]
            beside = f" (the random hybrids cost {statistics.fmean(drops):.1f} in the mean)" if drops else ""
            within = "within" if lost <= MOST_LOST else "not within"
            found.append(
                f"It costs {lost:.1f} points of accuracy{beside}: {within} {MOST_LOST:g} points of no policy, on {self.tested} "
                f"test images, whose 95 % interval is some {self.half_width:.0f} points to each side."
            )
        return [text for text in found if text]

    def _beside(self, begin: str, what: str, name: str) -> str:
        """A number of the found policies beside those of the random ones, and how often chance would rank it as well."""
        mine = getattr(self.found, name)
        others = [value for one in self.random if (value := getattr(one, name)) is not None]
        if mine is None or not others:
            return ""
        mean, lower = statistics.fmean(others), sum(value < mine for value in others)
        chance = 100 * (lower + 1) / (len(others) + 1)
        below = "below" if mine < mean else "not below"
        return (
            f"{begin} {decibel(mine)} dB{what}: {below} the mean of {len(others)} random hybrids, {decibel(mean)} dB; {lower} of "
            f"them are lower still (chance gives such a rank or a better one in {chance:.0f} % of cases)."
        )


def read_attacked(folder: SearchFolder, result: Mapping[str, Any]) -> Attacked | str | None:
    """Results of the run in the folder's ``audit``; a text with the reason where it is left out; None without a run."""
    path = folder.path / AUDIT
    if not path.is_dir():
        return None
    run = read_run(path)
    settings = run.config.get("config")
    if run.config_notes or not isinstance(settings, Mapping):
        return f"The run in {AUDIT} cannot be read: {'; '.join(run.config_notes) or 'its config.json has no settings'}."
    if len(run.studies) != 1:
        return f"The run in {AUDIT} cannot be read: it holds {len(run.studies)} studies, not one."
    (study,) = run.studies
    mine = folder.search.to_mapping()
    if other := [f"{key} {settings.get(key)!r}, not {mine[key]!r}" for key in SHARED if settings.get(key) != mine[key]]:
        return f"The run in {AUDIT} is about something else: {', '.join(other)}."
    hybrids, known = [result["policies"], *result["random"]], run.defenses
    texts = {repr(ATS(policies=text, channels=result["channels"])): text for text in hybrids}
    about = next((known[defense] for defense in texts if defense in known), None)  # alike for all policies
    outcomes = {
        texts.get(line.defense, ""): _outcome(study, texts.get(line.defense, ""), line, about)
        for line in run.lines(study)
        if not line.defense or line.defense in texts
    }
    if "" not in outcomes or result["policies"] not in outcomes:
        return f"The run in {AUDIT} has not attacked {result['policies'] or 'anything'} and no policy beside it."
    images = max((score.n for cell in study.cells if (score := cell.scores.get(IMAGES.decides))), default=0)
    tested = max((row.n for row in study.rows if row.metric == TEST_ACCURACY.name and row.attack == ""), default=0)
    random = tuple(outcomes[text] for text in result["random"] if text in outcomes)
    validated = any(
        cell.status == "ok" and cell.mean(PSNR.name, "transformed") is not None and not is_adaptive(cell, about)
        for cell in study.cells_of("")
    )
    return Attacked(validated, outcomes[""], outcomes[result["policies"]], random, images, study.seeds, tested)


def _outcome(study: Study, policies: str, line: Line, about: Any) -> HybridOutcome:
    cells = [cell for cell in study.cells_of(line.defense) if not cell.is_upper_bound]
    blind = [cell for cell in cells if not is_adaptive(cell, about)]
    knowing = [cell for cell in cells if is_adaptive(cell, about)]
    return HybridOutcome(
        policies, line.deployed.mean if line.deployed else None, _lost(line), _highest(blind, "transformed"),
        _highest(blind, "original"), _highest(knowing, "original"), _highest(blind, "transformed", of_mean=True),
    )  # fmt: skip


def _lost(line: Line) -> float | None:
    return -line.cost.mean if line.cost and line.cost.mean is not None else None


def _highest(cells: Sequence[Cell], reference: str, *, of_mean: bool = False) -> tuple[float | None, float | None]:
    """(initial, final model): the highest mean PSNR, or that of the mean image beside it."""
    found: dict[bool, list[float | None]] = {False: [], True: []}
    key = (PSNR.name, reference)
    for cell in cells:
        found[cell.final].append(cell.null_scores.get(key, {}).get(MEAN_IMAGE) if of_mean else cell.mean(*key))
    return _higher(found[False]), _higher(found[True])
