"""What the server asks of a client: one task, sent with every message as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from attacks.local_model import shared_tensors
from clients.data.card import DataCard
from clients.data.datasets import ImageDataset, load_dataset
from clients.data.images import IMAGE_MEMORY
from clients.models.classifiers import build_model
from clients.models.halves import EdgeHalf, ServerHalf, SplitShape, build_split_model, default_width
from defenses.base import DefenseError
from defenses.pipeline import Pipeline
from defenses.spec import parse

ONE_STEP_PER_UPDATE = "per update, here on a single step"
"""How a threat card begins to say that a probe was protected more strongly, for its one step, than training is."""

FLOAT_BYTES = 4
"""Of one value of an image that enters a model."""


@dataclass(frozen=True)
class Task:
    """A client's orders for one round of one pipeline; ranges are checked where the experiment is read.

    Attributes:
        scenario: How clients and server work together (see ``clients.scenarios``).
        dataset: Name of the data set (see ``clients.data.datasets``), with ``data_dir``, ``download``, ``image_size``, limits and
            ``image_memory``.
        model: Name of the model (see ``clients.models.classifiers``), with ``width`` and ``norm``.
        pipeline: The defences' text; "" for none.
        seed: Of the whole experiment.
        round: The server round, from 1; ``rounds`` + 1 when the final model is attacked, and no training follows.
        rounds: Rounds in which this client will train, for the privacy budget.
        local_epochs: Passes over the local data in a round, unless ``local_steps`` says otherwise.
        batch_size: Examples of a local step.
        learning_rate: Of local SGD in the first round; see ``round_learning_rate``.
        momentum: Of local SGD.
        weight_decay: L2 coefficient of local SGD.
        nesterov: Local SGD looks ahead by its momentum.
        milestones: Rounds after each of which the learning rate is multiplied by ``learning_rate_factor``.
        learning_rate_factor: See ``milestones``.
        crop_padding: Local training sees random crops after padding with so many pixels; 0: none.
        horizontal_flip: Local training sees mirror images with probability 1/2.
        probe_mode: "train" or "eval", of the model in probes.
        probe_targets: One-step updates that a probe asks for.
        probe_images: Images that each of them is computed on.
        local_steps: Optimizer steps in a round, in as many passes as that takes; 0: those of ``local_epochs``.
        auxiliary_fraction: Share of the training examples that the server holds and no client has.
        auxiliary_limit: At most so many of them; 0: no limit.
        auxiliary_data: Where the server's own examples come from: "held-out" (that share), "private" (the clients' own training
            examples: the worst case of the split papers), or the name of another data set.
        patch_size: Side of a patch in pixels. This and what follows are for split learning.
        depth: Transformer blocks of both halves together.
        heads: Attention heads of a block.
        edge_blocks: Blocks of the client half, unless a defence asks for another number.
        train_edge: The client half is trained and averaged (SplitFed); else it stays as it was initialised.
        pretrained: Path of a file of weights to start from (see ``clients.models.pretrained``) everywhere; "": random weights.
        optimizer: "sgd" or "adamw", of both halves.
        edge_learning_rate: Of the client half in this round.
        owns_data: Everything in the client's data directory is its own; else the server names its examples.
        card: Shape and normalisation that all clients share; None only until the set-up is done.
    """

    scenario: str
    dataset: str
    data_dir: str
    download: bool
    image_size: int
    train_limit: int
    test_limit: int
    model: str
    width: int
    norm: str
    pipeline: str
    seed: int
    round: int
    rounds: int
    local_epochs: int
    batch_size: int
    learning_rate: float
    momentum: float
    weight_decay: float
    probe_targets: int
    probe_images: int
    local_steps: int = 0
    nesterov: bool = False
    milestones: tuple[int, ...] = ()
    learning_rate_factor: float = 0.1
    crop_padding: int = 0
    horizontal_flip: bool = False
    probe_mode: str = "train"
    auxiliary_fraction: float = 0.0
    auxiliary_data: str = "held-out"
    auxiliary_limit: int = 0
    image_memory: float = IMAGE_MEMORY
    patch_size: int = 4
    depth: int = 4
    heads: int = 4
    edge_blocks: int = 1
    train_edge: bool = False
    pretrained: str = ""
    optimizer: str = "sgd"
    edge_learning_rate: float = 0.0
    owns_data: bool = False
    card: DataCard | None = None

    def to_json(self) -> str:
        """The task as JSON text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Task:
        """Reads what ``to_json`` wrote."""
        values = json.loads(text)
        card, milestones = values.pop("card"), values.pop("milestones")
        return cls(**values, milestones=tuple(milestones), card=None if card is None else DataCard.from_mapping(card))

    @property
    def round_learning_rate(self) -> float:
        """Of local SGD in this round, the first being 1: what MultiStepLR has in epoch ``round`` - 1."""
        return self.learning_rate * self.learning_rate_factor ** sum(at < self.round for at in self.milestones)

    @property
    def augments(self) -> bool:
        """Whether local training sees crops or mirror images."""
        return self.crop_padding > 0 or self.horizontal_flip

    @property
    def is_final(self) -> bool:
        """Whether this is about the model after the last round, which is only attacked."""
        return self.round > self.rounds

    def passes(self, num_examples: int, rounds: int = 1) -> int:
        """Passes over a client's examples in the training steps of ``rounds`` rounds, a begun pass counted whole."""
        if not self.local_steps:
            return rounds * self.local_epochs
        steps_per_pass = max(1, math.ceil(num_examples / self.batch_size))
        return math.ceil(rounds * self.local_steps / steps_per_pass)

    def load_data(self) -> ImageDataset:
        """The data set, cached per process."""
        return load_dataset(
            self.dataset,
            data_dir=self.data_dir,
            download=self.download,
            image_size=self.image_size,
            train_limit=self.train_limit,
            test_limit=self.test_limit,
            image_memory=self.image_memory,
        )

    def defenses(self) -> Pipeline:
        """The pipeline."""
        return parse(self.pipeline)

    def data_card(self) -> DataCard:
        """The shared card, or that of the data set at hand."""
        return self.card or DataCard.of(self.load_data())

    def build_model(self) -> nn.Module:
        """The model as client and server both build it: same initial weights for the same seed.

        BatchNorm is replaced by GroupNorm when a defence needs per-example gradients.
        """
        card = self.data_card()
        return build_model(
            self.model,
            num_classes=card.num_classes,
            input_shape=card.input_shape,
            width=self.width,
            norm="group" if self.defenses().needs_group_norm else self.norm,
            seed=self.seed,
        )

    def build_halves(self) -> tuple[EdgeHalf, ServerHalf]:
        """Both halves of the split model, with the same initial weights for the same seed and file wherever they are built.

        Raises:
            ModelError: When sizes do not fit each other or the images, or the file of weights cannot be used.
            DefenseError: When the pipeline cannot protect such tokens.
        """
        card, pipeline = self.data_card(), self.defenses()
        shape = SplitShape(
            patch_size=self.patch_size,
            width=self.width or default_width(self.model),
            depth=self.depth,
            heads=self.heads,
            edge_blocks=self.edge_blocks if pipeline.edge_blocks is None else pipeline.edge_blocks,
            widening=pipeline.widening,
            raw_patches=pipeline.raw_patches,
        )
        edge, server = build_split_model(
            self.model,
            num_classes=card.num_classes,
            input_shape=card.input_shape,
            shape=shape,
            seed=self.seed,
            pretrained=self.pretrained,
        )
        rows, columns = edge.grid
        for defense in pipeline.smashed_defenses:
            if defense.widening > 1 and rows != columns:
                raise DefenseError(
                    f"{defense} needs a square grid of tokens, and images give {rows} x {columns}; set image-size"
                )
            defense.check_batch(self.batch_size, edge.num_tokens, edge.dim)
        return edge, server

    @property
    def trains_edge(self) -> bool:
        """Whether the client half is trained: by the experiment's will or because a defence is nothing else.

        Where tokens are the patches' pixels, the client half has no weights.
        """
        pipeline = self.defenses()
        return (self.train_edge or pipeline.edge_training is not None) and not pipeline.raw_patches


def load_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> nn.Module:
    """Copies exchanged tensors into a model, in place; returns the model."""
    with torch.no_grad():
        for name, tensor in shared_tensors(model).items():
            tensor.copy_(weights[name])
    return model
