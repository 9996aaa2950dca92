"""Undoing a shuffle of tokens from one transmission: decode every token to its patch, and solve the jigsaw puzzle."""

from __future__ import annotations

from dataclasses import replace
from typing import Self

import torch
from torch import Tensor

from attacks.base import Knowledge, learned_field
from attacks.guesses import Reconstruction
from attacks.smashed.base import SmashedAttack, SmashedData
from attacks.smashed.tokens.positions import TokenReader, from_patches
from attacks.smashed.tokens.training import train_reader
from defenses.checks import algorithm, examples_field, require, steps_field, width_field
from defenses.tensors import Numbers


@algorithm
class TokenReading(
    SmashedAttack[Reconstruction],
    needs_auxiliary=True,
    effort={"iterations": "training_iterations"},
    quick={"iterations": 12, "width": 16, "batch_size": 8},
):
    """Base of attacks that read tokens with a network trained on auxiliary images.

    Attributes:
        iterations: Training steps of the network.
        width: Of the network, a multiple of 4.
        batch_size: Auxiliary images per step, best as many as the clients': a batch shuffle mixes so many.
    """

    threat = "smashed data; the defences' algorithm; auxiliary images like the clients'"

    iterations: int = steps_field(500)
    width: int = width_field(64)
    batch_size: int = examples_field(32, 2)
    learned: TokenReader = learned_field()

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.width % 4 == 0, self, "width", "a multiple of 4")

    def fit(self, knowledge: Knowledge, generator: torch.Generator) -> Self:
        """Trains the network; deterministic given the generator."""
        reader = train_reader(
            knowledge.require_sender(),
            knowledge.auxiliary.images,
            generator,
            iterations=self.iterations,
            width=self.width,
            batch_size=self.batch_size,
        )
        return replace(self, learned=reader)

    def reader_for(self, observation: SmashedData) -> TokenReader:
        """The network."""
        self.learned.check(observation.features)
        return self.learned

    def guess(self, patches: Tensor, observation: SmashedData, numbers: Numbers) -> Reconstruction:
        """The targets of patches (B, N, P) that are in their positions."""
        rows = patches[: observation.num_targets]
        images = from_patches(rows, observation.edge.patch_size, observation.input_shape).clamp(0, 1)
        return Reconstruction.unlabelled(images, numbers)


@algorithm
class TokenJigsaw(TokenReading):
    """Decode every received token to its patch and solve the jigsaw puzzle of an image, from a single transmission.

    A shuffle hides a token's position, not its content. A small network, trained on auxiliary images sent by the attacker,
    predicts the patch, the position and the neighbours of every token; ``positions.solve`` finds the most plausible
    arrangement. If tokens stay in their image's row (``PatchShuffle``), every image is a separate puzzle. If they change rows
    (``BatchShuffle``), the batch is one puzzle of B images, and a token's row indicates its likely image. If held-out images are
    recovered worse than by the mean image, the guess is shrunk towards the mean image.

    Diagnostics: those of ``train_reader``, on held-out auxiliary images.

    Attributes:
        max_tokens: Largest number of tokens in a puzzle of a batch; further images except the targets are left out. Memory grows
            with the square, time with the cube.
    """

    source = "Noroozi and Favaro 2016 (jigsaw), named but not described by Yao et al., ICDM 2022; Cho 2010 (mean field of a puzzle)"

    max_tokens: int = examples_field(1024)

    def attack_one(self, observation: SmashedData, generator: torch.Generator) -> Reconstruction:
        """Recover the images of the first transmission."""
        reader = self.reader_for(observation)
        rows = max(observation.num_targets, self.max_tokens // observation.features.shape[2])
        reading = reader(observation.features[0, :rows])
        return self.guess(reader.assemble(reading, reader.order(reading)), observation, dict(reader.diagnostics))
