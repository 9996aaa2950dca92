"""Undoing a shuffle of tokens with the client half alone: exact pixels by inversion, then the jigsaw puzzle of their borders."""

import math
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from attacks.assignment import assigned
from attacks.base import Knowledge, learned_field
from attacks.guesses import Reconstruction
from attacks.normalisation import normalise
from attacks.observations import AttackError, NotApplicableError
from attacks.sender import Sender, key_of
from attacks.smashed.base import SmashedAttack, SmashedData, check_features
from attacks.smashed.block_inversion import decoded
from attacks.smashed.tokens.jigsaw import LEAST_KEPT, assign_clusters, leaders, most_recurrent, multiplicities
from attacks.smashed.tokens.positions import from_patches
from attacks.smashed.tokens.puzzle import border_costs, ratios_of, solved
from attacks.smashed.tokens.training import kept_share
from defenses.base import DefenseError
from defenses.checks import Examples, Steps, algorithm
from defenses.pipeline import Pipeline
from defenses.tensors import ImageShape, Numbers

EQUAL, EXACTLY_EQUAL = 0.02, 0.002
"""Largest root mean square difference of pixels of equal patches, and where all tokens were decoded exactly."""
MOST_NOISE = 0.5
"""Noise of received numbers, relative to their root mean square, above which they do not hold the shuffled tokens."""
PROBES, DRAWS = 2, 64
"""Images that the attack sends itself to measure the noise, and images whose drawn order shows the share of native tokens."""

MOST_TOKENS = 3136
"""Patches in the puzzle of a batch; further images except the targets are left out. Memory grows with the square."""


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
                raise NotApplicableError("the defences do not send one token for each patch")
            expected = sender.edge.encode(tokens.flatten(0, 1)[order.to(tokens.device)])
        if sent.shape != expected.shape:
            raise NotApplicableError("the defences change the length of tokens")
        noise, size = (float(part.double().square().mean().sqrt()) for part in (sent - expected, expected))
        if not noise <= MOST_NOISE * size:
            raise NotApplicableError("the defences change tokens by more than a shuffle and little noise")
        drawn = stages.pipeline.token_order(DRAWS, order.shape[1], key_of(generator))
        return cls(noise if noise > 1e-5 * size else 0.0, kept_share(drawn))


