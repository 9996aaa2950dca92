"""Surroundings of an app's code during its trial: no network, no data, a time limit, and a list of new files."""

from __future__ import annotations

import errno
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

OFFLINE = {
    "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "WANDB_MODE": "disabled",
    "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1",
}  # fmt: skip
MOST_FILES = 20_000
"""Entries of the app's folder that are compared before and after."""
OFFLINE_ERROR = "fedveil check-app runs the app without network"
LENGTH = 64
"""Of a data set that stands in for one that is not loaded."""


class OutOfTimeError(BaseException):
    """The app took too long. No handler of ``Exception`` in the app stops it."""


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
        raise OSError(errno.ENETUNREACH, OFFLINE_ERROR)

    def unknown(*_: Any, **__: Any) -> NoReturn:
        raise socket.gaierror(socket.EAI_AGAIN, OFFLINE_ERROR)

    socket.socket.connect = refuse  # type: ignore[method-assign]
    socket.socket.connect_ex = refuse  # type: ignore[method-assign]
    socket.getaddrinfo = unknown


def without_data_sets(packages: list[str]) -> None:
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


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise ``OutOfTimeError`` in this thread after some seconds."""

    def end(*_: Any) -> NoReturn:
        raise OutOfTimeError

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def files_of(folder: Path) -> set[str] | None:
    """Files and folders below a folder; None where they are too many to compare."""
    found: set[str] = set()
    for place, folders, files in os.walk(folder):
        folders[:] = [one for one in folders if one not in (".git", ".venv", "venv", "__pycache__", "node_modules")]
        found |= {str((Path(place) / name).relative_to(folder)) for name in (*files, *folders)}
        if len(found) > MOST_FILES:
            return None
    return found
