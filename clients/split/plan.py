"""Settings that a split run fixes for its clients, and the passes of training through their examples."""

import functools
import math
from dataclasses import dataclass
from typing import Any

import torch

from clients.models.library import require_fits
from clients.models.split.halves import Halves
from clients.models.split.split_models import DEFAULT_WIDTHS, SplitShape, build_split_model
from clients.task.task import Plan, Task
from defenses.base import DefenseError
from defenses.checks import Blocks, BlocksOrNone, Optimizer, Pixels, Text
from defenses.tensors import ImageShape


@dataclass(frozen=True)
class SplitPlan(Plan):
    """A plan of split learning.

    Attributes:
        patch_size: Side of a patch in pixels.
        depth: Transformer blocks of both halves together.
        heads: Attention heads of a block.
        edge_blocks: Blocks of the client half, unless a defence asks for another number.
        train_edge: The client half is trained and averaged (SplitFed); else it stays as it was initialised.
        weights: Path of a file of weights to start from (see ``clients.models.pretrained``) everywhere; "": random weights.
        optimizer: "sgd" or "adamw", of both halves.
    """

    patch_size: Pixels = 4
    depth: Blocks = 4
    heads: Blocks = 4
    edge_blocks: BlocksOrNone = 1
    train_edge: bool = False
    weights: Text = ""
    optimizer: Optimizer = "sgd"

    def shape(self) -> SplitShape:
        """Sizes of the split model under this pipeline."""
        pipeline = self.defenses
        return SplitShape(
            patch_size=self.patch_size,
            width=self.width or DEFAULT_WIDTHS[self.model],
            depth=self.depth,
            heads=self.heads,
            edge_blocks=self.edge_blocks if pipeline.edge_blocks is None else pipeline.edge_blocks,
            widening=pipeline.widening,
        )

    def build_halves(self) -> Halves:
        """Build both halves of the split model; the same seed and file give the same initial weights everywhere.

        Raises:
            ModelError: When sizes do not fit each other or the images, or the file of weights cannot be used.
            DefenseError: When the pipeline cannot protect such tokens.
        """
        card, pipeline = self.data_card(), self.defenses
        build = functools.partial(
            build_split_model,
            self.model,
            num_classes=card.num_classes,
            input_shape=card.input_shape,
            shape=self.shape(),
            seed=self.seed,
            cardinalities=card.cardinalities,
        )
        require_fits(build, self.model, card.input_shape, self.image_size, self.batch_size, self.width, self.depth)
        edge, server = build(pretrained=self.weights)
        rows, columns = edge.grid
        for defense in pipeline.smashed_defenses:
            if defense.widening > 1 and rows != columns:
                raise DefenseError(
                    f"{defense} needs a square grid of tokens, and images give {rows} x {columns}; set image-size"
                )
            defense.check_batch(self.batch_size, edge.num_tokens)
        return edge, server

    @property
    def trains_edge(self) -> bool:
        """Whether the client half is trained: because the experiment says so, or because a defence consists of that."""
        return self.train_edge or self.defenses.edge_training is not None


class SplitPasses:
    """The passes over the training examples of one client. Batches of a round go on where the round before ended."""

    def __init__(self, task: Task, num_examples: int) -> None:
        self.task, self.num_examples = task, num_examples

    def batches(self) -> list[int]:
        """Sizes of the batches of this round.

        They go on where the round before ended, so that no example is sent again before the others of the pass were sent.
        """
        once, first = self._pass(), self._first_batch()
        return [once[at % len(once)] for at in range(first, first + self._batches_per_round())]

    def _first_batch(self) -> int:
        return (self.task.round - 1) * self._batches_per_round()

    def place(self, number: int) -> tuple[int, int]:
        """The pass, and the batch within it, of batch ``number`` of this round."""
        return divmod(self._first_batch() + number, len(self._pass()))

    def transmissions(self, until: int, since: int = 1) -> int:
        """How often training sends any one example in rounds ``since`` to ``until``, at most: once in each pass, without audits."""
        return len(self.within(since, until))

    def within(self, since: int, until: int) -> list[ImageShape]:
        """Number, first batch and end of each pass of which rounds ``since`` to ``until`` send anything."""
        per_round, per_pass = self._batches_per_round(), len(self._pass())
        first, end = (since - 1) * per_round, until * per_round
        passes = range(first // per_pass, math.ceil(end / per_pass)) if first < end else range(0)
        return [(at, max(first - at * per_pass, 0), min(end - at * per_pass, per_pass)) for at in passes]

    def _batches_per_round(self) -> int:
        return self.task.plan.local_steps or self.task.plan.local_epochs * len(self._pass())

    def _pass(self) -> list[int]:
        """Sizes of the batches of one pass; a single image that is left over waits for another one."""
        full, left = divmod(self.num_examples, self.task.plan.batch_size)
        return [self.task.plan.batch_size] * full + ([left] if left > 1 or not full else [])


def build_optimizer(plan: SplitPlan, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    """The experiment's optimizer over groups of parameters that carry their own learning rates."""
    if plan.optimizer == "adamw":
        return torch.optim.AdamW(groups, weight_decay=plan.weight_decay)
    return torch.optim.SGD(
        groups, lr=0.0, momentum=plan.momentum, weight_decay=plan.weight_decay, nesterov=plan.nesterov
    )
