"""What a curious server does beside somebody's own strategy: it asks for probes, looks at replies, and has guesses scored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from logging import INFO
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from torch import Tensor

from attacks.base import Attack
from attacks.local_model import shared_tensors
from clients.data.card import DataCard
from clients.external_app.plan import AppPlan
from clients.task.task import Task
from clients.wire.records import MAX_REASON, REFUSED, reason_of, values_of
from clients.wire.texts import one_line, shortened
from strategies.audit.kinds import Kind
from strategies.audit.pool import AttackPool
from strategies.audit.threat_card import FROM_SEED, OWN_SECRET
from strategies.exchange.exchange import Exchange
from strategies.external_app.assumptions import ASSUMED, assumptions
from strategies.external_app.orders import UNTOLD, Orders, orders_of
from strategies.external_app.replies import (
    UnusableReplyError,
    budgets_told,
    card_text,
    examples_behind,
    mismatch,
    update_of,
    weights_sent,
)
from strategies.external_app.requests import ask_differences, probe_question
from strategies.external_app.results import AppAuditor, OpenResults, Results, Told
from strategies.external_app.settings import AuditSettings
from strategies.federated.audit import UpdateAudit
from strategies.federated.observations import ACTIVE, AGGREGATE, PROBE, PROBE_ATTRIBUTE, UPDATE, SeenUpdate

UNREGISTERED = "No query function registered"
"""What Flower answers where an app has no function for a message."""


class Curiosity:
    """The audit of one run.

    Args:
        open_results: Opens what keeps rows and pictures, once it is known what the nodes have.
        settings: What is attacked, and how.
    """

    def __init__(self, open_results: OpenResults, settings: AuditSettings) -> None:
        self.settings = settings
        self._open = open_results
        self._pool = AttackPool(settings.workers)
        self._plan: AppPlan = settings.plan(max(settings.rounds))
        model = self._plan.build_model()
        self._state = model.state_dict()
        # Buffers that no state holds are the same everywhere, and are never sent.
        self._names = {name: value for name, value in shared_tensors(model).items() if name in self._state}
        self._nodes: dict[int, int] = {}
        """Partition -> node id."""
        self._results: Results | None = None
        self._audit: UpdateAudit | None = None
        self._auditor: AppAuditor | None = None
        self._asked: dict[int, Message] = {}
        """Node id -> the message of training of this round."""
        self._sent: dict[int, dict[str, Tensor]] = {}
        """Node id -> the weights that it was sent in this round."""
        self._examples: dict[int, int] = {}
        """Partition -> how many examples its ``data`` gives."""
        self._orders: Orders | None = None
        """How nodes were told to train in this round."""
        self._told: dict[str, str] = {}
        """What the first node said of its images, of what protects its replies, and of its loss."""

    @property
    def begun(self) -> bool:
        """Whether a node has answered, so that there are results."""
        return self._results is not None

    def before(self, server_round: int, messages: Sequence[Message], grid: Grid) -> None:
        """Remembers what is sent, and asks for probes where the round is attacked."""
        if self._audit is not None:
            self._audit.auditor.collect()
        self._sent, self._orders = {}, None
        if server_round not in self.settings.rounds or not messages:
            return
        told = [orders_of(message, self.settings.settings) for message in messages]
        if told[0].learning_rate <= 0:
            raise UnusableReplyError("no learning rate: send it as lr or learning-rate, or name it in settings")
        self._orders = told[0]
        sent = weights_sent(messages, self._state, self._names)
        # One observation has one learning rate: whoever was told to train in another way is left out of this round.
        alike = [message for message, one in zip(messages, told, strict=True) if one == told[0]]
        self._asked = {message.metadata.dst_node_id: message for message in alike}
        self._sent = {node: sent[node] for node in self._asked}
        self._set_up(server_round, alike, grid)
        if self._auditor is not None:
            self._auditor.told = self._on_cards(self._orders)
            self._tell_assumptions(server_round, self._orders)
        if len(alike) < len(messages):
            others = f"{len(messages) - len(alike)} of {len(messages)} nodes"
            self._row(
                self._task(server_round), f"train: {others} were told to train in another way than the first; left out"
            )
        if self._audit is not None and self._audit.attacks[PROBE]:
            self._probe(server_round, alike, self._audit)

    def after(self, server_round: int, replies: Sequence[Message]) -> None:
        """Hands an attacked round's updates to the attacks."""
        if self._audit is None or not self._sent or self._orders is None:
            return
        task, orders, usable = self._task(server_round), self._orders, []
        for partition, reply in self._by_partition(replies):
            if wrong := mismatch(reply, self._examples[partition]):
                self._row(task, f"train: {wrong}", partition)
            else:
                usable.append((partition, reply))
        self._check(task, orders, usable)
        if not self._audit.attacks[UPDATE]:
            return
        if not orders.tell_steps:
            self._row(
                task, f"train: updates are not attacked: nobody told {UNTOLD}; send them, or name them in settings"
            )
            return
        weights, seen = self._weights(), list[SeenUpdate]()
        for partition, reply in usable:
            try:
                update, count = self._update(reply, weights), examples_behind(reply)
            except UnusableReplyError as error:
                self._row(task, f"train: {error}", partition)
                continue
            seen.append(SeenUpdate(partition, 0, count, update, orders.steps(count)))
        self._audit.attack(task, UPDATE, weights, None, seen)

    def _check(self, task: Task, orders: Orders, replies: Sequence[tuple[int, Message]]) -> None:
        """Where a client takes one step and no mod is known, it is asked whether its reply is that step on its examples."""
        assert self._auditor is not None
        assert self._results is not None
        pairs = {
            partition: (self._asked[reply.metadata.src_node_id], reply)
            for partition, reply in replies
            if not reply.has_error()
            and orders.steps(self._examples[partition]) == 1
            and len(reply.content.array_records) == 1
        }
        if self._told["protection"] or not pairs:
            return
        found = ask_differences(self._auditor.exchange, self._results, task, pairs)
        self._auditor.told = replace(self._auditor.told, difference=max(found, default=None))

    def finish(self) -> None:
        """Waits for the attacks, and has the report written."""
        try:
            if self._audit is not None:
                if self.settings.workers and (open_jobs := len(self._pool)):
                    log(
                        INFO,
                        "Audit: waiting for attacks on %s observations; Ctrl-C leaves them out of the report",
                        open_jobs,
                    )
                self._audit.auditor.collect(wait=True)
        finally:
            self._pool.close()
            if self._results is not None:
                self._results.finish()

    def note(self, server_round: int, message: str) -> None:
        """A row about what failed; none before a node has answered, as there is no folder yet."""
        if self._results is not None:
            self._results.row(
                self._plan.at(server_round),
                metric="audit",
                value=None,
                status="failed",
                message=one_line(message, MAX_REASON),
            )
            self._results.flush()

    def _set_up(self, server_round: int, messages: Sequence[Message], grid: Grid) -> None:
        """Asks nodes that are not known yet what they have."""
        known = set(self._nodes.values())
        new = [node for node in self._sent if node not in known]
        task = self._plan.at(server_round)
        config = ConfigRecord({"task": task.to_json(), "timeout": self.settings.timeout})
        asked = [Message(RecordDict({"config": config}), dst_node_id=node, message_type="query.setup") for node in new]
        replies = list(grid.send_and_receive(asked, timeout=self.settings.timeout)) if asked else []
        answered = sorted((reply for reply in replies if not reply.has_error()), key=_partition)
        for reply in answered:
            self._nodes[_partition(reply)] = reply.metadata.src_node_id
            self._examples[_partition(reply)] = int(values_of(reply, "metrics")["train-examples"])
        if self._audit is None:
            if not answered:
                reason = "; ".join(sorted({reason_of(reply) for reply in replies})) or "no reply"
                hint = " (does the ClientApp call answer_audits?)" if UNREGISTERED in reason else ""
                raise UnusableReplyError(f"no node answers audits{hint}: {reason}")
            self._begin(answered, grid)
        self._leave_out(server_round, answered)

    def _leave_out(self, server_round: int, answered: Sequence[Message]) -> None:
        """Nodes whose images, protection or loss are not those that the audit began with: one card could not tell of both."""
        for partition, reply in self._by_partition(answered):
            odd = [name for name, value in self._told.items() if card_text(reply, name) != value]
            if odd:
                del self._nodes[partition]
                told = ", ".join(f"{name} {shortened(card_text(reply, name))}" for name in odd)
                self._row(
                    self._task(server_round), f"this node differs from the first and is left out: {told}", partition
                )

    def _begin(self, answered: Sequence[Message], grid: Grid) -> None:
        """Opens the results."""
        assert self._orders is not None
        first = answered[0]
        self._told = {name: card_text(first, name) for name in ("card", "protection", "loss", "budgets")}
        self._plan = replace(
            self._plan,
            card=DataCard.from_json(self._told["card"]),
            pipeline=self._told["protection"],
            local_epochs=self._orders.local_epochs,
            batch_size=self._orders.batch_size,
            learning_rate=self._orders.learning_rate,
        )
        self._results = self._open(self._plan)
        said = {"seed": FROM_SEED, "secret": OWN_SECRET}
        randomness = " or ".join(sorted({said.get(card_text(reply, "randomness"), "unknown") for reply in answered}))
        exchange = Exchange(grid, self._nodes, self.settings.timeout)
        auditor = AppAuditor(
            exchange, self._pool, self._results, share_images=self.settings.share_images, randomness=randomness
        )
        self._auditor = auditor
        attacks: dict[Kind, tuple[Attack[Any, Any], ...]] = {
            PROBE: self.settings.attacks_on_probes(), UPDATE: self.settings.attacks_on_updates(), PROBE_ATTRIBUTE: (),
            ACTIVE: (), AGGREGATE: (),
        }  # fmt: skip
        self._audit = UpdateAudit(auditor, attacks, self.settings.rounds, max(self.settings.rounds), "p00")

    def _probe(self, server_round: int, messages: Sequence[Message], audit: UpdateAudit) -> None:
        """One-step updates of every node that trains in this round, one message for each: mods expect the weights of one model."""
        task, weights, count = self._task(server_round), self._weights(), self.settings.probe_targets
        found: dict[int, list[SeenUpdate]] = {}
        for target in range(count):
            # Who did not answer one probe is asked for no more: its others could not be attacked without a gap.
            asked = [(p, m) for p, m in self._addressed(messages) if len(found.get(p, ())) == target]
            replies = audit.auditor.exchange(
                "train.probe", {p: probe_question(m, task, target, self.settings.timeout) for p, m in asked}
            )
            for partition, _ in asked:
                where = f"train.probe {target}"
                if partition not in replies:
                    self._row(task, f"{where}: no reply; its probes of this round are left out", partition)
                    continue
                try:
                    update, images = self._update(replies[partition], weights), examples_behind(replies[partition])
                except UnusableReplyError as error:
                    why = f"{where}: {error}; its probes of this round are left out"
                    self._row(task, why, partition, replies[partition])
                    continue
                found.setdefault(partition, []).append(SeenUpdate(partition, target, images, update))
        whole = (ones for _, ones in sorted(found.items()) if len(ones) == count)
        audit.attack(task, PROBE, weights, None, [one for ones in whole for one in ones])

    def _on_cards(self, orders: Orders) -> Told:
        """What threat cards of the round say of the app."""
        asked = self._audit is not None and self._audit.attacks[PROBE]
        steps = [orders.steps(self._examples[p]) for p in self._nodes]
        probes = self.settings.probe_targets if asked else 0
        budgets = budgets_told(self._told["budgets"])
        return Told(self._told["loss"], budgets, probes, orders.rate_source, one_step=set(steps) == {1})

    def _tell_assumptions(self, server_round: int, orders: Orders) -> None:
        """A row of what nobody could know in this round."""
        assert self._results is not None
        told = assumptions(self._plan, orders, self._told["loss"], mods=self._told["protection"])
        count = len(self._nodes)
        self._results.row(self._task(server_round), metric=ASSUMED, value=float(count), n=count, assumed=told)

    def _task(self, server_round: int) -> Task:
        """As nodes were told to train in this round."""
        assert self._orders is not None
        told = self._orders
        plan = replace(self._plan, local_epochs=told.local_epochs, batch_size=told.batch_size)
        return plan.at(server_round, told.learning_rate)

    def _weights(self) -> dict[str, Tensor]:
        """The global model of the round: what the first node was sent."""
        first = next(iter(self._sent.values()))
        return {name: first[name] for name in self._names}

    def _update(self, reply: Message, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        mine = self._sent[reply.metadata.src_node_id]
        if any(not mine[name].equal(weight) for name, weight in weights.items()):
            raise UnusableReplyError("this node was sent other weights than the first one of the round")
        return update_of(reply, mine, self._names, self._state)

    def _addressed(self, messages: Sequence[Message]) -> list[tuple[int, Message]]:
        of = {message.metadata.dst_node_id: message for message in messages}
        return [(partition, of[node]) for partition, node in sorted(self._nodes.items()) if node in of]

    def _by_partition(self, replies: Sequence[Message]) -> list[tuple[int, Message]]:
        of = {reply.metadata.src_node_id: reply for reply in replies}
        known = [(partition, node) for partition, node in sorted(self._nodes.items()) if node in self._sent]
        return [(partition, of[node]) for partition, node in known if node in of]

    def _row(self, task: Task, message: str, partition: int | None = None, reply: Message | None = None) -> None:
        """Of what could not be attacked."""
        assert self._results is not None
        refused = reply is not None and reply.has_error() and reply.error.code == REFUSED
        status = "refused" if refused else "failed"
        self._results.row(
            task, metric="client", value=None, status=status, client=partition, message=one_line(message, MAX_REASON)
        )


def _partition(reply: Message) -> int:
    """Of the node that answers ``query.setup``."""
    return int(values_of(reply, "metrics")["partition"])
