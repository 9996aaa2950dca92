"""The summary of one defence in the report."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from attacks.metrics.guesses import MEMBERSHIP_TPR
from defenses.neighbours import level_of
from defenses.training.accounting import MEANING
from simulations.report.analysis.paired import PairedDifference
from simulations.report.analysis.verdict import Judged, worst
from simulations.report.analysis.windows import WindowCounts
from simulations.report.studies.cell import Cell
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
        judged: The verdict on each kind and size of message, real ones first.
        differences: ``Judged.title`` -> the difference to no defence, for messages in which the attacks of either find an image.
        adaptive: ``Judged.title`` of the messages that an attack made against this defence was tried on.
        labels: Cell that recovered most labels over chance, among attacks that did not know them.
        attributes: The attack that reads the sensitive attribute best; None where none was run.
        membership: Cell with the highest membership AUC.
        membership_rate: Cell with the highest true positive rate at 1 % false positives: of another attack or round, it may be.
        epsilon: Budget spent by training (in split learning evaluation too) so far, in edge-cloud inference by the queries at one
            cut; None or infinite where there is no guarantee.
        epsilon_with_probes: Budget with the audit's probe messages; never below ``epsilon``.
        epsilon_all_cuts: Budget of all that a run sent of an image where it serves the same images at several cuts.
        delta: The delta of all three.
        neighbours: Between which data sets they hold (see ``defenses.neighbours``); "" where the rows do not say.
        by_accountant: Name of an accountant, or of other neighbours -> that epsilon of the same noise, where clients report it.
        terms: Name in ``TERMS`` -> what ``epsilon`` follows from; of several clients the mean.
        seconds: Seconds that a client computes in a round, mean over rounds; ``seconds_ratio``: over no defence.
        bytes: Bytes that a client sends in a round, likewise.
        failed_clients: Failed client replies, all rounds and seeds.
        bounds: What upper bounds were given, in words, where there are any.
        caveats: What a reader must know besides, each a short clause.
        caveats_of: ``Judged.title`` -> caveats on these messages alone.
        at_size: What settings in pixels mean on images of the run's size, a clause each.
        windows: Windows that VisualMixer shuffled and their VFE, where clients counted them.
        cells: All attacks, without upper bounds.
        apart: In words, the adversaries whose results stand in sections of their own.
        claims: What an external app itself says about its differential privacy.
        reported: The accuracy that an external app reports from its own evaluation; None where it reports none.
        shown: Lower bounds of epsilon from canaries, beside the claim; None where no audit ran.
        untaught: What is said where the model without a defence is not shown to be above chance in that round, or "".
    """

    defense: str
    round: int | None
    clean: Score | None
    protected: Score | None
    change: Score | None
    judged: tuple[Judged, ...] = ()
    differences: Mapping[str, PairedDifference] = field(default_factory=dict)
    adaptive: frozenset[str] = frozenset()
    labels: Cell | None = None
    attributes: Cell | None = None
    membership: Cell | None = None
    membership_rate: Cell | None = None
    epsilon: float | None = None
    epsilon_with_probes: float | None = None
    epsilon_all_cuts: float | None = None
    delta: float | None = None
    neighbours: str = ""
    by_accountant: Mapping[str, float] = field(default_factory=dict)
    terms: Mapping[str, float] = field(default_factory=dict)
    seconds: float | None = None
    seconds_ratio: float | None = None
    bytes: float | None = None
    bytes_ratio: float | None = None
    failed_clients: int = 0
    bounds: tuple[str, ...] = ()
    caveats: tuple[str, ...] = ()
    caveats_of: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    at_size: tuple[str, ...] = ()
    windows: WindowCounts | None = None
    cells: tuple[Cell, ...] = ()
    apart: tuple[str, ...] = ()
    claims: tuple[Claim, ...] = ()
    reported: AppAccuracy | None = None
    shown: ShownEpsilon | None = None
    canaries: str = ""
    untaught: str = ""

    @property
    def worst(self) -> Judged | None:
        """The messages with the worst verdict."""
        return worst(self.judged)

    @property
    def strongest(self) -> Cell | None:
        """The strongest attack on those messages; None when no attack has a score."""
        return self.worst.cell if self.worst else None

    @property
    def all_caveats(self) -> tuple[str, ...]:
        """``caveats``, then those on one kind of message, each after its name."""
        named = (f"{of}: {caveat}" for of, found in self.caveats_of.items() for caveat in found)
        return (*self.caveats, *named)

    @property
    def level(self) -> str:
        """What ``epsilon`` protects, "example-level" or "client-level"; "" without neighbours."""
        return level_of(self.neighbours)

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
    def of_images(self) -> tuple[str, ...]:
        """What settings in pixels, and VisualMixer's windows, mean on the run's images, a clause each."""
        return (*self.at_size, *(self.windows.clauses if self.windows else ()))

    @property
    def deployed(self) -> Score | None:
        """Test accuracy as deployed: on protected images where test images are protected too."""
        return self.protected or self.clean
