"""Denoising of recovered images by a network trained on auxiliary images."""

from __future__ import annotations

from dataclasses import replace
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attacks.base import Knowledge
from attacks.image_measures import mean_psnr
from attacks.networks.unet import UNet
from attacks.refinement.restoration import LearnedMap, NetworkRefinement, kept_and_held, mapped, select
from defenses.base import Batch
from defenses.checks import algorithm
from defenses.tensors import Numbers

STRONGEST = 0.5
"""Largest standard deviation of the noise in training, in units of images in [0, 1]."""
GRAINS = (1, 2, 4)
"""Sizes of a grain of noise in pixels. Total variation leaves blotches of several pixels in a guess, not white noise."""


@algorithm
class LearnedDenoiser(NetworkRefinement, learns_prior=True):
    """Denoise recovered images by a U-Net that is trained to remove noise from auxiliary images.

    The network learns the mean of the clean image x given y = clip(x + s n, 0, 1), by squared error. n is normal, in grains of 1,
    2 or 4 pixels and of unit variance; s is drawn for each image from [0, ``STRONGEST``] and not an input. The training simulates
    no update: the attack takes no defence into account, and one network serves all pipelines and rounds. An accurate guess gets
    worse, because the network must estimate the noise level itself.

    The network learns a prior and can hallucinate images from noise (``learns_prior``). An audit therefore runs the whole chain a
    second time, on updates of noise, and reports that score too: see ``simulations.report.studies.baselines``.

    One auxiliary example in eight is held out. Diagnostics, means in dB over them: ``holdout_psnr`` of images denoised from s =
    ``STRONGEST`` / 2, and ``holdout_psnr_noisy`` before denoising; ``holdout_psnr_noise`` of the network's output for pure noise,
    and ``holdout_psnr_mean_image`` of the mean of the other images.
    """

    source = (
        "Zhang, Zuo, Chen, Meng, Zhang, Beyond a Gaussian Denoiser, IEEE TIP 2017 (blind denoising over a range of noise levels); "
        "Zhang, Li, Zuo, Zhang, Van Gool, Timofte, Plug-and-Play Image Restoration with Deep Denoiser Prior, IEEE TPAMI 2022 "
        "(U-Net); differs: applied once, behind the inversion, to grains of several sizes"
    )
    threat = "a guess of the images; auxiliary images like the clients'"

    iterations: int = 400

    @property
    def learns_from_defenses(self) -> bool:
        """False, because the network learns only from clean auxiliary images."""
        return False

    def fit(self, knowledge: Knowledge, generator: torch.Generator) -> Self:
        """Train the network; deterministic given the generator."""
        auxiliary = knowledge.auxiliary
        kept, held = (select(auxiliary, rows) for rows in kept_and_held(len(auxiliary), generator))
        channels, shape = kept.images.shape[1], tuple(kept.images.shape[1:])
        network = UNet(channels, channels, self.width, generator).to(kept.images)

        def spoil(examples: Batch) -> Tensor:
            return noisy(examples.images, STRONGEST * torch.rand(len(examples), generator=generator), generator)

        self.train(network, kept, spoil, generator)
        scores = self._judged(network, kept.images, held.images, generator)
        return replace(self, learned=LearnedMap(network, shape, scores))

    def _judged(self, network: nn.Module, kept: Tensor, held: Tensor, generator: torch.Generator) -> Numbers:
        spoiled = noisy(held, torch.full((len(held),), STRONGEST / 2), generator)
        nothing = torch.rand(held.shape, generator=generator).to(held)
        guesses = {
            "": mapped(network, spoiled), "_noisy": spoiled, "_noise": mapped(network, nothing),
            "_mean_image": kept.mean(0).expand_as(held),
        }  # fmt: skip
        return {f"holdout_psnr{name}": mean_psnr(guess, held) for name, guess in guesses.items()}


def noisy(images: Tensor, std: Tensor, generator: torch.Generator) -> Tensor:
    """Images (B, C, H, W) under normal noise of a random grain each and of standard deviations (B,), clipped to [0, 1]."""
    grains = torch.randint(len(GRAINS), (len(images),), generator=generator).tolist()
    noise = torch.stack([_grained(images.shape[1:], GRAINS[at], generator) for at in grains])
    return (images + (std.view(-1, 1, 1, 1) * noise).to(images)).clamp(0, 1)


def _grained(shape: torch.Size, grain: int, generator: torch.Generator) -> Tensor:
    """Noise (C, H, W) of unit variance, constant in squares of ``grain`` pixels whose corner lies anywhere."""
    channels, height, width = shape
    coarse = torch.randn(1, channels, height // grain + 2, width // grain + 2, generator=generator)
    top, left = torch.randint(grain, (2,), generator=generator).tolist()
    return F.interpolate(coarse, scale_factor=float(grain))[0, :, top : top + height, left : left + width]
