"""The adaptive attack of the shuffling paper: a decoder that sees many transmissions of the same images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from attacks.sender import Sender
from attacks.smashed.decoder_training import Pool, mean_of_transmissions, tells_slots
from attacks.smashed.feature_averaging import FeatureAveraging
from defenses.checks import choice_field

POOLINGS = ("set", "concat")
SEEDS = 6
"""Tokens of so many transmissions are tried as what recurs; with a share of 0.4 native tokens, these hold 95 of 100."""
IMAGES_AT_ONCE = 16
USED = 0.1
"""A token is spent when it resembles a found one by more than this; 1 is equal."""


@dataclass(frozen=True)
class RecurringTokens:
    """Finds the N tokens that recur most over the transmissions of an image, whatever their order.

    An image's own tokens come again in every transmission (``PatchShuffle``) or in many (``BatchShuffle``), foreign ones do not.
    Greedily: of all candidates (the tokens of the first transmissions), take the one that most of them hold something like; the
    mean of these, weighted by their likeness exp(-(d / distance)^2 / 2), is a token of the image; strike them out, one in each
    transmission; repeat N times.

    Attributes:
        distance: Between two transmissions of the same token, in the unit of the features: the client's blocks change it a little,
            since they see other tokens beside it.
    """

    distance: float

    def __call__(self, features: Tensor) -> Tensor:
        """Transmissions (R, B, N, D) -> tokens (B, N, D + 1), the last number the mean likeness over all transmissions, 0 to 1."""
        return torch.cat([self._find(part.transpose(0, 1)) for part in torch.split(features, IMAGES_AT_ONCE, 1)])

    def _find(self, sent: Tensor) -> Tensor:
        images, transmissions, num_tokens, dim = sent.shape
        candidates = sent[:, :SEEDS].flatten(1, 2)
        # (B, candidates, R, N); exact distances, since the fast ones of nearly equal vectors are not accurate
        apart = torch.cdist(candidates, sent.flatten(1, 2), compute_mode="donot_use_mm_for_euclid_dist")
        apart = apart.view(images, -1, transmissions, num_tokens)
        rows, found = torch.arange(images, device=sent.device), []
        for _ in range(num_tokens):
            nearest, slots = apart.min(3)
            likeness = torch.exp(-((nearest / self.distance) ** 2) / 2)
            best = likeness.sum(2).argmax(1)
            weights, slot = likeness[rows, best], slots[rows, best]
            like = sent.gather(2, slot[:, :, None, None].expand(-1, -1, 1, dim)).squeeze(2)
            total = weights.sum(1, keepdim=True)
            mean = (like * weights.unsqueeze(2)).sum(1) / total.clamp(min=1e-12)
            found.append(torch.cat([mean, total / transmissions], 1))
            image, number = (weights > USED).nonzero(as_tuple=True)
            apart[image, :, number, slot[image, number]] = torch.inf
        return torch.stack(found, 1)


@dataclass(frozen=True, repr=False)
class AdaptiveDecoder(FeatureAveraging):
    """A ``TokenDecoder`` that sees R independent transmissions of the same images.

    Auxiliary images are sent R times too: half of a batch stays together, as the targets of an observation do, and the rest of
    the batch differs in every transmission. The released code sends the *output* of one round again instead, through the same
    block 30 times.

    ``pooling="concat"`` is the paper's: the R tokens of a slot side by side. When tokens are shuffled these have nothing to do
    with each other. ``"set"`` looks for the tokens that recur (``RecurringTokens``), or takes the mean where the defences leave
    tokens in their slots.

    Attributes:
        pooling: "set" or "concat". The rest as in ``FeatureAveraging``.
    """

    source: ClassVar[str] = (
        "Yao et al., Privacy-Preserving Split Learning via Patch Shuffling, ICDM 2022, Eq. 5 (adaptive); the search for "
        "recurring tokens is ours"
    )

    iterations: int = 600
    transmissions: int = 30
    pooling: str = choice_field("set", POOLINGS)

    def pool_of(self, sender: Sender, images: Tensor, generator: torch.Generator) -> Pool:
        """See above; how far apart two transmissions of a token are is measured on auxiliary images."""
        if self.pooling == "concat":
            return side_by_side
        if tells_slots(sender, images[: self.batch_size], generator):
            return mean_of_transmissions
        return RecurringTokens(same_token_distance(sender, images[: self.batch_size], generator))


def side_by_side(features: Tensor) -> Tensor:
    """(R, B, N, D) -> (B, N, R * D)."""
    return features.permute(1, 2, 0, 3).flatten(2)


def same_token_distance(sender: Sender, images: Tensor, generator: torch.Generator) -> float:
    """Which distance 95 of 100 tokens keep below, between two transmissions of the attacker's own, whose orders it knows."""
    twice = []
    for _ in range(2):
        features, order = sender.send_with_order(images, generator)
        twice.append(features.float().flatten(0, 1)[order.flatten().argsort().to(features.device)])
    distances = torch.linalg.vector_norm(twice[0] - twice[1], dim=1)
    # Without blocks or noise a token comes back as it was, but for rounding.
    rounding = 1e-4 * float(torch.linalg.vector_norm(twice[0], dim=1).mean())
    return max(float(distances.quantile(0.95)), rounding, 1e-12)
