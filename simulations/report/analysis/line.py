"""The summary of one defence in the report."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from attacks.metrics.guesses import MEMBERSHIP_TPR
from defenses.neighbours import level_of
from defenses.training.accounting import MEANING
from simulations.report.analysis.readability import image_score
from simulations.report.analysis.windows import WindowCounts
from simulations.report.studies.cell import Cell, Count
from simulations.report.studies.recovery import chance_of_as_many
from simulations.report.studies.score import Score
from simulations.report.studies.study import Study
from simulations.report.text import neighbours, plain, two
from strategies.external_app.claim import AppAccuracy, Claim
from strategies.federated.shown_epsilon import ShownEpsilon

SAME = 1e-6
"""Relative difference up to which an accountant's epsilon is the claimed one."""


TERMS = {
    "noise-multiplier": "noise multiplier {}", "clipping-norm": "clipping norm {}", "sample-rate": "sample rate {}",
    "steps": "{} steps",
}  # fmt: skip
"""What an epsilon follows from, in a reader's words."""


def largest(study: Study, defense: str, prefix: str, names: Iterable[str]) -> dict[str, float]:
    """Name behind a prefix -> the largest such number of all rounds; empty where clients report none."""
    found = {}
    for name in names:
        series = study.series(defense, f"{prefix}{name}").values()
        if values := [score.mean for score in series if score.mean is not None]:
            found[name] = max(values)
    return found


def by_accountant_text(found: Mapping[str, float], claimed: float | None) -> str:
    """Each accountant's epsilon and what it is; "" without any. That of the claim is named."""
    of = next((name for name, value in found.items() if claimed and math.isclose(value, claimed, rel_tol=SAME)), "")
    return ", ".join(
        f"{name.upper() if len(name) == 3 else name} {two(value)} ({'claimed; ' if name == of else ''}{MEANING[name]})"
        for name, value in found.items()
    )


