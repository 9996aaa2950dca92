"""CuriousFedAvg: federated averaging by an honest-but-curious server, which attacks the updates that it receives."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

from attacks.base import AnyAttack
from attacks.choice import Needless
from attacks.local_model import shared_tensors
from attacks.metrics.training import CLIENTS_FAILED
from clients.task.task import Plan, Task, WholeModelPlan
from clients.training.evaluation import CLEAN_ACCURACY
from clients.wire.records import to_record, to_tensors, values_of
from clients.wire.rungs import Rung
from defenses.tensors import Tensors
from strategies.audit.auditor import Auditor
from strategies.audit.kinds import Kind
from strategies.exchange.guard import Answers, GuardedExchange, TooFewReplies, update_bound
from strategies.federated.active import ActiveServer
from strategies.federated.aggregates import SecureSums
from strategies.federated.audit import UpdateAudit, seen_updates
from strategies.federated.dp_audit import audit_of
from strategies.federated.observations import ACTIVE, AGGREGATE, PROBE, STEPS, UPDATE
from strategies.federated.replies import (
    MOST_LEDGER,
    alike,
    fault_in_budget,
    fault_in_probe,
    fault_in_update,
    record_probe,
    record_training,
)
from strategies.training.central_training import DivergedError
from strategies.training.evaluation import record_reports

PROBED = (PROBE, AGGREGATE)
"""Kinds of observations that come from the probes of the plan."""


class CuriousFedAvg(FedAvg):
    """FedAvg on updates, with a guard before averaging, and attacks on the received updates.

    Clients reply with updates (local - global), not with weights. Before the training messages of an attacked round the server
    requests one-step probes. The auditor gets both kinds of updates, and runs attacks in parallel with the next rounds. The
    final model is probed too (``observe_model``); attacks on training updates then use those of the last round.

    ``start`` runs the strategy like any other Flower strategy; a custom loop calls the four hooks as Flower does.

    Args:
        attacks: Kind of observation (``strategies.federated.observations``) -> attacks on it: on one-step probes, on training
            updates, on sums of probes, and, in studies of such attacks, those that send a manipulated model instead of the agreed
            one.
        aggregate_clients: Numbers of clients in the sums; without any, no sum is attacked.
        rungs: Further sizes of probes, in order, which belong to the same rounds as those of the plan.
        attack_rounds: Attacked server rounds; ``plan.rounds`` + 1 is the model after the last one. None: the first round and that
            model.
        known_labels: Clients publish the classes of probed images.
        min_usable: Least share of requested clients with a usable reply; the run stops below it.
        label: Short name of the pipeline for file names, such as "p02".
        needless: See ``UpdateAudit``.

    Raises:
        TypeError: When the plan belongs to a scenario that trains no whole model.
        TooFewReplies: When a round leaves too few usable replies.
    """

    def __init__(
        self,
        *,
        plan: Plan,
        auditor: Auditor,
        attacks: Mapping[Kind, Sequence[AnyAttack]] = MappingProxyType({}),
        aggregate_clients: Sequence[int] = (),
        rungs: Sequence[Rung] = (),
        attack_rounds: Iterable[int] | None = None,
        known_labels: bool = False,
        min_usable: float = 0.5,
        label: str = "p00",
        needless: Mapping[Kind, Needless] = MappingProxyType({}),
    ) -> None:
        self.plan = WholeModelPlan.narrow(plan)
        super().__init__(min_train_nodes=1, min_evaluate_nodes=1, min_available_nodes=1)
        self.auditor = auditor
        self.exchange = auditor.exchange
        self.recorder = auditor.recorder
        attacks = {kind: of for kind, of in attacks.items() if aggregate_clients or kind is not AGGREGATE}
        attacked = (1, plan.rounds + 1) if attack_rounds is None else attack_rounds
        self.audit = UpdateAudit(auditor, attacks, attacked, plan.rounds, label, needless)
        self._active = ActiveServer(self.audit, self._ask_active)
        self._sums, self._rungs = SecureSums(self.audit, aggregate_clients), tuple(rungs)
        self.known_labels = known_labels
        self._guarded = GuardedExchange(self.exchange, self.recorder, min_usable)
        self.canaries = audit_of(plan, self._guarded, self.recorder)
        """Lower bounds of epsilon, where the plan requests canaries."""
        self.ledgers: dict[int, str] = {}
        """Partition -> the training defences' state as the client last reported it, to be handed back on resume."""
        self.accuracy: float | None = None
        """Of the current global model, on clean test images."""
        self._weights: Tensors = {}

    def initial_arrays(self) -> ArrayRecord:
        """The initial weights, which equal those of the model that clients build."""
        return to_record(shared_tensors(self.plan.build_model()))

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Evaluate the initial model, run Flower's loop over the rounds, and attack the final model.

        Returns when all attacks are scored. ``grid`` is the auditor's, or a grid to the same nodes. This strategy's own values
        override ``train_config`` and ``evaluate_config``. ``evaluate_fn`` is the server's own evaluation of a round's model.

        Raises:
            ValueError: When ``num_rounds`` is not ``plan.rounds``, on which clients base their privacy budgets.
            TooFewReplies: When a round leaves too few usable replies.
        """
        if num_rounds != self.plan.rounds:
            raise ValueError(f"num_rounds is {num_rounds}, and the clients' plan is for {self.plan.rounds} rounds")
        messages = self.configure_evaluate(0, initial_arrays, evaluate_config or ConfigRecord(), grid)
        initial = self.aggregate_evaluate(0, grid.send_and_receive(messages, timeout=timeout))
        result = super().start(grid, initial_arrays, num_rounds, timeout, train_config, evaluate_config, evaluate_fn)
        if initial is not None:
            result.evaluate_metrics_clientapp = {0: initial, **result.evaluate_metrics_clientapp}
        self.observe_model(num_rounds + 1, result.arrays or initial_arrays)
        self.auditor.collect(wait=True)
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Probe the clients if this round is attacked, then make their training messages."""
        self.observe_model(server_round, arrays)
        clients = sorted(self.exchange.nodes)
        return self.exchange.messages("train", self._contents(self.plan.at(server_round), arrays, clients, config))

    def observe_model(self, server_round: int, arrays: ArrayRecord) -> None:
        """Probe the clients on a round's global model if the round is attacked, without training."""
        self._weights = to_tensors(arrays)
        self.auditor.collect()
        self._probe(self.plan.at(server_round), arrays)
        if self.audit.wants(ACTIVE, server_round):
            self._active.probe(self.plan.at(server_round), self._weights)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Refuse unusable updates, pass the others to the attacks, and return global weights + weighted mean update."""
        task = self.plan.at(server_round)
        clients, received = sorted(self.exchange.nodes), self.exchange.by_partition(replies)
        public = self.plan.defenses.reported_examples(self.plan.batch_size)

        def fault_in(partition: int, reply: Message) -> str:
            own = self.exchange.most(partition)[0] + self.canaries.most_examples
            why = fault_in_update(reply, self._reference(), ["arrays"], public or own)
            known = partition in self.exchange.dealt and not self.canaries.most_examples
            return why or (fault_in_budget(reply, task, int(own)) if known else "")

        self._guarded.bounds["train"] = {"arrays": update_bound(self._weights)}
        good = self._guarded.check(task, "train", clients, received, fault_in)
        self.recorder.row(task, metric=CLIENTS_FAILED.name, value=len(clients) - len(good), n=len(clients))
        if not good:
            first = next(iter(good.refused.values()), "no reply")
            raise TooFewReplies(
                f"round {server_round}, {task.plan.pipeline or 'no defence'}: no client trains; first reason: {first}"
            )
        for partition, reply in good.items():
            self._keep_ledger(partition, reply)
        names = record_training(self.recorder, task, good)
        self.canaries.observe(task, self._weights, good, names)
        self.canaries.conclude(task)
        own = {partition: reply for partition, reply in good.items() if partition not in self.canaries.canary_clients}
        if own and self.audit.wants(UPDATE, server_round):
            self.audit.attack(task, UPDATE, self._weights, self.accuracy, seen_updates(task, UPDATE, own, ["arrays"]))
        mean_update, metrics = super().aggregate_train(server_round, [alike(reply, names) for reply in good.values()])
        if mean_update is None:
            return None, None
        return self._step(mean_update), metrics

    def _contents(
        self, task: Task, arrays: ArrayRecord, partitions: Iterable[int], config: Mapping[str, Any]
    ) -> dict[int, RecordDict]:
        """Partition -> content of its message: model, training configuration, and the client's state kept at the server."""
        orders = ConfigRecord({**config, **self.exchange.config(task)})
        contents = {partition: RecordDict({"arrays": arrays, "config": orders}) for partition in partitions}
        for partition in contents.keys() & self.ledgers.keys():
            contents[partition]["ledger"] = ConfigRecord({self.plan.pipeline: self.ledgers[partition]})
        return contents

    def _reference(self) -> dict[str, np.ndarray]:
        return {name: tensor.numpy() for name, tensor in self._weights.items()}

    def _step(self, mean_update: ArrayRecord) -> ArrayRecord:
        moved_weights, mean = {}, to_tensors(mean_update)
        for name, weight in self._weights.items():
            moved = weight + mean[name].to(weight.dtype)
            # A noisy or clipped update may push a variance below zero, which would make every later activation NaN.
            moved = moved.clamp(min=0) if name.endswith("running_var") else moved
            if not moved.isfinite().all():  # or the next round would refuse the clients that train such a model
                raise DivergedError(f"the mean of the updates overflows in {name!r}; lower learning-rate")
            moved_weights[name] = moved
        return to_record(moved_weights)

    def _probe(self, task: Task, arrays: ArrayRecord) -> None:
        ladder: list[tuple[Task, Sequence[Kind], str]] = [(task, PROBED, "")]
        for rung in self._rungs:
            ladder.append((task.but(**rung.plan), (STEPS if rung.steps > 1 else PROBE,), str(rung)))
        answered: dict[int, Message] = {}
        for orders, kinds, rung_name in ladder:
            if wanted := [kind for kind in kinds if self.audit.wants(kind, task.round)]:
                answered |= self._attack_probes(orders, wanted, rung_name, arrays)
        record_probe(self.recorder, task, answered)  # the last reply of a client counts all probes

    def _attack_probes(self, task: Task, kinds: Iterable[Kind], rung: str, arrays: ArrayRecord) -> Answers:
        records, bound = task.target_records, update_bound(self._weights)
        self._guarded.bounds["train.probe"] = dict.fromkeys(records, bound)
        good = self._ask_step(task, arrays, {"publish-labels": self.known_labels})
        for kind in kinds:
            seen = seen_updates(task, kind, good, records)
            if kind is AGGREGATE:
                self._sums.attack(task, self._weights, self.accuracy, seen)
            else:
                self.audit.attack(task, kind, self._weights, self.accuracy, seen, rung)
        return good

    def _ask_step(
        self, task: Task, arrays: ArrayRecord, config: Mapping[str, Any], at_least: float | None = None
    ) -> Answers:
        contents = self._contents(task, arrays, sorted(self.exchange.nodes), config)

        def fault_in(_: int, reply: Message) -> str:
            return fault_in_probe(reply, self._reference(), task)

        good = self._guarded.ask(task, "train.probe", contents, fault_in, at_least=at_least)
        for partition, reply in good.items():
            self._keep_ledger(partition, reply)
        return good

    def _ask_active(self, task: Task, weights: Tensors) -> Answers:
        """Request one-step updates of a manipulated model; the run continues if a client does not reply."""
        config = {"publish-labels": self.known_labels, "question": 1}
        self._guarded.bounds.pop("train.probe", None)  # such a model may enlarge the gradients of some clients alone
        good = self._ask_step(task, to_record(weights), config, at_least=0.0)
        record_probe(self.recorder, task, good)
        return good

    def _keep_ledger(self, partition: int, reply: Message) -> None:
        ledger = values_of(reply, "ledger").get(self.plan.pipeline)
        if isinstance(ledger, str) and 0 < len(ledger) <= MOST_LEDGER:
            self.ledgers[partition] = ledger

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Make the messages that request each client's accuracy on its share of the test data."""
        return self.exchange.messages(
            "evaluate", self._contents(self.plan.at(server_round), arrays, sorted(self.exchange.nodes), config)
        )

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Means over the clients' test examples, with a row for each (``record_reports``)."""
        task, received = self.plan.at(server_round), self.exchange.by_partition(replies)
        means = record_reports(self._guarded, task, sorted(self.exchange.nodes), received)
        if not means:
            return None
        self.accuracy = means[CLEAN_ACCURACY]
        return MetricRecord({**means})
