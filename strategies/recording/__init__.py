"""RecordingStrategy: a wrapper of any Flower strategy that keeps all messages of the training on disk."""

from strategies.recording.strategy import RecordingStrategy

__all__ = ["RecordingStrategy"]
