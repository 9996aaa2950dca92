"""Shuffling of a transformer's tokens, within one image and across a batch, and the number of hidden orders."""

import math
from typing import ClassVar

import torch
from torch import Tensor

from defenses.base import DefenseError, SmashedDefense
from defenses.checks import ShareOrNone, algorithm
from defenses.tensors import Numbers


def shuffled_within_images(num_images: int, num_tokens: int, generator: torch.Generator) -> Tensor:
    """One uniform permutation per image: (B, N) int64 on the CPU; row j holds the numbers j * N to j * N + N - 1."""
    # Double precision: two of n draws are equal, which would favour the first of them, with probability n^2 / 2^54.
    positions = torch.rand(num_images, num_tokens, generator=generator, dtype=torch.float64).argsort(1)
    return positions + num_tokens * torch.arange(num_images).unsqueeze(1)


def gather_tokens(features: Tensor, order: Tensor) -> Tensor:
    """Puts token number ``order[j, i]`` of the batch into slot i of image j: (B, N, D) -> (B, N, D)."""
    return features.flatten(0, 1)[order.to(features.device)]


@algorithm
class PatchShuffle(SmashedDefense):
    """Shuffle the tokens of each image, with a new order for each transmission.

    Shuffling hides only the order of the tokens, log2(N!) bits; the server receives all tokens. A transformer without position
    embedding gives the same result for any order, so that accuracy stays. Its blocks commute with permutations, so that shuffling
    before or after the client's blocks has the same law. If the client half is not trained, more transmissions add nothing.

    The tokens of a table's row are the embeddings of its fields. Embeddings of different fields rarely coincide, so that the set of
    tokens reveals the row (``FieldReading``). With ``difm`` all sent tokens are shuffled. The paper shuffles only the input of
    DIFM's vector-wise branch (``difm-factors``): its prediction layer, and an attacker, get the embeddings in order.

    ``order`` gathers: slot i receives token order[i]. The paper's sigma(i) is where token i goes, the inverse permutation.
    """

    source = "Yao et al., Privacy-Preserving Split Learning via Patch Shuffling, ICDM 2022, Algorithm 1"
    before_blocks = True
    at_inference = True
    adaptive_attacks: ClassVar[tuple[str, ...]] = ("TokenJigsaw", "AdaptiveDecoder", "FieldReading")

    def num_native(self, num_tokens: int) -> int:
        """K, the number of an image's N tokens that are not exchanged with other images: all of them."""
        return num_tokens

    def hidden_orders(self, batch_size: int, num_tokens: int) -> Numbers:
        """log10 of all orders of a batch, and of the share of those with one image's tokens in one order.

        With N tokens per image of which K stay native, N' = N - K, and B images (sigma-privacy of the paper):

            equation 7, all orders of a batch:                          (C(N, K) K!)^B       (B N')!
            equation 8, those with the target's tokens in one order:    (C(N, K) K!)^(B-1)   ((B - 1) N')!

        Their ratio is the chance that an image is sent with all of its own tokens in one given order; 1 / N! where all are native.
        This is the success rate of a guess that ignores the tokens. The server receives the tokens, so it bounds no real attack.
        """
        pooled = num_tokens - self.num_native(num_tokens)
        kept = math.lgamma(num_tokens + 1) - math.lgamma(pooled + 1)  # log of C(N, K) K! = N! / N'!
        every, target = (
            (images * kept + math.lgamma(images * pooled + 1)) / math.log(10) for images in (batch_size, batch_size - 1)
        )
        return {"log10-orders": every, "log10-target-share": target - every}

    def order(self, num_images: int, num_tokens: int, generator: torch.Generator) -> Tensor:
        """One uniform permutation per image; see the base class."""
        return shuffled_within_images(num_images, num_tokens, generator)

    def protect_features(self, features: Tensor, generator: torch.Generator) -> Tensor:
        """Shuffle the tokens of each image."""
        num_images, num_tokens, _ = features.shape
        return gather_tokens(features, self.order(num_images, num_tokens, generator))


@algorithm
class BatchShuffle(PatchShuffle):
    """Keep a share of each image's tokens, exchange the rest within the batch, and shuffle the tokens of each image.

    Of N tokens, K = floor(k N), chosen at random, stay with their image; the other N' of every image are pooled over the
    B images, shuffled, and dealt out again. A pooled token returns to its image with probability 1 / B, so that
    K + N' / B tokens of a sent image are its own on average. An image's own tokens recur when the image is sent in another
    batch, and the foreign tokens do not: unlike with ``PatchShuffle``, more transmissions reveal more.

    Args:
        k: Share of native tokens, 0 to 1; 1 is ``PatchShuffle`` and 0 deals all tokens out.

    Every image is shuffled once more in the end, as in the paper's text and code. Algorithm 2 leaves that out, which would put the
    native tokens into slots 0 to K - 1 of every image and so reveal which ones they are.
    """

    k: ShareOrNone = 0.4

    always_shown = ("k",)
    source = "Yao et al., Privacy-Preserving Split Learning via Patch Shuffling, ICDM 2022, Algorithm 2"
    # All examples are one client's, but what is sent for one depends on several, which no per-example bound allows.
    mixes_examples = True
    adaptive_attacks = ("TokenIntersection", "AdaptiveDecoder", "TokenJigsaw", "FieldReading")

    def num_native(self, num_tokens: int) -> int:
        """K, the number of an image's N tokens that are not exchanged."""
        # In floating point, 0.29 * 100 is a little less than 29.
        return math.floor(self.k * num_tokens + 1e-9)

    def check_batch(self, batch_size: int, num_tokens: int) -> None:
        """Refuse batches without other images to exchange with, or too few tokens to exchange or to keep for ``k``."""
        native = self.num_native(num_tokens)
        if self.k < 1 and batch_size == 1:
            raise DefenseError(f"{self} exchanges tokens between images: a batch of 1 has none to exchange with")
        if self.k < 1 and native == num_tokens:
            raise DefenseError(
                f"{self} would keep all {num_tokens} tokens of an image: k must be 1 or at most 1 - 1/{num_tokens}"
            )
        if self.k > 0 and native == 0:
            raise DefenseError(
                f"{self} would keep none of {num_tokens} tokens of an image: k must be 0 or at least 1/{num_tokens}"
            )

    def order(self, num_images: int, num_tokens: int, generator: torch.Generator) -> Tensor:
        """Native tokens, then pooled ones, then the final shuffle; see the base class."""
        self.check_batch(num_images, num_tokens)
        native = self.num_native(num_tokens)
        own = shuffled_within_images(num_images, num_tokens, generator)
        pool = own[:, native:].flatten()
        dealt = pool[torch.randperm(len(pool), generator=generator)].view(num_images, num_tokens - native)
        mixed = torch.cat([own[:, :native], dealt], 1)
        return mixed.flatten()[shuffled_within_images(num_images, num_tokens, generator)]
