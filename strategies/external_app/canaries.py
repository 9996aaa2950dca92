"""Scores of the canaries in an app's training, the coins that its nodes send afterwards, and the bounds of epsilon that follow.

A node tosses new coins for each training. So a canary is in one round, and all canaries of all rounds test the claims of single
rounds, as several runs of one mechanism with a canary in each (``one_run_bound``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from flwr.app import Message, RecordDict
from torch import Tensor

from attacks.dp_audit.placed_canaries import PlacedCanaries, gradient_parts
from attacks.dp_audit.verdict import audited
from attacks.metrics.training import CLIENT, EPSILON_SHOWN
from clients.external_app.canaries import places
from clients.external_app.canary_images import MOST_CANARIES
from clients.task.task import Task
from clients.wire.records import MAX_REASON, tensors_of, values_of
from clients.wire.texts import one_line, read_json, shortened
from defenses.neighbours import ADD_OR_REMOVE
from defenses.tensors import Update
from strategies.audit.jobs import Recorder
from strategies.exchange.exchange import Exchange
from strategies.exchange.guard import GuardedExchange
from strategies.external_app.claim import number_of
from strategies.external_app.claimed_privacy import DELTA, EPSILON, said_in
from strategies.external_app.replies import UnusableReplyError
from strategies.federated.dp_audit import record_bounds
from strategies.federated.shown_epsilon import CONFIDENCE, ShownEpsilon

NOTHING = "no node sent the coins of canaries beside an epsilon"
OTHER = "query.coins: this node trains other tensors than the first node with canaries"
AGAIN = "query.coins: this node sent the coins of the same training before, as one that lost its state does"
LOST = 0.9
"""Share of the existing canaries below which a report explains why some were in no batch."""
MOST_NUMBER = 2**62
"""Of a seed and of a training's number."""


@dataclass(frozen=True)
class ScoredCanaries:
    """The canaries of one node in one round.

    Attributes:
        partition: The node's.
        claim: What the node claims of the round.
        placed: Their places.
        scores: (M,) float64, centred: positive for a coin of 1.
        coins: (M,) bool.
        training: Seed and number of the training, by which the node draws places and coins.
        met: Canaries that were in the batch of some step, as the node counts them.
    """

    partition: int
    claim: ReportedClaim
    placed: PlacedCanaries
    scores: Tensor
    coins: Tensor
    training: tuple[int, int]
    met: int


