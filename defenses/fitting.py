"""Defences that must be fitted before they protect: their training data, learned tensors, and two halves."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor, nn

from defenses.base import DefenseError, SmashedDefense
from defenses.tensors import NamedTensors, Shape, TensorMap, Tensors, on_cpu

MOST_KEPT = 2**30
"""Bytes of the features of a fit that are kept at most, once of the images and once of what a defence makes of them."""
SHAPE = "shape"
"""Name of the tensor that holds (C, H, W) of the features of the fit, int64."""


@dataclass(frozen=True, eq=False)
class FitContext:
    """Training data of a fitted defence: public data and the halves of the model, which stay unchanged.

    Attributes:
        client: The client half, normalised images (B, C, H, W) -> features (B, C', H', W').
        server: The server half, features -> logits (B, K).
        adversary: Assumed adversary, features -> logits (B, K'); None without one.
        images: (N, C, H, W), public, normalised for ``client``, with N at least 1; on any device, as a fit moves its batches to the
            device of ``client``.
        labels: (N,), classes of the server half's task.
        black: (C,), the value of a black pixel after the normalisation.

    Raises:
        DefenseError: When the tensors do not fit each other.
    """

    client: nn.Module
    server: nn.Module
    adversary: nn.Module | None
    images: Tensor
    labels: Tensor
    black: Tensor

    def __post_init__(self) -> None:
        if self.images.dim() != 4 or len(self.images) == 0:
            raise DefenseError(f"images are {tuple(self.images.shape)}; allowed: (N, C, H, W) with N >= 1")
        if self.labels.shape != self.images.shape[:1]:
            raise DefenseError(
                f"labels are {tuple(self.labels.shape)}; allowed: ({len(self.images)},), one for each image"
            )
        if self.black.shape != self.images.shape[1:2]:
            raise DefenseError(
                f"black is {tuple(self.black.shape)}; allowed: ({self.images.shape[1]},), one per channel"
            )

    def behind(self, encode: TensorMap, decode: TensorMap) -> FitContext:
        """The context of a stage after others: ``encode`` is added to the client half, ``decode`` before server and adversary."""
        behind = None if self.adversary is None else nn.Sequential(_Applied(decode), self.adversary)
        client, server = nn.Sequential(self.client, _Applied(encode)), nn.Sequential(_Applied(decode), self.server)
        return replace(self, client=client, server=server, adversary=behind)


class _Applied(nn.Module):
    """A function as a module without weights."""

    def __init__(self, function: TensorMap) -> None:
        super().__init__()
        self.function = function

    def forward(self, features: Tensor) -> Tensor:
        return self.function(features)


@contextmanager
def in_eval_mode(*modules: nn.Module) -> Iterator[None]:
    """Set every layer to eval mode, so that batch statistics stay unchanged, and restore the modes afterwards."""
    modes = {layer: layer.training for module in modules for layer in module.modules()}
    try:
        for module in modules:
            module.eval()
        yield
    finally:
        for layer, mode in modes.items():
            layer.training = mode


class FittedDefense(SmashedDefense):
    """Base of defences of features (B, C, H, W) with tensors learned once from public data, shared by client and server.

    The client sends the latent: the client half of the defence is ``encode``, the server half ``decode``. The server knows both,
    including the tensors; nothing here is a secret. ``fit`` and ``with_state`` return new objects.

    The tensors are no fields: ``repr``, equality and hash are those of the configuration, fitted or not, and ``Pipeline.version``
    distinguishes two fits. ``dataclasses.replace`` drops the tensors, which were fitted for other settings.
    """

    resamples = False
    at_inference = True
    takes_maps = True

    @property
    def needs_adversary(self) -> bool:
        """Whether ``fit`` needs ``FitContext.adversary``; most defences do not."""
        return False

    @property
    def least_images(self) -> int:
        """Least number of images that ``fit`` needs; particular images may require more."""
        return 1

    _learned: NamedTensors | None = None

    def fit(self, context: FitContext, generator: torch.Generator) -> Self:
        """Learn the tensors; weights, statistics and modes of the context's modules stay unchanged.

        Raises:
            DefenseError: When the defence cannot restore these features, or the context lacks something, with the reason.
        """
        raise NotImplementedError

    def encode(self, features: Tensor) -> Tensor:
        """Compute the sent latent: (B, C, H, W) -> (B, *``latent_shape``), with the same dtype and device; autograd passes.

        Raises:
            DefenseError: When the defence is not fitted, or was fitted to features of another shape.
        """
        raise NotImplementedError

    def decode(self, latent: Tensor) -> Tensor:
        """Restore features from a latent, at the server: (B, *``latent_shape``) -> (B, C, H, W)."""
        raise NotImplementedError

    def shapes(self, channels: int, height: int, width: int) -> dict[str, Shape]:
        """Name -> shape of each learned tensor for features (C, H, W).

        Raises:
            DefenseError: When such features cannot be restored, with the reason.
        """
        raise NotImplementedError

    def latent_shape(self, channels: int, height: int, width: int) -> Shape:
        """Shape of the latent of one image with features (C, H, W); no fit needed."""
        raise NotImplementedError

    def protect_features(self, features: Tensor, generator: torch.Generator) -> Tensor:
        """``decode(encode(features))``, the input of the server half, (B, C, H, W)."""
        return self.decode(self.encode(features))

    @property
    def fitted(self) -> bool:
        """Whether the defence has its tensors."""
        return self._learned is not None

    def state(self) -> Tensors:
        """Copies of the learned tensors by name, on the CPU; empty when not fitted."""
        return on_cpu(self._learned or {})

    def with_state(self, state: NamedTensors) -> Self:
        """A copy of the defence with the tensors of ``state``.

        Raises:
            DefenseError: When names or shapes do not fit this configuration, or numbers are not finite.
        """
        learned = on_cpu(dict(sorted(state.items())))
        self._check(learned)
        fitted = copy.copy(self)
        # Frozen for users; the new copy is not shared yet.
        object.__setattr__(fitted, "_learned", learned)
        return fitted

    def _check(self, learned: NamedTensors) -> None:
        shape = learned.get(SHAPE)
        if shape is None or shape.shape != (3,) or shape.dtype != torch.int64 or bool((shape < 1).any()):
            raise DefenseError(
                f"{self}: tensor {SHAPE!r} is {shape}; allowed: (C, H, W) of the features, int64, each >= 1"
            )
        expected: dict[str, Shape] = {SHAPE: (3,), **self.shapes(*shape.tolist())}
        if missing := sorted(set(expected) ^ set(learned)):
            raise DefenseError(f"{self}: tensors {missing} are missing or unknown; allowed: {sorted(expected)}")
        for name, tensor in learned.items():
            if tensor.shape != expected[name]:
                raise DefenseError(f"{self}: tensor {name!r} is {tuple(tensor.shape)}; allowed: {expected[name]}")
            if not torch.isfinite(tensor).all():
                raise DefenseError(
                    f"{self}: tensor {name!r} holds numbers that are not finite; lower the learning rate"
                )

    def _kept(self) -> NamedTensors:
        """The learned tensors."""
        if self._learned is None:
            raise DefenseError(f"{self} is not fitted: call Pipeline.fit(context, key), or with_state with its tensors")
        return self._learned

    def _tensors(self, like: Tensor) -> Tensors:
        """The learned tensors on the device of ``like``, floating-point ones with its dtype; refuses as ``_kept``."""
        return {
            name: tensor.to(like.device, like.dtype if tensor.is_floating_point() else tensor.dtype)
            for name, tensor in self._kept().items()
        }

    def _require(self, tensor: Tensor, *, latent: bool = False) -> None:
        """Refuses what is not features (B, C, H, W) of the fit's shape, or a latent of these; and as ``_kept``."""
        channels, height, width = (int(side) for side in self._kept()[SHAPE])
        expected = self.latent_shape(channels, height, width) if latent else (channels, height, width)
        if tensor.shape[1:] != expected:
            what = "a latent" if latent else "features"
            raise DefenseError(
                f"{self}: {what} of shape {tuple(tensor.shape)}; allowed, as in its fit: (B, {expected})"
            )


def placed(images: Tensor, half: nn.Module) -> Tensor:
    """Images where ``half`` computes: on the device of its first weight; one without weights takes them where they are.

    A fit moves each batch by itself: all images together need not fit beside the model.
    """
    weight = next(half.parameters(), None)
    return images if weight is None else images.to(weight.device)


def features_by_row(client: nn.Module, images: Tensor) -> TensorMap:
    """What gives the features (B, C, H, W) of some rows (B,) of normalised images (N, C, H, W), on the device of ``client``.

    In eval mode and without a graph. They are made once and kept where they take no more than ``MOST_KEPT`` and the same image has
    the same features every time, which noise of an earlier stage prevents; else anew at every call.
    """

    def anew(rows: Tensor) -> Tensor:
        with in_eval_mode(client), torch.no_grad():
            features: Tensor = client(placed(images[rows], client))
        return features

    first = torch.zeros(1, dtype=torch.int64)
    sample = anew(first)
    if sample.numel() * sample.element_size() * len(images) > MOST_KEPT or not torch.equal(sample, anew(first)):
        return anew
    kept = torch.cat([batch.cpu() for batch in features_in_batches(client, images)])
    return lambda rows: kept[rows].to(sample.device)


def sha256_of(tensors: NamedTensors) -> bytes:
    """SHA-256 over names, shapes, types and values; the order of names decides nothing."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(repr((name, tuple(tensor.shape), str(tensor.dtype))).encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().tobytes())
    return digest.digest()


def version_of(tensors: NamedTensors) -> str:
    """16 hexadecimal digits of ``sha256_of``."""
    return sha256_of(tensors).hex()[:16]


def features_in_batches(client: nn.Module, images: Tensor) -> Iterator[Tensor]:
    """Features (B, C, H, W) of normalised images (N, C, H, W), batch after batch, on the device of ``client``.

    In eval mode and without a graph.
    """
    with in_eval_mode(client), torch.no_grad():
        for batch in torch.split(images, 32):
            yield client(placed(batch, client))
