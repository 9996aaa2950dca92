"""The manifest of a folder of protected copies, from which a killed ``protect`` continues.

manifest.json   the defence, versions, and each picture: names, hash of the source, VFE before and after, PSNR of the copy, what
                was left out
.journal.jsonl  the same while it is under way, a line for each finished picture; removed when the manifest is written
"""

from __future__ import annotations

import hashlib
import json
import statistics
from collections import Counter
from collections.abc import Iterable
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from simulations.protect.copies import Copy, Order
from simulations.report.text import count
from simulations.run_folder.folder_lock import LOCK, require_free, require_new, take_lock
from simulations.run_folder.line_files import append_line, json_line, json_lines
from simulations.run_folder.run_directory import write_atomically
from simulations.settings.errors import ConfigError, undamaged
from strategies.audit.whole_files import PARTIAL

MANIFEST, JOURNAL = "manifest.json", ".journal.jsonl"
LEFTOVERS = {LOCK, JOURNAL + PARTIAL}
"""Of a command that was killed before it had begun."""
MOST_SIZES = 3
"""Sizes of pictures whose windows the terminal names, before it counts the others."""


def require_usable(out: Path, *, resume: bool) -> None:
    """Refuse a target that ``claim`` would refuse whatever the secret, or that cannot be written; nothing is left behind."""
    missing: list[Path] = []
    try:
        require_free(out, refusal(out))
        require_target(out, resume=resume)
        missing = [one for one in (out, *out.parents) if not one.exists()]
        out.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=out):
            pass
    except OSError as error:
        raise ConfigError(f"OUT: cannot write into {out}: {error.strerror}") from error
    finally:
        for one in missing:
            with suppress(OSError):  # it was not made, or another process has put something there
                one.rmdir()


def refusal(out: Path) -> str:
    """The error where another command writes to the target."""
    return f"OUT: another `fedveil protect` is still writing to {out}; wait for it, or end it"


def require_target(out: Path, *, resume: bool) -> None:
    """Refuse a target folder that holds something, or where ``resume`` one without work that was begun; nothing is written."""
    if not resume:
        require_new(out, f"OUT: {out}", "go on with --resume", LEFTOVERS)
    elif not any((out / name).is_file() for name in (JOURNAL, MANIFEST)):
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
            "place_digest": self._digest(f"protect place:{self.order.secret}:{self.order.place}"),
            "secret_digest": self._digest(f"protect:{self.order.secret}"),
            "versions": {name: version(name) for name in ("fedveil", "torch", "pillow")},
        }

    @staticmethod
    def _digest(text: str) -> str:
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def _journal(self) -> Path:
        return self.order.out / JOURNAL

    @property
    def _begun(self) -> Path:
        """The file to go on from: the journal, or after complete work the manifest."""
        return self._journal if self._journal.is_file() else self.order.out / MANIFEST

    def claim(self, *, resume: bool) -> IO[str]:
        """Lock the target for this command, and continue it where ``resume``, until the returned lock is closed.

        Raises:
            ConfigError: When the folder cannot be taken up so, or another command writes to it.
        """
        out = self.order.out
        if not (out / LOCK).exists():  # perhaps a folder of something else, where not even a lock should be left
            self._check(resume=resume)
        lock = take_lock(out, refusal(out))
        try:
            self._check(resume=resume)
        except ConfigError:
            lock.close()
            raise
        return lock

    def _check(self, *, resume: bool) -> None:
        """Refuse a target that is neither new nor begun with the same settings."""
        out = self.order.out
        require_target(out, resume=resume)
        if not resume:
            return
        with self._undamaged:
            begun = dict(next(iter(self._lines()), {}))
        if {**begun, "versions": None} != {**self.about, "versions": None}:
            changed = ", ".join(
                f"{key} was {begun.get(key)!r} and is {value!r}"
                for key, value in self.about.items()
                if begun and key not in {"versions", "place_digest"} and begun.get(key) != value
            )
            other = "pictures from another place" if begun else "unreadable"
            raise ConfigError(f"OUT: {out} was begun with other settings ({changed or other}); name another folder")

    def begin(self) -> None:
        """Start a new target."""
        write_atomically(self._journal, json_line(self.about))

    def resume(self) -> None:
        """Continue a target; pictures whose source has changed since, and failed ones, are protected again."""
        with self._undamaged:
            tuples = ("shape", "notes", "idle", "windows")
            found = [Copy(**one | {name: tuple(one.get(name, ())) for name in tuples}) for one in self._lines()[1:]]
            self.done = {one.source: one for one in found if self._holds(one)}
        kept = [self.about, *map(asdict, self.done.values())]
        write_atomically(self._journal, json_lines(kept))

    @property
    def _undamaged(self) -> AbstractContextManager[None]:
        return undamaged(self._begun, "OUT", "restore it from a copy, or name another folder")

    def _lines(self) -> list[dict[str, Any]]:
        """The journal, without a line that was cut off; or the manifest as such lines."""
        if self._begun != self._journal:
            manifest = json.loads(self._begun.read_text(encoding="utf-8"))
            return [{name: manifest[name] for name in self.about}, *(one | {"error": ""} for one in manifest["files"])]
        *lines, _ = self._journal.read_bytes().split(b"\n")  # behind the last line feed is what was cut off
        return [json.loads(line) for line in lines]

    def _holds(self, one: Copy) -> bool:
        source = self.order.root / one.source
        if one.error or not (self.order.out / one.output).is_file() or not source.is_file():
            return False
        return hashlib.sha256(source.read_bytes()).hexdigest() == one.sha256

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
    def psnrs(self) -> list[float]:
        """PSNR of each copy to its picture, in dB."""
        return [one.psnr for one in self.done.values() if one.psnr is not None]

    @property
    def psnr(self) -> float | None:
        """The mean of ``psnrs``; None without copies."""
        return statistics.fmean(self.psnrs) if self.psnrs else None

    @property
    def failed(self) -> list[Copy]:
        """Pictures without a copy, by name."""
        return sorted((one for one in self.done.values() if one.error), key=lambda one: one.source)

    def finish(self, names: Iterable[str]) -> Path:
        """Write the manifest of these sources, and remove the journal."""
        entries = [self.done[name] for name in sorted(names)]
        files = [
            {key: value for key, value in asdict(one).items() if key != "error"} for one in entries if not one.error
        ]
        failed = [{"source": one.source, "error": one.error} for one in entries if one.error]
        path = self.order.out / MANIFEST
        found = {"psnr": self.psnr, "files": files, "failed": failed}
        write_atomically(path, json.dumps(self.about | found, indent=1))
        self._journal.unlink()
        return path
