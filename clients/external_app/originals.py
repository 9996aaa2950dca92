"""The images that a client trains on, saved in its own files; ``fedveil attack -s originals=FOLDER`` scores guesses by them."""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from clients.external_app.app_checks import PerChannel, numbers

IMAGES = ("image", "img", "images", "pixel_values", "x")
LABELS = ("label", "labels", "fine_label", "y")
"""Keys of a batch that is a mapping, as those of Hugging Face's data sets are."""
ROUNDING = 1e-3
"""How far beyond [0, 1] an image may lie after its normalisation was undone."""


class SavedOriginals:
    """A loader that yields the batches of another one unchanged, and keeps those of its first pass; see ``save_originals``.

    All other attributes are those of the wrapped loader, such as ``dataset``.
    """

    def __init__(self, loader: Iterable[Any], file: Path, mean: Tensor, std: Tensor) -> None:
        self._loader, self._file, self._mean, self._std = loader, file, mean, std
        self._saved = False

    def __len__(self) -> int:
        """Batches of a pass."""
        return len(self._loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # not yet set, as in a copy
            raise AttributeError(name)
        return getattr(self._loader, name)

    def __iter__(self) -> Iterator[Any]:
        """The batches; where the first pass ends, or training leaves it, the file is written."""
        if self._saved:
            yield from self._loader
            return
        self._saved = True
        images, labels = list[Tensor](), list[Tensor]()
        try:
            for batch in self._loader:
                pixels, classes = _pair(batch)
                images.append(self._pixels(pixels))
                labels.append(classes)
                yield batch
        finally:
            if images:
                self._write(torch.cat(images), torch.cat(labels))

    def _pixels(self, images: Tensor) -> Tensor:
        """Images (B, C, H, W) in [0, 1], on the CPU."""
        raw = images.detach().cpu()
        if not raw.is_floating_point():
            return raw.float() / 255
        mean, std = (statistic.view(1, -1, 1, 1) for statistic in (self._mean, self._std))
        pixels = (raw.double() * std + mean).float()
        low, high = float(pixels.min()), float(pixels.max())
        if not (low >= -ROUNDING and high <= 1 + ROUNDING):
            raise ValueError(
                f"save_originals: with mean {self._mean.tolist()} and std {self._std.tolist()} undone, images run from "
                f"{low:.3g} to {high:.3g}; expected [0, 1]: give the mean and std of your Normalize"
            )
        return pixels.clamp(0, 1)

    def _write(self, images: Tensor, labels: Tensor) -> None:
        stated = json.dumps({"mean": self._mean.tolist(), "std": self._std.tolist()})
        self._file.parent.mkdir(parents=True, exist_ok=True)
        tensors = {"images": images.contiguous(), "labels": labels.long().contiguous()}
        save_file(tensors, self._file, {"normalisation": stated})


def save_originals(
    loader: Iterable[Any],
    folder: str | Path,
    node_id: int,
    *,
    server_round: int | None = None,
    mean: PerChannel = 0.0,
    std: PerChannel = 1.0,
) -> SavedOriginals:
    """Wrap a client's training loader to save its images for ``fedveil attack -s originals=FOLDER``.

    Train on the returned loader: it yields the same batches in the same order, and draws no random numbers. When its first pass
    ends, it writes ``images`` (N, C, H, W) in [0, 1] and ``labels`` (N,) in batch order, as training saw them, augmentation
    included; the file's metadata state mean and std. The file holds training images: keep it where the data may be.

    Args:
        loader: Yields batches of (images (B, C, H, W), classes (B,)), or mappings with these under the names of Hugging Face's data
            sets. Images are normalised floating-point numbers, or pixels from 0 to 255 as whole numbers.
        folder: Absolute path of the folder for ``originals``; it is made if it is missing.
        node_id: ``context.node_id``.
        server_round: ``message.content["config"]["server-round"]``, for a file of its own in each round; without it, the file holds
            for all rounds, and a later round replaces it.
        mean: Mean in the app's normalisation (x - mean) / std, for all channels or for each; 0 for images in [0, 1].
        std: Standard deviation, likewise.

    Raises:
        ValueError: When the folder is relative, or mean or std do not fit; and in training, when images without their normalisation
            do not lie in [0, 1].
        TypeError: In training, when a batch holds no images with classes.
    """
    if not (
        place := Path(folder)
    ).is_absolute():  # a simulation runs in the folder in which Flower's daemon was started
        raise ValueError(f"save_originals: folder is {str(folder)!r}; allowed: an absolute path")
    statistics = (
        torch.tensor(numbers(name, value, "save_originals"), dtype=torch.float64).flatten()
        for name, value in (("mean", mean), ("std", std))
    )
    name = f"node-{node_id}" if server_round is None else f"round-{server_round:04d}-node-{node_id}"
    return SavedOriginals(loader, place / f"{name}.safetensors", *statistics)


def _pair(batch: Any) -> tuple[Tensor, Tensor]:
    """Images (B, C, H, W) and classes (B,) of a batch."""
    if isinstance(batch, Mapping):
        parts: list[Any] = [next((batch[key] for key in keys if key in batch), None) for keys in (IMAGES, LABELS)]
    else:
        parts = list(batch[:2]) if isinstance(batch, list | tuple) else []
    if len(parts) != 2 or not all(isinstance(part, Tensor) for part in parts):
        held = list(batch) if isinstance(batch, Mapping) else type(batch).__name__
        raise TypeError(
            f"save_originals: a batch is {held}; expected (images, classes) as tensors, or a mapping with {IMAGES[0]!r} and "
            f"{LABELS[0]!r}"
        )
    images, labels = parts
    if images.dim() != 4 or labels.shape != images.shape[:1]:
        raise TypeError(
            f"save_originals: a batch has images {tuple(images.shape)} and classes {tuple(labels.shape)}; expected (B, C, H, W) "
            "and (B,)"
        )
    return images, labels.detach().cpu()
