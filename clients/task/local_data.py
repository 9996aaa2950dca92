"""One client's examples under one task, before and after its defences, and the start of its draws; no Flower here."""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from clients.data.augmentation import random_crop_and_flip
from clients.secrets.draws import Draws, digest_of
from clients.task.batches import join, local_batch
from clients.task.task import FLOAT_BYTES, Plan, Task
from clients.task.truths import Probed, Truths
from defenses.base import Batch
from defenses.pipeline import Pipeline
from defenses.random_draws import Key, generator_for

Rows = Sequence[int] | Tensor
BLOCK = 8
"""Examples that share the draws of a defence that protects an image once. A client whose share does not fit into memory protects no
more than the blocks that a batch touches; with one example in a block, defences would take five times as long."""


@functools.lru_cache(maxsize=32)
def protected_share(plan: Plan, indices: tuple[int, ...], key: Key) -> Batch:
    """All examples of a share, block by block. Cached, as every process computes the same."""
    part, pipeline, num_classes = plan.load_data().train, plan.defenses, plan.data_card().num_classes
    blocks = [torch.tensor(indices[at : at + BLOCK]) for at in range(0, len(indices), BLOCK)]
    plain = (local_batch(part, block, num_classes) for block in blocks)
    return join([protected_together(pipeline, block, (*key, at)) for at, block in enumerate(plain)])


def protected_each(protect: Callable[[Batch, Key], Batch], stages: str, batch: Batch, key: Key) -> Batch:
    """Every example protected as if it were the only one, under draws that its content names."""
    alone = (batch.rows(slice(at, at + 1)) for at in range(len(batch)))
    return join([protect(example, (*key, digest_of(example, stages))) for example in alone]) if len(batch) else batch


def protected_together(pipeline: Pipeline, batch: Batch, key: Key) -> Batch:
    """A batch after the once-only defences, under draws that its content names."""
    return pipeline.protect_once(batch, (*key, digest_of(batch, pipeline.once))) if pipeline.once else batch


MOST_AVERAGED = 4096
"""Images behind a mean image: no mean is known better by reading more of them."""


