"""Any strategy of Flower, with everything that crosses the wire in training kept on disk."""

from strategies.recording.strategy import RecordingStrategy

__all__ = ["RecordingStrategy"]
