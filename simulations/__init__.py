"""Experiments: their settings, the ServerApp that runs them, their results, and the command line."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simulations.compare.compared import Compared, compare_runs
    from simulations.run.in_process import Audited, audit

__all__ = ["Audited", "Compared", "audit", "compare_runs"]

_BESIDE = ("attacks", "clients", "defenses", "strategies")
"""Packages that are installed together with this one."""


# Run by its path, because an import could find the `clients` package of another installation. Its part for Flower's simulation does
# not run then: ``runpy`` puts the path in the place of the process's name.
_CLIENTS = Path(__file__).resolve().parents[1] / "clients" / "__init__.py"
runpy.run_path(str(_CLIENTS))["require_own_packages"](_BESIDE)


def __getattr__(name: str) -> Any:
    """Import an exported name on first use, because its module imports torch and Flower."""
    if name in ("Audited", "audit"):
        from simulations.run import in_process

        return getattr(in_process, name)
    if name in __all__:
        from simulations.compare import compared

        return getattr(compared, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