class LocalData:
    """One client's examples: the originals, and as shown to a model.

    ``train`` and ``test`` are indices of its examples. Its randomness starts from ``draws``; by default from those of a simulated
    client, which follow from seed and partition.
    """

    def __init__(self, task: Task, partition: int, train: Rows, test: Rows, draws: Draws | None = None) -> None:
        self.task = task
        self.partition = partition
        self.draws = draws or Draws.simulated(task.plan.seed, partition)
        self.dataset = task.plan.load_data()
        self.card = task.plan.data_card()
        self.pipeline = task.plan.defenses
        self._train, self._test = (torch.as_tensor(rows, dtype=torch.long) for rows in (train, test))

    @property
    def num_train(self) -> int:
        """Number of training examples."""
        return len(self._train)

    def reported(self, value: float) -> float:
        """A number about the test examples as an evaluation sends it; exact in a simulation, which protects no person.

        A node with a secret keeps decimals down to a tenth of 1 / sqrt(number of test examples) or below: the number itself is
        known no better. Of a number above 10 it keeps as many digits fewer behind the point as it has more before.
        """
        if self.draws.notebook is None or not math.isfinite(value):
            return value
        before = math.floor(math.log10(max(abs(value), 1)))
        return round(value, math.ceil(math.log10(self.num_test) / 2) + 1 - before)

    @cached_property
    def train_indices(self) -> tuple[int, ...]:
        """Which examples of the data set it trains on."""
        return tuple(self._train.tolist())

    def train_labels(self) -> Tensor:
        """Classes (num_train,) of its training examples; of label vectors the first label."""
        return self.dataset.train.labels[self._train]

    @property
    def num_test(self) -> int:
        """Number of test examples."""
        return len(self._test)

    def key(self, kind: str, *what: int | str | bytes, number: int = 0) -> Key:
        """A random stream of this client; see ``Draws.key``."""
        task = self.task
        return self.draws.key(
            kind, *what, self.partition, pipeline=task.plan.pipeline, server_round=task.round, number=number
        )

    def renew(self, kind: str, first: int = 0, count: int = 1) -> None:
        """Begin new draws for a reply; call it before anything is drawn. See ``Draws.renew``."""
        self.draws.renew(kind, self.task.plan.pipeline, self.task.round, first, count)

    def protected_test(self, kind: str, batch: Batch, *what: int | str) -> Batch:
        """Examples as they are shown to a model in use: the same examples are always protected in the same way."""
        stages, protect = self.pipeline.in_tests, self.pipeline.protect_test
        if not stages:
            return batch
        if self._one_by_one:
            return protected_each(protect, stages, batch, self.key(kind))
        return protect(batch, self.key(kind, *what, digest_of(batch, stages)))

    def plain(self, positions: Tensor) -> Batch:
        """Local training examples at ``positions`` (n,), unprotected."""
        return local_batch(self.dataset.train, self._train[positions], self.card.num_classes)

    def kept(self, positions: Tensor) -> Batch:
        """Examples after the defences that protect an image once and keep the result.

        Where training sees crops and mirror images nothing is kept: every view of an image is protected anew.
        """
        if self.task.plan.augments or not self.pipeline.once:
            return self.plain(positions)
        if self._one_by_one:
            return protected_each(
                self.pipeline.protect_once, self.pipeline.once, self.plain(positions), self.key("once")
            )
        if self.num_train * math.prod(self.card.input_shape) * FLOAT_BYTES <= self.task.plan.image_memory * 2**30:
            return self._whole.rows(positions)
        blocks = {at: self._kept_block(at) for at in sorted({int(position) // BLOCK for position in positions})}
        rows = [(blocks[int(position) // BLOCK], int(position) % BLOCK) for position in positions]
        return Batch(
            torch.stack([block.images[row] for block, row in rows]),
            torch.stack([block.targets[row] for block, row in rows]),
        )

    @property
    def _whole(self) -> Batch:
        return protected_share(self.task.plan.of_training, self.train_indices, self.key("once"))

    @property
    def _one_by_one(self) -> bool:
        """Whether the draws that protect an image once depend on that image alone, and not on its company.

        Company is the server's to choose, by the examples that it deals out, limits and batch sizes: each choice would protect
        the image anew, and the protections would average out. In a simulation, which protects no person, blocks cost a fifth.
        """
        return self.draws.notebook is not None and not self.pipeline.mixes_images

    def _kept_block(self, at: int) -> Batch:
        """Examples ``at * BLOCK`` onwards after the once-only defences; the block's draws depend on nothing else."""
        positions = torch.arange(at * BLOCK, min((at + 1) * BLOCK, self.num_train))
        return protected_together(self.pipeline, self.plain(positions), (*self.key("once"), at))

    def originals(self) -> Batch:
        """All local training examples, unprotected."""
        return self.plain(torch.arange(self.num_train))

    def own_images(self, positions: Tensor) -> Tensor:
        """Images (N, C, H, W) in [0, 1] at positions (N,) among the training examples, and behind them the test examples."""
        indices = torch.cat([self._train, self._test])[positions]
        images = torch.zeros(len(positions), *self.card.input_shape)
        for part, chosen in (
            (self.dataset.train, positions < self.num_train),
            (self.dataset.test, positions >= self.num_train),
        ):
            images[chosen] = local_batch(part, indices[chosen], self.card.num_classes).images
        return images

    def averaged(self) -> Tensor:
        """Positions (n,) of the training images that stand for all of them in a mean: ``MOST_AVERAGED`` at most, evenly spaced."""
        return torch.linspace(0, self.num_train - 1, min(self.num_train, MOST_AVERAGED)).long()

    def augmented(self, batch: Batch, key: Key) -> Batch:
        """The batch as cropped and mirrored under ``key``; unchanged where the task requests neither."""
        if not self.task.plan.augments:
            return batch
        task, generator = self.task, generator_for(*key, "augment")
        return replace(
            batch,
            images=random_crop_and_flip(batch.images, task.plan.crop_padding, task.plan.horizontal_flip, generator),
        )

    @property
    def changes_images(self) -> bool:
        """Whether images do not enter the model as they are."""
        return bool(self.task.plan.augments or self.pipeline.once or self.pipeline.protects_batches)

    def enter(self, kept: Batch, key: Key) -> Batch:
        """One protected view of each example that ``kept`` returned, as it enters the model."""
        if self.task.plan.augments:
            kept = self.pipeline.protect_once(self.augmented(kept, key), key)
        return self.pipeline.protect_batch(kept, key)

    def view(self, positions: Tensor, key: Key) -> Probed:
        """One batch of the training examples at ``positions``: before the defences, and as they enter the model.

        A crop or a mirror image is no protection: it shows what the image shows. A guess is therefore compared with the view that
        was used, since a shift of four pixels would look like privacy to every score that compares pixels.
        """
        return Probed(self.augmented(self.plain(positions), key), self.enter(self.kept(positions), key), positions)

    def test_labels(self) -> Tensor:
        """Labels of its test examples: classes (num_test,), or label vectors (num_test, K)."""
        return self.dataset.test.truth(self._test)

    def test_sensitive(self) -> Tensor:
        """Values (num_test,) of the sensitive attribute of its test examples; ``ValueError`` where the data have none."""
        if self.dataset.test.sensitive is None:
            raise ValueError(f"dataset {self.dataset.name!r} has no sensitive attribute")
        return self.dataset.test.sensitive[self._test]

    def test_plain(self, positions: Tensor) -> Batch:
        """Test examples of this client at ``positions`` (n,), unprotected."""
        return local_batch(self.dataset.test, self._test[positions], self.card.num_classes)


class Client:
    """Base of the clients of all scenarios: examples (``data``), and the truths that score guesses."""

    def __init__(self, data: LocalData) -> None:
        self.data = data

    @property
    def task(self) -> Task:
        """The server's orders."""
        return self.data.task

    @property
    def pipeline(self) -> Pipeline:
        """The defences."""
        return self.data.pipeline

    def truths(self, observation: str) -> Truths:
        """The client's truth behind the server's observations of a kind, as "probe"; ``ValueError`` for a kind never sent."""
        raise ValueError(f"clients of scenario {self.task.plan.scenario!r} know no observation {observation!r}")

    def sensitive(self, observation: str) -> list[Tensor]:
        """True values of the sensitive attribute of the images behind each observation of a kind, (B,) int64.

        Raises:
            ValueError: When clients of this scenario show nothing of that kind, or the data have no such attribute.
        """
        raise ValueError(f"clients of scenario {self.task.plan.scenario!r} know no attribute of {observation!r}")

    def trained_on(self) -> Tensor:
        """Positions (n,), int64 and ascending, of the training examples that this round's training depends on."""
        return torch.arange(self.data.num_train)
