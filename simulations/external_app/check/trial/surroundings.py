"""What surrounds an app's code while it is tried: no network, no data, a time limit, and a list of the files that it leaves."""

from __future__ import annotations

import errno
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

OFFLINE = {
    "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "WANDB_MODE": "disabled",
    "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1",
}  # fmt: skip
MOST_FILES = 20_000
"""Entries of the app's folder that are compared before and after."""
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

    def __call__(self, *args: Any, **kwargs: Any) -> StandInData:
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

    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise OSError(errno.ENETUNREACH, "fedveil check-app runs the app without network")

    def unknown(*args: Any, **kwargs: Any) -> NoReturn:
        raise socket.gaierror(socket.EAI_AGAIN, "fedveil check-app runs the app without network")

    socket.socket.connect = refuse  # type: ignore[method-assign]
    socket.socket.connect_ex = refuse  # type: ignore[method-assign]
    socket.getaddrinfo = unknown


def without_data_sets(packages: list[str]) -> list[str]:
    """Put stand-ins in the place of what loads data sets of Hugging Face and Flower; the names of what was replaced."""
    replaced = []
    if "datasets" in packages or "flwr_datasets" in packages:
        with suppress(ImportError):
            import datasets

            datasets.load_dataset = lambda *args, **kwargs: StandInData()
            replaced.append("datasets.load_dataset")
    if "flwr_datasets" in packages:
        with suppress(ImportError):
            from flwr_datasets import FederatedDataset

            for name in ("load_partition", "load_split"):
                setattr(FederatedDataset, name, lambda *args, **kwargs: StandInData())
            replaced.append("flwr_datasets.FederatedDataset")
    return replaced


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise ``OutOfTimeError`` in this thread after some seconds."""

    def end(signum: int, frame: FrameType | None) -> NoReturn:
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
