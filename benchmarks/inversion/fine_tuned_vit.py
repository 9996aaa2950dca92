"""Vision transformers of which clients train a part: the head, the last block, or adapters. Models for ``fedveil run``.

    fedveil run -s dataset=photos -s model=benchmarks/inversion/fine_tuned_vit.py:head_only

The frozen part has the initial weights of the experiment's seed. It stands for pretrained weights, which are no part of the
repository.
"""

from __future__ import annotations

from torch import nn

from clients.models.vision_transformer import vit_lite
from defenses.tensors import ImageShape


def head_only(num_classes: int, input_shape: ImageShape) -> nn.Module:
    """``vit_lite`` whose last layer alone is trained, as Flower's flowertune-vit does with a larger one."""
    return with_trained_part(_vit_lite(num_classes, input_shape), "head")


def last_block(num_classes: int, input_shape: ImageShape) -> nn.Module:
    """``vit_lite`` whose last block, last norm and head are trained."""
    return with_trained_part(_vit_lite(num_classes, input_shape), "last block")


def lora(num_classes: int, input_shape: ImageShape) -> nn.Module:
    """``vit_lite`` with adapters in its attention; these and the head are trained. Needs the package peft."""
    return with_trained_part(_vit_lite(num_classes, input_shape), "lora")


def with_trained_part(model: nn.Module, part: str) -> nn.Module:
    """A vision transformer of timm that trains its "head", its "last block" (with norm and head), or "lora".

    The last has adapters of rank 4 in its attention, and trains these and the head. Each adapter adds B A to a weight. As LoRA
    starts, B is zero, so that the first step moves no A.

    Source: Hu et al. 2021, LoRA: Low-Rank Adaptation of Large Language Models, section 4.1, as the package peft has it.
    """
    if part == "lora":
        from peft import LoraConfig, get_peft_model

        layers = r"blocks\.\d+\.attn\.(qkv|proj)"
        adapted: nn.Module = get_peft_model(
            model, LoraConfig(r=4, lora_alpha=8, target_modules=layers, modules_to_save=["head"])
        )
        return adapted
    last = len(model.blocks) - 1  # type: ignore[arg-type]
    prefixes = {"head": ("head.",), "last block": (f"blocks.{last}.", "norm.", "head.")}[part]
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith(prefixes))
    return model


def _vit_lite(num_classes: int, input_shape: ImageShape) -> nn.Module:
    return vit_lite(num_classes, input_shape, 0, nn.BatchNorm2d)
