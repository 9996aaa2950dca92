"""Surroundings of an app's code during its trial: no network, no data, and nothing written by fedveil's own lines."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from importlib import import_module
from typing import Any, NoReturn

OFFLINE = {
    "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "WANDB_MODE": "disabled",
    "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1",
}  # fmt: skip
OFFLINE_ERROR = "fedveil check-app runs the app without network"
LENGTH = 64
"""Of a data set that stands in for one that is not loaded."""


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


def work_offline() -> None:
    """Refuse connections, and tell libraries that there is no network."""
    os.environ.update(OFFLINE)
    sys.dont_write_bytecode = True

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise socket.gaierror(socket.EAI_AGAIN, OFFLINE_ERROR)

    socket.socket.connect = refuse  # type: ignore[method-assign]
    socket.socket.connect_ex = refuse  # type: ignore[method-assign]
    socket.getaddrinfo = refuse


def without_data_sets(packages: Collection[str]) -> None:
    """Put stand-ins in the place of what loads data sets of Hugging Face, Flower and torchvision, if the app imports these."""
    if "datasets" in packages or "flwr_datasets" in packages:
        with suppress(ImportError):
            hugging_face: Any = import_module("datasets")
            hugging_face.load_dataset = _stand_in
    if "flwr_datasets" in packages:
        with suppress(ImportError):
            federated = import_module("flwr_datasets").FederatedDataset
            federated.load_partition = federated.load_split = _stand_in
    if "torchvision" in packages:
        with suppress(ImportError):
            sets = import_module("torchvision.datasets")
            for kind in vars(sets).values():
                if isinstance(kind, type) and issubclass(kind, sets.VisionDataset):
                    _leave_empty(kind)


def _stand_in(*_: Any, **__: Any) -> StandInData:
    return StandInData()


def _leave_empty(kind: Any) -> None:
    """Has a class of data sets load nothing when it is built."""

    def build(data_set: Any, *_: Any, **__: Any) -> None:
        for name in ("data", "targets", "classes", "transform", "target_transform"):
            with suppress(AttributeError):
                setattr(data_set, name, StandInData())

    kind.__init__, kind.__len__, kind.__getitem__ = build, lambda _: LENGTH, _stand_in


def write_nothing() -> None:
    """Have ``audited`` check its settings and return the strategy, and ``RecordingStrategy`` keep nothing: no folder is made."""
    names = ("simulations.external_app.study", "simulations.audited", "strategies.recording.strategy")
    study, door, recording = map(import_module, names)
    original: Callable[..., Any] = study.audited

    def audited(strategy: Any, folder: Any, model: Any, **settings: Any) -> Any:
        del folder
        return original(strategy, "", model, **settings)

    for module, name, stand_in in (
        (study, "audited", audited),
        (door, "audited", audited),
        (recording, "RecordingWriter", _stand_in),
    ):
        setattr(module, name, stand_in)
