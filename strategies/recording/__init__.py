"""RecordingStrategy: a wrapper of any Flower strategy that keeps all messages of the training on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from strategies.recording.strategy import RecordingStrategy

__all__ = ["RecordingStrategy"]


def __getattr__(name: str) -> object:
    """Import ``RecordingStrategy``, and with it Flower and torch, on first use: a reader of a recording needs neither."""
    if name in __all__:
        from strategies.recording.strategy import RecordingStrategy

        return RecordingStrategy
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
