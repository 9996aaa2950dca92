"""Shared parts of the commands: reading settings as users write them, and ending on a mistake."""

from __future__ import annotations

import inspect
import json
import re
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer
from rich.markup import escape

from clients.wire.texts import regular
from simulations.console.terminal import Terminal
from simulations.settings.errors import ConfigError, naming
from simulations.settings.presets import presets

if TYPE_CHECKING:  # importing it takes a tenth of a second
    from pydantic.fields import FieldInfo

LONGEST_ERROR = 2000
"""Characters of a message: some name everything that is known."""

MOST_PARTS = 64
_DEEP = re.compile(rf"(?<![\w\"'-])(?:[\w\"'-]+[ \t]*\.[ \t]*){{{MOST_PARTS}}}")
"""A dotted key that no setting has; tomllib keeps all beginnings of one, and of fifty thousand parts that is gigabytes."""
MOST_SEEDS = 1000
"""Seeds of one command."""
SIZES = ("paper",)
"""Tables that a file of settings may hold: the experiment at another size."""
OF_ONE_RUN = {"output-dir", "resume"}
"""Settings in a ``config.json`` that another run does not take from it."""
errors = Terminal(stderr=True, highlight=False, emoji=False)


def read_toml(path: Path, size: str | None = None) -> dict[str, Any]:
    """The settings of a TOML file, or of the ``config.json`` of a run; ``ConfigError`` when it cannot be read, or lacks the size.

    ``size`` is one of ``SIZES``, whose table is laid over the keys, or "" for these alone; None for kinds of files without sizes.
    """
    kind, reads = ("a configuration of a run", _of_run) if path.name == "config.json" else ("valid TOML", _settings)
    try:
        values = reads(regular(path).read_text(encoding="utf-8-sig"))  # some editors write a byte order mark
    except OSError as error:
        hint = f"; a configuration of fedveil has this name: --preset {path}" if str(path) in presets() else ""
        raise ConfigError(f"cannot read {path}: {error.strerror}{hint}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not text in UTF-8: {error}") from error
    except RecursionError:
        raise ConfigError(f"{path} is not {kind}: it is nested too deep") from None
    except ValueError as error:  # numbers of more digits than Python reads, too
        raise ConfigError(f"{path} is not {kind}: {error}") from error
    return values if size is None else _of_size(values, path, size)


def sizes_of(path: Path | None) -> list[str]:
    """The sizes that a file has, none without a file; ``ConfigError`` when it cannot be read."""
    return [] if path is None else [name for name in SIZES if isinstance(read_toml(path).get(name), dict)]


def _of_size(values: dict[str, Any], path: Path, size: str) -> dict[str, Any]:
    sizes: dict[str, dict[str, Any]] = {name: values.pop(name) for name in SIZES if isinstance(values.get(name), dict)}
    if size and size not in sizes:
        raise ConfigError(
            f"size is {size!r}; allowed for {path}: {', '.join(sizes) or 'none, as it has no table of a size'}"
        )
    return values | sizes.get(size, {})


def _settings(text: str) -> dict[str, Any]:
    if _DEEP.search(text):
        raise tomllib.TOMLDecodeError(f"a key has more than {MOST_PARTS} parts")
    return tomllib.loads(text)


def _of_run(text: str) -> dict[str, Any]:
    """The settings in a run's ``config.json``, without those ``OF_ONE_RUN``."""
    content = json.loads(text)
    if not isinstance(content, dict) or not isinstance(content.get("config"), dict):
        raise ValueError("it has no settings under config")
    return {key: value for key, value in content["config"].items() if key not in OF_ONE_RUN}


def self_contained(text: str, key: str) -> str:
    """A text of defences in which the content of named files replaces their names (``defenses.spec.read_files``).

    Only this process is the person's: what it starts has other working directories, and other machines have other files. An error
    begins with ``key``, under which the text was given.
    """
    from defenses.spec import read_files

    with naming(key):
        return read_files(text)


def paragraphs(text: str) -> str:
    """A docstring whose paragraphs are single lines, for a help text that is wrapped where it is shown."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in inspect.cleandoc(text).split("\n\n"))


def setting_of(text: str, fields: Mapping[str, FieldInfo]) -> tuple[str, Any]:
    """``key=value`` with the value read by ``value_of`` for its field, where there is one of that key, else for text."""
    key, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"-s {text!r}: expected key=value")
    spec = fields.get(key.strip())
    return key.strip(), value_of(value, type(spec.default) if spec else str)


def value_of(text: str, kind: type) -> Any:
    """A word of the command line as a value of a setting's type: as TOML writes it, such as 'lenet', or as plain text.

    So that the same word serves here and in ``flwr run --run-config``; True, NaN and .5 are read besides.
    """
    for written in dict.fromkeys((text, text if kind is str else text.lower())):
        with suppress(ValueError, RecursionError):
            parsed = _settings(f"value = {written}")
            if parsed.keys() == {"value"} and (kind is not str or isinstance(parsed["value"], str)):
                return parsed["value"]
    with suppress(ValueError):
        return float(text) if kind is float else text
    return text


def parse_seeds(text: str) -> list[int]:
    """Parse ``0..4`` or ``1,5,7..9`` into numbers, in order; ``ConfigError`` for other texts or a repeated seed."""
    seeds: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,18})(?:\s*\.\.\s*(\d{1,18}))?\s*", part)
        if match is None:
            raise ConfigError(f"--seeds {text!r}: expected whole numbers and ranges from 0, such as 0..4 or 1,5,7..9")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last - first >= MOST_SEEDS or len(seeds) + last - first >= MOST_SEEDS:
            raise ConfigError(
                f"--seeds {text!r}: {part.strip()} is no ascending range, or there are more than {MOST_SEEDS} seeds"
            )
        seeds += range(first, last + 1)
    if len(set(seeds)) < len(seeds):
        raise ConfigError(f"--seeds {text!r} names a seed twice; allowed: each seed once")
    return seeds


def fail(message: str) -> NoReturn:
    """End the command for an experiment that cannot run; a message over ``LONGEST_ERROR`` characters is cut in its middle."""
    if len(message) > LONGEST_ERROR:
        begin, end = message[: LONGEST_ERROR // 2], message[-LONGEST_ERROR // 2 :]
        message = f"{begin} ... ({len(message)} characters) ... {end}"
    errors.print(f"[red]error:[/red] {escape(message)}", markup=True, soft_wrap=True)
    raise typer.Exit(2)
