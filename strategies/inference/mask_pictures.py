"""Pictures of delta masks: where the server half and the offline adversary look, and what is masked because of it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from clients.task import Task
from defenses.delta_autoencoder import DeltaAutoencoder
from defenses.delta_masks import jet_blue
from defenses.fitting import FitContext
from defenses.grad_cam import grad_cam, last_map_layer
from defenses.pipeline import Pipeline
from strategies.audit.auditor import Recorder

OBSERVATION = "delta masks"
"""What the pictures' index calls them; the report shows them apart from what was attacked."""
SHOWN = 3
"""Images, of the server's own."""


def picture_masks(pipeline: Pipeline, context: FitContext, cut: str, task: Task, recorder: Recorder) -> None:
    """Pictures of a few images of the context: "image", "server-cam", "adversary-cam", "mask" and "masked".

    The maps are those of the first iteration, on the image as it is; the mask is all that any iteration masked. Only a
    ``DeltaAutoencoder`` has masks, and only in front of other defences of features: behind these it sees another client half.

    Args:
        pipeline: The clients' defences.
        context: What they learn from.
        cut: Where the model is cut, for the caption.
        task: Orders of the round.
        recorder: Where the pictures go.
    """
    first = next(iter(pipeline.smashed_defenses), None)
    if not isinstance(first, DeltaAutoencoder):
        return
    images = context.images[torch.linspace(0, len(context.images) - 1, min(SHOWN, len(context.images))).long()]
    masked, mask = first.masks.apply(images, context)
    card = task.plan.data_card()
    mean, std = (images.new_tensor(of)[:, None, None] for of in (card.mean, card.std))
    clean, hidden = ((some * std + mean).clamp(0, 1) for some in (images, masked))
    found = {"image": clean, "server-cam": overlay(clean, _cams(context, context.server, images))}
    if context.adversary is not None:
        found["adversary-cam"] = overlay(clean, _cams(context, context.adversary, images))
    found |= {"mask": mask[:, None].float(), "masked": hidden}
    for kind, shown in found.items():
        for at, image in enumerate(shown.cpu()):
            recorder.picture(
                task, image, image_number=at, attack="", kind=kind, client="server", target=0, observation=OBSERVATION,
                caption=f"cut at {cut}, image {at + 1}",
            )  # fmt: skip


def overlay(images: Tensor, cams: Tensor) -> Tensor:
    """Maps in the colours of "jet", half transparent, on grey images: (B, C, H, W) and (B, H, W), all in [0, 1] -> (B, 3, H, W)."""
    red, green = jet_blue(1 - cams), (1.5 - (4 * cams - 2).abs()).clamp(0, 1)
    return (torch.stack([red, green, jet_blue(cams)], 1) + images.mean(1, keepdim=True)) / 2


def _cams(context: FitContext, half: nn.Module, images: Tensor) -> Tensor:
    model = nn.Sequential(context.client, half)
    return grad_cam(model, images, last_map_layer(model, images))
