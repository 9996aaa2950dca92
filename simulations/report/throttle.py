"""Updates of the report during a run, without delaying the run."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from simulations.report import write_report

SHARE = 0.05
"""Of a run's time that its report may take, besides the first and the last one."""


class Throttle:
    """Write the report unless reports would take more than ``SHARE`` of the time."""

    def __init__(
        self, write: Callable[[Path], Path] = write_report, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``write`` writes a report; ``clock`` returns seconds."""
        self._write, self._clock = write, clock
        self._next = float("-inf")

    def __call__(self, directory: Path) -> None:
        """Writes the report of a run directory, or not."""
        started = self._clock()
        if started < self._next:
            return
        self._write(directory)
        ended = self._clock()
        self._next = ended + (ended - started) * (1 - SHARE) / SHARE
