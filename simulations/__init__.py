"""Experiments: what to run, the ServerApp that runs it, what it leaves behind, and the command line."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simulations.run.in_process import Audited, audit

__all__ = ["Audited", "audit"]

_BESIDE = ("attacks", "clients", "defenses", "strategies")
"""Packages that are installed together with this one."""


# By its place: where another `clients` is found, an import would find that one.
_OWN = Path(__file__).resolve().parents[1] / "clients" / "process" / "own_packages.py"
runpy.run_path(str(_OWN))["require_own_packages"](_BESIDE)


def __getattr__(name: str) -> Any:
    """``audit`` and ``Audited``, which bring torch and Flower with them, when they are asked for."""
    if name in __all__:
        from simulations.run import in_process

        return getattr(in_process, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