class AppCanaries:
    """The audit of one app's epsilon, over the rounds that are attacked.

    Args:
        sizes: Name of each tensor that nodes send -> its number of values, in the order of the model.
    """

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self._sizes = sizes
        self._rows: Recorder
        self._scored: list[ScoredCanaries] = []
        self._reasons: list[str] = []

    def observe(
        self,
        task: Task,
        replies: Sequence[tuple[int, Message]],
        update_of: Callable[[Message], Update],
        exchange: Exchange,
        rows: Recorder,
    ) -> None:
        """Score the canaries of a round, and request their coins.

        Args:
            task: The round's.
            replies: To training, each with its partition.
            update_of: Gives the update in a reply, or raises ``UnusableReplyError``.
            exchange: With these nodes.
            rows: For rows about nodes whose canaries cannot be scored.
        """
        self._rows, reports = rows, dict[int, tuple[Update, ReportedClaim]]()
        for partition, reply in replies:
            try:
                reports[partition] = (update_of(reply), reported_claim(reply))
            except UnusableReplyError as error:
                self._left_out(task, partition, f"train: {error}")
        if not reports:
            return
        guarded = GuardedExchange(exchange, self)
        contents = {partition: RecordDict({"config": exchange.config(task)}) for partition in reports}
        for partition, reply in guarded.ask(task, "query.coins", contents, self._fault).items():
            placed, coins, training, met = self._read(partition, reply)
            if self._scored and list(placed.sizes) != list(self._scored[0].placed.sizes):
                self._left_out(task, partition, OTHER)
                continue
            if any((scored.partition, scored.training) == (partition, training) for scored in self._scored):
                self._left_out(task, partition, AGAIN)
                continue
            update, claim = reports[partition]
            scores = centred(placed.scores(update, task.round))
            self._scored.append(ScoredCanaries(partition, claim, placed, scores, coins, training, met))

    def row(self, task: Task, *, metric: str, value: float | None, **fields: Any) -> None:
        """Add a row about a failure, whose message is kept, too."""
        self._rows.row(task, metric=metric, value=value, **fields)
        self._reasons.append(f"client {fields.get('client')}: {fields.get('message', '')}")

    def _left_out(self, task: Task, partition: int, why: str) -> None:
        self.row(
            task, metric=CLIENT.name, value=None, status="failed", client=partition, message=one_line(why, MAX_REASON)
        )

    def conclude(self, task: Task, rows: Recorder) -> str:
        """Write the bounds of all rounds beside the claim, as two rows, or one row that says why there are none; that reason."""
        if not self._scored:
            reasons = list(dict.fromkeys(self._reasons)) or [NOTHING]
            why = one_line("; ".join(reasons), MAX_REASON)
            rows.row(task, metric=EPSILON_SHOWN.name, value=None, n=0, status="failed", message=why)
            return f"the audit of epsilon failed: {why}"
        record_bounds(rows, task, self._shown())
        return ""

    def _shown(self) -> ShownEpsilon:
        """The bounds of all canaries, or of the refuted level furthest beyond its claim; all hold together with ``CONFIDENCE``."""
        claimed = levels([scored.claim for scored in self._scored])
        error = (1 - CONFIDENCE) / len(claimed)
        bounds = []
        for epsilon in claimed:
            of = [scored for scored in self._scored if scored.claim.epsilon <= epsilon]
            parts = gradient_parts({at: (scored.placed, scored.scores, scored.coins) for at, scored in enumerate(of)})
            audit = audited(parts, epsilon, max(scored.claim.delta for scored in of), 1 - error)
            shown = ShownEpsilon.of(audit, ADD_OR_REMOVE)
            bounds.append(replace(shown, confidence=CONFIDENCE, covers=self._covers(of, claimed)))
        refuted = [bound for bound in bounds if bound.above]
        return max(refuted, key=lambda bound: bound.shown - bound.claimed) if refuted else bounds[-1]

    def _covers(self, of: Sequence[ScoredCanaries], claimed: Sequence[float]) -> str:
        """What the claim and the bounds are of, in sentences."""
        nodes, every = {scored.partition for scored in of}, {scored.partition for scored in self._scored}
        least, most = min(scored.claim.epsilon for scored in of), max(scored.claim.epsilon for scored in of)
        met, existing = sum(scored.met for scored in of), sum(int(scored.coins.sum()) for scored in of)
        said = [
            "Bounds are of one round: each canary is in the training of one round only, and nothing is composed. Which rounds the "
            "claim covers was not checked. "
            f"Trainings that are pooled: {len(of)}, of {len(nodes)} of {len(every)} nodes. "
            f"Canaries that were in some batch: {met:,} of the {existing:,} that exist."
        ]
        if met < LOST * existing:
            said.append(
                "A canary that is in no batch lowers the bounds. Few steps on small batches leave canaries out, and augmentation "
                "of whole batches destroys them."
            )
        if least < most:
            said.append(f"They claim {least:.4g} to {most:.4g}; the largest is compared.")
        if len(claimed) > 1:
            said.append(
                f"{len(claimed)} levels of claims were tested; a smaller one than the largest is shown if it is refuted."
            )
        if self._reasons:
            said.append(f"Left out: {one_line('; '.join(dict.fromkeys(self._reasons)), MAX_REASON)}.")
        return " ".join(said)

    def _fault(self, partition: int, reply: Message) -> str:
        try:
            self._read(partition, reply)
        except (ValueError, TypeError, RecursionError) as error:
            return str(error)
        return ""

    def _read(self, partition: int, reply: Message) -> tuple[PlacedCanaries, Tensor, tuple[int, int], int]:
        """Places and coins of a node's canaries, the seed and number of the training, and the number that was in some batch.

        ``ValueError`` where they cannot be those of this model.
        """
        arrays, about = tensors_of(reply, "coins"), values_of(reply, "canaries")
        coins = arrays.get("coins")
        if set(arrays) != {"coins"} or coins is None or coins.dtype != torch.bool or coins.ndim != 1:
            raise ValueError("coins: expected one vector of truth values")
        numbers = [about.get(name) for name in ("seed", "training")]
        if not all(type(number) is int and 0 <= number <= MOST_NUMBER for number in numbers):
            raise ValueError(
                f"canaries: expected a seed and the number of a training, whole numbers from 0 to {MOST_NUMBER}"
            )
        sizes: Any = read_json(str(about.get("sizes", "")))
        if not isinstance(sizes, dict) or not sizes:
            raise ValueError("canaries: expected the sizes of the trained tensors")
        for name, size in sizes.items():
            if type(size) is not int or self._sizes.get(name) != size:
                raise ValueError(
                    f"canaries: the node trains {shortened(name)} of {shortened(size)} weights, and the audit's model has "
                    f"{self._sizes.get(name, 'no such tensor')}"
                )
        if not 1 <= len(coins) <= min(MOST_CANARIES, sum(sizes.values())):
            raise ValueError(
                f"coins: {len(coins)} came; allowed: 1 to {MOST_CANARIES}, and at most one for each trained weight"
            )
        existing, met = int(coins.sum()), about.get("met")
        if type(met) is not int or not 0 <= met <= existing:
            raise ValueError(
                f"canaries: met is {shortened(met)}; allowed: a whole number from 0 to {existing}, of the canaries that exist"
            )
        seed, training = map(int, numbers)  # type: ignore[arg-type]
        return places(sizes, len(coins), seed, partition, training), coins, (seed, training), met


