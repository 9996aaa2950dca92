"""The configurations that fedveil brings along, by name: ``fedveil run --preset quick``."""

from __future__ import annotations

from pathlib import Path

from simulations.settings.errors import ConfigError, require_known

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
    require_known("preset", preset, known)
    return known[preset]
