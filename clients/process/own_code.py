"""The user's own code: what ``file.py:NAME`` or ``package.module:NAME`` names, or what an installed package offers.

Naming it runs it. The user who starts a run names it; a deployed node runs none that its operator did not allow
(``clients.secrets.policy.require_own_code``). An entry point needs no such permission: the operator installed its package.
"""

import functools
import hashlib
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Collection, Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from defenses.registry import RegistryError


class OwnCodeError(ValueError):
    """A file, module or name that is missing, or that does not accept the intended call."""


def is_own(name: str, known: Collection[str] = ()) -> bool:
    """Whether a name is a place of code (PLACE:NAME); ``known`` are prefixes before the colon with another meaning."""
    prefix, colon, _ = name.rpartition(":")
    if not colon or prefix in known:
        return False
    # A word that is no module may be one of the known ones that was misspelt.
    try:
        return prefix.endswith(".py") or "." in prefix or importlib.util.find_spec(prefix) is not None
    except (ValueError, ImportError):  # of the program that runs, which has no place to be imported from
        return False


@functools.cache
def installed(group: str) -> dict[str, EntryPoint]:
    """Name -> what other packages offer in a group of entry points, read once; ``RegistryError`` for a bad or doubled name."""
    points: dict[str, EntryPoint] = {}
    for point in entry_points(group=group):
        where = f"entry point {point.name} = {point.value!r} ({group})"
        if ":" in point.name:
            raise RegistryError(f"{where}: a name without a colon is expected")
        if point.name in points and points[point.name].value != point.value:
            raise RegistryError(f"{where}: there is another {point.name}; rename one of them")
        points[point.name] = point
    return points


def fingerprint(name: str, group: str) -> str:
    """First 16 hexadecimal digits of the SHA-256 of the file that holds a name's code; "" where there is none.

    Modules that the file imports are not looked at. ``group`` is that of the entry points.
    """
    place = (installed(group)[name].value if name in installed(group) else name).rpartition(":")[0]
    if place.endswith(".py"):
        path: Path | None = Path(place).expanduser()
    else:
        try:
            spec = importlib.util.find_spec(place) if place else None
        except (ValueError, ImportError):
            spec = None
        path = Path(spec.origin) if spec is not None and spec.has_location and spec.origin else None
    if path is None or not path.is_file():
        return ""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def origin(point: EntryPoint) -> str:
    """The origin of an entry point in one line, for listings."""
    return f"{point.value} of the package {point.dist.name} {point.dist.version}" if point.dist else point.value


def absolute(name: str) -> str:
    """Make the path in a name absolute: processes that start later have another working directory."""
    prefix, colon, attribute = name.rpartition(":")
    return f"{Path(prefix).expanduser().resolve()}:{attribute}" if colon and prefix.endswith(".py") else name


def own_code(name: str) -> Callable[..., Any]:
    """The class or function that a name means; ``OwnCodeError`` where there is no such file, module or name.

    To be called before anything is seeded: a file may draw when it is imported, which happens once in a process.
    """
    place, _, attribute = name.rpartition(":")
    if not place.endswith(".py") and ":" in place:
        raise OwnCodeError(f"{name!r} has several colons; expected FILE.py:NAME or PACKAGE.MODULE:NAME")
    module = _from_file(Path(place).expanduser().resolve()) if place.endswith(".py") else _imported(place)
    loaded: Callable[..., Any] | None = getattr(module, attribute, None)
    if not callable(loaded):
        known = sorted(
            key for key, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__
        )
        what = "has no" if loaded is None else f"has {type(loaded).__name__}, nothing to call, as"
        raise OwnCodeError(f"{name!r}: {place} {what} {attribute!r}; in it are {', '.join(known) or 'no names'}")
    return loaded


def accepted(name: str, factory: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments for which a function has parameters; ``OwnCodeError`` when it needs others."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError) as error:
        raise OwnCodeError(f"{name!r}: its parameters cannot be read: {error}") from error
    takes_all = any(arg.kind is arg.VAR_KEYWORD for arg in parameters)
    free = [arg for arg in parameters if arg.kind in (arg.POSITIONAL_ONLY, arg.POSITIONAL_OR_KEYWORD, arg.KEYWORD_ONLY)]
    unknown = [arg for arg in free if arg.name not in arguments or arg.kind is arg.POSITIONAL_ONLY]
    if needed := [arg.name for arg in unknown if arg.default is arg.empty]:
        given = " and ".join(arguments) or "no arguments"
        raise OwnCodeError(
            f"{name!r} needs {', '.join(needed)}; given are {given} alone: name a function that fills in the rest"
        )
    names = {arg.name for arg in free}
    return {key: value for key, value in arguments.items() if takes_all or key in names}


@functools.cache
def _from_file(path: Path) -> ModuleType:
    try:
        missing = not path.is_file()
    except OSError as error:  # such as a name that is too long
        raise OwnCodeError(f"there is no file {path}: {error.strerror}") from error
    if missing:
        raise OwnCodeError(f"there is no file {path}")
    # The same name in every process, so that what it defines can be sent from one to another.
    name = f"{path.stem}_{hashlib.blake2b(str(path).encode(), digest_size=4).hexdigest()}"
    module = sys.modules[name] = ModuleType(name)
    module.__file__ = str(path)
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # A file may import what lies beside it, now and later; ours comes first.
    try:
        # From its source alone, as a script: bytecode is matched to a source by second and size, so that after two edits within a
        # second the older code would run under the digest of the newer.
        exec(compile(path.read_bytes(), str(path), "exec", dont_inherit=True), vars(module))
    except (Exception, SystemExit) as error:  # a script that parses arguments or ends itself when it is imported
        del sys.modules[name]
        relative = isinstance(error, ImportError) and "relative import" in str(error)
        hint = (
            "; a file that imports its neighbours so is named as PACKAGE.MODULE:NAME, from the folder above the package"
        )
        raise _not_imported(path, error, hint if relative else "") from error
    return module


def _imported(place: str) -> ModuleType:
    try:
        return importlib.import_module(place)
    except (Exception, SystemExit) as error:
        hint = f"; a file is named by its path, such as {place.replace('.', '/')}.py:NAME"
        raise _not_imported(place, error, hint if isinstance(error, ImportError) else "") from error


def _not_imported(place: object, error: BaseException, hint: str) -> OwnCodeError:
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(place)]
    where = f" (line {lines[-1]})" if lines else ""
    return OwnCodeError(f"{place} cannot be imported: {type(error).__name__}: {error}{where}{hint}")
