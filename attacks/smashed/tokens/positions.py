"""Reading received tokens: where in which image each came from, and what it shows; a jigsaw with learned scores.

A small network gives every token a probability of each position, and every pair of tokens one of being neighbours. Mean-field
iterations combine both into one position each (``solve``). Source: Noroozi and Favaro 2016 (learning positions); Cho, Avidan,
Freeman, "A Probabilistic Image Jigsaw Puzzle Solver", 2010 (message passing over patches and positions).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacks.assignment import assigned
from attacks.normalisation import Normalisation, denormalise
from attacks.observations import AttackError
from attacks.sender import ClientHalf
from attacks.smashed.base import check_features
from defenses.tensors import ImageShape, Numbers, Shape

HEADS = 4
MATCH = 32
"""Length of the vectors whose inner product scores two tokens as neighbours."""
FLOOR = -5.0
"""Log-probabilities of neighbours count no less: a single wrong one must not rule a position out."""
RIDGE = 1e-6
ROUNDS = 40
"""Of the mean-field iterations."""


def to_patches(images: Tensor, patch_size: int) -> Tensor:
    """Cuts images (B, C, H, W) into patches (B, N, C * p * p), row by row."""
    return F.unfold(images, patch_size, stride=patch_size).transpose(1, 2)


def from_patches(patches: Tensor, patch_size: int, shape: Shape) -> Tensor:
    """The inverse of ``to_patches``; ``shape`` ends with the height and the width of the images."""
    return F.fold(patches.transpose(1, 2), (shape[-2], shape[-1]), patch_size, stride=patch_size)


def place(values: Tensor, order: Tensor) -> Tensor:
    """Moves what is in slot s of (G, M, ...) to position ``order[g, s]``."""
    placed = torch.empty_like(values)
    placed[torch.arange(len(values)).unsqueeze(1), order] = values
    return placed


@dataclass(frozen=True)
class Reading:
    """What a ``TokenReader`` makes of received tokens.

    Attributes:
        positions: (B, N, N), log-probability of each position for each slot.
        queries: (B, N, 2, MATCH), what the right and the lower neighbour of a token should look like.
        keys: (B, N, 2, MATCH), what it looks like as one.
        patches: (B, N, P), expected pixels in [0, 1], in the order of ``to_patches``.
    """

    positions: Tensor
    queries: Tensor
    keys: Tensor
    patches: Tensor

    def pooled(self) -> Reading:
        """All tokens of the batch as one group: (B, N, ...) -> (1, B * N, ...)."""
        return Reading(*(value.flatten(0, 1).unsqueeze(0) for value in vars(self).values()))

    def neighbours(self) -> Tensor:
        """Log-probability that t is the right (0) or the lower (1) neighbour of s, over all t: (B, 2, N, N)."""
        scores = torch.einsum("gsdm,gtdm->gdst", self.queries, self.keys) / math.sqrt(MATCH)
        itself = torch.eye(scores.shape[-1], dtype=torch.bool, device=scores.device)
        return scores.masked_fill(itself, -1e4).log_softmax(-1)


class TokenReader(nn.Module):
    """A small transformer without position embedding over the N received tokens of an image, with heads for a ``Reading``.

    Tokens enter standardised, and compressed by asinh: spectra span many orders of magnitude. Pixels are an affine function
    of the token, fitted by ridge regression, plus what the transformer adds to it.

    Attributes:
        grid: Rows and columns of tokens.
        kept_share: Share of tokens that never leave the row of their own image; 1 where none do.
        trust: How far ``assemble`` goes from the mean image to what it placed, 0 to 1; set by the training.
        diagnostics: See ``training.train_reader``.
    """

    def check(self, features: Tensor) -> None:
        """Raises ``AttackError`` unless it can read smashed data (R, B, N, D)."""
        check_features(features, (self.positions.out_features, len(self.mean)))

    def __init__(
        self, features: Tensor, contents: Tensor, grid: tuple[int, int], width: int, kept_share: float
    ) -> None:
        """Of received tokens (M, N, D), for statistics, and what they show (M, N, P); ``width`` is a multiple of 4."""
        from timm.models.vision_transformer import Block

        super().__init__()
        self.grid, self.kept_share = grid, kept_share
        self.trust = 1.0
        self.diagnostics: Numbers = {}
        self.mean_patches = nn.Buffer(contents.new_zeros(contents.shape[1:]))
        tokens, pixels = features.flatten(0, 1), contents.flatten(0, 1)
        dim, length = tokens.shape[1], pixels.shape[1]
        self.mean, self.std = nn.Buffer(tokens.mean(0)), nn.Buffer(tokens.std(0).clamp_min(1e-6))
        self.scale = nn.Buffer(tokens.abs().median().clamp_min(1e-6))
        self.entry = nn.Sequential(nn.Linear(2 * dim + length, width), nn.GELU(), nn.Linear(width, width))
        self.blocks = nn.Sequential(*(Block(width, HEADS, mlp_ratio=2.0, qkv_bias=True) for _ in range(2)))
        self.norm = nn.LayerNorm(width)
        self.positions = nn.Linear(width, features.shape[1])
        self.match = nn.Sequential(nn.Linear(2 * width, 2 * width), nn.GELU(), nn.Linear(2 * width, 4 * MATCH))
        last = nn.Linear(2 * width, length)
        nn.init.zeros_(last.weight)
        self.patches = nn.Sequential(nn.Linear(2 * width, 2 * width), nn.GELU(), last)
        self.affine = nn.Linear(dim, length)
        self.to(features)
        weight, bias = _ridge(self.standardise(tokens), pixels)
        self.affine.load_state_dict({"weight": weight, "bias": bias})

    def standardise(self, features: Tensor) -> Tensor:
        """Zero mean and unit variance per entry of a token."""
        return (features - self.mean) / self.std

    def forward(self, features: Tensor) -> Reading:
        """Reads (B, N, D) tokens."""
        standard = self.standardise(features)
        pixels = self.affine(standard)
        entry = self.entry(torch.cat([standard, (features / self.scale).asinh(), 4 * pixels.detach()], -1))
        known = self.norm(self.blocks(entry))
        both = torch.cat([entry, known], -1)
        match = 3 * self.match(both).view(*both.shape[:2], 4, MATCH)
        patches = pixels + self.patches(both)
        return Reading(self.positions(known).log_softmax(-1), match[..., :2, :], match[..., 2:, :], patches)

    def scores(self, reading: Reading) -> Tensor:
        """Log-probabilities of positions, see ``solve``: (B, N, N) within rows, or (1, B * N, B * N) where tokens change rows."""
        if self.kept_share >= 1:
            return solve(reading.positions, reading.neighbours(), self.grid)
        batch, num_tokens = reading.positions.shape[:2]
        # The others are dealt out to all rows, their own among them.
        row = torch.full((batch, batch), (1 - self.kept_share) / batch) + self.kept_share * torch.eye(batch)
        row = row.log().to(reading.positions)
        # Token (b, s) at position n of image i: how likely tokens of row b are of image i, and to be at n.
        unary = reading.positions.unsqueeze(2) + row[:, None, :, None]
        group = unary.reshape(1, batch * num_tokens, batch * num_tokens)
        return solve(group, reading.pooled().neighbours(), self.grid)

    def order(self, reading: Reading) -> Tensor:
        """The number of the token in every slot, 0 to B * N - 1, as ``Sender.send_with_order`` counts: (B, N)."""
        tokens = assigned(-self.scores(reading))
        batch, num_tokens = reading.positions.shape[:2]
        if len(tokens) == batch:
            return tokens + num_tokens * torch.arange(batch).unsqueeze(1)
        return tokens.view(batch, num_tokens)

    def assemble(self, reading: Reading, order: Tensor) -> Tensor:
        """Patches (B, N, P) at their positions, drawn towards the mean image where these are mostly wrong (``trust``)."""
        patches = reading.patches
        placed = place(patches.flatten(0, 1).unsqueeze(0), order.view(1, -1)).view_as(patches)
        return self.mean_patches + self.trust * (placed - self.mean_patches)


def solve(unary: Tensor, neighbours: Tensor, grid: tuple[int, int]) -> Tensor:
    """Mean-field iterations over the positions of tokens, from soft to hard.

        S[t, n] = (unary[t, n] + sum over the positions m beside n, sum_u Q[u, m] log(p(t, u) / uniform)) / temperature,

    with Q = exp(S) after five rounds of Sinkhorn, which make it nearly doubly stochastic; the temperature falls from 4 to 1.

    Args:
        unary: (G, M, M), log-probability of each position for each token; column i * N + n is position n of image i.
        neighbours: (G, 2, M, M), see ``Reading.neighbours``.
        grid: Rows and columns of the N positions.

    Returns:
        S, (G, M, M).
    """
    uniform = math.log(neighbours.shape[-1])
    right, below = (neighbours[:, d].clamp_min(FLOOR) + uniform for d in (0, 1))
    marginals = unary.exp()
    scores = unary
    for step in range(ROUNDS):
        cells = marginals.view(*marginals.shape[:2], -1, *grid)
        # What is at the position to the right of every position, and so on; nothing beyond the border.
        east, west = F.pad(cells[..., 1:], (0, 1)), F.pad(cells[..., :-1], (1, 0))
        south, north = F.pad(cells[..., 1:, :], (0, 0, 0, 1)), F.pad(cells[..., :-1, :], (0, 0, 1, 0))
        message = right @ east.flatten(2) + right.mT @ west.flatten(2)
        message = message + below @ south.flatten(2) + below.mT @ north.flatten(2)
        scores = (unary + message) / 4 ** (1 - step / (ROUNDS - 1))
        for _ in range(5):
            scores = scores - scores.logsumexp(1, keepdim=True)
            scores = scores - scores.logsumexp(2, keepdim=True)
        marginals = scores.exp()
    return scores


def _ridge(inputs: Tensor, outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Affine least squares with a slight penalty, (M, D) -> (M, P): weight (P, D) and bias (P,)."""
    design = torch.cat([inputs, torch.ones_like(inputs[:, :1])], 1).double()
    penalty = RIDGE * len(inputs) * torch.eye(design.shape[1], dtype=torch.float64, device=inputs.device)
    solution = torch.linalg.solve(design.T @ design + penalty, design.T @ outputs.double()).to(inputs)
    return solution[:-1].T, solution[-1]


