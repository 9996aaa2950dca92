"""Start, duration and machine of a run."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import psutil
import torch

from simulations.settings.chosen_shares import machines


@dataclass
class RunTimes:
    """The clock of one process that computes a run, begun or taken up again.

    Attributes:
        started: When the run was begun first, in UTC.
        before: Seconds that earlier processes spent on it, as far as they wrote them.
    """

    started: str = field(default_factory=lambda: datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"))
    before: float = 0.0
    _begun: float = field(default_factory=time.perf_counter)

    @classmethod
    def resumed(cls, about: Mapping[str, Any]) -> RunTimes:
        """After what ``about`` wrote."""
        return cls(str(about["started"]), float(about["seconds"]))

    def about(self) -> dict[str, Any]:
        """For config.json: when it started, seconds of computing so far, the machine, and which machines and shares were chosen."""
        seconds = self.before + time.perf_counter() - self._begun
        found = {"started": self.started, "seconds": round(seconds, 1), "machine": machine()}
        return found | ({"machines": chosen} if (chosen := machines()) else {})


def machine() -> str:
    """Cores that this process may use, memory, processor and graphics cards, in words."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    cards = [torch.cuda.get_device_name(at) for at in range(torch.cuda.device_count())]
    parts = [f"{cores} {'core' if cores == 1 else 'cores'}", f"{psutil.virtual_memory().total / 2**30:.0f} GiB"]
    return ", ".join([*parts, f"{platform.system()} {platform.machine()}", *cards])
