"""Output of `fedveil list`: made once from the code, then read from a file, because making it imports torch."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
from importlib.metadata import entry_points
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from simulations.console.terminal import Terminal
from simulations.runtime.user_cache import cache_folder
from simulations.settings.presets import CONFIGS

SECTIONS = (
    "scenarios", "defenses", "attacks", "datasets", "models", "settings", "presets", "search", "attack", "protect",
)  # fmt: skip
ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("clients", "strategies", "defenses", "attacks", "simulations")

Catalogue = dict[str, list[list[str]]]


def listed() -> Catalogue:
    """Section -> its entries, each a name and lines about it.

    Raises:
        RegistryError: When another package offers something that cannot be listed.
    """
    if any(group.startswith("fedveil.") for group in entry_points().groups):
        return _made()  # what other packages offer may change without a file of ours
    try:
        path = cache_folder() / f"catalogue-{fingerprint()}.json"
    except RuntimeError:  # a user without a home directory, as in containers
        return _made()
    try:
        found: Catalogue = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = _made()
        _keep(path, found)
    return found


def fingerprint() -> str:
    """Fingerprint of every file of our packages, configurations among them, and of Python's version."""
    found = hashlib.sha256(sys.version.encode())
    files = [*CONFIGS.glob("*.toml"), *(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))]
    for path in sorted(files):
        about = path.stat()
        found.update(f"{path}\0{about.st_size}\0{about.st_mtime_ns}\n".encode())
    return found.hexdigest()[:32]


def print_section(console: Terminal, section: str, entries: list[list[str]]) -> None:
    """Print one of ``SECTIONS``."""
    console.print(f"\n[bold]{section}[/bold]")
    if not console.is_terminal:
        # Tables are for eyes; a pipe gets every line whole.
        for name, *details in entries:
            console.say("\n    ".join([name, *details]))
        return
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 1, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, *details in entries:
        table.add_row(escape(name), escape("\n".join(details)))
    console.print(table)


def _made() -> Catalogue:
    from simulations.catalogue.catalogue import catalogue

    return catalogue()


def _keep(path: Path, made: Catalogue) -> None:
    """Writes it, whole or not at all, in place of those of other versions; where that fails it is made again next time."""
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        for other in path.parent.glob("catalogue-*"):
            other.unlink(missing_ok=True)
        partial.write_text(json.dumps(made), encoding="utf-8")
        partial.replace(path)
