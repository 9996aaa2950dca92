"""What a server that knows the defence makes of uploaded images: as in the outsourced scenario, for studies without clients.

``WindowMean`` is told nothing but the algorithm and finds the windows itself; ``LearnedRestorer`` is trained on pairs that the
server makes of auxiliary images. Imported by ``vm_distillation.py`` and ``vm_detection.py``; prints nothing by itself.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attacks.base import Knowledge
from attacks.guesses import Reconstruction
from attacks.image_measures import psnr
from attacks.metrics.images import MAX_PSNR
from attacks.observations import AttackError
from attacks.refinement.base import Refinement
from attacks.uploads.base import AsUploaded, UploadedImages
from defenses.base import Batch
from defenses.pipeline import Pipeline

CHUNK = 64
"""Images that are attacked at once."""


def fitted(attack: Refinement, pipeline: Pipeline, auxiliary: Batch, stream: torch.Generator) -> Refinement:
    """The attack after it has learned what it needs.

    Args:
        attack: Undoes a defence of images.
        pipeline: The clients' defences; never their draws.
        auxiliary: Images of the server's own (N, C, H, W) in [0, 1], which no client holds.
        stream: Of all that it draws.
    """
    channels = auxiliary.images.shape[1]

    def train(_: Batch, seed: int) -> nn.Module:
        raise AttackError(f"{attack} asks for a model of seed {seed}, and this study attacks images only")

    return attack.fit(Knowledge(auxiliary, pipeline, (0.5,) * channels, (0.5,) * channels, train), stream)


def restored(attack: Refinement, uploads: Tensor, stream: torch.Generator) -> Tensor:
    """What the attack makes of uploads (N, C, H, W), each image from its upload alone: (N, C, H, W) in [0, 1].

    Raises:
        AttackError: When it fails on any of them: grey images would look like privacy.
    """
    found = []
    for part in torch.split(uploads, CHUNK):
        seen = UploadedImages(part, torch.zeros(len(part), dtype=torch.int64))
        guess: Reconstruction = AsUploaded().attack_many([seen], [stream])[0]
        # A refinement reads of an observation what an upload has as well; ``strategies.outsourced`` gives it the same.
        guess = attack.refine_many([seen], [guess], [stream])[0]  # type: ignore[list-item]
        if guess.failure:
            raise AttackError(f"{attack}: {guess.failure}")
        found.append(guess.images)
    return torch.cat(found)


def decibels(guess: Tensor, truth: Tensor) -> float:
    """Mean over images (N, C, H, W) of the PSNR, in dB; an image that equals the truth counts ``MAX_PSNR``."""
    return float(psnr(guess, truth).clamp(max=MAX_PSNR).mean())
