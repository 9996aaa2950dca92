"""The adaptive attack of the patch-shuffling paper: a decoder of many transmissions of the same images."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.sender import Sender
from attacks.smashed.decoder_training import Pool, mean_of_transmissions, tells_slots
from attacks.smashed.tokens.decoder import FeatureAveraging
from defenses.checks import algorithm, choice_field

POOLINGS = ("set", "concat")
SEEDS = 6
"""Number of transmissions whose tokens are candidates for recurring tokens; with a share of 0.4 native tokens, 95 % are in them."""
IMAGES_AT_ONCE = 16
USED = 0.1
"""Likeness to a found token from which a token is removed from the candidates; 1 is equal."""


@dataclass(frozen=True)
class RecurringTokens:
    """Finds the N tokens that recur most over the transmissions of an image, in any order.

    An image's own tokens recur in every transmission (``PatchShuffle``) or in many (``BatchShuffle``); foreign tokens do not. The
    search is greedy. Candidates are the tokens of the first transmissions. It takes the candidate for which most transmissions hold
    a similar token; the mean of these tokens, weighted by their likeness exp(-(d / distance)^2 / 2), is a token of the image. It
    then removes one such token from each transmission, and repeats this N times.

    Attributes:
        distance: Typical distance between two transmissions of the same token, in the unit of the features: the client's blocks
            change a token a little, because they also see the other tokens.
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


@algorithm
class AdaptiveDecoder(FeatureAveraging):
    """Decode images by a transformer that combines R independent transmissions of the same images.

    The server also sends auxiliary images R times: half of a batch stays together, like the targets of an observation, and the
    rest of the batch differs in every transmission. The released code instead sends the *output* of one round through the same
    block 30 times.

    ``pooling="concat"`` is the paper's: the R tokens of a slot side by side, which are unrelated if tokens are shuffled. ``"set"``
    searches for recurring tokens (``RecurringTokens``), or takes the mean if the defences leave tokens in their slots.

    Attributes:
        pooling: "set" or "concat". The others as in ``FeatureAveraging``.
    """

    source = (
        "Yao et al., Privacy-Preserving Split Learning via Patch Shuffling, ICDM 2022, Eq. 5 (adaptive); the search for "
        "recurring tokens is ours"
    )

    iterations: int = 600
    transmissions: int = 30
    pooling: str = choice_field("set", POOLINGS)

    def pool_of(self, sender: Sender, images: Tensor, generator: torch.Generator) -> Pool:
        """The pooling of ``pooling``; auxiliary images give the distance of two transmissions of a token."""
        if self.pooling == "concat":
            return side_by_side
        if tells_slots(sender, images[: self.batch_size], generator):
            return mean_of_transmissions
        return RecurringTokens(same_token_distance(sender, images[: self.batch_size], generator))


def side_by_side(features: Tensor) -> Tensor:
    """(R, B, N, D) -> (B, N, R * D)."""
    return features.permute(1, 2, 0, 3).flatten(2)


def same_token_distance(sender: Sender, images: Tensor, generator: torch.Generator) -> float:
    """95th percentile of a token's distance between two transmissions of the attacker's own images, whose orders it knows."""
    twice = []
    for _ in range(2):
        features, order = sender.send_with_order(images, generator)
        twice.append(features.float().flatten(0, 1)[order.flatten().argsort().to(features.device)])
    distances = torch.linalg.vector_norm(twice[0] - twice[1], dim=1)
    # Without blocks or noise a token comes back as it was, but for rounding.
    rounding = 1e-4 * float(torch.linalg.vector_norm(twice[0], dim=1).mean())
    return max(float(distances.quantile(0.95)), rounding, 1e-12)
