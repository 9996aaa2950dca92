"""Weights of timm's vision transformers from a file, for split models that are fine-tuned rather than trained from nothing.

Yao et al. (ICDM 2022, PatchShuffling) fine-tune pretrained transformers, ViT-B/16 of timm among them; shuffled tokens have no
positions, so those that the file has learned are left out.
"""

import functools
from pathlib import Path

from torch import Tensor, nn

from clients.models.library import ModelError, why_no_checkpoint
from defenses.tensors import NamedTensors

PATCHES = "patch_embed.proj.weight"
DROPPED = ("pos_embed", "head.", "fc_norm.", "pre_logits.")
"""How the names of weights begin that are never taken from a file: the positions, and all of the classifier, which starts anew."""


def load_pretrained(whole: nn.Module, path: str) -> None:
    """Copy a file's weights into a transformer, in place; its classifier stays as it is.

    A patch embedding of three channels is summed over them where the images have one: a grey image then gives the tokens that
    three equal channels would give. The number of heads leaves no trace in weights, so it is not checked; neither are the
    mean and standard deviation that the file's model had its images normalised with.

    Args:
        whole: A ``VisionTransformer`` of timm without position embedding.
        path: What timm's ``load_state_dict`` reads: a state dict saved by ``torch.save``, alone or under "state_dict_ema",
            "model_ema", "state_dict" or "model", or a file named ``*.safetensors``. Nothing in it is executed. The last file
            stays in memory, and is read again when its modification time changes.

    Raises:
        ModelError: When the file cannot be read, or its weights do not fit.
    """
    file = Path(path).expanduser()
    try:
        if file.is_dir():
            raise ModelError(f"weights: {file} is a folder; expected the file of a checkpoint in it")
        modified = file.stat().st_mtime_ns
    except OSError as error:
        raise ModelError(
            f"weights: cannot read {file} ({error.strerror}); the server and every client need the file at this path"
        ) from error
    weights = dict(_read(file, modified))
    own = whole.state_dict()
    expected = {key: tensor for key, tensor in own.items() if not key.startswith(DROPPED)}
    if PATCHES in weights and PATCHES in expected and (_channels(weights), _channels(expected)) == (3, 1):
        weights[PATCHES] = weights[PATCHES].float().sum(1, keepdim=True)
    misfit = _misfit(weights, expected)
    if misfit:
        raise ModelError(f"weights: {file} does not fit the model: {misfit}; {_advice(weights, expected)}")
    whole.load_state_dict(own | weights)


@functools.lru_cache(maxsize=1)
def _read(file: Path, _modified: int) -> NamedTensors:
    """A file's weights but those that are dropped, cached by the modification time."""
    from timm.models import load_state_dict

    try:
        loaded = load_state_dict(str(file), weights_only=True)
    except Exception as error:  # Damaged files make torch, pickle, zipfile and safetensors raise anything.
        raise ModelError(f"weights: {file} {why_no_checkpoint(error)}; {_EXPECTED}") from error
    weights = {key: value for key, value in loaded.items() if not key.startswith(DROPPED)}
    for key, value in weights.items():
        if not isinstance(value, Tensor) or not value.is_floating_point():
            kind = value.dtype if isinstance(value, Tensor) else type(value).__name__
            raise ModelError(f"weights: {file} holds {kind} under {key!r}; {_EXPECTED}")
    return weights


_EXPECTED = "expected the state dict of a VisionTransformer of timm, saved by torch.save or as .safetensors"


def _channels(weights: NamedTensors) -> int:
    return weights[PATCHES].shape[1] if weights[PATCHES].ndim == 4 else 0


def _misfit(weights: NamedTensors, expected: NamedTensors) -> str:
    """What is wrong with the first weight that does not fit; "" when all do."""
    for key, tensor in expected.items():
        if key not in weights:
            return f"{key} is missing, expected with shape {tuple(tensor.shape)}"
        if weights[key].shape != tensor.shape:
            return f"{key} has shape {tuple(weights[key].shape)}, expected {tuple(tensor.shape)}"
    for key, tensor in weights.items():
        if key not in expected:
            return f"{key} of shape {tuple(tensor.shape)} came, which the model does not have"
    return ""


def _advice(weights: NamedTensors, expected: NamedTensors) -> str:
    ours, sizes = _sizes(expected), _sizes(weights)
    changes = [f"{key} = {value}" for key, value in sizes.items() if ours.get(key) != value]
    if changes:
        return f"set {', '.join(changes)}, as in the file"
    return (
        "only plain transformers fit, as timm's vit_base_patch16_224: with a class token, without register tokens, layer scale or "
        "averaged tokens, for images of as many channels, or of one where the file's model takes three"
    )


def _sizes(weights: NamedTensors) -> dict[str, int]:
    """Settings that follow from weights under timm's names."""
    patches = weights.get(PATCHES)
    sizes = {} if patches is None or patches.ndim != 4 else {"width": patches.shape[0], "patch-size": patches.shape[3]}
    depth = len({key.split(".")[1] for key in weights if key.startswith("blocks.")})
    return sizes | ({"depth": depth} if depth else {})
