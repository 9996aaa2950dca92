"""Attacks of the patch-shuffling paper: transformers that map smashed data, means of them or many transmissions to images."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attacks.descent import step_down
from attacks.networks.decoder import DecoderNetwork, Layout
from attacks.sender import Sender
from attacks.smashed.decoder_training import (
    DecoderAttack,
    Draw,
    Pool,
    independent_transmissions,
    mean_of_transmissions,
    tells_slots,
)
from defenses.checks import Blocks, Examples, Several, algorithm, require

WARM_UP = 40
"""Steps over which the learning rate rises, as in the paper."""


GROUPS_AT_ONCE = 8
"""Groups of images whose transmissions are held in memory together; also those that are sent together."""


@algorithm
class TokenDecoder(DecoderAttack):
    """Decode smashed data to images by a transformer, trained on smashed data of auxiliary images by squared error.

    The clients' own algorithm sends every training batch with new draws, so that the decoder memorises no shuffle and also undoes
    input defences as far as possible. If the defences leave tokens in their slots (the attacker sees this from its own images),
    the decoder uses the slots, as in the paper. If they shuffle, it treats tokens as a set (see ``DecoderNetwork``), because
    random slots would only add noise.

    The paper's own decoder is a ViT-B/16 (768 wide, 12 blocks, 12 heads), trained on the private training set with a learning
    rate of 1.5e-5 (1.5e-4 in its code) over 50 epochs with batches of 50. The fields allow this size; here only public images are
    used.

    Attributes:
        iterations: Steps of AdamW; 40 of warm-up, then a cosine to zero.
        width: Length of a token inside the decoder.
        depth: Transformer blocks.
        heads: Attention heads, which divide ``width``.
    """

    source = "Yao et al., Privacy-Preserving Split Learning via Patch Shuffling, ICDM 2022, Eq. 3 (black-box); He et al. 2022 (MAE)"

    depth: Blocks = 3
    heads: Blocks = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.width % self.heads == 0, self, "heads", f"a divisor of width = {self.width}")

    def train(self, sender: Sender, draw: Draw, layout: Layout, generator: torch.Generator) -> nn.Module:
        """Train by squared error: AdamW with betas (0.9, 0.95), a warm-up, then a cosine to zero."""
        as_set = not tells_slots(sender, draw()[1], generator)
        sample, _ = draw()
        network = DecoderNetwork(
            sample, layout, width=self.width, depth=self.depth, heads=self.heads, as_set=as_set, generator=generator
        ).to(sample.device)
        optimizer = torch.optim.AdamW(network.parameters(), self.learning_rate, betas=(0.9, 0.95), weight_decay=0.0)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, self._rate)
        for _ in range(self.iterations):
            inputs, clean = draw()
            step_down(optimizer, (network(inputs) - clean).square().mean(), schedule)
        return network

    def _rate(self, step: int) -> float:
        progress = max(step - WARM_UP, 0) / max(self.iterations - WARM_UP, 1)
        return min((step + 1) / WARM_UP, (1 + math.cos(math.pi * progress)) / 2)


@algorithm
class FeatureAveraging(TokenDecoder, quick={**TokenDecoder.profile.quick, "transmissions": 3, "num_images": 32}):
    """Average R transmissions of the same images to reduce noise, and decode the mean by a transformer trained on such means.

    Averaging reduces independent noise of standard deviation s to s / sqrt(R). The server also sends auxiliary images R times, once
    before the training, so that the decoder learns the remaining noise. The attack is useless against shuffles: means of shuffled
    tokens are all alike.

    Attributes:
        transmissions: Largest R; the attack uses, and trains on, as many as the run makes.
        num_images: Most auxiliary images to send R times each for the training.
    """

    source = "Yao et al., Privacy-Preserving Split Learning via Patch Shuffling, ICDM 2022, adaptive attack on GN (60 rounds)"
    threat = (
        "smashed data of the same images in many epochs; the client half as a black box; the defences' algorithm; auxiliary "
        "images like the clients'"
    )

    iterations: int = 400
    transmissions: Examples = 60
    num_images: Several = 1000
    beyond_run: bool = False

    def pool_of(self, sender: Sender, images: Tensor, generator: torch.Generator) -> Pool:
        """The mean."""
        return mean_of_transmissions

    def draws(self, sender: Sender, images: Tensor, pool: Pool, generator: torch.Generator) -> Draw:
        """Pairs from a store of pooled transmissions, made once: sending R times at every step would be R times the price."""
        images = images[: self.num_images]
        parts = images.tensor_split(-(-len(images) // (GROUPS_AT_ONCE * self.batch_size // 2)))
        times, size = self.transmissions, self.batch_size
        inputs = torch.cat([pool(independent_transmissions(sender, part, times, size, generator)) for part in parts])

        def draw() -> tuple[Tensor, Tensor]:
            rows = torch.randperm(len(images), generator=generator)[:size].to(images.device)
            return inputs[rows], images[rows]

        return draw


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
        rows, tokens = torch.arange(images, device=sent.device), []
        for _ in range(num_tokens):
            nearest, slots = apart.min(3)
            likeness = torch.exp(-((nearest / self.distance) ** 2) / 2)
            best = likeness.sum(2).argmax(1)
            weights, slot = likeness[rows, best], slots[rows, best]
            like = sent.gather(2, slot[:, :, None, None].expand(-1, -1, 1, dim)).squeeze(2)
            total = weights.sum(1, keepdim=True)
            mean = (like * weights.unsqueeze(2)).sum(1) / total.clamp(min=1e-12)
            tokens.append(torch.cat([mean, total / transmissions], 1))
            image, number = (weights > USED).nonzero(as_tuple=True)
            apart[image, :, number, slot[image, number]] = torch.inf
        return torch.stack(tokens, 1)


@algorithm
class AdaptiveDecoder(FeatureAveraging):
    """Decode images by a transformer that combines R independent transmissions of the same images.

    The server also sends auxiliary images R times: half of a batch stays together, like the targets of an observation, and the
    rest of the batch differs in every transmission. The released code instead sends the *output* of one round through the same
    block 30 times.

    It searches for recurring tokens (``RecurringTokens``), or takes the mean if the defences leave tokens in their slots. The paper
    puts the R tokens of a slot side by side, which are unrelated if tokens are shuffled.
    """

    source = (
        "Yao et al., Privacy-Preserving Split Learning via Patch Shuffling, ICDM 2022, Eq. 5 (adaptive); the search for "
        "recurring tokens is ours"
    )

    iterations: int = 600
    transmissions: int = 30

    def pool_of(self, sender: Sender, images: Tensor, generator: torch.Generator) -> Pool:
        """Recurring tokens, or the mean; auxiliary images give the distance of two transmissions of a token."""
        if tells_slots(sender, images[: self.batch_size], generator):
            return mean_of_transmissions
        return RecurringTokens(same_token_distance(sender, images[: self.batch_size], generator))


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
