"""Configurations that come with fedveil, by name: ``fedveil run --preset quick``."""

from __future__ import annotations

import re
from pathlib import Path

from simulations.settings.errors import ConfigError, require_known

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
OF_OTHER_COMMANDS = ("search",)
"""Files in ``CONFIGS`` for other commands than ``fedveil run``."""


def presets() -> dict[str, Path]:
    """Name -> TOML file, of the configurations for ``fedveil run``."""
    files = {path.stem: path for path in sorted(CONFIGS.glob("*.toml"))}
    return {name: path for name, path in files.items() if name not in OF_OTHER_COMMANDS}


def description(path: Path) -> str:
    """What a configuration shows: the first sentence behind "Shows:" in its comments; "" where it has none."""
    lines, found = path.read_text(encoding="utf-8").splitlines(), list[str]()
    for line in lines:
        if line.startswith("# Shows: "):
            found.append(line.removeprefix("# Shows: "))
        elif found:
            if not line.startswith("#  "):  # the next entry, or the end of the comments
                break
            found.append(line.removeprefix("#"))
    text = " ".join(" ".join(found).split())
    first = re.split(r"(?<=\.)\s(?=[A-Z])", text, maxsplit=1)[0]
    return first if "." in first.split(" ")[0] else first[:1].upper() + first[1:]  # names of files stay as they are


def chosen(config: Path | None, preset: str, size: str = "") -> Path | None:
    """The configuration file: the user's own file or a preset's; None without either.

    Raises:
        ConfigError: For both at once, an unknown preset (with the known ones), or a size without either.
    """
    if size and not preset and config is None:
        raise ConfigError(
            f"size is {size!r}, without a configuration that has sizes; name one (or leave it out with --resume)"
        )
    if not preset:
        return config
    if config is not None:
        raise ConfigError(f"--preset {preset} names a configuration, and so does {config}: leave one out")
    known = presets()
    require_known("preset", preset, known, "(`fedveil list presets` describes all)")
    return known[preset]
