"""Undoing an input defence with a network that was trained on protected and clean auxiliary images."""

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor, nn

from attacks.base import Knowledge, learned_field
from attacks.descent import step_down
from attacks.guesses import Reconstruction
from attacks.image_measures import mean_psnr
from attacks.networks.unet import UNet
from attacks.observations import AttackError, ClientUpdate
from attacks.refinement.base import Refinement
from defenses.base import Batch, InputDefense
from defenses.checks import Examples, Steps, Width, algorithm
from defenses.pipeline import Pipeline
from defenses.random_draws import seed_of
from defenses.tensors import Numbers, Shape

LEARNING_RATE = 4e-3
"""The largest."""
INPUT_NOISE = 0.05
"""Largest standard deviation of the noise added in training of the restorer, in units of images in [0, 1]."""
HOLDOUT = 8
"""One auxiliary example in so many is kept out of the training."""


@dataclass(frozen=True)
class LearnedMap:
    """Trained network of a ``LearnedRestorer``.

    Attributes:
        network: Images (B, C, H, W) in [0, 1] -> clean ones, in eval mode; None when there is nothing to undo.
        shape: (C, H, W) of the images that it was trained on.
        diagnostics: Means over held-out images, in dB.
    """

    network: nn.Module | None
    shape: Shape
    diagnostics: Numbers


def mapped(network: nn.Module, images: Tensor) -> Tensor:
    """What a network makes of images (B, C, H, W) in [0, 1]: as many, in [0, 1]."""
    with torch.no_grad():
        clean: Tensor = network(images.clamp(0, 1))
    return clean.clamp(0, 1).contiguous()


class WithoutSigns(nn.Module):
    """Images (B, C, H, W) in [0, 1] with |2x - 1|, which sign flips leave as it is, as C more channels."""

    def forward(self, images: Tensor) -> Tensor:
        """See the class."""
        return torch.cat([images, (2 * images - 1).abs()], 1)


@algorithm
class LearnedRestorer(
    Refinement,
    needs_auxiliary=True,
    effort={"iterations": "training_iterations"},
    quick={"iterations": 40, "width": 4, "batch_size": 8},
):
    """Restore recovered images by a U-Net that is trained to undo the clients' input defences on auxiliary images.

    The server runs the clients' input defences on auxiliary images, with new draws at every step, and the network learns the mean
    of the clean image given the protected image (squared error). The attack works for every input defence, because it only needs
    to run the defence. The network's inputs are x and |2x - 1|, as the second undoes random sign flips (InstaHide) at little cost
    for other defences. Inversions are imperfect, so that Gaussian noise is added to the inputs in training, with a standard
    deviation drawn for each image from [0, ``INPUT_NOISE``].

    One auxiliary example in eight is held out. The diagnostics of every guess measure restoration from an *exact* protected image:
    ``holdout_psnr``, and ``holdout_psnr_unrestored`` of the protected image itself. If the first is not above the second, the
    restorer is no evidence about the defence.

    Attributes:
        iterations: Steps of Adam; the learning rate warms up and falls to zero.
        width: Channels of the U-Net at full resolution, at least 1.
        batch_size: Auxiliary images per step, at most all of them; also the group that a defence mixes examples of.
    """

    source = "Ronneberger 2015 (U-Net), trained on pairs; the VisualMixer paper (NDSS 2024) does not test it"
    threat = "a guess of the protected images; the defences' algorithm; auxiliary images like the clients'"

    iterations: Steps = 200
    width: Width = 12
    batch_size: Examples = 32
    learned: LearnedMap = learned_field()

    def fit(self, knowledge: Knowledge, generator: torch.Generator) -> Self:
        """Train the network; deterministic given the generator."""
        batch, shape = knowledge.auxiliary, tuple(knowledge.auxiliary.images.shape[1:])
        if not any(isinstance(defense, InputDefense) for defense in knowledge.pipeline.defenses):
            return replace(self, learned=LearnedMap(None, shape, {}))
        kept, held = (batch.rows(rows) for rows in kept_and_held(len(batch), generator))
        network = self._train(kept, knowledge.pipeline, generator)
        protected = protect_afresh(knowledge.pipeline, held, generator).images
        scores = {
            "holdout_psnr": mean_psnr(mapped(network, protected), held.images),
            "holdout_psnr_unrestored": mean_psnr(protected, held.images),
        }
        return replace(self, learned=LearnedMap(network, shape, scores))

    def _train(self, clean: Batch, pipeline: Pipeline, generator: torch.Generator) -> nn.Module:
        def protected(examples: Batch) -> Tensor:
            images = protect_afresh(pipeline, examples, generator).images
            std = INPUT_NOISE * torch.rand(len(examples), 1, 1, 1, generator=generator)
            return (images + (std * torch.randn(images.shape, generator=generator)).to(images)).clamp(0, 1)

        channels = clean.images.shape[1]
        network = nn.Sequential(WithoutSigns(), UNet(2 * channels, channels, self.width, generator).to(clean.images))
        if clean.images.device.type == "cpu":
            # 1.3 times as fast on a processor (one thread, 28 to 64 pixels); on a card it was not measured.
            network.to(memory_format=torch.channels_last)
        optimizer = torch.optim.Adam(network.parameters(), LEARNING_RATE)
        # The rate rises for a fifth of the way, which must be longer than one step.
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, max(self.iterations, 6), pct_start=0.2)
        for _ in range(self.iterations):
            examples = clean.rows(torch.randperm(len(clean), generator=generator)[: self.batch_size])
            step_down(optimizer, (network(protected(examples)) - examples.images).square().mean(), schedule)
        return network.eval()

    def refine(self, observation: ClientUpdate, guess: Reconstruction, generator: torch.Generator) -> Reconstruction:
        """Maps every image; where there is nothing to undo they stay as they are, with ``nothing_to_undo`` = 1."""
        network, shape = self.learned.network, tuple(guess.images.shape[1:])
        if network is None:
            return replace(guess, diagnostics=guess.diagnostics | {"nothing_to_undo": 1.0})
        if shape != self.learned.shape:
            raise AttackError(f"images have shape {shape}, auxiliary ones {self.learned.shape}")
        images = mapped(network, guess.images.to(next(network.parameters()))).to(guess.images)
        return replace(guess, images=images, diagnostics=guess.diagnostics | self.learned.diagnostics)


def kept_and_held(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Rows of auxiliary examples to learn from, and one in ``HOLDOUT`` to judge by."""
    if count < 2 * HOLDOUT:
        raise AttackError(f"training needs at least {2 * HOLDOUT} auxiliary examples, got {count}")
    order = torch.randperm(count, generator=generator)
    return order[: count - count // HOLDOUT], order[count - count // HOLDOUT :]


def protect_afresh(pipeline: Pipeline, clean: Batch, generator: torch.Generator) -> Batch:
    """Runs the clients' input defences with randomness of the attacker's own: a key drawn from ``generator``."""
    key = ("restorer", seed_of(generator))
    return pipeline.protect_batch(pipeline.protect_once(clean, key), key)