def patch_embedding(edge: ClientHalf, shape: ImageShape) -> tuple[Tensor, Tensor]:
    """The client half's embedding as an affine map of a normalised patch: token = patch @ weight (P, D) + offset (D,).

    Patches are in the order of ``to_patches``, of images of shape (C, H, W).
    """
    size = edge.patch_size
    length, num_tokens = shape[0] * size**2, edge.grid[0] * edge.grid[1]
    # Image k shows basis patch k everywhere; the last one is zero.
    basis = torch.cat([torch.eye(length), torch.zeros(1, length)]).unsqueeze(1).expand(-1, num_tokens, -1)
    probe = torch.rand(2, num_tokens, length, generator=torch.Generator().manual_seed(0))
    parameter = next(edge.parameters(), basis) if isinstance(edge, nn.Module) else basis
    basis, probe = basis.to(parameter), probe.to(parameter)
    with torch.no_grad():
        tokens = edge.embed(from_patches(basis, size, shape))[:, 0]
        weight, offset = tokens[:-1] - tokens[-1], tokens[-1]
        expected = probe.to(weight) @ weight + offset
        error = (edge.embed(from_patches(probe, size, shape)) - expected).abs().max()
    if error > 1e-3 * expected.abs().max():
        raise AttackError("the client half's embedding is not an affine map of single patches")
    return weight, offset


def patches_of_tokens(tokens: Tensor, edge: ClientHalf, shape: ImageShape) -> Tensor:
    """Normalised patches (B, N, P) whose embedding comes closest to tokens (B, N, D) in the sense of least squares."""
    weight, offset = patch_embedding(edge, shape)
    patches: Tensor = (tokens - offset) @ torch.linalg.pinv(weight)
    return patches


def images_of_patches(patches: Tensor, edge: ClientHalf, shape: ImageShape, known: Normalisation) -> Tensor:
    """Images (B, C, H, W) in [0, 1] of normalised patches (B, N, P)."""
    return denormalise(from_patches(patches, edge.patch_size, shape), known).clamp(0, 1)
