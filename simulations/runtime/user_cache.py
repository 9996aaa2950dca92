"""Bytecode of packages for the many processes of a run, in the user's cache, where it may be removed at any time."""

import os
import shutil
import sys
from importlib.util import cache_from_source, find_spec
from pathlib import Path

VARIABLE, PREFIX = "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX"
LARGE = ("torch", "ray", "flwr")
"""Packages that take longest to compile."""


def keep_bytecode() -> Path | None:
    """Give this process and its children a bytecode folder of the user's where large packages have none and may not write any.

    ``PYTHONDONTWRITEBYTECODE`` is set then, or the packages belong to another user. Call it before torch is imported. Without
    bytecode on disk, each process of a run compiles the sources of torch, Ray or Flower again: 2 to 5 seconds of a core. Returns
    the folder; None where none is needed, or it cannot be made or may be changed by others.
    """
    if all(map(_has_bytecode, LARGE)) or (not sys.dont_write_bytecode and all(map(_can_write, LARGE))):
        return None
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        folder = (cache / "fedveil" / "bytecode").resolve()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        about = folder.stat()
    except (RuntimeError, OSError):  # no home, as in containers, a read-only one, or a file in the way
        return None
    if about.st_uid != os.geteuid() or about.st_mode & 0o077:  # another user could put code there
        return None
    os.environ.pop(VARIABLE, None)
    os.environ[PREFIX] = sys.pycache_prefix = str(folder)
    sys.dont_write_bytecode = False
    return folder


def forget_bytecode(place: Path) -> None:
    """Remove what a bytecode folder holds of the sources below ``place``, which will not be there again."""
    if sys.pycache_prefix:
        shutil.rmtree(Path(cache_from_source(str(place.absolute() / "any.py"))).parent, ignore_errors=True)


def _has_bytecode(package: str) -> bool:
    return not (source := _source(package)) or Path(cache_from_source(source)).is_file()


def _can_write(package: str) -> bool:
    source = _source(package)
    return not source or sys.pycache_prefix is not None or os.access(Path(source).parent, os.W_OK)


def _source(package: str) -> str:
    """The file of a package's ``__init__``; "" where it is not installed, or has no source."""
    spec = find_spec(package)
    return spec.origin if spec is not None and spec.origin and spec.origin.endswith(".py") else ""
