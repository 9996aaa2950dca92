"""What scenarios share: the clients that a server knows, the loop over rounds, limits of messages, probes and memory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from clients.data.card import DataCard
from clients.task.batches import chunks
from clients.task.task import FLOAT_BYTES
from simulations.settings.common import CommonSettings
from simulations.settings.errors import ConfigError
from strategies.audit.kinds import ATTRIBUTE_SETTING
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


def leave_cores_to_attacks(attack_workers: int) -> None:
    """Limit this process to the threads that no attack may need, at least one.

    A server that trains does so beside the attacks, and threads that wait for a core spin. Fewer threads, as by
    ``OMP_NUM_THREADS``, stay.
    """
    free = (os.cpu_count() or 1) - attack_workers
    torch.set_num_threads(max(1, min(free, torch.get_num_threads())))


def check_message(batches: int, batch_size: int, values: int, of: str = "") -> None:
    """Raise ``ConfigError`` for messages of more than ``LARGEST_MESSAGE``.

    A message holds ``batches``, the value of batches-per-message, of ``batch_size`` images with ``values`` floats each; ``of``
    describes these in the error, such as " of 64 tokens".
    """
    size = FLOAT_BYTES * batches * batch_size * values
    if size > LARGEST_MESSAGE:
        raise ConfigError(
            f"batches-per-message is {batches}: with batches of {batch_size} images{of} a message would hold "
            f"{size / 2**30:.1f} GiB, and 1 GiB is allowed; lower one of them"
        )


def check_first_of_batches(settings: CommonSettings, held: int, sends: str, *, test: bool) -> None:
    """Raise ``ConfigError`` to attack more batches than a client sends, or more images than a batch holds.

    The client ``sends`` ("uploads", "asks") its ``held`` examples in batches; ``test``: they are test examples.
    """
    size, batches = settings.batch_size, len(chunks(held, settings.batch_size))
    if batches < settings.probe_targets:
        raise ConfigError(
            f"probe-targets is {settings.probe_targets}, and a client with {held} {'test' if test else 'training'} examples "
            f"{sends} {batches} batches of {size}, of each of which the first images are attacked; lower one of the two"
        )
    if settings.rungs[0].images > min(size, held):
        also = f" and the {held} test examples of a client" if test else ""
        raise ConfigError(
            f"probe-images is {settings.probe_images}; allowed: up to batch-size = {size}{also}, as the attacked images are the "
            "first of a batch"
        )


def check_probe_images(settings: CommonSettings, held: int) -> None:
    """Raise ``ConfigError`` to probe more images than a client holds: one attacked twice is no second observation."""
    sizes, first = settings.probe_images, settings.rungs[0]
    if largest := [rung for rung in settings.rungs if rung.size > held]:
        of = "" if len(settings.rungs) == 1 else f", and {largest[0]} is {largest[0].size} images"
        raise ConfigError(f"probe-images is {sizes!r}{of}; a client holds about {held} images")
    if first.size * first.targets > held:
        raise ConfigError(
            f"probe-targets is {first.targets}, each of probe-images = {first}; a client holds about {held} images, and none is "
            "probed twice"
        )


def check_memory(settings: CommonSettings, clients: KnownClients, values: int, copies: int = 1) -> None:
    """Raise ``ConfigError`` for more features at once than ``image-memory`` allows.

    The test images of all clients have ``values`` numbers each, of which ``copies`` are held.
    """
    queries = sum(test for _, test in clients.sizes.values())
    size = copies * FLOAT_BYTES * queries * values
    if size > settings.image_memory * 2**30:
        raise ConfigError(
            f"image-memory is {settings.image_memory:g}, and {ATTRIBUTE_SETTING} read features of {queries} queries, "
            f"{size / 2**30:.2g} GiB at once: raise it, or lower test-limit"
        )
