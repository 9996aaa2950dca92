"""Attacks on smashed data: the server keeps the clients' audit batches and passes them to the attacks.

Exposure is that of the run: an attack sees an image as often as the run itself has sent it by the end of the attacked round, with
the weights that the client half has in that round. Audit batches stand for these transmissions; they repeat none beyond them,
unless an upper bound asks for it (``SmashedAttack.beyond_run``).
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from flwr.app import Message, RecordDict
from torch import Tensor

from attacks.smashed.base import SmashedAttack
from clients.scoring.image_scores import paper_scale
from clients.split.plan import SplitPasses, SplitPlan
from clients.task.task import Task
from clients.wire.records import tensors_of, to_record
from defenses.tensors import Tensors
from strategies.audit.auditor import Auditor
from strategies.audit.jobs import AttackJob
from strategies.audit.kinds import Observed
from strategies.audit.threat_card import KnownLabels, ThreatCard, strength
from strategies.exchange.faults import fault, like
from strategies.split.observations import SMASHED, SeenTokens
from strategies.split.server import Holder, SplitServer


@dataclass(frozen=True)
class SplitAudit:
    """Request audit batches and queue the attacks on them, in the attacked ``rounds``."""

    auditor: Auditor
    attacks: tuple[SmashedAttack[Any], ...]
    rounds: frozenset[int]
    label: str

    def transmissions(self, task: Task, num_train: int) -> int:
        """How often the round's audit sends an image: as often as the most demanding attack needs and the run allows."""
        most = most_transmissions(task, num_train)
        return max((a.transmissions if a.beyond_run else min(a.transmissions, most) for a in self.attacks), default=0)

    def extra_transmissions(self, task: Task, num_train: int) -> int:
        """Most transmissions of one example of a client in all audits up to the task's round.

        Training examples; test images where the server learned from the training images (``auxiliary_data`` "private"). The
        last round's number holds the audit of the final model as well.
        """
        until = task.round if task.round < task.plan.rounds else max(self.rounds, default=0)
        return sum(
            task.plan.probe_targets * self.transmissions(task.but(round=at), num_train)
            for at in self.rounds
            if at <= until
        )

    def observe(self, task: Task, server: SplitServer) -> None:
        """Queue one round's attacks; each gets its transmissions, at most as many as the run itself has sent by then."""
        if not self.attacks:
            return
        transmissions = max(self.transmissions(task, holder.num_train) for holder in server.holders.values())
        good = self._ask(task, server, transmissions, reveal=any(attack.reveals_order for attack in self.attacks))
        seen = [
            self._seen(task, server, partition, reply, target)
            for partition, reply in good.items()
            for target in range(task.plan.probe_targets)
        ]
        if not seen:  # every node refused
            return
        trained = server.plan.trains_edge and task.plan.auxiliary_data != "private"
        if trained and any(attack.profile.needs_step for attack in self.attacks):
            seen = self._with_steps(task, server, good, seen)
        counts = [tensors_of(good[tokens.partition], "exposure")[f"target-{tokens.target}"] for tokens in seen]
        low, high = (int(end) for end in torch.cat(counts).aminmax())
        card = self._card(task, server, seen, low if low == high else f"{low} to {high}")
        judges = self.auditor.baselines(task, SMASHED, seen, card)
        judged = [(tokens, count) for tokens, count in zip(seen, counts, strict=True) if tokens.partition in judges]
        for at, attack in enumerate(self.attacks):
            # A client that keeps the order to itself is not attacked by attacks that need it.
            of = [(tokens, count) for tokens, count in judged if tokens.orders is not None or not attack.reveals_order]
            if not of:
                continue
            most = attack.transmissions
            if not attack.beyond_run:
                most = max(1, min(most, transmissions, max(int(count.max()) for _, count in of)))
            more: dict[str, Any] = {"transmissions_used": most}
            if attack.profile.needs_step:
                more |= {"client_half_update": "one step"} | strength(task, 1)
            observed = Observed(task, server.weights(), [_slice(tokens, attack, most, count) for tokens, count in of])
            name = f"{self.label}-r{task.round:04d}-smashed-{at:02d}"
            self.auditor.submit(AttackJob(name, (attack,), SMASHED, observed, card.but(**more)))

    def _ask(self, task: Task, server: SplitServer, transmissions: int, *, reveal: bool) -> dict[int, Message]:
        since, until = window(task)
        config = {"transmissions": transmissions, "reveal-order": reveal, "since": since, "until": until}
        content = RecordDict({"config": server.exchange.config(task, **config)})
        if server.plan.trains_edge:
            content["edge"] = to_record(server.edge)
        names = task.target_records
        classes = task.plan.data_card().num_classes

        def fault_in(partition: int, reply: Message) -> str:
            attacked, company = audit_sizes(task, server.holders[partition])
            size = attacked + company
            shape = {"features": like(transmissions, size, *server.token_shape)}
            targets = dict.fromkeys(names, like(size, classes))
            counts = dict.fromkeys(names, like(attacked, dtype=np.int64))
            faults = [fault(reply, shape, name) for name in names]
            faults += [fault(reply, targets, "targets"), fault(reply, counts, "exposure")]
            return next(filter(None, faults), "")

        server.exchange.bounds["train.smash"] = dict.fromkeys(names, server.features) | {"targets": server.targets}
        return server.exchange.ask(task, "train.smash", dict.fromkeys(server.holders, content), fault_in)

    def _seen(self, task: Task, server: SplitServer, partition: int, reply: Message, target: int) -> SeenTokens:
        attacked, _ = audit_sizes(task, server.holders[partition])
        features = tensors_of(reply, f"target-{target}")["features"]
        orders = tensors_of(reply, "orders").get(f"target-{target}")
        return SeenTokens(partition, target, attacked, features, orders=orders)

    def _with_steps(
        self, task: Task, server: SplitServer, good: dict[int, Message], seen: list[SeenTokens]
    ) -> list[SeenTokens]:
        """Adds each client half's one-step update on the first transmission, and the gradient that the server returned for it."""
        gradients: dict[int, Tensors] = {partition: {} for partition in good}
        for tokens in seen:
            name = f"target-{tokens.target}"
            targets = tensors_of(good[tokens.partition], "targets")[name]
            gradients[tokens.partition][name] = server.gradient(tokens.features[0], targets)
        config, edge = server.exchange.config(task), to_record(server.edge)
        contents = {
            p: RecordDict({"config": config, "edge": edge, "gradients": to_record(theirs)})
            for p, theirs in gradients.items()
        }
        reference = {name: tensor.numpy() for name, tensor in server.edge.items()}
        names = task.target_records
        replies = server.exchange.ask(
            task, "train.audit_step", contents,
            lambda _, reply: next(filter(None, [fault(reply, reference, name) for name in names]), ""),
        )  # fmt: skip
        return [
            replace(
                each, update=tensors_of(replies[each.partition], f"target-{each.target}"),
                gradient=gradients[each.partition][f"target-{each.target}"],
            )
            if each.partition in replies
            else each
            for each in seen
        ]  # fmt: skip

    def _card(self, task: Task, server: SplitServer, seen: list[SeenTokens], transmissions: int | str) -> ThreatCard:
        private = task.plan.auxiliary_data == "private"
        travelling = any(holder.labels is None for holder in server.holders.values())
        return self.auditor.card(
            task,
            SMASHED,
            seen,
            server.accuracy,
            batch=max(tokens.features.shape[1] for tokens in seen),
            attacked="test images" if private else "training images",
            **server.about,
            # Test images are sent without labels; of training images the server always has them.
            labels=KnownLabels.UNKNOWN if private else KnownLabels.KNOWN,
            labels_held_by="client, sent with the tokens" if travelling else "server",
            paper_convention=str(paper_scale(task)),
            transmissions=transmissions,
        )


