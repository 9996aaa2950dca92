"""Attacks on updates of probes and of training, each with its threat card."""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from flwr.app import Message

from attacks.base import AnyAttack
from attacks.choice import Needless
from attacks.spec import stages_of
from clients.federated.plan import FederatedPlan
from clients.scoring.audit import NO_IMAGES
from clients.task.task import Task
from clients.wire.records import tensors_of, values_of
from defenses.tensors import Tensors
from strategies.audit.auditor import Auditor
from strategies.audit.jobs import AttackJob, grouped
from strategies.audit.kinds import Kind, Observed
from strategies.audit.threat_card import ACTIVE_SERVER, KEPT_STATISTICS, KnownLabels, ThreatCard, strength
from strategies.federated.observations import ACTIVE, KINDS, STEPS, UPDATE, SeenUpdate


class UpdateAudit:
    """Queue the attacks on one pipeline's updates in the attacked rounds; ``last_round`` + 1 means the final model.

    ``needless``: kind -> what becomes of attacks that the first ones have made needless; nothing for other kinds.
    """

    def __init__(
        self,
        auditor: Auditor,
        attacks: Mapping[Kind, Sequence[AnyAttack]],
        attack_rounds: Iterable[int],
        last_round: int,
        label: str,
        needless: Mapping[Kind, Needless] = MappingProxyType({}),
    ) -> None:
        self.auditor, self.recorder = auditor, auditor.recorder
        self.attacks = {kind: tuple(attacks.get(kind, ())) for kind in KINDS}
        probed = frozenset(attack_rounds)
        self.rounds: dict[Kind, frozenset[int]] = dict.fromkeys(KINDS, probed)
        # Attacks on the final model have the updates of the last round, as no other follows.
        self.rounds[UPDATE] = frozenset(min(at, last_round) for at in probed)
        self.label, self.needless = label, needless

    def wants(self, kind: Kind, server_round: int) -> bool:
        """Whether any attack is on this kind of observation of this round."""
        return bool(self.attacks[kind]) and server_round in self.rounds[kind]

    def attack(
        self,
        task: Task,
        kind: Kind,
        weights: Tensors,
        accuracy: float | None,
        seen: Sequence[SeenUpdate],
        rung: str = "",
    ) -> None:
        """Queue the attacks on one round's updates of the global model ``weights``, whose accuracy is on clean test images.

        ``rung`` names the size of probes behind the first one.
        """
        if not seen:  # every node refused
            return
        card = self.card(task, kind, seen, weights, accuracy).but(rung=rung)
        judges = self.auditor.baselines(task, kind, seen, card, fewest_guesses(self.attacks[kind], seen))
        if not (seen := [update for update in seen if update.partition in judges]):
            return
        observed = Observed(task, weights, seen)
        name = f"{self.label}-r{task.round:04d}-{kind.name}{rung and f'-{rung}'}"
        needless = self.needless.get(kind, Needless.RUN)
        at_once, over_rounds = grouped(self.attacks[kind], in_turn=needless is not Needless.RUN)
        self.auditor.submit_groups(name, at_once, kind, observed, card, needless=needless)
        if not over_rounds:
            return
        history = AttackJob(f"{name}-history", over_rounds, kind, observed, card)
        if task.round != max(self.rounds[kind]):
            self.recorder.keep_history(history)
            return
        earlier = self.recorder.history(history)
        for at, attack in enumerate(over_rounds):
            over = card.but(rounds_observed=len(earlier) + 1)
            self.auditor.submit(AttackJob(f"{name}-history-{at:02d}", (attack,), kind, observed, over, earlier))

    def card(
        self, task: Task, kind: Kind, seen: Sequence[SeenUpdate], weights: Tensors, accuracy: float | None
    ) -> ThreatCard:
        """The threat card: the server's observations and knowledge, and whether it acted beyond observing."""
        statistics = any(name.endswith("running_mean") for name in weights)
        images = max(update.num_examples for update in seen)
        # A one-step probe is on all of its images.
        sizes: dict[Kind, int] = {UPDATE: task.plan.batch_size, STEPS: task.plan.probe_images}
        return self.auditor.card(
            task,
            kind,
            seen,
            accuracy,
            batch=min(sizes.get(kind, images), images),
            local_steps=max(s.local_steps for s in seen),
            learning_rate="known",
            mode="train" if seen[0].train_mode else "eval",
            batch_norm_statistics=_statistics(task, seen[0].train_mode) if statistics else "none",
            server=ACTIVE_SERVER if kind is ACTIVE else None,
            **_label_knowledge(seen),
            **_recipe(task),
            **strength(task, None if kind is UPDATE else max(s.local_steps for s in seen)),
        )


def fewest_guesses(attacks: Iterable[AnyAttack], seen: Sequence[SeenUpdate]) -> int:
    """Least number of images that each attack on images guesses of an update; ``NO_IMAGES`` if no attack guesses images.

    A null baseline may choose its easiest images, so that it must not choose among more than the attacks.
    """
    every = max(update.num_examples for update in seen)
    first = (stages_of(attack)[0] for attack in attacks)
    return min(
        (getattr(stage, "max_images", every) for stage in first if stage.profile.guesses == "images"), default=NO_IMAGES
    )


def seen_updates(task: Task, kind: Kind, good: Mapping[int, Message], records: Iterable[str]) -> list[SeenUpdate]:
    """The updates that replies of each partition hold, in the given records: the first is for target 0."""
    names = list(records)
    return [
        SeenUpdate(
            partition=partition,
            target=at,
            update=tensors_of(reply, record),
            num_examples=int(values_of(reply, "metrics")["num-examples"]),
            local_steps=int(values_of(reply, "metrics")["local-steps"]),
            labels=tensors_of(reply, "labels").get(f"target-{at}"),
            train_mode=kind is UPDATE or FederatedPlan.narrow(task.plan).probe_mode == "train",
        )
        for partition, reply in good.items()
        for at, record in enumerate(names)
    ]


def _statistics(task: Task, train_mode: bool) -> str:
    if not train_mode:
        return "sent, and not moved by the client, in eval mode"
    if task.plan.defenses.keeps_statistics:
        return KEPT_STATISTICS
    defended = {defense.per for defense in task.plan.defenses.update_defenses}
    if "update" in defended:
        return "sent, under the update defences"
    return "sent, untouched by the defences, which act on gradients" if defended else "sent as they are"


def _recipe(task: Task) -> dict[str, Any]:
    """Entries of a threat card about the client's training beyond plain SGD on unchanged images."""
    views = [f"crops of padding {task.plan.crop_padding}"] if task.plan.crop_padding else []
    views += ["flips"] if task.plan.horizontal_flip else []
    recipe = {"augmentation": f"{' and '.join(views)}; scored against the view that entered"} if views else {}
    return recipe | ({"momentum": f"Nesterov, {task.plan.momentum:g}"} if task.plan.nesterov else {})


def _label_knowledge(seen: Sequence[SeenUpdate]) -> dict[str, Any]:
    """Clients of a real federation publish no labels: where one of them does, an attack is an upper bound."""
    published = sum(update.labels is not None for update in seen)
    if not published:
        return {"labels": KnownLabels.UNKNOWN}
    known = {"labels": KnownLabels.KNOWN, "upper_bound": "knows the labels"}
    some = {"labels": KnownLabels.SOME, "labels_known": f"{published} of {len(seen)} updates"}
    return known if published == len(seen) else known | some
