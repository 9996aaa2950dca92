"""Audit of DP-SGD on a run's own training updates, by canaries among the clients' examples.

The server adds up what each update of each round says about a canary. After the last round clients send the coins, and the number
of right guesses bounds epsilon from below (``attacks.dp_audit``).
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from flwr.app import Message, RecordDict
from torch import Tensor

from attacks.dp_audit.canary_clients import PlacedClient, client_defense, parts_of
from attacks.dp_audit.placed_canaries import BRIGHT, DARK, NORM, PlacedCanaries, audited_defense, gradient_parts
from attacks.dp_audit.verdict import CanaryPart, audited
from attacks.metrics.training import DELTA, EPSILON, EPSILON_SHOWN, EPSILON_SHOWN_GAUSSIAN
from attacks.normalisation import normalise
from clients.federated.canaries import shared_shapes, trained_sizes
from clients.federated.plan import FederatedPlan
from clients.task.task import Plan, Task, load_weights
from clients.wire.records import tensors_of, values_of
from defenses.neighbours import ADD_OR_REMOVE
from defenses.tensors import Tensors, Update
from strategies.audit.jobs import Recorder
from strategies.exchange.guard import GuardedExchange
from strategies.federated.replies import COUNTED
from strategies.federated.shown_epsilon import CONFIDENCE, ShownEpsilon

GRADIENTS = "gradients"
"""View of the gradient canaries; all others are of a lone canary."""
LENGTH = "length of the update"
REPORTED = "reported "
"""How views of reported numbers begin. One example more raises its number; of other numbers the direction is unknown."""


class CanaryAudit:
    """The audit of one pipeline; it does nothing where the plan requests no canaries, or no DP-SGD makes a claim."""

    def __init__(self, plan: Plan, exchange: GuardedExchange, recorder: Recorder) -> None:
        self.plan, self._exchange, self._recorder = plan, exchange, recorder
        self.canaries = plan.dp_canaries if isinstance(plan, FederatedPlan) else 0
        self._defense = audited_defense(plan.defenses) if self.canaries else None
        self._tensors = trained_sizes(plan.build_model()) if self._defense else {}
        self._views: dict[int, Tensors] = defaultdict(dict)
        self._claims: dict[int, tuple[float, float]] = {}

    @property
    def active(self) -> bool:
        """Whether there is a claim to test."""
        return self._defense is not None

    @property
    def most_examples(self) -> int:
        """Most examples that a client trains on besides its own."""
        return self.canaries + 1 if self._defense else 0

    @property
    def canary_clients(self) -> range:
        """Partitions whose whole update is an auditor's, so that no attack on it says anything of their data."""
        return range(0)

    def state(self) -> Tensors:
        """Sums over the rounds so far, by partition and view."""
        return {f"{partition}/{view}": value for partition, of in self._views.items() for view, value in of.items()}

    def restore(self, state: Tensors) -> None:
        """Continue from an earlier ``state``."""
        for name, value in state.items():
            partition, _, view = name.partition("/")
            self._views[int(partition)][view] = value

    def observe(self, task: Task, weights: Tensors, replies: Mapping[int, Message], names: Sequence[str]) -> None:
        """Add up what the updates of a round, and the reported numbers of these ``names``, say about each canary."""
        if self._defense is None:
            return
        buffers = self._directions(weights)
        for partition, reply in replies.items():
            update, numbers = tensors_of(reply, "arrays"), values_of(reply, "metrics")
            self._note_claim(partition, numbers)
            placed, seen = self._placed(partition), dict[str, Tensor]()
            if len(placed):
                moved = placed.scores(update, task.round) / task.learning_rate
                seen[GRADIENTS] = moved - self._middle(int(numbers["local-steps"]))
            if placed.lone:
                seen |= self._side_channels(partition, update, buffers)
                reported = {name: float(numbers[name]) for name in (*names, *sorted(COUNTED)) if name in numbers}
                reported["num-examples"] -= self._size(partition)
                seen |= {f"{REPORTED}{name}": torch.tensor(value).double() for name, value in reported.items()}
            self._add(partition, seen)

    def conclude(self, task: Task) -> None:
        """Ask for the coins after the last round, and write a row for each of the two bounds."""
        if not self.active or task.round != self.plan.rounds:
            return
        coins = self._ask(task)
        parts = self._parts(coins)
        claims = [self._claims[partition] for partition in coins if partition in self._claims]
        if not parts or not claims:
            why = "no client sent the coins of its canaries" if not coins else "no client reports an epsilon"
            self._recorder.row(task, metric=EPSILON_SHOWN.name, value=None, n=len(coins), status="failed", message=why)
            return
        claimed, delta = max(claims)
        shown = ShownEpsilon.of(audited(parts, claimed, delta, CONFIDENCE), self.plan.defenses.neighbours)
        record_bounds(self._recorder, task, shown)

    def _add(self, partition: int, seen: Tensors) -> None:
        kept = self._views[partition]
        kept |= {view: kept[view] + value if view in kept else value for view, value in seen.items()}

    def _size(self, partition: int) -> int:
        """Training examples without canaries; 0 where that is unknown."""
        return self._exchange.exchange.dealt.get(partition, (0, 0))[0]

    def _note_claim(self, partition: int, numbers: Mapping[str, Any]) -> None:
        if EPSILON.name in numbers:
            self._claims[partition] = (float(numbers[EPSILON.name]), float(numbers.get(DELTA.name, 0.0)))

    def _placed(self, partition: int) -> PlacedCanaries:
        assert self._defense is not None
        return PlacedCanaries.of(self._tensors, self.canaries, self._defense.neighbours, self.plan.seed, partition)

    def _middle(self, steps: int) -> float:
        """Half of what a canary that exists adds to a round's score on average; 0 where all canaries exist."""
        assert self._defense is not None
        rate = self._defense.sample_rate
        clipped = min(NORM, 1.0) * self._defense.max_grad_norm / self.plan.batch_size
        return 0.0 if rate is None else steps * rate * clipped / 2

    def _side_channels(self, partition: int, update: Update, buffers: Tensors) -> Tensors:
        """What tensors of an update say about a lone canary, beside its gradient."""
        signals = {name: (update[name].double() * along).sum() for name, along in buffers.items()}
        assert self._defense is not None
        if self._defense.neighbours == ADD_OR_REMOVE:
            # A divisor that follows from the number of examples makes an update shorter; so does a larger share, in its inverse.
            moved = torch.cat([update[name].flatten().double() for name in self._tensors]).norm()
            signals[LENGTH] = -moved * max(self._size(partition), 1)
        return signals

    def _directions(self, weights: Tensors) -> Tensors:
        """Name of each buffer that updates hold -> how a bright image moves it beyond a dark one."""
        if set(weights) == set(self._tensors):
            return {}
        card, after = self.plan.data_card(), []
        for pixel in (BRIGHT, DARK):
            model = load_weights(self.plan.build_model(), weights).train()
            with torch.no_grad():
                model(normalise(torch.full((2, *card.input_shape), pixel), card))
            after.append(dict(model.named_buffers()))
        names = sorted((weights.keys() - self._tensors.keys()) & after[0].keys())
        return {name: (after[0][name] - after[1][name]).double() for name in names}

    def _expected(self, partition: int) -> dict[str, tuple[int, ...]]:
        placed = self._placed(partition)
        expected: dict[str, tuple[int, ...]] = {"coins": (len(placed),)}
        return expected | ({"lone": (1,)} if placed.lone else {})

    def _ask(self, task: Task) -> dict[int, Tensors]:
        def fault_in(partition: int, reply: Message) -> str:
            expected, coins = self._expected(partition), tensors_of(reply, "coins")
            fits = {name: tuple(coin.shape) for name, coin in coins.items() if coin.dtype == torch.bool} == expected
            return "" if fits else f"coins: expected truth values of the shapes {expected}"

        contents = dict.fromkeys(sorted(self._views), RecordDict({"config": self._exchange.config(task)}))
        good = self._exchange.ask(task, "query.coins", contents, fault_in, at_least=0.0)
        return {partition: tensors_of(reply, "coins") for partition, reply in sorted(good.items())}

    def _parts(self, coins: Mapping[int, Tensors]) -> dict[str, CanaryPart]:
        placed = {partition: self._placed(partition) for partition in coins}
        gradients = {
            partition: (placed[partition], self._views[partition][GRADIENTS], tossed["coins"])
            for partition, tossed in coins.items()
            if GRADIENTS in self._views[partition]
        }
        parts = gradient_parts(gradients)
        # Sorted, so that the row of a resumed run is that of an uninterrupted one: the kept state has an order of its own.
        for view in sorted({view for partition in coins for view in self._views[partition]} - {GRADIENTS}):
            of = [partition for partition in coins if view in self._views[partition] and "lone" in coins[partition]]
            if of:
                scores = torch.stack([self._views[partition][view] for partition in of])
                flips = torch.cat([coins[partition]["lone"] for partition in of])
                known = not view.startswith(REPORTED) or view == f"{REPORTED}num-examples"
                parts[view] = CanaryPart(scores, flips, directed=known)
        return parts


