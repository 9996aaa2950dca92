"""Undoing shuffles of tokens: a jigsaw puzzle from one transmission, and the tokens that recur in an image's row over many."""

import math
from dataclasses import replace
from typing import Self

import torch
from torch import Tensor

from attacks.assignment import assigned
from attacks.base import Knowledge, learned_field
from attacks.guesses import Reconstruction
from attacks.observations import AttackError
from attacks.smashed.base import SmashedAttack, SmashedData
from attacks.smashed.tokens.positions import Reading, TokenReader, from_patches, place, solve
from attacks.smashed.tokens.training import train_reader
from defenses.checks import Examples, Several, Steps, Width, algorithm, require
from defenses.tensors import Numbers

MOST_TOKENS = 1024
"""Of a puzzle of a batch; further images except the targets are left out. Memory grows with the square, time with the cube."""


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

    iterations: Steps = 500
    width: Width = 64
    batch_size: Several = 32
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
    """

    source = "Noroozi and Favaro 2016 (jigsaw), named but not described by Yao et al., ICDM 2022; Cho 2010 (mean field of a puzzle)"

    def attack_one(self, observation: SmashedData, generator: torch.Generator) -> Reconstruction:
        """Recover the images of the first transmission."""
        reader = self.reader_for(observation)
        rows = max(observation.num_targets, MOST_TOKENS // observation.features.shape[2])
        reading = reader(observation.features[0, :rows])
        return self.guess(reader.assemble(reading, reader.order(reading)), observation, dict(reader.diagnostics))


RADIUS = 0.02
"""Largest root mean square difference of equal patches' pixels, or three times the decoding error on held-out images if that is
more."""
LEAST_KEPT = 0.05
"""Share of native tokens below which recurring tokens cannot be distinguished from foreign ones."""


def leaders(points: Tensor, radius: float) -> Tensor:
    """Indices of points (M, P) that lead a cluster, those with most neighbours first: every point is within the radius of one."""
    near = torch.cdist(points, points) <= radius
    # cdist's rounding can put a point at some distance from itself.
    near.fill_diagonal_(True)
    free = torch.ones(len(points), dtype=torch.bool, device=points.device)
    chosen = []
    for point in near.sum(1).argsort(descending=True, stable=True).tolist():
        if free[point]:
            chosen.append(point)
            free &= ~near[point]
    return torch.tensor(chosen, device=points.device)


def assign_clusters(points: Tensor, centres: Tensor, radius: float) -> Tensor:
    """The nearest centre of every point (M, P), or the number of centres (C, P) where none is within the radius: (M,)."""
    distance, nearest = torch.cdist(points, centres).min(1)
    return torch.where(distance <= radius, nearest, len(centres))


def multiplicities(own: Tensor, pooled: Tensor, kept_share: float) -> Tensor:
    """How often an image holds each cluster, estimated without bias: (C,), in tokens.

    A transmission keeps a share k of the image's tokens in its row and fills the row from the pool of all, so that a cluster that
    it holds m times is expected k m + (1 - k) q times. Here that is ``own`` (C,), the mean over transmissions, and q is ``pooled``
    (C,), the mean over transmissions and rows.
    """
    return (own - (1 - kept_share) * pooled) / kept_share


def most_recurrent(multiplicity: Tensor, count: int) -> tuple[Tensor, float]:
    """The ``count`` most likely tokens as cluster numbers, repeated where a cluster is held several times; and how far the last of
    them scored above the next.

    The i-th copy of a cluster scores m - i + 1/2, which is positive where m rounds to i or more.
    """
    copies = torch.arange(1, math.ceil(max(float(multiplicity.max()), 1.0)) + 2, device=multiplicity.device)
    scores = (multiplicity.unsqueeze(1) - copies + 0.5).flatten()
    if len(scores) <= count:
        raise AttackError(f"only {len(multiplicity)} different tokens for {count} positions")
    best = scores.sort(descending=True, stable=True)
    return best.indices[:count] // len(copies), float(best.values[count - 1] - best.values[count])


@algorithm
class TokenIntersection(TokenReading, quick={**TokenReading.profile.quick, "transmissions": 3}):
    """Intersect many transmissions of an image to find its own tokens, then place these tokens in the image.

    1. The network of ``TokenJigsaw`` decodes every received token to its patch. This removes the influence of the row's other
       tokens, which the client's blocks mix in; without blocks, equal tokens have equal patches.
    2. The patches of an image's row in all transmissions are clustered, and each cluster is counted, in that row and in the whole
       batch. Patches that occur in the row more often than in a random image are the image's own. Their counts give the number
       of copies in the image (``multiplicities``); the N most recurrent are kept.
    3. Each kept patch is placed by the network's average scores over its appearances, as in ``TokenJigsaw``.

    The share of native tokens is that of the defence, measured on auxiliary images. With ``PatchShuffle`` it is 1, and
    transmissions only average out noise; with BatchShuffle(k=0) nothing recurs and the attack fails.

    Diagnostics: those of ``train_reader``; ``clusters`` (mean per image) and ``recurrence_gap``, the smallest difference between
    the last kept token and the next, in tokens per image: near 0 if own and foreign tokens cannot be distinguished.

    Attributes:
        transmissions: Most transmissions of the same images; the attack uses those that the run makes. With a single one nothing
            recurs, and all tokens of an image's row count as its own.
    """

    source = "intersection attack on Yao et al., ICDM 2022, Algorithm 2, which redraws the tokens that stay"

    transmissions: Examples = 30
    beyond_run: bool = False

    def attack_one(self, observation: SmashedData, generator: torch.Generator) -> Reconstruction:
        """Intersect all transmissions and guess the images."""
        reader = self.reader_for(observation)
        if reader.kept_share < LEAST_KEPT:
            raise AttackError("no tokens stay with their image, so that none recur")
        readings = [reader(transmission) for transmission in observation.features]
        radius = max(RADIUS, 3 * math.sqrt(reader.diagnostics["patch_mse"]))
        kept = [self.own_tokens(readings, row, radius, reader.kept_share) for row in range(observation.num_targets)]
        own = Reading(*(torch.cat(parts) for parts in zip(*(vars(choice[0]).values() for choice in kept), strict=True)))
        order = assigned(-solve(own.positions, own.neighbours(), reader.grid))
        numbers = {
            "clusters": sum(choice[1] for choice in kept) / len(kept),
            "recurrence_gap": min(choice[2] for choice in kept),
        }
        return self.guess(place(own.patches, order), observation, reader.diagnostics | numbers)

    def own_tokens(
        self, readings: list[Reading], row: int, radius: float, kept_share: float
    ) -> tuple[Reading, int, float]:
        """The N most recurrent tokens of a row as the mean readings of their clusters, the number of clusters, and the gap."""
        kinds = zip(*(vars(reading).values() for reading in readings), strict=True)
        seen = Reading(*(torch.cat([values[row] for values in transmissions]) for transmissions in kinds))
        num_tokens, length = seen.positions.shape[1], seen.patches.shape[1]
        distance = radius * math.sqrt(length)
        centres = seen.patches[leaders(seen.patches, distance)]
        member = assign_clusters(seen.patches, centres, distance)
        own = _counts(member, centres) / len(readings)
        batches = [assign_clusters(reading.patches.flatten(0, 1), centres, distance) for reading in readings]
        pooled = sum((_counts(batch, centres) for batch in batches), torch.zeros_like(own))
        pooled = pooled / sum(len(reading.patches) for reading in readings)
        chosen, gap = most_recurrent(multiplicities(own, pooled, kept_share), num_tokens)
        means = (_cluster_means(value, member, len(centres))[chosen].unsqueeze(0) for value in vars(seen).values())
        return Reading(*means), len(centres), gap


def _counts(member: Tensor, centres: Tensor) -> Tensor:
    """Members of every cluster, (C,), those of none left out."""
    return torch.bincount(member, minlength=len(centres) + 1)[:-1].to(centres)


def _cluster_means(values: Tensor, member: Tensor, count: int) -> Tensor:
    sums = values.new_zeros(count, *values.shape[1:]).index_add_(0, member, values)
    sizes = torch.bincount(member, minlength=count).clamp_min(1).to(values)
    return sums / sizes.view(-1, *[1] * (values.dim() - 1))
