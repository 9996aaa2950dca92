"""Attacks on smashed data: the server keeps what clients sent of audit batches and hands it to the attacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flwr.app import Message, RecordDict
from torch import Tensor

from attacks.smashed import SmashedAttack
from clients.records import tensors_of, to_record
from clients.task import Task
from strategies.attack_job import AttackJob, Observed, Seen, parse_smashed_attacks
from strategies.auditor import Auditor
from strategies.guard import fault
from strategies.split_exchange import like

if TYPE_CHECKING:
    from strategies.split_fed import Holder, SplitFed


class SplitAudit:
    """Asks for audit batches and queues the attacks on them.

    Args:
        auditor: Queues attacks and has them scored.
        texts: The attacks.
        label: Short name of the pipeline for file names.
    """

    def __init__(self, auditor: Auditor, texts: tuple[str, ...], label: str) -> None:
        self.auditor = auditor
        self.attacks = {text: parse_smashed_attacks(text)[0] for text in texts}
        self.label = label

    def observe(self, task: Task, server: SplitFed) -> None:
        """One round's observations: sent as often as the most curious attack wishes, each attack sees what it asks for.

        Raises:
            TooFewReplies: When too few clients answer.
        """
        if not self.attacks:
            return
        attacks = self.attacks.values()
        sendings = max(attack.sendings for attack in attacks)
        reveal = any(attack.reveals_order for attack in attacks)
        good = self._ask(task, server, sendings, reveal=reveal)
        seen = [
            self._seen(task, server, partition, reply, target)
            for partition, reply in good.items()
            for target in range(task.probe_targets)
        ]
        if not seen:  # every node refused
            return
        if any(attack.needs_step for attack in attacks) and task.trains_edge and task.auxiliary_data != "private":
            seen = self._with_steps(task, server, good, seen)
        setting = self._setting(task, server, seen)
        judges = self.auditor.baselines(task, "smashed", list(good), setting)
        seen = [one for one in seen if one.partition in judges]
        for at, (text, attack) in enumerate(self.attacks.items()):
            # Whoever keeps the order to itself is not attacked by those who must be told.
            shown = [one for one in seen if one.orders is not None] if attack.reveals_order else seen
            if not shown:
                continue
            card = setting | {"sendings": attack.sendings}
            card |= {"order": "told (upper bound)"} if attack.reveals_order else {}
            card |= {"client_half_update": "one step"} if attack.needs_step else {}
            observed = Observed(task, server.weights(), [_slice(one, attack) for one in shown])
            name = f"{self.label}-r{task.round:04d}-smashed-{at:02d}"
            self.auditor.submit(AttackJob(name, (text,), "smashed", observed, card))

    def _ask(self, task: Task, server: SplitFed, sendings: int, *, reveal: bool) -> dict[int, Message]:
        content = RecordDict({"config": server.exchange.config(task, **{"sendings": sendings, "reveal-order": reveal})})
        if task.trains_edge:
            content["edge"] = to_record(server.edge)
        names = [f"target-{at}" for at in range(task.probe_targets)]
        classes = task.data_card().num_classes

        def fault_in(partition: int, reply: Message) -> str:
            size = sum(audit_sizes(task, server.holders[partition]))
            shape = {"features": like(sendings, size, *server.token_shape)}
            targets = dict.fromkeys(names, like(size, classes))
            faults = [fault(reply, shape, name) for name in names]
            return next(filter(None, [*faults, fault(reply, targets, "targets")]), "")

        return server.exchange.ask(task, "train.smash", dict.fromkeys(server.holders, content), fault_in)

    def _seen(self, task: Task, server: SplitFed, partition: int, reply: Message, target: int) -> Seen:
        attacked, _ = audit_sizes(task, server.holders[partition])
        features = tensors_of(reply, f"target-{target}")["features"]
        orders = tensors_of(reply, "orders").get(f"target-{target}")
        return Seen(partition, target, {}, attacked, 0, features=features, orders=orders)

    def _with_steps(self, task: Task, server: SplitFed, good: dict[int, Message], seen: list[Seen]) -> list[Seen]:
        """Adds each client half's one-step update on the first sending, and the gradient that the server returned for it."""
        gradients: dict[int, dict[str, Tensor]] = {partition: {} for partition in good}
        for one in seen:
            assert one.features is not None
            name = f"target-{one.target}"
            targets = tensors_of(good[one.partition], "targets")[name]
            gradients[one.partition][name] = server.gradient(one.features[0], targets)
        config, edge = server.exchange.config(task), to_record(server.edge)
        contents = {
            p: RecordDict({"config": config, "edge": edge, "gradients": to_record(theirs)})
            for p, theirs in gradients.items()
        }
        reference = {name: tensor.numpy() for name, tensor in server.edge.items()}
        names = [f"target-{at}" for at in range(task.probe_targets)]
        replies = server.exchange.ask(
            task, "train.audit_step", contents,
            lambda _, reply: next(filter(None, [fault(reply, reference, name) for name in names]), ""),
        )  # fmt: skip
        return [
            Seen(
                one.partition, one.target, tensors_of(replies[one.partition], f"target-{one.target}"), one.num_examples, 1,
                features=one.features, orders=one.orders, gradient=gradients[one.partition][f"target-{one.target}"],
            )
            if one.partition in replies
            else one
            for one in seen
        ]  # fmt: skip

    def _setting(self, task: Task, server: SplitFed, seen: list[Seen]) -> dict[str, Any]:
        """The threat card: what the server saw and knew."""
        private = task.auxiliary_data == "private"
        travelling = any(holder.labels is None for holder in server.holders.values())
        return {
            "observation": "smashed data",
            "num_classes": task.data_card().num_classes,
            "images": max(one.num_examples for one in seen),
            "batch": max(one.features.shape[1] for one in seen if one.features is not None),
            "attacked": "test images" if private else "training images",
            "tokens": f"{server.token_shape[0]} of length {server.token_shape[1]}",
            "client_half": "trained" if task.trains_edge else "frozen",
            # Test images are sent without labels; of training images the server always has them.
            "labels": "unknown" if private else "known",
            "labels_held_by": "client, sent with the tokens" if travelling else "server",
            "auxiliary_data": "none",
            "randomness": self.auditor.randomness,
            "round": task.round,
            "model_accuracy": None if server.accuracy is None else round(server.accuracy, 4),
        }


def audit_sizes(task: Task, holder: Holder) -> tuple[int, int]:
    """Images of an audit batch that are attacked, and those that only come along."""
    pool = holder.num_test if task.auxiliary_data == "private" else holder.num_train
    attacked = min(task.probe_images, pool)
    return attacked, max(min(task.batch_size, pool) - attacked, 0)


def _slice(seen: Seen, attack: SmashedAttack[Any]) -> Seen:
    """What one attack gets to see."""
    assert seen.features is not None
    step = attack.needs_step and seen.gradient is not None
    return Seen(
        seen.partition,
        seen.target,
        seen.update if step else {},
        seen.num_examples,
        seen.local_steps,
        features=seen.features[: attack.sendings].clone(),
        orders=seen.orders[: attack.sendings].clone() if attack.reveals_order and seen.orders is not None else None,
        gradient=seen.gradient if step else None,
    )
