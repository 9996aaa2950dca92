"""Configurations that come with fedveil, by name: ``fedveil run --preset quick``."""

import re
from pathlib import Path

from simulations.settings.errors import ConfigError, require_known

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
OF_OTHER_COMMANDS = ("search",)
"""Files in ``CONFIGS`` for other commands than ``fedveil run``."""
START = "quick"
"""The preset to start with."""


def presets() -> dict[str, Path]:
    """Name -> TOML file, of the configurations for ``fedveil run``."""
    files = {path.stem: path for path in sorted(CONFIGS.glob("*.toml"))}
    return {name: path for name, path in files.items() if name not in OF_OTHER_COMMANDS}


def of_size(size: str) -> list[str]:
    """The presets with a table of this size."""
    return [name for name, path in presets().items() if f"\n[{size}]\n" in path.read_text(encoding="utf-8")]


def described() -> list[tuple[str, ...]]:
    """Name, subject, cost, needs and other size of each preset; the recommended first one leads."""
    rows, larger = list[tuple[str, ...]](), of_size("paper")
    for name, path in sorted(presets().items(), key=lambda item: item[0] != START):
        costs, needs, more = description(path, "Costs"), description(path, "Needs"), description(path, "Needs", "paper")
        lines = [
            "Start here." if name == START else "",
            description(path),
            f"Costs: {costs}" if costs else "",
            f"Needs: {needs}" if needs else "",
            "Also at the paper's size: --size paper." if name in larger else "",
            f"Needs at that size: {more}" if more else "",
        ]
        rows.append((name, *filter(None, lines)))
    return rows


def description(path: Path, entry: str = "Shows", size: str = "") -> str:
    """The first sentence after an entry in the comments of a configuration, or of its table of a size; "" without one."""
    whole, pieces = path.read_text(encoding="utf-8"), list[str]()
    part = whole.partition(f"\n[{size}]\n")[2] if size else whole.partition("\n[")[0]
    for line in part.splitlines():
        if line.startswith(f"# {entry}: "):
            pieces.append(line.removeprefix(f"# {entry}: "))
        elif pieces:
            if not line.startswith("#  "):  # the next entry, or the end of the comments
                break
            pieces.append(line.removeprefix("#"))
    text = " ".join(" ".join(pieces).split())
    first = re.split(r"(?<=\.)\s(?=[A-Z])", text, maxsplit=1)[0]
    return first if "." in first.split(" ")[0] else first[:1].upper() + first[1:]  # names of files stay as they are


def chosen(config: Path | None, preset: str, size: str = "") -> Path | None:
    """The configuration file: the user's own or a preset's, or None; ``ConfigError`` for both at once, or a size without either."""
    if size and not preset and config is None:
        raise ConfigError(
            f"size is {size!r}, without a configuration that has sizes; name one with --preset, such as "
            f"{', '.join(of_size(size)[:5]) or 'split_table2'} (or leave it out with --resume)"
        )
    if not preset:
        return config
    if config is not None:
        raise ConfigError(f"--preset {preset} names a configuration, and so does {config}: leave one out")
    known = presets()
    require_known("preset", preset, known, listed="presets")
    return known[preset]
