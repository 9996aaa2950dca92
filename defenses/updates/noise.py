"""Additive noise: on images (the "DP" baseline of the image-obfuscation papers) and on updates."""

from dataclasses import replace

import torch

from defenses.base import Batch, InputDefense, UpdateDefense
from defenses.checks import Noise, Per, algorithm
from defenses.functional import gaussian_like, laplace_like, map_update
from defenses.tensors import Update


@algorithm
class ImageNoise(InputDefense):
    """Add N(0, std^2) to every pixel and channel, once per image, and clamp to [0, 1] as saving an image does.

    The "DP (sigma = 50)" baseline of VisualMixer. No privacy budget follows from it: the paper neither bounds an
    image's sensitivity nor accounts for anything, so it is noise, not differential privacy (for that see ``DPSGD``).

    Args:
        std: Standard deviation on the [0, 1] scale; 50/255 is the paper's sigma = 50 on 0 to 255. 0 changes nothing.
    """

    std: Noise = 50 / 255

    no_defense_at = {"std": 0}
    always_shown = ("std",)
    source = "Li et al., You Can Use But Cannot Recognize (VisualMixer), NDSS 2024, V (baseline DP, sigma = 50)"
    # The data set is published noisy, so a model meets noisy images in use as well.
    at_inference = True
    resamples = False
    adaptive_attacks = ("LearnedRestorer",)

    def protect_batch(self, batch: Batch, generator: torch.Generator) -> Batch:
        """Adds the noise; targets are unchanged."""
        return replace(batch, images=(batch.images + gaussian_like(batch.images, self.std, generator)).clamp(0, 1))


@algorithm
class GaussianNoise(UpdateDefense):
    """Add N(0, std^2) to every entry of each step's gradient or of the update, scalar parameters included.

    The baseline of the ATS paper (1e-3 and 1e-2 on the gradient of each step; its text writes N(0, 1e-3), its code uses the
    number as standard deviation, as here). Without clipping and accounting it carries no privacy budget.

    Args:
        std: Standard deviation; per step in the unit of the gradient, so that one step of SGD sends -lr * (g + noise); per
            update in that of the update, which is lr times as large. 0 changes nothing.
        per: "step" or "update"; see ``UpdateDefense``. Per step, BatchNorm's statistics have no gradient and are sent
            without noise.
    """

    std: Noise = 1e-2
    per: Per = "step"

    no_defense_at = {"std": 0}
    always_shown = ("std", "per")
    adaptive_attacks = ("NoiseModelInversion",)
    source = "Zhu et al., Deep Leakage from Gradients, NeurIPS 2019, 5.1; Gao et al., CVPR 2021, Table 3"

    def protect_update(self, update: Update, generator: torch.Generator) -> Update:
        """Adds the noise."""
        return map_update(lambda tensor: tensor + gaussian_like(tensor, self.std, generator), update)


@algorithm
class LaplaceNoise(UpdateDefense):
    """Add Laplace(0, scale) noise to every entry of each step's gradient or of the update.

    Args:
        scale: Mean absolute value of the noise (its standard deviation is sqrt(2) times that), in the unit of the
            gradient (per step) or of the update. 0 changes nothing.
        per: "step" or "update"; as for ``GaussianNoise``.
    """

    scale: Noise = 1e-2
    per: Per = "step"

    no_defense_at = {"scale": 0}
    always_shown = ("scale", "per")
    adaptive_attacks = ("NoiseModelInversion",)
    source = "Zhu et al., Deep Leakage from Gradients, NeurIPS 2019, 5.1; Gao et al., CVPR 2021, Table 3"

    def protect_update(self, update: Update, generator: torch.Generator) -> Update:
        """Adds the noise."""
        return map_update(lambda tensor: tensor + laplace_like(tensor, self.scale, generator), update)
