"""A curious server next to any Flower strategy, which requests probes, observes replies, and has clients score guesses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from logging import INFO, WARNING

from flwr.app import ConfigRecord, Message
from flwr.common import log
from flwr.serverapp import Grid

from attacks.local_model import shared_tensors
from clients.data.card import DataCard
from clients.external_app.partial import AppModel
from clients.external_app.plan import AppPlan
from clients.models.library import ModelError
from clients.models.own import require_attackable
from clients.task.task import Task
from defenses.tensors import Tensors
from strategies.audit.pool import AttackPool
from strategies.external_app.canaries import AppCanaries
from strategies.external_app.nodes import AppExchange, AppNodes, ask_differences, common_config, probe_question
from strategies.external_app.orders import ASSUMED, OF_ARGUMENTS, Orders, assumptions, orders_in, other_rates
from strategies.external_app.record import (
    NO_RATE,
    NO_STEPS,
    AppAuditor,
    AppFacts,
    AuditError,
    AuditRecord,
    OpenResults,
    Results,
    say_how_many,
)
from strategies.external_app.replies import (
    UnusableReplyError,
    examples_behind,
    mismatch,
    reported_budgets,
    reported_rate,
    update_of,
    weights_sent,
)
from strategies.external_app.settings import AuditSettings
from strategies.federated.audit import UpdateAudit
from strategies.federated.observations import PROBE, UPDATE, SeenUpdate


@dataclass(frozen=True)
class _Running:
    """An audit from the first reply of a node on."""

    results: Results
    auditor: AppAuditor
    updates: UpdateAudit


@dataclass(frozen=True)
class _Round:
    """What the server sent in an attacked round: the orders, for each node its message and its weights, and those of the first."""

    orders: Orders
    requests: Mapping[int, Message]
    sent: Mapping[int, Tensors]
    weights: Tensors


class AppAudit:
    """The audit of one run; ``open_results`` opens the folder of rows and pictures after a node's first report.

    Attributes:
        settings: Settings of the audit.
        record: What is recorded besides scores.
    """

    def __init__(self, open_results: OpenResults, settings: AuditSettings) -> None:
        self.settings = settings
        self._pool = AttackPool(settings.workers)
        self._plan: AppPlan = settings.plan()
        self.record = AuditRecord(open_results, self._plan)
        model = self._plan.build_model()
        self._model = AppModel.of(model)
        self._names = shared_tensors(model)
        self._nodes = AppNodes(self._model)
        self._canaries = AppCanaries({name: value.numel() for name, value in self._names.items()})
        self._own: dict[str, ConfigRecord] = {}
        self._running: _Running | None = None
        self._round: _Round | None = None
        self._checked = False
        self._left_out: list[tuple[int, str]] | None = None

    def before(self, server_round: int, messages: Sequence[Message], grid: Grid) -> None:
        """Remember the sent weights, and request probes where the round is attacked.

        Raises:
            AuditError: In the first attacked round, with all that is missing for an audit.
        """
        if self._running is not None:
            self._running.auditor.collect()
        self._round = None
        if not messages or server_round not in self.settings.rounds:
            return
        self._own.clear()
        self._own.update(common_config(messages))
        given = Orders(self.settings.learning_rate, OF_ARGUMENTS, self.settings.local_epochs, self.settings.batch_size)
        ordered = [
            orders_in(list(message.content.config_records.values()), self.settings.settings, given)
            for message in messages
        ]
        if not self._checked:
            self._checked = True
            if missing := self._missing(server_round, messages, ordered, grid):
                self._left_out = None
                raise AuditError(missing)
        orders = ordered[0]
        if orders.learning_rate <= 0:
            raise UnusableReplyError(NO_RATE)
        sent = weights_sent(messages, self._model, self._names)
        # One observation has one learning rate: a node that trains in another way is left out of this round.
        requests = {
            message.metadata.dst_node_id: message
            for message, one in zip(messages, ordered, strict=True)
            if one == orders
        }
        first = sent[next(iter(requests))]
        self._round = _Round(orders, requests, sent, {name: first[name] for name in self._names})
        # The first attacked round's check has set up the nodes of that round already.
        left_out = self._set_up(server_round, requests, grid) if self._left_out is None else self._left_out
        self._left_out = None
        running = self._running = self._running or self._begin(orders, requests, grid)
        task = self._task(server_round, orders)
        for partition, why in left_out:
            self.record.left_out(task, why, partition)
        running.auditor.facts = self._facts(orders)
        mods, unsent = self._nodes.reported["protection"], len(self._nodes.unsent)
        unknown = assumptions(self._plan, orders, self._nodes.reported["loss"], mods=mods, unsent=unsent)
        count = len(self._nodes.ids)
        running.results.row(task, metric=ASSUMED, value=float(count), n=count, assumed=unknown)
        self._warn_of_rates(running, task, "were sent", {node: reported_rate(one) for node, one in requests.items()})
        if others := len(messages) - len(requests):
            why = f"train: {others} of {len(messages)} nodes train by other settings than the first; left out"
            self.record.left_out(task, why)
        if running.updates.attacks[PROBE]:
            self._probe(running, task, self._round)

    def _warn_of_rates(self, running: _Running, task: Task, verb: str, rates: Mapping[int, float | None]) -> None:
        """Warns in the log and on the page where clients do not train at the attacks' learning rate."""
        if warning := other_rates(task.round, verb, rates, task.learning_rate):
            log(WARNING, "Audit: %s", warning)
            running.results.row(task, metric=ASSUMED, value=float(len(rates)), n=len(rates), warnings=[warning])

    def _set_up(self, server_round: int, sent: Mapping[int, Message], grid: Grid) -> list[tuple[int, str]]:
        left_out = self._nodes.set_up(self._plan.at(server_round), sent, grid, self.settings.timeout)
        self.record.budgets = reported_budgets(self._nodes.reported["budgets"])
        return left_out

    def _missing(
        self, server_round: int, messages: Sequence[Message], ordered: Sequence[Orders], grid: Grid
    ) -> list[str]:
        """All that keeps the audit from attacking anything, each with what to do about it."""
        found = []
        if not all(one.learning_rate > 0 for one in ordered):
            named = sorted({key for one in messages for of in one.content.config_records.values() for key in of})
            found.append(f"{NO_RATE}. The messages of round {server_round} hold {', '.join(named) or 'no setting'}")
        probes = self.settings.canaries or self.settings.attacks()[PROBE]
        if not probes and not any(one.knows_steps for one in ordered):
            found.append(f"{NO_STEPS}. probe_attacks names no attack either")
        try:
            weights_sent(messages, self._model, self._names)
        except UnusableReplyError as error:
            found.append(f"model: {error}")
        try:
            nodes = {message.metadata.dst_node_id: message for message in messages}
            self._left_out = self._set_up(server_round, nodes, grid)
            card = DataCard.from_json(self._nodes.reported["card"])
            require_attackable(self._plan.model, self._plan.build_model(), card.num_classes, card.input_shape)
        except UnusableReplyError as error:
            found.append(f"clients: {error}")
        except ModelError as error:
            found.append(f"model: {error}")
        return found

    def after(self, server_round: int, replies: Sequence[Message]) -> None:
        """Hands an attacked round's updates to the attacks."""
        running, sent = self._running, self._round
        if running is None or sent is None:
            return
        task, usable = self._task(server_round, sent.orders), []
        ordered = [one for one in self._nodes.numbered(replies) if one[1].metadata.src_node_id in sent.requests]
        if self.settings.canaries:
            exchange = running.auditor.exchange
            self._canaries.observe(task, ordered, lambda one: self._update(one, sent), exchange, running.results)
            return
        for partition, reply in ordered:
            if wrong := mismatch(reply, self._nodes.examples[partition]):
                self.record.left_out(task, f"train: {wrong}", partition)
            else:
                usable.append((partition, reply))
        self._warn_of_rates(running, task, "reported", {one: reported_rate(reply) for one, reply in usable})
        self._check(running, task, sent, usable)
        if not running.updates.attacks[UPDATE]:
            return
        if not sent.orders.knows_steps:
            self.record.left_out(task, f"train: updates are not attacked: {NO_STEPS}")
            return
        seen = list[SeenUpdate]()
        for partition, reply in usable:
            try:
                update, count = self._update(reply, sent), examples_behind(reply)
            except UnusableReplyError as error:
                self.record.left_out(task, f"train: {error}", partition)
                continue
            seen.append(SeenUpdate(partition, 0, count, update, sent.orders.steps(count)))
        running.updates.attack(task, UPDATE, sent.weights, None, seen)

    def _check(self, running: _Running, task: Task, sent: _Round, replies: Sequence[tuple[int, Message]]) -> None:
        """Where a client takes one step and no mod is known, it compares its reply with that step on its examples."""
        pairs = {
            partition: (sent.requests[reply.metadata.src_node_id], reply)
            for partition, reply in replies
            if not reply.has_error()
            and sent.orders.steps(self._nodes.examples[partition]) == 1
            and len(reply.content.array_records) == 1
        }
        if self._nodes.reported["protection"] or not pairs:
            return
        found = ask_differences(running.auditor.exchange, running.results, task, pairs)
        running.auditor.facts = replace(running.auditor.facts, difference=max(found, default=None))

    def finish(self) -> None:
        """Wait for the attacks, and have the report written."""
        try:
            if self._running is not None:
                if self.settings.canaries:
                    self.record.audited(
                        self._canaries.conclude(self._plan.at(max(self.settings.rounds)), self._running.results)
                    )
                if self.settings.workers and (jobs := len(self._pool)):
                    log(
                        INFO,
                        "Audit: waiting for attacks on %s observations; Ctrl-C leaves them out of the report",
                        jobs,
                    )
                self._running.auditor.collect(wait=True)
        finally:
            self._pool.close()
            self.record.finish()

    def require_attacked(self) -> None:
        """Raise ``AuditError`` where no attack has a score, unless the run is to go on without."""
        if not (self.settings.go_on or self.record.attacked):
            raise AuditError(self.record.failures, "the audit attacked nothing")

    def _begin(self, orders: Orders, requests: Mapping[int, Message], grid: Grid) -> _Running:
        """Opens the results. Probes are planned for the nodes that train as ordered."""
        reported = self._nodes.reported
        examples = [self._nodes.examples[one] for one, _ in self._nodes.numbered(requests.values(), sent=True)]
        self._plan = replace(
            self._plan, card=DataCard.from_json(reported["card"]), pipeline=reported["protection"],
            local_epochs=orders.local_epochs, batch_size=orders.batch_size, learning_rate=orders.learning_rate,
            probe_targets=self.settings.targets(examples),
        )  # fmt: skip
        attacks = self.settings.attacks()
        if attacks[PROBE]:
            say_how_many(len(examples), self._plan.probe_targets, self.settings.probe_images)
        results = self.record.begin(self._plan)
        exchange = AppExchange(grid, self._nodes.ids, self.settings.timeout, self._own)
        auditor = AppAuditor(
            exchange, self._pool, results, share_images=self.settings.share_images, randomness=self._nodes.randomness
        )
        rounds, in_turn = self.settings.rounds, self.settings.in_turn
        updates = UpdateAudit(auditor, attacks, rounds, max(rounds), "p00", in_turn)
        return _Running(results, auditor, updates)

    def _probe(self, running: _Running, task: Task, sent: _Round) -> None:
        """One-step updates of every node that trains in this round, one message for each: mods expect the weights of one model."""
        count, exchange = self._plan.probe_targets, running.auditor.exchange
        found: dict[int, list[SeenUpdate]] = {}
        for target in range(count):
            # A node that did not answer one probe gets no further ones, as its others could not be attacked without a gap.
            messages = self._nodes.numbered(sent.requests.values(), sent=True)
            questions = {
                partition: probe_question(message, exchange.config(task, target=target))
                for partition, message in messages
                if len(found.get(partition, ())) == target
            }
            replies = exchange("train.probe", questions)
            for partition in questions:
                reply = replies.get(partition)
                try:
                    if reply is None:
                        raise UnusableReplyError("no reply")
                    update = self._update(reply, sent)
                    images = examples_behind(reply, self.settings.probe_images)
                except UnusableReplyError as error:
                    why = f"train.probe {target}: {error}; its probes of this round are left out"
                    self.record.left_out(task, why, partition, reply)
                    continue
                found.setdefault(partition, []).append(SeenUpdate(partition, target, images, update))
        complete = (ones for _, ones in sorted(found.items()) if len(ones) == count)
        running.updates.attack(task, PROBE, sent.weights, None, [one for ones in complete for one in ones])

    def _facts(self, orders: Orders) -> AppFacts:
        """The facts of a round for threat cards."""
        steps = {orders.steps(self._nodes.examples[partition]) for partition in self._nodes.ids}
        probes = self._plan.probe_targets if self.settings.attacks()[PROBE] else 0
        loss = self._nodes.reported["loss"]
        return AppFacts(loss, self.record.budgets, probes, orders.rate_source, one_step=steps == {1})

    def _task(self, server_round: int, orders: Orders) -> Task:
        """The task of a round in which nodes train as ordered."""
        plan = replace(self._plan, local_epochs=orders.local_epochs, batch_size=orders.batch_size)
        return plan.at(server_round, orders.learning_rate)

    def _update(self, reply: Message, sent: _Round) -> Tensors:
        mine = sent.sent[reply.metadata.src_node_id]
        if any(not mine[name].equal(weight) for name, weight in sent.weights.items()):
            raise UnusableReplyError("this node was sent other weights than the first one of the round")
        return update_of(reply, mine, self._names, self._model)
