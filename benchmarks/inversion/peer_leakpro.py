"""LeakPro's Inverting Gradients on updates, as its repository has it but for the number of iterations.

It works the update out again from the images, as its code has no way to hand it one. It looks at its guess every 250 iterations and
returns the one whose SSIM to the true images is highest: its numbers are better than those of an attacker, who cannot choose so.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import chdir, suppress

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from attacks.observations import ClientUpdate


def reconstructed(seen: Sequence[ClientUpdate], images: Sequence[Tensor], iterations: int) -> list[Tensor]:
    """Its guesses (b, C, H, W) for each update of one step, from the images (b, C, H, W) in [0, 1] behind it."""
    from leakpro.attacks.gia_attacks import invertinggradients as theirs  # type: ignore[import-not-found]

    found = []
    for at, (one, true) in enumerate(zip(seen, images, strict=True)):
        torch.manual_seed(at)
        mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (one.mean, one.std))
        batch = DataLoader(TensorDataset((true - mean) / std, one.labels), len(true))
        settings = theirs.InvertingConfig(at_iterations=iterations)
        with tempfile.TemporaryDirectory() as folder, chdir(folder):  # It makes a folder where it is called.
            attack = theirs.InvertingGradients(one.model, batch, mean, std, configs=settings)
            attack.prepare_attack()
            # After a few iterations it can have no guess of an SSIM above 0, and then ends in an error.
            with suppress(AttributeError):
                list(attack.run_attack())
        best = getattr(attack, "final_best", attack.best_reconstruction)
        guess = torch.stack([image for image, _ in best.dataset]).detach()
        found.append((guess * std + mean).clamp(0, 1))
    return found
