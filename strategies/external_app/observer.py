"""A curious server next to any Flower strategy, which requests probes, observes replies, and has clients score guesses."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from logging import INFO, WARNING

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common import log
from flwr.serverapp import Grid

from attacks.choice import Needless
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
from strategies.external_app.nodes import AppExchange, AppNodes, common_config, probe_question
from strategies.external_app.record import (
    AppAuditor,
    AppFacts,
    AuditError,
    AuditRecord,
    Gate,
    OpenResults,
    Results,
    say_how_many,
)
from strategies.external_app.replies import (
    UnusableReplyError,
    examples_behind,
    mismatch,
    reported_budgets,
    update_of,
    weights_sent,
)
from strategies.external_app.settings import AuditSettings
from strategies.external_app.trainings import ASSUMED, SeenTraining, as_most, assumptions, observed, together
from strategies.federated.audit import UpdateAudit
from strategies.federated.observations import PROBE, UPDATE, SeenUpdate

UNKNOWN = {"local_epochs": 0, "batch_size": 0}
"""Settings of a training that was not observed."""


@dataclass(frozen=True)
class _Running:
    """An audit from the first reply of a node on."""

    results: Results
    auditor: AppAuditor
    updates: UpdateAudit


@dataclass(frozen=True)
class _Round:
    """What the server sent in an attacked round: for each node its message and its weights, and those of the first."""

    grid: Grid
    requests: Mapping[int, Message]
    sent: Mapping[int, Tensors]
    weights: Tensors
    left_out: Sequence[tuple[int, str]]


class AppAudit:
    """The audit of one run; ``open_results`` opens the folder of rows and pictures after a node's first report.

    With a ``gate`` a round waits for the attacks on those before it.

    Attributes:
        settings: Settings of the audit.
        record: What is recorded besides scores.
    """

    def __init__(self, open_results: OpenResults, settings: AuditSettings, gate: Gate | None = None) -> None:
        self.settings, self._gate = settings, gate
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
        self._stopped: Sequence[str] = ()
        self._late: Sequence[str] = ()

    def before(self, server_round: int, messages: Sequence[Message], grid: Grid) -> None:
        """Remember the sent weights of an attacked round, and request the metadata of new nodes.

        Raises:
            AuditError: In the first attacked round, with all that is missing for an audit; in any round where the gate says that a
                limit is broken.
        """
        self._round = None
        if self._gate:
            self._stopped = self._broken(self._gate)
            if self._stopped:
                raise AuditError(self._stopped, f"the gate stopped the federation before round {server_round}")
        elif self._running is not None:
            self._running.auditor.collect()
        if not messages or server_round not in self.settings.rounds:
            return
        self._own.clear()
        self._own.update(common_config(messages))
        requests = {message.metadata.dst_node_id: message for message in messages}
        left_out, missing, sent = list[tuple[int, str]](), list[str](), dict[int, Tensors]()
        try:
            sent = weights_sent(messages, self._model, self._names)
        except UnusableReplyError as error:
            missing.append(f"model: {error}")
        try:
            left_out = self._nodes.set_up(self._plan.at(server_round), requests, grid, self.settings.timeout)
            self.record.budgets = reported_budgets(self._nodes.reported["budgets"])
            if not self._checked:
                card = DataCard.from_json(self._nodes.reported["card"])
                require_attackable(self._plan.model, self._plan.build_model(), card.num_classes, card.input_shape)
        except UnusableReplyError as error:
            missing.append(f"clients: {error}")
        except ModelError as error:
            missing.append(f"model: {error}")
        first, self._checked = not self._checked, True
        if missing:
            raise AuditError(missing) if first else UnusableReplyError("; ".join(missing))
        weights = sent[messages[0].metadata.dst_node_id]
        self._round = _Round(grid, requests, sent, {name: weights[name] for name in self._names}, left_out)

    def _broken(self, gate: Gate) -> Sequence[str]:
        """The limits that are broken when all attacks on earlier rounds have ended; that nobody can say so is one, too."""
        try:
            if self._running is not None:
                self._running.auditor.collect(wait=True)
            return self.record.held(gate)
        except Exception as error:  # else the federation would go on without its limits
            return [f"the gate cannot decide: {type(error).__name__}: {error}"]

    def after(self, server_round: int, replies: Sequence[Message]) -> None:
        """Asks the nodes that answered an attacked round what their trainings did, requests probes, and begins the attacks."""
        sent = self._round
        if sent is None:
            return
        answered = [pair for pair in self._nodes.numbered(replies) if pair[1].metadata.src_node_id in sent.requests]
        exchange = AppExchange(sent.grid, self._nodes.ids, self.settings.timeout, self._own)
        trained, left_out = self._trainings(server_round, exchange, [partition for partition, _ in answered])
        running = self._running = self._running or self._begin(exchange, trained, answered)
        task = self._plan.at(server_round, self._plan.learning_rate)
        for partition, why in sent.left_out:
            self.record.left_out(task, why, partition)
        for partition, why, reply in left_out:
            self.record.left_out(task, why, partition, reply)
        if self.settings.canaries:
            self._canaries.observe(task, answered, lambda answer: self._update(answer, sent), exchange, running.results)
        if not trained:
            return
        task = self._task(server_round, trained)
        running.auditor.facts = self._facts(trained)
        self._say(running, task, trained)
        if running.updates.attacks[PROBE]:
            self._probe(running, task, sent, set(trained))
        if self.settings.canaries:
            return
        usable = []
        for partition, reply in answered:
            if wrong := mismatch(reply, self._nodes.examples[partition]):
                self.record.left_out(task, f"train: {wrong}", partition)
            elif partition in trained:
                usable.append((partition, reply))
        if running.updates.attacks[UPDATE]:
            self._attack_updates(running, task, sent, trained, usable)

    def _trainings(
        self, server_round: int, exchange: AppExchange, partitions: Sequence[int]
    ) -> tuple[dict[int, SeenTraining], list[tuple[int, str, Message | None]]]:
        """Partition -> what its training did, of nodes that train alike; and of the others partition, why, and the reply."""
        if not any(self.settings.attacks().values()):  # canaries alone
            return {}, []
        task = self._plan.at(server_round)
        replies = exchange("query.training", {at: RecordDict({"config": exchange.config(task)}) for at in partitions})
        trained, left_out = dict[int, SeenTraining](), list[tuple[int, str, Message | None]]()
        for partition in partitions:
            try:
                trained[partition] = SeenTraining.read(replies.get(partition))
            except UnusableReplyError as error:
                left_out.append((partition, f"query.training: {error}", replies.get(partition)))
        alike, others = as_most(trained, self._nodes.examples)
        return alike, left_out + [(at, f"train: {why}; this node is left out", None) for at, why in others.items()]

    def _say(self, running: _Running, task: Task, trained: Mapping[int, SeenTraining]) -> None:
        """Add the row about what could not be known, and warn of what differs from a probe."""
        mods, unsent, mode = self._nodes.reported["protection"], len(self._nodes.unsent), self._plan.probe_mode
        unknown = assumptions(self._nodes.reported["loss"], mods=mods, probe_mode=mode, unsent=unsent)
        warnings = list(together(trained).warnings(mods))
        for text in warnings:
            log(WARNING, "Audit: %s", text)
        count = len(trained)
        running.results.row(task, metric=ASSUMED, value=float(count), n=count, assumed=unknown, warnings=warnings)

    def _attack_updates(
        self, running: _Running, task: Task, sent: _Round, trained: Mapping[int, SeenTraining],
        replies: Sequence[tuple[int, Message]],
    ) -> None:  # fmt: skip
        seen = list[SeenUpdate]()
        for partition, reply in replies:
            training = trained[partition].training
            try:
                if not training.batch_size:
                    raise UnusableReplyError(
                        "updates are not attacked, as how many images its steps are on was not seen"
                    )
                update, count = self._update(reply, sent), examples_behind(reply)
            except UnusableReplyError as error:
                self.record.left_out(task, f"train: {error}", partition)
                continue
            seen.append(SeenUpdate(partition, 0, count, update, training.steps, train_mode=training.train_mode))
        running.updates.attack(task, UPDATE, sent.weights, None, seen)

    def finish(self) -> None:
        """Wait for the attacks, and have the report written."""
        if self._gate and not self._stopped:
            self._late = ["the gate was not decided"]  # which stands where an error comes first
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
            if self._gate and not self._stopped:
                self._late = self._broken(self._gate)
                for reason in self._late:
                    self.record.note(max(self.settings.rounds), reason)
        finally:
            self._pool.close()
            self.record.finish()

    def require_attacked(self) -> None:
        """Raise ``AuditError`` where a limit is broken at the end, or no attack has a score, unless the run is to go on without."""
        if self._late and not self.settings.go_on:
            raise AuditError(self._late, "limits of the gate are broken or undecided after the last round")
        if not (self.settings.go_on or self.record.attacked):
            raise AuditError(self.record.failures, "the audit attacked nothing")

    def _begin(
        self, exchange: AppExchange, trained: Mapping[int, SeenTraining], answered: Sequence[tuple[int, Message]]
    ) -> _Running:
        """Opens the results. Probes are planned for the nodes that answered."""
        reported = self._nodes.reported
        examples = [self._nodes.examples[partition] for partition, _ in answered]
        self._plan = replace(
            self._plan, card=DataCard.from_json(reported["card"]), pipeline=reported["protection"],
            probe_targets=self.settings.targets(examples),
        )  # fmt: skip
        self._plan = replace(self._plan, **(observed(trained, self._nodes.examples) if trained else UNKNOWN))
        attacks = self.settings.attacks()
        if attacks[PROBE]:
            say_how_many(len(examples), self._plan.probe_targets, self.settings.probe_images)
        results = self.record.begin(self._plan)
        auditor = AppAuditor(
            exchange, self._pool, results, share_images=self.settings.share_images, randomness=self._nodes.randomness
        )
        rounds, needless = self.settings.rounds, dict.fromkeys(self.settings.in_turn, Needless.SKIP)
        updates = UpdateAudit(auditor, attacks, rounds, max(rounds), "p00", needless)
        return _Running(results, auditor, updates)

    def _probe(self, running: _Running, task: Task, sent: _Round, partitions: Collection[int]) -> None:
        """One-step updates of every node that trained in this round, one message for each: mods expect the weights of one model."""
        count, exchange = self._plan.probe_targets, running.auditor.exchange
        messages = [pair for pair in self._nodes.numbered(sent.requests.values(), sent=True) if pair[0] in partitions]
        probed: dict[int, list[SeenUpdate]] = {}
        for target in range(count):
            # A node that did not answer one probe gets no further ones, as its others could not be attacked without a gap.
            questions = {
                partition: probe_question(message, exchange.config(task, target=target))
                for partition, message in messages
                if len(probed.get(partition, ())) == target
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
                probed.setdefault(partition, []).append(SeenUpdate(partition, target, images, update))
        complete = (ones for _, ones in sorted(probed.items()) if len(ones) == count)
        running.updates.attack(task, PROBE, sent.weights, None, [probe for ones in complete for probe in ones])

    def _facts(self, trained: Mapping[int, SeenTraining]) -> AppFacts:
        probes = self._plan.probe_targets if self.settings.attacks()[PROBE] else 0
        return AppFacts(together(trained), self._nodes.reported["loss"], self.record.budgets, probes)

    def _task(self, server_round: int, trained: Mapping[int, SeenTraining]) -> Task:
        plan = replace(self._plan, **observed(trained, self._nodes.examples))
        return plan.at(server_round, plan.learning_rate)

    def _update(self, reply: Message, sent: _Round) -> Tensors:
        mine = sent.sent[reply.metadata.src_node_id]
        if any(not mine[name].equal(weight) for name, weight in sent.weights.items()):
            raise UnusableReplyError("this node was sent other weights than the first one of the round")
        return update_of(reply, mine, self._names, self._model)
