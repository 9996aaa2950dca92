"""Undoing a shuffle of tokens with the client half alone: exact pixels by inversion, then the jigsaw puzzle of their borders."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from attacks.assignment import assigned
from attacks.base import Knowledge, learned_field
from attacks.guesses import Reconstruction
from attacks.normalisation import normalise
from attacks.observations import AttackError
from attacks.sender import Sender, key_of
from attacks.smashed.base import SmashedAttack, SmashedData, check_features
from attacks.smashed.block_inversion import decoded
from attacks.smashed.tokens.positions import from_patches
from attacks.smashed.tokens.puzzle import border_costs, ratios_of, solved
from attacks.smashed.tokens.training import kept_share
from defenses.base import DefenseError, ImageShape
from defenses.checks import examples_field, steps_field
from defenses.pipeline import Pipeline

MOST_NOISE = 0.5
"""Noise of received numbers, relative to their root mean square, above which they do not hold the shuffled tokens."""
PROBES, DRAWS = 2, 64
"""Images that the attack sends itself to measure the noise, and images whose drawn order shows the share of native tokens."""


@dataclass(frozen=True)
class Channel:
    """What the defences do to tokens, measured by the attack on random images that it sends itself.

    Attributes:
        noise: Root mean square deviation of a received number from a shuffle alone.
        kept_share: Share of tokens that never leave the row of their image; 1 where none leave it.
    """

    noise: float
    kept_share: float

    @classmethod
    def of(cls, sender: Sender, shape: ImageShape, generator: torch.Generator) -> Self:
        """Measure it on images of shape (C, H, W); raise ``AttackError`` unless tokens are shuffled and nothing else."""
        # What input defences do to an image is not undone, so that it is no noise here.
        stages = replace(sender, pipeline=Pipeline(tuple(sender.pipeline.smashed_defenses)))
        images = torch.rand(PROBES, *shape, generator=generator).to(next(iter(sender.edge.parameters())))
        sent, order = stages.send_with_order(images, generator)
        with torch.no_grad():
            tokens = sender.edge.embed(normalise(images, sender))
            if order.shape != tokens.shape[:2]:
                raise AttackError("does not apply: the defences do not send one token for each patch")
            expected = sender.edge.encode(tokens.flatten(0, 1)[order.to(tokens.device)])
        if sent.shape != expected.shape:
            raise AttackError("does not apply: the defences change the length of tokens")
        noise, size = (float(part.double().square().mean().sqrt()) for part in (sent - expected, expected))
        if not noise <= MOST_NOISE * size:
            raise AttackError("does not apply: the defences change tokens by more than a shuffle and little noise")
        drawn = stages.pipeline.token_order(DRAWS, order.shape[1], key_of(generator))
        return cls(noise if noise > 1e-5 * size else 0.0, kept_share(drawn))


@dataclass(frozen=True, repr=False)
class TokenPuzzle(SmashedAttack[Reconstruction]):
    """Invert the client half on shuffled tokens, and solve the jigsaw puzzle of the patches. The server needs no image.

    1. The server knows the client's blocks, and blocks commute with permutations. So the attack inverts them numerically in the
       order in which the tokens were sent (``block_inversion.decoded``). Without noise the pixels are exact or nearly so, if a
       token is no shorter than a patch. A shorter token gives a smooth patch.
    2. Patches are joined by the steps across their borders (``puzzle.solved``). ``PatchShuffle`` leaves a separate puzzle for each
       image. Under ``BatchShuffle`` the batch is a single puzzle of several images, and each image found belongs to the row that
       most of its tokens came from. What recurs over several transmissions is for ``TokenIntersection`` to find.

    Diagnostics are ``block_residual`` and ``exact`` (see ``decoded``), and ``noise`` and ``kept_share`` (see ``Channel``). The
    last one, ``joint_ratio``, is the median over joints of their cost relative to the second best one. Patches fit below 1.

    Attributes:
        evaluations: Most evaluations of the client half in each stage of the search that inverts it.
        max_tokens: Largest number of patches in the puzzle of a batch; further images except the targets are left out. Memory grows
            with the square.
        learned: Set by ``fit``: the client's sending side.
    """

    source = "Gallagher, CVPR 2012 (puzzle); blocks that commute with permutations: Yao et al., ICDM 2022"
    threat = "one transmission of smashed data; the client half and its weights; the defences' algorithm; no images"
    effort = {"evaluations": "iterations"}
    quick = {"evaluations": 8}

    evaluations: int = steps_field(40)
    max_tokens: int = examples_field(3136)
    learned: Sender | None = learned_field()

    def fit(self, knowledge: Knowledge, generator: torch.Generator) -> Self:
        """Keep the client's sending side."""
        return replace(self, learned=knowledge.require_sender())

    def attack_one(self, observation: SmashedData, generator: torch.Generator) -> Reconstruction:
        """Recover the targets."""
        assert self.learned is not None
        features, edge = observation.features[0], observation.edge
        grid, count = edge.grid, observation.num_targets
        try:
            channel = Channel.of(replace(self.learned, edge=edge), observation.input_shape, generator)
        except DefenseError as error:
            raise AttackError(str(error)) from error
        check_features(features, (grid[0] * grid[1], self.learned.edge.token_length))
        numbers = {"noise": channel.noise, "kept_share": channel.kept_share}
        pooled = channel.kept_share < 1
        rows = min(len(features), max(count, self.max_tokens // features.shape[1])) if pooled else count
        patches, found = decoded(
            edge, observation.input_shape, observation, features[:rows], channel.noise, self.evaluations
        )
        numbers |= found
        groups = patches.flatten(0, 1)[None] if pooled else patches
        solutions = [self._solved(group, edge.patch_size, grid, rows if pooled else 1) for group in groups]
        boards = torch.cat([board + one * patches.shape[1] for one, (board, _) in enumerate(solutions)])
        if pooled:
            # In the order of the rows that most of their tokens came from, each row once.
            origins = boards.flatten(1) // patches.shape[1]
            counts = torch.stack([torch.bincount(one, minlength=rows) for one in origins])
            boards = boards[assigned(-counts.T)][:count]
        numbers["joint_ratio"] = sum(ratio for _, ratio in solutions) / len(solutions)
        ordered = torch.stack([patches.flatten(0, 1)[number] for number in boards.flatten(1)])
        images = from_patches(ordered, edge.patch_size, observation.input_shape).clamp(0, 1)
        return Reconstruction.unlabelled(images, numbers)

    def _solved(self, patches: Tensor, size: int, grid: tuple[int, int], images: int) -> tuple[Tensor, float]:
        """Boards of one puzzle, and the median ratio of its joints."""
        costs = border_costs(patches, size).cpu()  # what follows is a search, cell by cell
        boards, ratios = solved(costs, grid, images), ratios_of(costs)
        right = ratios[0][boards[:, :, :-1], boards[:, :, 1:]]
        below = ratios[1][boards[:, :-1], boards[:, 1:]]
        joints = torch.cat([right.flatten(), below.flatten()])
        return boards, float(joints.median()) if len(joints) else math.nan