def window(task: Task) -> tuple[int, int]:
    """Rounds, both included, whose transmissions of an image belong to the client half of the attacked round.

    With a frozen half these are all rounds so far: training images are sent in training from round 1, test images in the
    evaluation behind every round from 0. A trained half has these weights in the attacked round alone, and a test image was
    sent with them once, when the round before was evaluated; what it sent at other times are tokens of another half. The
    model after the last round has the number ``rounds`` + 1, in which no client trains.
    """
    until, trained = min(task.round, task.plan.rounds), SplitPlan.narrow(task.plan).trains_edge
    if task.plan.auxiliary_data == "private":
        return (task.round - 1, task.round - 1) if trained else (0, until)
    return (task.round if trained else 1), until


def most_transmissions(task: Task, num_train: int) -> int:
    """Most transmissions of an image within ``window``, and at least 1: the audit batch itself."""
    since, until = window(task)
    if task.plan.auxiliary_data == "private":
        return until - since + 1
    return max(1, len(SplitPasses(task, num_train).within(since, until)))


def as_sent(values: Tensor, transmissions: int, counts: Tensor) -> Tensor:
    """The first transmissions; of an image that the run has sent less often, only that many.

    Of ``values`` (R, B, ...), ``transmissions`` are kept. ``counts`` (n,) say how often the first n images of the batch were sent.
    Where that is below ``transmissions``, an image's own transmissions come again, from the first: a decoder of a fixed number of
    them has its inputs, and nothing new in them. An image that was never sent is seen once, in the audit batch.
    """
    kept = values[:transmissions].clone()
    for row, count in enumerate(counts.tolist()):
        if count < transmissions:
            kept[:, row] = values[torch.arange(transmissions) % max(count, 1), row]
    return kept


def audit_sizes(task: Task, holder: Holder) -> tuple[int, int]:
    """Images of an audit batch that are attacked, and further images that complete the batch."""
    pool = holder.num_test if task.plan.auxiliary_data == "private" else holder.num_train
    attacked = min(task.plan.probe_images, pool)
    return attacked, max(min(task.plan.batch_size, pool) - attacked, 0)


def _slice(seen: SeenTokens, attack: SmashedAttack[Any], transmissions: int, counts: Tensor) -> SeenTokens:
    step = attack.profile.needs_step and seen.gradient is not None
    counts = torch.full_like(counts, transmissions) if attack.beyond_run else counts
    shown = attack.reveals_order and seen.orders is not None
    return replace(
        seen,
        update=seen.update if step else {},
        features=as_sent(seen.features, transmissions, counts),
        orders=as_sent(seen.orders, transmissions, counts) if shown and seen.orders is not None else None,
        gradient=seen.gradient if step else None,
    )
