"""The manifest of a folder of protected copies, from which a killed ``protect`` continues.

manifest.json   the defence, versions, and each picture: names, hash of the source, PSNR of the copy, what was left out
.journal.jsonl  the same while it is under way, a line for each finished picture; removed when the manifest is written
"""

from __future__ import annotations

import hashlib
import json
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from clients.wire.texts import read_object
from simulations.protect.copies import Copy, Order
from simulations.report.text import count
from simulations.run_folder.folder_lock import is_there, remove_lock, require_new, take_lock
from simulations.run_folder.line_files import append_line, json_lines
from simulations.run_folder.run_directory import write_atomically
from simulations.settings.errors import ConfigError, naming, undamaged
from strategies.audit.whole_files import PARTIAL

MANIFEST, JOURNAL = "manifest.json", ".journal.jsonl"
MOST_SIZES = 3
"""Sizes of pictures whose windows the terminal names, before it counts the others."""


@contextmanager
def taken(out: Path, *, resume: bool) -> Iterator[None]:
    """Lock a target for this command within ``with``; where that ends by an error, nothing is left behind that was not there.

    Raises:
        ConfigError: When the folder holds something, or where ``resume`` nothing that was begun, cannot be written, or is in use.
    """
    require_target(out, resume=resume)
    missing = [one for one in (out, *out.parents) if not one.exists()]
    busy = f"another `fedveil protect` is still writing to {out}; wait for it, or end it"
    try:
        with naming("OUT"):
            lock = take_lock(out, busy)
        with lock:
            try:
                require_target(out, resume=resume)
                yield
            finally:
                if not (out / JOURNAL).is_file():  # refused, or complete
                    remove_lock(out)
    finally:
        for one in missing:
            with suppress(OSError):  # it was not made, or holds something
                one.rmdir()


def require_target(out: Path, *, resume: bool) -> None:
    """Refuse a target folder that holds something, or where ``resume`` one without work that was begun; nothing is written."""
    if not resume:
        require_new(out, "OUT", "go on with --resume", (JOURNAL, MANIFEST), {JOURNAL + PARTIAL})
    elif not any(is_there(out / name, "OUT") for name in (JOURNAL, MANIFEST)):
        raise ConfigError(f"OUT: {out} holds nothing to go on with (no {JOURNAL} or {MANIFEST}); leave out --resume")


class Manifest:
    """The record of one target folder."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.done: dict[str, Copy] = {}

    @property
    def about(self) -> dict[str, Any]:
        """Facts that all pictures share; of the secret and the sources' place only digests, which show whether they changed."""
        return {
            "defense": self.order.pipeline,
            "image_size": self.order.size,
            "source": self.order.source,
            "place_digest": _digest(f"protect place:{self.order.secret}:{self.order.place}".encode())[:16],
            "secret_digest": _digest(f"protect:{self.order.secret}".encode())[:16],
            "versions": {name: version(name) for name in ("fedveil", "torch", "pillow")},
            "levels": list(self.order.scale or ()),
        }

    @property
    def _journal(self) -> Path:
        return self.order.out / JOURNAL

    @property
    def _begun(self) -> Path:
        return self._journal if self._journal.is_file() else self.order.out / MANIFEST

    def begin(self, *, resume: bool) -> None:
        """Begin the target, or where ``resume`` go on with it: changed and failed pictures are protected again.

        Raises:
            ConfigError: When it was begun with other settings.
        """
        if resume:
            with undamaged(self._begun, "OUT", "restore it from a copy, or name another folder"):
                self._read()
        write_atomically(self._journal, json_lines([self.about, *map(asdict, self.done.values())]))

    def _read(self) -> None:
        begun, *files = self._lines() or [{}]
        if {"levels": [], **begun, "versions": None} != {**self.about, "versions": None}:
            changed = ", ".join(
                f"{key} was {begun.get(key)!r} and is {value!r}"
                for key, value in self.about.items()
                if begun and key not in {"versions", "place_digest"} and begun.get(key) != value
            )
            other = "pictures from another place" if begun else "unreadable"
            raise ConfigError(
                f"OUT: {self.order.out} was begun with other settings ({changed or other}); name another folder"
            )
        tuples = ("shape", "notes", "idle", "windows")
        found = [Copy(**one | {name: tuple(one.get(name, ())) for name in tuples}) for one in files]
        self.done = {one.source: one for one in found if self._holds(one)}

    def _lines(self) -> list[dict[str, Any]]:
        """The journal, without a line that was cut off; or the manifest as such lines."""
        if self._begun != self._journal:
            manifest = {"levels": []} | read_object(self._begun)
            return [{name: manifest[name] for name in self.about}, *(one | {"error": ""} for one in manifest["files"])]
        *lines, _ = self._journal.read_bytes().split(b"\n")  # behind the last line feed is what was cut off
        return [json.loads(line) for line in lines]

    def _holds(self, one: Copy) -> bool:
        source = self.order.root / one.source
        kept = not one.error and (self.order.out / one.output).is_file() and source.is_file()
        return kept and _digest(source.read_bytes()) == one.sha256

    def add(self, one: Copy) -> None:
        """Keep the line of a picture."""
        self.done[one.source] = one
        append_line(self._journal, asdict(one))

    @property
    def windows(self) -> list[str]:
        """What settings in pixels mean at the most frequent sizes of pictures, each with the number of pictures; then the rest."""
        counted = Counter("; ".join(copy.windows) for copy in self.done.values() if copy.windows).most_common()
        shown = [f"{count(times, 'picture')}: {windows}" for windows, times in counted[:MOST_SIZES]]
        if rest := counted[MOST_SIZES:]:
            others = count(sum(times for _, times in rest), "picture")
            shown.append(f"{others} of {count(len(rest), 'other size')}: {MANIFEST} has the windows of each")
        return shown

    @property
    def psnr(self) -> float | None:
        """The mean PSNR of the copies to their pictures, in dB; None without copies."""
        found = [one.psnr for one in self.done.values() if one.psnr is not None]
        return statistics.fmean(found) if found else None

    def finish(self, names: Iterable[str]) -> dict[str, Any]:
        """Write the manifest of these sources, and remove the journal; returns its content."""
        entries = [asdict(self.done[name]) for name in sorted(names)]
        files = [{key: one[key] for key in one if key != "error"} for one in entries if not one["error"]]
        failed = [{key: one[key] for key in ("source", "error")} for one in entries if one["error"]]
        found = self.about | {"psnr": self.psnr, "files": files, "failed": failed}
        write_atomically(self.order.out / MANIFEST, json.dumps(found, indent=1))
        self._journal.unlink()
        return found


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