def record_bounds(recorder: Recorder, task: Task, shown: ShownEpsilon) -> None:
    """Write a row for each of the two bounds."""
    for metric, value in ((EPSILON_SHOWN, shown.plain), (EPSILON_SHOWN_GAUSSIAN, shown.gaussian)):
        recorder.row(task, metric=metric.name, value=value, worst=value, n=shown.canaries, audit=shown.to_json())


TENSORS = "tensors"
"""View of a canary client: its score in each tensor."""


class ClientCanaryAudit(CanaryAudit):
    """The audit of one pipeline with a client-level claim."""

    def __init__(self, plan: Plan, exchange: GuardedExchange, recorder: Recorder) -> None:
        super().__init__(plan, exchange, recorder)
        self._shapes = shared_shapes(plan.build_model()) if self.active else {}

    @property
    def active(self) -> bool:
        """Whether there is a claim to test."""
        return bool(self.canaries) and client_defense(self.plan.defenses) is not None

    @property
    def canary_clients(self) -> range:
        """The first clients of the run."""
        return range(self.canaries if self.active else 0)

    def observe(self, task: Task, weights: Tensors, replies: Mapping[int, Message], names: Sequence[str]) -> None:
        """Add up what the updates of a round say about each canary client; what else it reports follows from no coin."""
        for partition in sorted(client for client in replies if client in self.canary_clients):
            reply = replies[partition]
            self._note_claim(partition, values_of(reply, "metrics"))
            self._add(partition, {TENSORS: self._client(partition).scores(tensors_of(reply, "arrays"), task.round)})

    def _client(self, partition: int) -> PlacedClient:
        return PlacedClient.of(self._shapes, self.plan.seed, partition)

    def _expected(self, partition: int) -> dict[str, tuple[int, ...]]:
        return {"coins": (1,)}

    def _parts(self, coins: Mapping[int, Tensors]) -> dict[str, CanaryPart]:
        known = [partition for partition in coins if TENSORS in self._views[partition]]
        if not known:
            return {}
        placed = [self._client(partition) for partition in known]
        by_client = torch.stack([self._views[partition][TENSORS] for partition in known])
        scores = dict(zip(placed[0].along, by_client.T, strict=True))
        turns = torch.tensor([canary.turns for canary in placed])
        return parts_of(scores, torch.cat([coins[partition]["coins"] for partition in known]), turns)


def audit_of(plan: Plan, exchange: GuardedExchange, recorder: Recorder) -> CanaryAudit:
    """The audit by canaries that fits a pipeline's claim; it does nothing without a claim or without canaries."""
    return (CanaryAudit if client_defense(plan.defenses) is None else ClientCanaryAudit)(plan, exchange, recorder)
