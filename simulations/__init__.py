"""Experiments: what to run, the ServerApp that runs it, what it leaves behind, and the command line."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simulations.in_process import Audited, audit

__all__ = ["Audited", "audit"]

_BESIDE = ("attacks", "clients", "defenses", "strategies")
"""Packages that are installed together with this one."""


def _require_own_packages() -> None:
    """Tells whoever has a folder of the same name as one of ours, instead of failing somewhere inside.

    Raises:
        ImportError: Naming the folder.
    """
    ours = Path(__file__).resolve().parents[1]
    for name in _BESIDE:
        spec = importlib.util.find_spec(name)
        places = [Path(place).resolve() for place in (spec.submodule_search_locations or [])] if spec else []
        if ours / name not in places:
            where = f"{spec.origin or places[0]} is imported" if spec else "nothing of that name is found"
            raise ImportError(
                f"fedveil's package {name!r} is at {ours / name}, but {where}: rename that folder, or start from another one, "
                "where it is not first on Python's path"
            )


_require_own_packages()


def __getattr__(name: str) -> Any:
    """``audit`` and ``Audited``, which bring torch and Flower with them, when they are asked for."""
    if name in __all__:
        from simulations import in_process

        return getattr(in_process, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