@dataclass(frozen=True)
class Line:
    """The summary of one defence in the report.

    Attributes:
        defense: Pipeline text.
        round: Last round that every seed has finished; utility numbers are of this round.
        clean: Test accuracy on clean images.
        protected: Test accuracy on images protected as in deployment, where the defence protects them.
        change: Of the accuracy as deployed, against no defence in the same round and seeds (``accuracy_change``). None where
            ``untaught``, or where whole clients were canaries.
        canaries: What canaries of an audit were in its training, "examples" or "clients"; "" for none. They cost accuracy, too.
        strongest: Cell of the attack that the headline is of, by ``readability.lead``; None when no attack on images has a score.
        labels: Cell that recovered most labels over chance, among attacks that did not know them.
        membership: Cell with the highest membership AUC.
        membership_rate: Cell with the highest true positive rate at 1 % false positives: of another attack or round, it may be.
        epsilon: Budget spent by training (in split learning evaluation too) so far, in edge-cloud inference by the queries at one
            cut; None or infinite where there is no guarantee.
        epsilon_with_probes: Budget with the audit's probe messages; never below ``epsilon``.
        epsilon_all_cuts: Budget of all that a run sent of an image where it serves the same images at several cuts.
        delta: The delta of all three.
        neighbours: Between which data sets they hold (see ``defenses.neighbours``); "" where the rows do not say.
        seconds: Seconds that a client computes in a round, mean over rounds; ``seconds_ratio``: over no defence.
        bytes: Bytes that a client sends in a round, likewise.
        failed_clients: Failed client replies, all rounds and seeds.
        bounds: What upper bounds were given, in words, where there are any.
        caveats: What a reader must know besides, each a short clause.
        caveats_by_message: Where probes and real updates have a verdict each: title of the observation -> caveats on it alone.
        at_size: What settings in pixels mean on images of the run's size, a clause each.
        windows: Windows that VisualMixer shuffled and their VFE, where clients counted them.
        reading: Of rows of a table, the attack that has most cells right; None for images.
        attributes: The attack that reads the sensitive attribute best; None where none was run.
        probe: The strongest among attacks on one-step probes, where the scenario knows such; see ``analysis.adaptive``.
        update: The strongest among attacks on updates that training sends.
        cells: All attacks, without upper bounds.
        apart: In words, the adversaries whose results stand in sections of their own.
        claims: What an external app itself says about its differential privacy.
        reported: The accuracy that an external app reports from its own evaluation; None where it reports none.
        shown: Lower bounds of epsilon from canaries, beside the claim; None where no audit ran.
        by_accountant: Name of an accountant, or of other neighbours -> that epsilon of the same noise, where clients report it.
        terms: Name in ``TERMS`` -> what ``epsilon`` follows from; of several clients the mean.
        untaught: What is said where the model without a defence is not shown to be above chance in that round, or "".
    """

    defense: str
    round: int | None
    clean: Score | None
    protected: Score | None
    change: Score | None
    strongest: Cell | None
    labels: Cell | None
    membership: Cell | None
    membership_rate: Cell | None
    epsilon: float | None
    epsilon_with_probes: float | None
    epsilon_all_cuts: float | None
    delta: float | None
    neighbours: str
    seconds: float | None
    seconds_ratio: float | None
    bytes: float | None
    bytes_ratio: float | None
    failed_clients: int
    bounds: tuple[str, ...]
    caveats: tuple[str, ...]
    caveats_by_message: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    at_size: tuple[str, ...] = ()
    windows: WindowCounts | None = None
    reading: Cell | None = None
    attributes: Cell | None = None
    probe: Cell | None = None
    update: Cell | None = None
    cells: tuple[Cell, ...] = ()
    apart: tuple[str, ...] = ()
    claims: tuple[Claim, ...] = ()
    reported: AppAccuracy | None = None
    shown: ShownEpsilon | None = None
    canaries: str = ""
    untaught: str = ""
    by_accountant: Mapping[str, float] = field(default_factory=dict)
    terms: Mapping[str, float] = field(default_factory=dict)

    @property
    def all_caveats(self) -> tuple[str, ...]:
        """``caveats``, then those on a kind of message, each after its name."""
        named = (f"{of}: {caveat}" for of, found in self.caveats_by_message.items() for caveat in found)
        return (*self.caveats, *named)

    @property
    def level(self) -> str:
        """What ``epsilon`` protects, "example-level" or "client-level"; "" without neighbours."""
        return level_of(self.neighbours)

    @property
    def cost(self) -> Score | None:
        """The change in accuracy that the defence alone explains: None with canaries in its training."""
        return None if self.canaries else self.change

    @property
    def cost_note(self) -> str:
        """Why the accuracy beside it is no measure of the defence's cost; "" without canaries."""
        named = {"clients": "canary clients in training", "examples": "canaries in training"}.get(self.canaries)
        return f"{named}: no measure of the defence's cost" if named else ""

    @property
    def found_members(self) -> Score | None:
        """The score of ``membership_rate``."""
        return self.membership_rate.scores[MEMBERSHIP_TPR.of()] if self.membership_rate else None

    @property
    def recovered(self) -> Count | None:
        """(k, n): the strongest attack recovered k of n images."""
        return self.strongest.recovered if self.strongest else None

    @property
    def share(self) -> float:
        """The share of images that the strongest attack recovered."""
        return (self.strongest.share.mean or 0.0) if self.strongest and self.strongest.share else 0.0

    @property
    def picked(self) -> Count | None:
        """(k, n): the strongest attack identified k of n images."""
        return self.strongest.picked if self.strongest else None

    @property
    def leading(self) -> tuple[Cell, ...]:
        """Cells of the headline: the strongest attack, or those on probes and on real updates."""
        both = tuple(filter(None, (self.probe, self.update)))
        return both if self.strongest in both else tuple(filter(None, [self.strongest]))

    @property
    def tried(self) -> tuple[Cell, ...]:
        """Attacks and rounds among which the strongest attack on images was chosen."""
        return tuple(cell for cell in self.cells if image_score(cell) is not None)

    @property
    def best_image(self) -> Cell | None:
        """The cell of ``tried`` with the best-recovered image (``BestImage.rank``)."""
        return max((one for one in self.tried if one.best), key=_rank_of_best, default=None)

    def better_image(self, shown: Sequence[Cell]) -> Cell | None:
        """The cell of ``best_image``, where its image is better recovered than any in the cells shown."""
        best = self.best_image
        return best if best is not None and _rank_of_best(best) > max(map(_rank_of_best, shown)) else None

    @property
    def highest_image(self) -> Cell | None:
        """The cell of ``tried`` with the highest PSNR of one image, recovered or not."""
        known = [c for c in self.tried if c.psnr and c.psnr.worst is not None]
        return max(known, key=lambda c: c.psnr.worst or 0.0 if c.psnr else 0.0, default=None)

    def chance_of_as_many(self, cell: Cell) -> float | None:
        """Upper bound on the chance that the best of as many null guesses recovers as many images as the attack."""
        if cell.recovered is None or cell.chance_of_retrieval is None:
            return None
        recovered, images = cell.recovered
        known = [(one.recovered[1], one.chance_of_retrieval or 1.0) for one in self.tried if one.recovered]
        return chance_of_as_many(recovered / images, known)

    @property
    def said_by_the_app(self) -> tuple[str, ...]:
        """Sentences on the claims of an external app, and on the accuracy that it reports."""
        return (*(claim.text for claim in self.claims), *([self.reported.text] if self.reported else []))

    @property
    def budget(self) -> str:
        """What ``epsilon`` follows from, its neighbours, and what other accountants say, in words; "" without an epsilon."""
        if self.epsilon is None:
            return ""
        said = [words.format(plain(self.terms[name])) for name, words in TERMS.items() if name in self.terms]
        said += [f"delta {plain(self.delta)}"] if self.delta is not None else []
        others = by_accountant_text(self.by_accountant, self.epsilon)
        parts = [neighbours(self.neighbours), ", ".join(said), f"by accountant {others}" if others else ""]
        return f"budget: {'; '.join(filter(None, parts))}" if any(parts) else ""

    @property
    def deployed(self) -> Score | None:
        """Test accuracy as deployed: on protected images where test images are protected too."""
        return self.protected or self.clean


def _rank_of_best(cell: Cell) -> tuple[float, float]:
    return cell.best.rank if cell.best else (-math.inf, -math.inf)
