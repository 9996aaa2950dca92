"""Attacks on updates: what clients sent of one-step probes and of training is handed to the attacks, each with its threat card."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from flwr.app import Message
from torch import Tensor

from attacks.refinement.unshuffle import Unshuffle
from clients.records import tensors_of, values_of
from clients.task import Task
from strategies.audit.auditor import Auditor
from strategies.audit.cards import defense_strength
from strategies.audit.jobs import AttackJob, Observed, Seen, parse_attacks, stages_of


class UpdateAudit:
    """Queues the attacks on one pipeline's updates.

    Args:
        auditor: Has attacks run and scored.
        texts: Observation ("probe", "update") -> texts of attacks on it.
        attack_rounds: Server rounds that are attacked; ``last_round`` + 1 is the model after the last one.
        last_round: The last round that trains.
        label: Short name of the pipeline for file names.
    """

    def __init__(
        self,
        auditor: Auditor,
        texts: Mapping[str, tuple[str, ...]],
        attack_rounds: Iterable[int],
        last_round: int,
        label: str,
    ) -> None:
        self.auditor, self.recorder = auditor, auditor.recorder
        self.texts = texts
        probed = frozenset(attack_rounds)
        # Who attacks the final model attacks the last update that led to it: no other follows.
        self.rounds = {"probe": probed, "update": frozenset(min(at, last_round) for at in probed)}
        self.label = label

    def wants(self, observation: str, server_round: int) -> bool:
        """Whether any attack is on this observation of this round."""
        return bool(self.texts[observation]) and server_round in self.rounds[observation]

    def told_windows(self) -> bool:
        """Whether an attack on probes, or a stage of a chain, is an upper bound that is told the windows of VisualMixer."""
        stages = (stage for text in self.texts["probe"] for stage in stages_of(parse_attacks(text)[0]))
        return any(isinstance(stage, Unshuffle) and stage.told_windows for stage in stages)

    def observe(
        self,
        task: Task,
        observation: str,
        weights: dict[str, Tensor],
        accuracy: float | None,
        good: Mapping[int, Message],
        records: Iterable[str],
    ) -> None:
        """Queues the attacks on what one round's replies hold.

        Args:
            task: Orders of the round.
            observation: "probe" or "update".
            weights: The global model that the updates are of.
            accuracy: Of that model, on clean test images.
            good: Partition -> reply that passed the guard.
            records: Names of the records that hold updates, the first for target 0.
        """
        seen = [
            Seen(
                partition=partition,
                target=at,
                update=tensors_of(reply, record),
                num_examples=int(values_of(reply, "metrics")["num-examples"]),
                local_steps=int(values_of(reply, "metrics")["local-steps"]),
                labels=_published(reply, "labels", at),
                windows=_published(reply, "windows", at),
                train_mode=observation != "probe" or task.probe_mode == "train",
            )
            for partition, reply in good.items()
            for at, record in enumerate(records)
        ]
        if not seen:  # every node refused
            return
        setting = self._setting(task, observation, seen, weights, accuracy)
        judges = self.auditor.baselines(task, observation, list(good), setting)
        seen = [one for one in seen if one.partition in judges]
        if not seen:
            return
        observed = Observed(task, weights, seen)
        name = f"{self.label}-r{task.round:04d}-{observation}"
        last = task.round == max(self.rounds[observation])
        grouped, over_rounds = _grouped(self.texts[observation])
        for at, group in enumerate(grouped):
            self.auditor.submit(AttackJob(f"{name}-{at:02d}", group, observation, observed, setting))
        if not over_rounds:
            return
        history = AttackJob(f"{name}-history", over_rounds, observation, observed, setting)
        if not last:
            self.recorder.keep_history(history)
            return
        earlier = self.recorder.history(history)
        for at, text in enumerate(over_rounds):
            over = setting | {"rounds_observed": len(earlier) + 1}
            job = AttackJob(f"{name}-history-{at:02d}", (text,), observation, observed, over, earlier)
            self.auditor.submit(job)

    def _setting(
        self, task: Task, observation: str, seen: list[Seen], weights: Mapping[str, Tensor], accuracy: float | None
    ) -> dict[str, Any]:
        """The threat card: what the server saw and knew."""
        statistics = any(name.endswith("running_mean") for name in weights)
        images = max(one.num_examples for one in seen)
        return {
            "observation": "one-step probe" if observation == "probe" else "training update",
            "num_classes": task.data_card().num_classes,
            "images": images,
            # A probe is one step on all of its images.
            "batch": images if observation == "probe" else min(task.batch_size, images),
            "local_steps": max(s.local_steps for s in seen),
            "learning_rate": "known",
            **_label_knowledge(seen),
            "mode": "train" if seen[0].train_mode else "eval",
            "batch_norm_statistics": _statistics(task, seen[0].train_mode) if statistics else "none",
            **_recipe(task),
            **defense_strength(task, observation),
            "auxiliary_data": "none",
            "randomness": self.auditor.randomness,
            "round": task.round,
            "model_accuracy": None if accuracy is None else round(accuracy, 4),
        }


def _grouped(texts: Iterable[str]) -> tuple[list[tuple[str, ...]], tuple[str, ...]]:
    """Attacks on one round, chains beside the attack that they begin with; and attacks on all rounds."""
    groups: dict[str, list[str]] = {}
    over_rounds = []
    for text in texts:
        if parse_attacks(text)[0].observes_history:
            over_rounds.append(text)
        else:
            groups.setdefault(text.split(" | ")[0], []).append(text)
    return [tuple(group) for group in groups.values()], tuple(over_rounds)


def _statistics(task: Task, train_mode: bool) -> str:
    if not train_mode:
        return "sent, and not moved by the client, in eval mode"
    defended = {defense.per for defense in task.defenses().update_defenses}
    if "update" in defended:
        return "sent, under the update defences"
    return "sent, untouched by the defences, which act on gradients" if defended else "sent as they are"


def _recipe(task: Task) -> dict[str, Any]:
    """What a threat card says of the client's training beyond plain SGD on the images as they are."""
    views = [f"crops of padding {task.crop_padding}"] * bool(task.crop_padding) + ["flips"] * task.horizontal_flip
    found = {"augmentation": f"{' and '.join(views)}; scored against the view that entered"} if views else {}
    return found | ({"momentum": f"Nesterov, {task.momentum:g}"} if task.nesterov else {})


def _label_knowledge(seen: list[Seen]) -> dict[str, Any]:
    """Clients of a real federation publish no labels: where one of them does, an attack is an upper bound."""
    told = sum(one.labels is not None for one in seen)
    if not told:
        return {"labels": "unknown"}
    known = "known" if told == len(seen) else f"known for {told} of {len(seen)} updates"
    return {"labels": known, "upper_bound": "told the labels"}


def _published(reply: Message, record: str, target: int) -> Tensor | None:
    return tensors_of(reply, record).get(f"target-{target}")