@algorithm
class TokenPuzzle(
    SmashedAttack[Reconstruction], effort={"evaluations": "iterations"}, quick={"evaluations": 8, "transmissions": 3}
):
    """Invert the client half on shuffled tokens, and solve the jigsaw puzzle of the patches. The server needs no image.

    1. The server knows the client's blocks, and blocks commute with permutations. So the attack inverts them numerically in the
       order in which the tokens were sent (``block_inversion.decoded``). Without noise the pixels are exact or nearly so, if a
       token is no shorter than a patch. A shorter token gives a smooth patch.
    2. Patches are joined by the steps across their borders (``puzzle.solved``). ``PatchShuffle`` leaves a separate puzzle for each
       image. From one transmission of ``BatchShuffle`` the batch is a single puzzle of several images, and each image found
       belongs to the row that most of its tokens came from.
    3. With more transmissions of ``BatchShuffle``, tokens whose pixels recur in a row are the image's own. Each image is a
       separate puzzle again. ``TokenIntersection`` uses the same recurrence.

    Diagnostics are ``block_residual`` and ``exact`` (see ``decoded``), and ``noise`` and ``kept_share`` (see ``Channel``). The
    last one, ``joint_ratio``, is the median over joints of their cost relative to the second best one. Patches fit below 1.

    Attributes:
        transmissions: Most transmissions of the same images; the attack uses those that the run makes. ``PatchShuffle`` needs one.
        evaluations: Most evaluations of the client half in each stage of the search that inverts it.
        learned: Set by ``fit``: the client's sending side.
    """

    source = "Gallagher, CVPR 2012 (puzzle); blocks that commute with permutations: Yao et al., ICDM 2022"
    threat = "smashed data; the client half and its weights; the defences' algorithm; no images"

    transmissions: Examples = 30
    evaluations: Steps = 40
    learned: Sender = learned_field()

    def fit(self, knowledge: Knowledge, generator: torch.Generator) -> Self:
        """Keep the client's sending side."""
        return replace(self, learned=knowledge.require_sender())

    def attack_one(self, observation: SmashedData, generator: torch.Generator) -> Reconstruction:
        """Recover the targets."""
        patches, boards, numbers = self.arranged(observation, generator)
        ordered = torch.stack([patches[number] for number in boards.flatten(1)])
        images = from_patches(ordered, observation.edge.patch_size, observation.input_shape).clamp(0, 1)
        return Reconstruction.unlabelled(images, numbers)

    def arranged(self, observation: SmashedData, generator: torch.Generator) -> tuple[Tensor, Tensor, Numbers]:
        """Patches (M, P), boards (targets, rows, columns) of their numbers, and diagnostics.

        Patch number r * N + s is what slot s of row r of the first transmission shows, unless tokens recur (step 3).
        """
        features, edge = observation.features[: self.transmissions], observation.edge
        grid, count = edge.grid, observation.num_targets
        try:
            channel = Channel.of(replace(self.learned, edge=edge), observation.input_shape, generator)
        except DefenseError as error:
            raise AttackError(str(error)) from error
        check_features(features, (grid[0] * grid[1], self.learned.edge.token_length))
        numbers = {"noise": channel.noise, "kept_share": channel.kept_share}
        recurring = LEAST_KEPT <= channel.kept_share < 1 and len(features) > 1
        pooled = channel.kept_share < 1 and not recurring
        rows = min(features.shape[1], max(count, MOST_TOKENS // features.shape[2])) if pooled else count
        received = features[: len(features) if recurring else 1, :rows]
        flat, quality = decoded(
            edge, observation.input_shape, observation, received.flatten(0, 1), channel.noise, self.evaluations
        )
        patches, numbers = flat.view(*received.shape[:3], -1), numbers | quality
        own, radius = patches[0], EXACTLY_EQUAL if quality["exact"] == 1 else EQUAL
        if recurring:
            own = torch.stack(
                [_recurring(patches, row, channel.kept_share, features.shape[1], radius) for row in range(count)]
            )
        groups = own.flatten(0, 1)[None] if pooled else own
        solutions = [self._solved(group, edge.patch_size, grid, rows if pooled else 1) for group in groups]
        boards = torch.cat([board + at * own.shape[1] for at, (board, _) in enumerate(solutions)])
        if pooled:
            boards = _of_rows(boards, rows)[:count]
        numbers["joint_ratio"] = sum(ratio for _, ratio in solutions) / len(solutions)
        return own.flatten(0, 1), boards, numbers

    def _solved(self, patches: Tensor, size: int, grid: tuple[int, int], images: int) -> tuple[Tensor, float]:
        """Boards of one puzzle, and the median ratio of its joints."""
        costs = border_costs(patches, size).cpu()  # what follows is a search, cell by cell
        boards, ratios = solved(costs, grid, images), ratios_of(costs)
        right = ratios[0][boards[:, :, :-1], boards[:, :, 1:]]
        below = ratios[1][boards[:, :-1], boards[:, 1:]]
        joints = torch.cat([right.flatten(), below.flatten()])
        return boards, float(joints.median()) if len(joints) else math.nan


def _of_rows(boards: Tensor, rows: int) -> Tensor:
    """Boards in the order of the rows that most of their tokens came from, each row once."""
    per_row = boards[0].numel()
    counts = torch.stack([torch.bincount(board.flatten() // per_row, minlength=rows) for board in boards])
    return boards[assigned(-counts.T)]


def _recurring(patches: Tensor, row: int, kept_share: float, batch: int, radius: float) -> Tensor:
    """The N patches (N, P) that recur most in a row of (R, T, N, P), compared with the rows of other targets.

    A target's token is somewhere in the batch in every transmission. So its appearances in all rows of targets give its mean in
    any row, and with that the copies that each target holds (``multiplicities``). A single token of which another target holds
    more is not the row's own.
    """
    seen = patches[:, row].flatten(0, 1)
    distance = radius * math.sqrt(seen.shape[1])
    centres = seen[leaders(seen, distance)]
    counts = []
    for at in range(patches.shape[1]):
        near = assign_clusters(patches[:, at].flatten(0, 1), centres, distance)
        counts.append(torch.bincount(near, minlength=len(centres) + 1)[:-1] / len(patches))
    seen_share = kept_share + (1 - kept_share) * len(counts) / batch
    held = multiplicities(torch.stack(counts), sum(counts, torch.zeros(())) / (batch * seen_share), kept_share)
    own = torch.where((held[row] < held.amax(0)) & (held[row] < 1), held[row] - 1, held[row])
    chosen, _ = most_recurrent(own, patches.shape[2])
    return centres[chosen]
