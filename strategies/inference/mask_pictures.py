"""Pictures of the masks that a delta autoencoder learns from."""

import torch
from torch import Tensor, nn

from clients.task.task import Task
from defenses.fitting import FitContext, placed
from defenses.pipeline import Pipeline
from defenses.random_draws import Key
from defenses.smashed.delta_autoencoder import DeltaAutoencoder
from defenses.smashed.delta_masks import grad_cam, last_map_layer
from defenses.tensors import Tensors
from strategies.audit.jobs import Recorder

OBSERVATION = "delta masks"
"""What the pictures' index calls them; the report shows them apart from what was attacked."""
SHOWN = 3
"""Images, of the server's own."""


def picture_masks(pipeline: Pipeline, context: FitContext, key: Key, cut: str, task: Task, recorder: Recorder) -> None:
    """Pictures of a few images of the context: "image", "server-cam", "adversary-cam", "mask" and "masked".

    The maps are those of the first iteration, on the image as it is; the mask is all that any iteration masked. Only a
    ``DeltaAutoencoder`` has masks, wherever it stands: behind other defences of features it looks through these, and where
    they draw noise, each look meets its own. ``pipeline`` has been fitted to ``context`` with the draws of ``key``.
    """
    masking = [index for index, stage in enumerate(pipeline.defenses) if isinstance(stage, DeltaAutoencoder)]
    for number, index in enumerate(masking):
        which = f"cut at {cut}" if len(masking) == 1 else f"cut at {cut}, stage {index + 1}"
        for kind, shown in _pictures(pipeline, index, pipeline.context_of(index, context, key), task).items():
            for at, image in enumerate(shown.cpu()):
                recorder.picture(
                    task, image, image_number=at, attack="", kind=kind, client="server", target=number, observation=OBSERVATION,
                    caption=f"{which}, image {at + 1}",
                )  # fmt: skip


def _pictures(pipeline: Pipeline, index: int, context: FitContext, task: Task) -> Tensors:
    """Kind -> images (B, C, H, W) in [0, 1], of the stage of this number and what it has learned from."""
    stage = pipeline.defenses[index]
    assert isinstance(stage, DeltaAutoencoder)
    shown = torch.linspace(0, len(context.images) - 1, min(SHOWN, len(context.images))).long()
    images = placed(context.images[shown], context.client)
    masked, mask = stage.masks.apply(images, context)
    card = task.plan.data_card()
    mean, std = (images.new_tensor(of)[:, None, None] for of in (card.mean, card.std))
    clean, hidden = ((some * std + mean).clamp(0, 1) for some in (images, masked))
    pictures = {"image": clean, "server-cam": overlay(clean, _cams(context, context.server, images))}
    if context.adversary is not None:
        pictures["adversary-cam"] = overlay(clean, _cams(context, context.adversary, images))
    return pictures | {"mask": mask[:, None].float(), "masked": hidden}


def overlay(images: Tensor, cams: Tensor) -> Tensor:
    """Maps in the colours of "jet", half transparent, on grey images: (B, C, H, W) and (B, H, W), all in [0, 1] -> (B, 3, H, W)."""
    red, green = _jet_blue(1 - cams), (1.5 - (4 * cams - 2).abs()).clamp(0, 1)
    return (torch.stack([red, green, _jet_blue(cams)], 1) + images.mean(1, keepdim=True)) / 2


def _cams(context: FitContext, half: nn.Module, images: Tensor) -> Tensor:
    model = nn.Sequential(context.client, half)
    return grad_cam(model, images, last_map_layer(model, images, context.client))


def _jet_blue(values: Tensor) -> Tensor:
    """Blue of the colour map "jet", clip(min(4 v + 0.5, 2.5 - 4 v), 0, 1), for values v in [0, 1]."""
    return torch.minimum(4 * values + 0.5, 2.5 - 4 * values).clamp(0, 1)
