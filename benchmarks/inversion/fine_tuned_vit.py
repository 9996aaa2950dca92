"""Vision transformers of which clients train a part: the head, the last block, or adapters. Models for ``fedveil run``.

    fedveil run -s dataset=photos -s model=benchmarks/inversion/fine_tuned_vit.py:head_only

The frozen part has the initial weights of the experiment's seed. It stands for pretrained weights, which are no part of the
repository.
"""

from __future__ import annotations

from torch import nn

from clients.models.library import Shape
from clients.models.vision_transformer import vit_lite


def head_only(num_classes: int, input_shape: Shape) -> nn.Module:
    """``vit_lite`` whose last layer alone is trained, as Flower's flowertune-vit does with a larger one."""
    return _trained(_vit_lite(num_classes, input_shape), "head.")


def last_block(num_classes: int, input_shape: Shape) -> nn.Module:
    """``vit_lite`` whose last block, last norm and head are trained."""
    model = _vit_lite(num_classes, input_shape)
    last = len(model.blocks) - 1  # type: ignore[arg-type]
    return _trained(model, f"blocks.{last}.", "norm.", "head.")


def lora(num_classes: int, input_shape: Shape) -> nn.Module:
    """``vit_lite`` with adapters of rank 4 in its attention; these and the head are trained. Needs the package peft.

    As LoRA starts, each B is zero, so that the first step moves no A.

    Source: Hu et al. 2021, LoRA: Low-Rank Adaptation of Large Language Models, section 4.1.
    """
    from peft import LoraConfig, get_peft_model

    layers = r"blocks\.\d+\.attn\.(qkv|proj)"
    config = LoraConfig(r=4, lora_alpha=8, target_modules=layers, modules_to_save=["head"])
    adapted: nn.Module = get_peft_model(_vit_lite(num_classes, input_shape), config)
    return adapted


def _vit_lite(num_classes: int, input_shape: Shape) -> nn.Module:
    return vit_lite(num_classes, input_shape, 0, nn.BatchNorm2d)


def _trained(model: nn.Module, *prefixes: str) -> nn.Module:
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith(prefixes))
    return model
