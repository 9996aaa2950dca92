"""Errors for settings that cannot be run."""

import difflib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

UNREADABLE = (
    SafetensorError, ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError
)  # fmt: skip
"""Exceptions that a damaged or foreign file can raise in its reader."""


class ConfigError(ValueError):
    """A setting that cannot be run: its key as users write it, the value, and the allowed values."""


@contextmanager
def undamaged(
    path: Path, key: str = "resume", instead: str = "restore it from a copy, or begin a run in another folder"
) -> Iterator[None]:
    """Turn any exception while reading a file into a ``ConfigError``, so that damaged data are never skipped silently.

    The error names the file, the option ``key`` that gave the file, and what the user can do ``instead``.
    """
    try:
        yield
    except ConfigError:
        raise
    except OSError as error:
        raise ConfigError(f"{key}: {path} is no file that can be read ({error.strerror}); {instead}") from error
    except UNREADABLE as error:
        reason = f"{type(error).__name__}: {str(error)[:200]}"
        raise ConfigError(f"{key}: {path} is damaged ({reason}); {instead}") from error


@contextmanager
def naming(key: str) -> Iterator[None]:
    """Turn errors of other code, or of torch, into a ``ConfigError`` that begins with the setting or option ``key``."""
    try:
        yield
    except (ValueError, RuntimeError, MemoryError) as error:
        raise ConfigError(f"{key}: {error}") from error


NEAREST = 5
"""Most known names that an error about an unknown name shows where there are many."""
LIKENESS = 0.5
"""Least ratio of ``difflib`` at which a known name is called near."""


def require_known(what: str, name: str, known: Collection[str], also: str = "", listed: str = "") -> None:
    """Raise ``ConfigError``, with the known names or the nearest of many, unless ``name`` is one of ``known``.

    ``what`` is a noun for it, ``also`` what else is allowed, and ``listed`` the section of ``fedveil list`` that shows all.
    """
    if name in known:
        return
    near = nearest(name, known)
    parts = [f"unknown {what} {name!r}" + (f", did you mean {near[0]!r}?" if near else "")]
    if not listed or len(known) <= 2 * NEAREST:
        parts.append(f"known: {', '.join(sorted(known))}")
    else:
        parts += [f"nearest of {len(known)}: {', '.join(near)}"] if len(near) > 1 else []
        parts.append(f"`fedveil list {listed}` shows all")
    raise ConfigError("; ".join(parts) + (f" {also}" if also else ""))


def nearest(name: str, known: Collection[str]) -> list[str]:
    """At most ``NEAREST`` similar names, best first: those whose words begin with its letters, then similar spellings."""
    word, folded = name.casefold(), {other.casefold(): other for other in known}
    short = [other for other in known if len(word) > 1 and "".join(part[:1] for part in other.split("-")) == word]
    close = [folded[match] for match in difflib.get_close_matches(word, folded, n=NEAREST, cutoff=LIKENESS)]
    return list(dict.fromkeys([*short, *close]))[:NEAREST]