def centred(scores: Tensor) -> Tensor:
    """Scores (M,) of one node and round on a scale of their own: 0 is the middle of their quartiles, half of whose distance is 1.

    The coins are not read. With fair coins and noise, the quartiles lie near the medians of both coins' scores. Guesses by this
    threshold are no more often right by chance than those by a threshold fixed in advance (a test measures it).
    """
    low, high = torch.quantile(scores, torch.tensor([0.25, 0.75], dtype=scores.dtype))
    scale = float(high - low) / 2
    scaled: Tensor = (scores - (low + high) / 2) / (scale or 1.0)
    return scaled


ALIKE = 1.05
"""Ratio up to which two claims count as one, the larger."""
MOST_GROUPS = 4
NO_EPSILON = "its reply to training reports no epsilon, a finite number from 0 on; Opacus gives it by get_epsilon"
NO_DELTA = "its reply to training reports an epsilon without delta or target_delta, a number in (0, 1)"


@dataclass(frozen=True)
class ReportedClaim:
    """What one node claims in one round.

    Attributes:
        epsilon: Finite, at least 0.
        delta: In (0, 1).
    """

    epsilon: float
    delta: float


def reported_claim(reply: Message) -> ReportedClaim:
    """The epsilon and delta in the metrics of a reply to training; ``UnusableReplyError`` where one is missing."""
    said = said_in(reply.content.metric_records.values())
    epsilon, delta = number_of(said.get(EPSILON)), number_of(said.get(DELTA), 1.0)
    if epsilon is None:
        raise UnusableReplyError(NO_EPSILON)
    if not delta:
        raise UnusableReplyError(NO_DELTA)
    return ReportedClaim(epsilon, delta)


def levels(claims: Sequence[ReportedClaim]) -> list[float]:
    """Claimed epsilons, ascending, such that canaries of all smaller or equal claims are tested against each.

    A claim of a smaller epsilon implies that of a larger one. So the largest level has all canaries, and a smaller one finds a
    fault of a node that claims less. Claims within ``ALIKE`` of a larger one have no level of their own.
    """
    epsilons: list[float] = []
    for epsilon in sorted({claim.epsilon for claim in claims}, reverse=True):
        if not epsilons or epsilon * ALIKE < epsilons[-1]:
            epsilons.append(epsilon)
    return sorted([*epsilons[: MOST_GROUPS - 1], *epsilons[MOST_GROUPS - 1 :][-1:]])
