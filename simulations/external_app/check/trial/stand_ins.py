"""Stand-ins of a trial: no network, no data sets that would be fetched, no files that fedveil's own lines in the app write."""

from __future__ import annotations

import importlib
import os
import socket
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from functools import wraps
from typing import Any, NoReturn

import numpy as np

OFFLINE = {
    "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "WANDB_MODE": "disabled",
    "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1",
}  # fmt: skip
OFFLINE_ERROR = "fedveil check-app runs the app without network"
LENGTH = 256
"""Of a data set that stands in for one that is not loaded."""
IMAGE_KEYS = ("img", "image")
"""Names of the image in data sets of Hugging Face: of CIFAR, of MNIST."""


class StandInData:
    """Stands for a data set that is not loaded: each attribute, item and call of it is such a data set again."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *_: Any, **__: Any) -> StandInData:
        """Another such data set, whatever a method was called for."""
        return self

    def __getitem__(self, item: Any) -> StandInData:
        return self

    def __iter__(self) -> Iterator[StandInData]:
        return iter([self] * LENGTH)

    def __len__(self) -> int:
        return LENGTH


class Pictures:
    """What data sets of others give in a trial: stand-ins while the server starts, then noise of the size that the model takes."""

    def __init__(self) -> None:
        self.shape = (3, 32, 32)
        self.image_key = ""
        self.taken = False

    def picture(self, at: int) -> Any:
        """A picture of PIL."""
        from PIL.Image import fromarray

        channels, height, width = self.shape
        pixels = np.random.default_rng(at).integers(0, 256, (height, width, channels), np.uint8)
        return fromarray(pixels[:, :, 0] if channels == 1 else pixels)

    def load(self, split: Any) -> Any:
        """In place of what loads a data set of Hugging Face, or all its splits: columns of pictures and of classes."""
        if not self.image_key:
            return StandInData()
        self.taken = True
        hugging_face: Any = importlib.import_module("datasets")
        columns = {name: [at % 2 for at in range(LENGTH)] for name in ("label", "labels", "fine_label")}
        found = hugging_face.Dataset.from_dict({self.image_key: list(map(self.picture, range(LENGTH))), **columns})
        return found if split else hugging_face.DatasetDict(train=found, test=found)


def work_offline(*, isolated: bool) -> None:
    """Tell libraries that there is no network, and refuse connections where the system does not."""
    os.environ.update(OFFLINE)
    sys.dont_write_bytecode = True
    if isolated:
        return

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise socket.gaierror(socket.EAI_AGAIN, OFFLINE_ERROR)

    socket.socket.connect = refuse  # type: ignore[method-assign]
    socket.socket.connect_ex = refuse  # type: ignore[method-assign]
    socket.getaddrinfo = refuse


def without_data_sets(packages: Collection[str], pictures: Pictures) -> None:
    """Have ``pictures`` take the place of data sets of Hugging Face, Flower and torchvision, where ``packages`` names these."""
    if "datasets" in packages:
        with suppress(ImportError):
            hugging_face: Any = importlib.import_module("datasets")
            hugging_face.load_dataset = lambda *_, split=None, **__: pictures.load(split)
    if "flwr_datasets" in packages:
        with suppress(ImportError):
            federated = importlib.import_module("flwr_datasets").FederatedDataset
            federated.load_partition = federated.load_split = lambda *_, **__: pictures.load("train")
    if "torchvision" in packages:
        with suppress(ImportError):
            sets = importlib.import_module("torchvision.datasets")
            for kind in vars(sets).values():
                if isinstance(kind, type) and issubclass(kind, sets.VisionDataset):
                    _leave_empty(kind, pictures)


def _leave_empty(kind: Any, pictures: Pictures) -> None:
    """Has a class of data sets load nothing when it is built."""

    def build(data_set: Any, *args: Any, **given: Any) -> None:
        for name in ("data", "classes"):
            with suppress(AttributeError):
                setattr(data_set, name, StandInData())
        data_set.targets = [at % 2 for at in range(LENGTH)]
        data_set.transform = next((one for one in (given.get("transform"), *args) if callable(one)), None)

    def item(data_set: Any, at: int) -> Any:
        picture = pictures.picture(int(at))
        return (data_set.transform(picture) if data_set.transform else picture), int(at) % 2

    kind.__init__, kind.__len__, kind.__getitem__ = build, lambda _: LENGTH, item


def write_nothing() -> list[dict[str, Any]]:
    """Have ``audited`` return the strategy, and ``RecordingStrategy`` keep nothing; the settings of each call of ``audited``."""
    names = ("simulations.external_app.study", "simulations.audited", "strategies.recording.strategy")
    study, door, recording = map(importlib.import_module, names)
    original: Callable[..., Any] = study.audited
    seen = list[dict[str, Any]]()

    @wraps(original)
    def audited(strategy: Any, folder: Any, model: Any, **settings: Any) -> Any:
        del folder
        seen.append(settings)
        return original(strategy, "", model, **settings)

    study.audited = door.audited = audited  # type: ignore[attr-defined]
    recording.RecordingWriter = lambda *_, **__: StandInData()  # type: ignore[attr-defined]
    return seen
