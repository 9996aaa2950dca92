"""What a run shows of one defence: the one object that the page, the terminal, programs and comparisons read."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

from attacks.metrics.guesses import MEMBERSHIP_TPR
from attacks.metrics.metric import ATTRIBUTES, LABELS, MEMBERSHIP
from clients.wire.schema import readable
from simulations.report.analysis.accuracy import Accuracy, untaught
from simulations.report.analysis.budget import NO_COST, Budget, audit_warnings
from simulations.report.analysis.caveats import (
    DefenseFacts,
    adapted,
    defense_caveats,
    membership_caveats,
    message_caveats,
)
from simulations.report.analysis.message import Message, Place, Verdict, judge, worst
from simulations.report.analysis.paired import differences
from simulations.report.analysis.windows import WindowCounts, window_counts
from simulations.report.studies.cell import FOUND, SEEN, Cell
from simulations.report.studies.intervals import Range
from simulations.report.studies.rows import grouped
from simulations.report.studies.score import Scored
from simulations.report.studies.study import Study, left_out
from simulations.run_folder.rows import Row
from strategies.audit.threat_card import KnownLabels
from strategies.external_app.claim import CLAIMED, REPORTED, AppAccuracy, Claim, OfApp

KNOWN_LABELS = (KnownLabels.KNOWN, KnownLabels.SOME)


@dataclass(frozen=True)
class Finding:
    """What a study shows of one defence; numbers are read from its rows where they are asked for.

    Attributes:
        study: Rows and cells.
        defense: Pipeline text; "" without a defence.
        messages: What attacks found in each kind and size of message, real ones first.
        known: What the configuration says of the defence.
        running: The run goes on: attacks wait, and the model has not been tested as it will be.
    """

    study: Study
    defense: str
    messages: tuple[Message, ...] = ()
    known: DefenseFacts = field(default_factory=DefenseFacts)
    running: bool = False

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        """All attacks, without upper bounds."""
        return self.study.cells_of(self.defense)

    @property
    def bounds(self) -> tuple[str, ...]:
        """What upper bounds were given, in words, where there are any."""
        cells = [cell for cell in self.study.cells if cell.defense == self.defense]
        return tuple(dict.fromkeys(cell.card.upper_bound for cell in cells if cell.is_upper_bound))

    @property
    def every_message(self) -> tuple[Message, ...]:
        """``messages``, and the sensitive attribute that an attack infers best where other things were attacked, too."""
        cell = strongest(self.cells, ATTRIBUTES.decides)
        if cell is None or any(message.cell == cell for message in self.messages):
            return self.messages
        of = judge([cell])
        return (*self.messages, *(replace(self.message(other.place) or other, cells=other.cells) for other in of))

    def message(self, place: Place) -> Message | None:
        """What was found in the messages of a kind and size."""
        return next((message for message in self.messages if message.place == place), None)

    def verdict_of(self, cell: Cell) -> Verdict:
        """The verdict on one attack, among all on messages of its kind and size; unknown where it attacks none."""
        return next((message.verdict_of(cell) for message in self.messages if cell in message.cells), Verdict.UNKNOWN)

    @property
    def worst(self) -> Message | None:
        """The messages with the worst verdict; of equals the first."""
        return worst(self.messages)

    @property
    def strongest(self) -> Cell | None:
        """The strongest attack on those messages; None when no attack has a score."""
        return self.worst.cell if self.worst else None

    @property
    def labels(self) -> Cell | None:
        """What recovered most labels over chance, among attacks that did not know them."""
        return strongest([cell for cell in self.cells if cell.card.labels not in KNOWN_LABELS], LABELS.decides)

    @property
    def membership(self) -> Cell | None:
        """What has the highest membership AUC."""
        return strongest(self.cells, MEMBERSHIP.decides)

    @property
    def membership_rate(self) -> Cell | None:
        """What has the highest true positive rate at 1 % false positives: another attack or round, it may be."""
        return strongest(self.cells, MEMBERSHIP_TPR.of())

    @cached_property
    def accuracy(self) -> Accuracy:
        """Test accuracy and its change."""
        return Accuracy.of(self.study, self.defense, running=self.running)

    @cached_property
    def budget(self) -> Budget | None:
        """Epsilon with its terms, and its audit; None without a bound and without an audited claim."""
        return Budget.of(self.study, self.defense)

    @property
    def epsilon(self) -> float | None:
        """What was spent; None where that is not known."""
        return self.budget.spent if self.budget else None

    @property
    def claims(self) -> tuple[Claim, ...]:
        """What an external app says about its differential privacy, each claim once; ``budget`` is never taken from it."""
        return tuple(dict.fromkeys(claim for row in self._rows(CLAIMED) for claim in row.read(OfApp).claims))

    @property
    def reported(self) -> AppAccuracy | None:
        """The accuracy that an external app reports; ``accuracy`` is never taken from it. None of several seeds."""
        rows = self._rows(REPORTED)
        return rows[0].read(OfApp).reported if len(rows) == 1 else None

    @property
    def seconds(self) -> Range:
        """Seconds that a client computes in a round, mean over rounds, and their ratio to no defence."""
        return self._cost("train-seconds")

    @property
    def bytes(self) -> Range:
        """Bytes that a client sends in a round, likewise."""
        return self._cost("update-bytes")

    @property
    def failed_clients(self) -> int:
        """Failed client replies, all rounds and seeds: by rows or by counts, whichever is more."""
        failed = sum(row.status == "failed" for row in self._rows("client"))
        counted = (row.value or 0.0 for row in self._rows("clients-failed"))
        return max(failed, int(sum(filter(math.isfinite, counted))))

    @cached_property
    def windows(self) -> WindowCounts | None:
        """Windows that VisualMixer shuffled and their VFE, where clients counted them."""
        return window_counts(self.study, self.defense)

    @cached_property
    def caveats(self) -> tuple[str, ...]:
        """What a reader must know besides, of all messages: each a short clause."""
        accuracy, windows = self.accuracy, self.windows
        caveats = [*audit_warnings(self.study, self.defense), NO_COST if accuracy.canaries else ""]
        caveats += ["" if self.defense or self.running else untaught(self.study, accuracy.round)]
        caveats += defense_caveats(self.defense, self.cells, self.known, running=self.running)
        caveats += [*membership_caveats(self.membership), windows.caveat if windows else ""]
        return tuple(filter(None, caveats))

    @property
    def placed_caveats(self) -> list[tuple[str, str]]:
        """(where, caveat): ``caveats``, of everything, then those on some messages, or on "all messages"."""
        groups = grouped(((of.title, caveat) for of in self.messages for caveat in of.warnings), lambda pair: pair[1])
        several = len(self.messages) > 1
        return [("", caveat) for caveat in self.caveats] + [
            (
                "all messages" if several and len(of) == len(self.messages) else "; ".join(title for title, _ in of),
                caveat,
            )
            for caveat, of in groups.items()
        ]

    @property
    def all_caveats(self) -> tuple[str, ...]:
        """``placed_caveats`` in a text each."""
        return tuple(f"{where}: {caveat}" if where else caveat for where, caveat in self.placed_caveats)

    @property
    def of_images(self) -> tuple[str, ...]:
        """What settings in pixels, and VisualMixer's windows, mean on the run's images, a clause each."""
        return (*self.known.at_size, *(self.windows.clauses if self.windows else ()))

    def to_json(self) -> dict[str, Any]:
        """For programs; numbers may be infinite."""
        return {
            "defense": self.defense,
            "messages": [message.to_json() for message in self.every_message],
            "accuracy": self.accuracy.to_json(),
            "epsilon": self.budget.to_json() if self.budget else None,
            "claims": list(map(asdict, self.claims)),
            "reported": asdict(self.reported) if self.reported else None,
            "warnings": self.caveats,
        }

    def _rows(self, metric: str) -> Sequence[Row]:
        return self.study.utility.get((self.defense, metric, ""), ())

    def _cost(self, metric: str) -> Range:
        """Mean over rounds, and its ratio to no defence."""
        own, plain = (self.study.over_rounds(of, metric) for of in (self.defense, ""))
        return own, own / plain if self.defense and own is not None and plain else None


def strongest(cells: Sequence[Cell], metric: Scored) -> Cell | None:
    """The strongest attack by a deciding score other than that of images.

    An attack whose interval lies above its null baselines comes first, validated or not; then attacks that did not fail on
    everything, then validated ones. Labels are ranked by what lies over chance, which depends on the number of images.
    """
    scored = [cell for cell in cells if cell.mean(*metric) is not None]
    return max(scored, key=lambda cell: _strength(cell, metric), default=None)


def _strength(cell: Cell, metric: Scored) -> tuple[bool, bool, bool, float]:
    score, leaks = cell.scores[metric], metric in cell.leaking
    height = score.mean or 0.0
    if metric == LABELS.decides:
        height -= cell.null(metric) or 0.0
    return leaks, not 0 < score.n <= score.failures, leaks or score.status == "ok", height


def findings_of(study: Study, defenses: Mapping[str, Any], *, running: bool = False) -> list[Finding]:
    """One finding per pipeline, in order; ``defenses`` holds the entries of the configuration, by pipeline text."""
    without = left_out(study)
    judged = {defense: judge(study.cells_of(defense)) for defense in study.pipelines}
    plain = {message.place: message for message in judged.get("", ())}
    beside = {place: message.cell for place, message in plain.items()}
    compared = {place: (own.cell, own.of) for place, own in plain.items() if own.of in (SEEN, FOUND)}
    # The strongest attack first: it is the one that is compared where another has as many images.
    attacks = {
        defense: {message.place: [message.cell, *message.cells] for message in of} for defense, of in judged.items()
    }
    changed = differences(attacks, compared)
    findings = []
    for defense, of in judged.items():
        known = readable(DefenseFacts, defenses.get(defense)) or DefenseFacts()
        rows = [row for row in study.rows if row.defense == defense]
        messages = (
            replace(
                message,
                difference=changed.get((defense, message.place)),
                adaptive=adapted(message.cells, known),
                warnings=tuple(message_caveats(message, of, known, without, beside.get(message.place), rows)),
            )
            for message in of
        )
        findings.append(Finding(study, defense, tuple(messages), known, running))
    return findings
