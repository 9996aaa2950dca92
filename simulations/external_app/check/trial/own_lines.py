"""fedveil's own lines in an app that has some already: while it is tried, they write nothing."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


class NothingWritten:
    """Stands for what writes a recording.

    Args:
        folder: Of the recording, which is not made.
    """

    def __init__(self, folder: Path, *_: Any) -> None:
        self.folder = folder


def write_nothing() -> None:
    """Have ``audited`` check its settings and return the strategy, and ``RecordingStrategy`` keep nothing.

    Otherwise ``audited`` and ``RecordingStrategy`` would make their folders.
    """
    names = ("simulations.external_app.study", "simulations.audited", "strategies.recording.strategy")
    study, door, recording = map(import_module, names)
    original: Callable[..., Any] = study.audited

    def audited(strategy: Any, folder: str | Path, model: Any, **settings: Any) -> Any:
        del folder
        return original(strategy, "", model, **settings)

    for module, name, stand_in in (
        (study, "audited", audited),
        (door, "audited", audited),
        (recording, "RecordingWriter", NothingWritten),
    ):
        setattr(module, name, stand_in)
