"""What the clients' own trainings did, as they observed it (``clients.external_app.training``), and what stays unknown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import median_low
from typing import Any, TypeVar

from flwr.app import Message

from clients.external_app.training import MOST_SEEN, OwnTraining
from clients.wire.records import reason_of, values_of
from clients.wire.texts import one_line
from strategies.external_app.replies import UnusableReplyError

T = TypeVar("T")
NOT_IN_PROBE = (
    "what the app's own train() does is not in a probe: clipping or noise inside it, another optimizer than SGD, frozen layers, "
    "BatchNorm or dropout in eval mode, augmentation"
)
ASSUMED = "audited-app"
"""Metric of the row of each attacked round: ``assumed`` lists what could not be known, ``warnings`` what differs from a probe."""
OBSERVED = "observed: the clients' optimizers showed it"
LONGEST_NOTE = 120


@dataclass(frozen=True)
class SeenTraining:
    """A client's training, and how many (``own``) of the ``images`` that it saw are those of ``data``."""

    training: OwnTraining
    own: int
    images: int

    @classmethod
    def read(cls, reply: Message | None) -> SeenTraining:
        """Read the answer to ``query.training``; ``UnusableReplyError`` with the reason where it is none."""
        if reply is None or reply.has_error():
            raise UnusableReplyError("no reply" if reply is None else reason_of(reply))
        counts = values_of(reply, "metrics")
        own, images = counts.get("own"), counts.get("images")
        try:
            training = OwnTraining.from_json(str(values_of(reply, "training").get("training")))
        except ValueError as error:
            raise UnusableReplyError(str(error)) from error
        if type(own) is not int or type(images) is not int or not 0 <= own <= images <= MOST_SEEN:
            raise UnusableReplyError(f"it counts {own} own of {images} images")
        seen = cls(replace(training, optimizer=one_line(training.optimizer, LONGEST_NOTE)), own, images)
        # Images that were given once for several steps, such as those of features, say nothing about a step.
        return seen.of_unknown_batches() if training.steps > training.images else seen

    def of_unknown_batches(self) -> SeenTraining:
        """The same, of which updates are not attacked."""
        return replace(self, training=replace(self.training, batch_size=0))

    @property
    def _notes(self) -> list[str]:
        return [one_line(note, LONGEST_NOTE) for note in self.training.notes]

    @property
    def recipe(self) -> str:
        """The training, for threat cards."""
        notes = "".join(f"; {note}" for note in self._notes)
        steps = "" if self.training.optimizer == "SGD" else "; attacks and probes take steps of SGD"
        mode = "train" if self.training.train_mode else "eval"
        return f"observed: {self.training.rule}, in {mode} mode{notes}{steps}"

    @property
    def of_data(self) -> str:
        """Whether training saw the images of ``data``."""
        if not self.images:
            return "whether training saw the images of data is unknown: no model was given images with gradients on"
        if self.own == self.images:
            return "observed: every image that training saw is one of data, as it is"
        return (
            f"observed: {self.own} of the first {self.images} images that training saw are those of data as they are; the others "
            "were augmented or normalised in another way, or are others"
        )

    def warnings(self, mods: str) -> Iterator[str]:
        """What differs from a probe and from what attacks know, in sentences; ``mods`` are those known to act on replies."""
        training = self.training
        if training.optimizer != "SGD":
            yield f"The clients train with {training.optimizer}: probes and attacks take steps of SGD."
        if training.notes:
            yield f"A probe is a plain step, and training is not: {'; '.join(self._notes)}."
        if not (training.sent or mods):
            yield "The clients do not send the weights that their last step left, and no known mod changes them: train() does."
        if self.own < self.images:
            yield f"{self.of_data.partition(': ')[2].capitalize()}."


def as_most(
    trained: Mapping[int, SeenTraining], examples: Mapping[int, int]
) -> tuple[dict[int, SeenTraining], dict[int, str]]:
    """Trainings that most nodes share, by partition, and why others are not attacked: one plan could not describe both.

    ``examples`` of each partition: a node with fewer than a batch has all of them in one, and a batch of more (canaries are in it)
    counts as unknown.
    """
    trained = {
        partition: seen if seen.training.batch_size <= examples[partition] else seen.of_unknown_batches()
        for partition, seen in trained.items()
    }
    trainings, others = {partition: seen.training for partition, seen in trained.items()}, dict[int, str]()
    rule = _most(own.rule for own in trainings.values())
    size = _most(own.batch_size for own in trainings.values() if own.rule == rule and own.steady and own.batch_size)
    for partition, training in trainings.items():
        if training.rule != rule:
            others[partition] = f"it trained by {one_line(training.rule, LONGEST_NOTE)}, other nodes by {rule}"
        elif training.steady and training.batch_size not in (0, size, examples[partition]):
            others[partition] = f"its batches hold {training.batch_size} images, those of other nodes {size}"
    return {partition: seen for partition, seen in trained.items() if partition not in others}, others


def _most(values: Iterable[T]) -> T | None:
    """The most common value, the first of several; None where there is none."""
    return next((value for value, _ in Counter(values).most_common(1)), None)


def observed(alike: Mapping[int, SeenTraining], examples: Mapping[int, int]) -> dict[str, Any]:
    """The settings of a plan for trainings that are alike, in the middle of those that differ: one client decides nothing."""
    trainings = [seen.training for seen in alike.values()]
    first = trainings[0]
    return {
        "learning_rate": median_low(training.learning_rate for training in trainings), "momentum": first.momentum,
        "nesterov": first.nesterov, "weight_decay": first.weight_decay,
        "batch_size": median_low([training.batch_size for training in trainings if training.batch_size] or [0]),
        "local_epochs": median_low(seen.training.epochs(examples[at]) for at, seen in alike.items()),
    }  # fmt: skip


def together(alike: Mapping[int, SeenTraining]) -> SeenTraining:
    """What more than half of the clients say of their trainings, which are alike, with the images of all."""
    every = [seen.training for seen in alike.values()]
    notes = Counter(note for own in every for note in set(own.notes))
    said = {name: 2 * sum(getattr(own, name) for own in every) > len(every) for name in ("train_mode", "sent")}
    first = replace(
        every[0], steps=median_low(own.steps for own in every),
        notes=tuple(note for note, count in notes.items() if 2 * count > len(every)), **said,
    )  # fmt: skip
    return SeenTraining(first, sum(seen.own for seen in alike.values()), sum(seen.images for seen in alike.values()))


def assumptions(loss: str, *, mods: str, probe_mode: str, unsent: int = 0) -> list[str]:
    """Unknown facts about the clients of an audited app, each with the assumption in its place.

    ``mods`` are those known to act on replies; ``unsent`` frozen tensors are in no message.
    """
    unknown = [
        f"What the app's own train() does to an update, such as clipping or noise inside it: nothing beside "
        f"{f'the mods ({mods})' if mods else 'what a step does'} was reckoned with, and no probe shows it.",
        f"Whether all layers learn but those that the model freezes, with dropout as in {probe_mode} mode: assumed.",
        f"Whether the loss is {loss}, as answer_audits names it or by default.",
    ]
    if unsent:
        unknown.append(
            f"Whether training starts from the {unsent} frozen tensors that no message holds, as the model builds them: assumed."
        )
    return unknown
