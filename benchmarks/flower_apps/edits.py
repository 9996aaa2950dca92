"""Small changes to a copied app: each is found by one line of it, and fails where that line is not there."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path


class EditError(ValueError):
    """An edit whose line is not in the file: the app has changed."""


@dataclass(frozen=True)
class Replace:
    """Puts ``new`` in place of ``old``, a part of one line, ``count`` times in a file."""

    file: str
    old: str
    new: str
    count: int = 1

    def apply(self, text: str) -> str:
        """The text of the file afterwards."""
        if (found := text.count(self.old)) != self.count:
            raise EditError(f"{self.file} holds {self.old!r} {found} times; expected {self.count}")
        return text.replace(self.old, self.new)


@dataclass(frozen=True)
class Before:
    """Adds ``lines`` before the one line that begins with ``anchor``, as far indented."""

    file: str
    anchor: str
    lines: str

    def apply(self, text: str) -> str:
        """The text of the file afterwards."""
        every = text.splitlines(keepends=True)
        places = [at for at, line in enumerate(every) if line.strip().startswith(self.anchor)]
        if len(places) != 1:
            raise EditError(f"{self.file} has {len(places)} lines that begin {self.anchor!r}; expected 1")
        line = every[places[0]]
        indent = line[: len(line) - len(line.lstrip())]
        added = "".join(f"{indent}{one}\n" for one in self.lines.splitlines())
        return "".join([*every[: places[0]], added, *every[places[0] :]])


@dataclass(frozen=True)
class Append:
    """Adds ``lines`` at the end of a file."""

    file: str
    lines: str

    def apply(self, text: str) -> str:
        """The text of the file afterwards."""
        return text.rstrip("\n") + "\n\n\n" + self.lines.strip("\n") + "\n"


Edit = Replace | Before | Append


def apply_all(folder: Path, edits: Iterable[Edit], names: Mapping[str, str]) -> int:
    """Apply edits to the files of a folder; ``@NAME@`` in new lines stands for a value of ``names``.

    Returns:
        How many lines that are not empty were added or changed.

    Raises:
        EditError: When the line of an edit is not there.
    """
    added = 0
    for edit in edits:
        path = folder / edit.file
        if not path.is_file():
            raise EditError(f"{edit.file} is not in the app")
        before = path.read_text(encoding="utf-8")
        after = edit.apply(before)
        for name, value in names.items():
            after = after.replace(f"@{name}@", value)
        path.write_text(after, encoding="utf-8")
        added += lines_added(before, after)
    return added


def lines_added(before: str, after: str) -> int:
    """How many lines of ``after`` that are not empty are new or changed."""
    changes = difflib.ndiff(before.splitlines(), after.splitlines())
    return sum(line.startswith("+ ") and bool(line[2:].strip()) for line in changes)


def redirect_data(folder: Path, package: str) -> None:
    """Have an app's imports of ``flwr_datasets`` and ``datasets`` load the data of ``offline_data.py`` instead."""
    names = {
        "from flwr_datasets import FederatedDataset": "FederatedDataset",
        "from datasets import load_dataset": "load_dataset",
        "from datasets import Dataset, load_dataset": "load_dataset",
        "from datasets import load_from_disk": "load_from_disk",
    }
    for path in sorted(folder.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for old, name in names.items():
            kept = "from datasets import Dataset\n" if "Dataset," in old else ""
            text = text.replace(f"{old}\n", f"{kept}from {package}.offline_data import {name}\n")
        path.write_text(text, encoding="utf-8")
