"""The interface of scenarios, and what they share: the loop over rounds, limits of messages, probes and memory."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor, nn

from clients.data.card import DataCard
from clients.task.batches import chunks
from clients.task.task import FLOAT_BYTES, Plan
from defenses.base import Defense
from defenses.pipeline import Pipeline
from simulations.settings.common import CommonSettings
from simulations.settings.errors import ConfigError
from strategies.audit.auditor import Auditor
from strategies.audit.kinds import Kind
from strategies.training.checkpoint import Checkpoint

LARGEST_MESSAGE = 1 << 30
"""Bytes of tensors in one message: Flower keeps several copies of it on the way."""


@dataclass(frozen=True)
class KnownClients:
    """The server's knowledge of a run's clients once they are set up.

    Attributes:
        card: Shape and normalisation of their images.
        sizes: Partition -> (training examples, test examples).
        labels: Partition -> labels of the training examples that were dealt to it, in its order.
        randomness: Source of the nodes' random draws, as reported by the nodes.
    """

    card: DataCard
    sizes: dict[int, tuple[int, int]]
    labels: dict[int, Tensor]
    randomness: str = ""


class Rounds(Protocol):
    """The training of one pipeline, for the loop over rounds: run a round, keep it, resume from it."""

    def restore(self, done: Checkpoint) -> None:
        """Resume from a checkpoint."""

    def train_round(self, server_round: int) -> None:
        """Train for one round; the first is 1."""

    def evaluate_round(self, server_round: int) -> None:
        """Evaluate the model after a round; after round 0 the initial one."""

    def observe_model(self, server_round: int) -> None:
        """Run a phase after the last round, as round ``server_round``, such as attacks on the final model; nothing is trained."""

    def checkpoint(self, server_round: int) -> Checkpoint:
        """State to keep of the round that just ended."""


class Scenario(CommonSettings):
    """How clients and server work together: what a scenario's experiment says and does. Its module calls its class ``SCENARIO``.

    Attributes:
        name: Value of the setting ``scenario``.
        about: One line for `fedveil list`.
        kinds: What the server may observe.
        label_holders: Values of the setting ``labels``, the usual one first.
        probes_in_sizes: ``probe-images`` may be a list.
        trains_on_server: One process trains on the images of all clients, and holds them as floats.
        reads_tables: Examples may be rows of a table; else they are images.
        takes_many_labels: Examples may have several labels each; else they have one class.
    """

    name: ClassVar[str]
    about: ClassVar[str]
    kinds: ClassVar[tuple[Kind, ...]]
    label_holders: ClassVar[tuple[str, ...]]
    probes_in_sizes: ClassVar[bool] = False
    trains_on_server: ClassVar[bool] = False
    reads_tables: ClassVar[bool] = False
    takes_many_labels: ClassVar[bool] = False

    def refusal(self, key: str, allowed: str, by: str = "scenario") -> ConfigError:
        """The error for the value of a setting: what is ``allowed``, with the value of the setting ``by``, if that matters."""
        value, beside = getattr(self, key.replace("-", "_")), f" with {by} = {getattr(self, by)!r}" if by else ""
        shown = f"{value:g}" if isinstance(value, float) else repr(value)
        return ConfigError(f"{key} is {shown}; allowed{beside}: {allowed}")

    def check(self) -> None:
        """Raise ``ConfigError`` for settings that the scenario does not use, or that contradict each other in the scenario."""

    def unsuited(self, pipeline: Pipeline, defense: Defense) -> str:
        """Why a defence of a pipeline has no place in the scenario, as the rest of a sentence about it; "" where it has one."""
        return ""

    def check_data(self, pipeline: Pipeline, card: DataCard) -> None:
        """Raise ``ConfigError``, or ``ValueError`` of a model or defence, for settings that do not fit data of this card."""
        raise NotImplementedError

    def check_share(self, train: int, test: int) -> None:
        """Raise ``ConfigError`` for settings that do not fit so many training and test examples of a client."""

    def training(self, plan: Plan, auditor: Auditor, clients: KnownClients, label: str) -> Rounds:
        """The training of one pipeline under ``plan``; ``label`` is the pipeline's short name in file names."""
        raise NotImplementedError

    def whole_model(self, plan: Plan) -> tuple[list[nn.Module], Callable[[Tensor], Tensor]]:
        """The trained modules, and the function from images (B, C, H, W) in [0, 1] to logits: for estimates."""
        model = plan.build_model().train()
        return [model], model

    @property
    def phases_behind(self) -> int:
        """Phases behind the last round, in which nothing is trained (``Rounds.observe_model``): here one, where it is attacked."""
        return int(self.attacks_final)

    @property
    def needs_whole_share(self) -> str:
        """The setting because of which all images of a client are needed at once, such as "update-attacks"; "" for none."""
        return ""

    def leave_cores_to_attacks(self) -> None:
        """Limit this process to the threads that no attack may need, at least one.

        A server that trains does so beside the attacks, and threads that wait for a core spin. Fewer threads, as by
        ``OMP_NUM_THREADS``, stay.
        """
        free = (os.cpu_count() or 1) - self.attack_workers
        torch.set_num_threads(max(1, min(free, torch.get_num_threads())))

    def check_message(self, batches: int, values: int, of: str = "") -> None:
        """Raise ``ConfigError`` for messages of more than ``LARGEST_MESSAGE``.

        A message holds ``batches``, the value of batches-per-message, of images with ``values`` floats each; ``of``
        describes these in the error, such as " of 64 tokens".
        """
        size = FLOAT_BYTES * batches * self.batch_size * values
        if size > LARGEST_MESSAGE:
            raise ConfigError(
                f"batches-per-message is {batches}: with batches of {self.batch_size} images{of} a message would hold "
                f"{size / 2**30:.1f} GiB, and 1 GiB is allowed; lower one of them"
            )

    def check_first_of_batches(self, held: int, sends: str, *, test: bool) -> None:
        """Raise ``ConfigError`` to attack more batches than a client sends, or more images than a batch holds.

        The client ``sends`` ("uploads", "asks") its ``held`` examples in batches; ``test``: they are test examples.
        """
        size, batches = self.batch_size, len(chunks(held, self.batch_size))
        if batches < self.probe_targets:
            raise ConfigError(
                f"probe-targets is {self.probe_targets}, and a client with {held} {'test' if test else 'training'} examples "
                f"{sends} {batches} batches of {size}, of each of which the first images are attacked; lower one of the two"
            )
        if self.rungs[0].images > min(size, held):
            also = f" and the {held} test examples of a client" if test else ""
            raise ConfigError(
                f"probe-images is {self.probe_images}; allowed: up to batch-size = {size}{also}, as the attacked images are the "
                "first of a batch"
            )

    def check_probe_images(self, held: int) -> None:
        """Raise ``ConfigError`` to probe more images than a client holds: one attacked twice is no second observation."""
        sizes, first = self.probe_images, self.rungs[0]
        if largest := [rung for rung in self.rungs if rung.size > held]:
            of = "" if len(self.rungs) == 1 else f", and {largest[0]} is {largest[0].size} images"
            raise ConfigError(f"probe-images is {sizes!r}{of}; a client holds about {held} images")
        if first.size * first.targets > held:
            raise ConfigError(
                f"probe-targets is {first.targets}, each of probe-images = {first}; a client holds about {held} images, and none "
                "is probed twice"
            )
