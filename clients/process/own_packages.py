"""Check that Python finds packages of one installation.

Imports nothing of them: ``simulations`` runs this file by its place, as ``clients`` may be the one that is not found.
"""

import importlib.util
from collections.abc import Iterable
from pathlib import Path


def require_own_packages(names: Iterable[str]) -> None:
    """Raise an ``ImportError`` that names the folder which hides one of our packages, instead of failing somewhere inside."""
    ours = Path(__file__).resolve().parents[2]
    for name in names:
        spec = importlib.util.find_spec(name)
        places = [Path(place).resolve() for place in (spec.submodule_search_locations or [])] if spec else []
        if ours / name not in places:
            where = f"{spec.origin or places[0]} is imported" if spec else "nothing of that name is found"
            raise ImportError(
                f"fedveil's package {name!r} is at {ours / name}, but {where}: rename that folder, or start from another one, "
                "where it is not first on Python's path"
            )
