"""The configurations that fedveil brings along, by name: ``fedveil run --preset quick``."""

from __future__ import annotations

import difflib
from pathlib import Path

from simulations.settings.errors import ConfigError

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
OF_OTHER_COMMANDS = ("search",)
"""Files there that ``fedveil run`` cannot read."""


def presets() -> dict[str, Path]:
    """Name -> TOML file, for ``fedveil run``."""
    files = {path.stem: path for path in sorted(CONFIGS.glob("*.toml"))}
    return {name: path for name, path in files.items() if name not in OF_OTHER_COMMANDS}


def chosen(config: Path | None, preset: str, size: str = "") -> Path | None:
    """The file that is meant: a person's own, or the one of a name; None for neither.

    Raises:
        ConfigError: For both at once, a name that nothing has, with the names there are, or a size of neither.
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
    if preset not in known:
        close = difflib.get_close_matches(preset, known, 1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        raise ConfigError(f"--preset: nothing is called {preset!r}{hint}; known: {', '.join(known)}")
    return known[preset]
