"""A recording on disk: the messages and replies of each round of training, as safetensors and JSON.

    recording.json                    format, when, by which versions, the bound on disk
    round-0001/sent.json              receiving nodes, configuration, "arrays": record -> file, of each different content
    round-0001/sent-0-0.safetensors   the arrays of the first content's first record: the global weights
    round-0001/train-0000.json        a reply: node, which content it answers ("sent"), metrics, metadata, error, record -> file
    round-0001/train-0000-0.safetensors  its arrays as they crossed the wire, before the strategy saw them
    round-0001/evaluate-0000.json     the same of evaluation

A file is written under another name, flushed to the disk and then moved to its place, arrays before the JSON that names them: what
has a JSON file is whole, however the process ended. Nothing is ever unpickled.
"""

import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from clients.wire.texts import changed, read_object, regular

EXAMPLES = ("num-examples", "num_examples")
RATES = ("lr", "learning-rate", "learning_rate")
BATCHES = ("batch-size", "batch_size")
EPOCHS = ("local-epochs", "local_epochs", "epochs")
STEPS = ("local-steps", "local_steps")
MOMENTA = ("momentum",)
DECAYS = ("weight-decay", "weight_decay")


def first_number(records: Iterable[Mapping[str, Any]], names: Sequence[str]) -> int | float | None:
    """The number under one of these names in the first record that holds one; None without any."""
    values = (record[name] for record in records for name in names if name in record)
    return next((value for value in values if isinstance(value, int | float) and not isinstance(value, bool)), None)


def counted_examples(records: Iterable[Mapping[str, Any]]) -> int:
    """The number of examples in the first record that holds one, 4.0 as 4; 0 where none is a positive whole number."""
    counts: list[Any] = [record.get(name) for record in records for name in EXAMPLES]
    return next((int(count) for count in counts if type(count) in (int, float) and count > 0 and count % 1 == 0), 0)


FORMAT = 1
"""Of the files above; a reader refuses any other."""
ABOUT = "recording.json"

Arrays = dict[str, np.ndarray]


class RecordingError(ValueError):
    """A folder that holds no recording, or a recording that cannot be read or begun."""


class RecordingWriter:
    """Write a recording into a new folder, up to a number of bytes.

    Args:
        folder: Absolute; it must not hold a recording yet.
        max_bytes: Bound on all files together. Arrays that would exceed it are not written, and their JSON file says so; the few
            hundred bytes of JSON of each reply are written all the same.
        about: What else goes into ``recording.json``: the "settings" of the app, and the "strategy", outermost first.

    Raises:
        RecordingError: When the folder is relative, holds a recording, or cannot be made.
    """

    def __init__(self, folder: Path, max_bytes: int, about: Mapping[str, Any]) -> None:
        if not folder.is_absolute():
            # A simulation runs in the folder in which Flower's daemon was started.
            raise RecordingError(f"the recording's folder is {str(folder)!r}; allowed: an absolute path")
        if (folder / ABOUT).exists():
            raise RecordingError(f"{folder} already holds a recording; name another folder, or move that one away")
        self.folder, self.max_bytes, self.written = folder, max_bytes, 0
        begun = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        versions = {}
        for package in ("fedveil", "flwr"):
            with suppress(PackageNotFoundError):  # fedveil may run from a folder
                versions[package] = version(package)
        own = {"format": FORMAT, "begun": begun, "max-bytes": max_bytes, "versions": versions}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self.keep_json(ABOUT, {**about, **own})
        except OSError as error:
            raise RecordingError(f"{folder} cannot be written to: {error}") from error

    def keep_json(self, name: str, values: Mapping[str, Any]) -> None:
        """Write a JSON file, whole or not at all."""
        text = json.dumps(changed(values, plain), indent=1, allow_nan=False) + "\n"
        self._keep(name, lambda path: path.write_text(text, encoding="utf-8"))

    def keep_arrays(self, name: str, arrays: Mapping[str, np.ndarray]) -> str:
        """Write a safetensors file, whole or not at all; returns why it failed, or "". C-ordered arrays are not copied."""
        size = sum(array.nbytes for array in arrays.values())
        if self.written + size > self.max_bytes:
            return f"{size} bytes would exceed max_bytes, {self.max_bytes}, of which {self.written} are used"
        # safetensors sorts: how a model orders its arrays is what is left where its names are those of no model.
        order = {"order": json.dumps(list(arrays))}
        dense = {key: np.asarray(array, order="C") for key, array in arrays.items()}
        self._keep(name, lambda path: save_file(dense, path, order))
        return ""

    def _keep(self, name: str, write: Callable[[Path], Any]) -> None:
        from strategies.audit.whole_files import whole  # imports torch, which a reader of JSON files does not need

        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        with whole(path) as partial:
            write(partial)
            with partial.open("rb") as file:
                os.fsync(file.fileno())
                if hasattr(os, "posix_fadvise"):
                    # It is not read soon, and gigabytes of it would push the clients' data out of memory.
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            self.written += partial.stat().st_size


@dataclass(frozen=True)
class RecordedReply:
    """One reply to a message of training.

    Attributes:
        round: Server round, from 1.
        node: Who sent it.
        path: Its JSON file.
        values: What that file holds.
        sent: Record -> file of the arrays that it answers.
        settings: Of the app, as the recorder was given them.
    """

    round: int
    node: int
    path: Path
    values: Mapping[str, Any]
    sent: Mapping[str, str]
    settings: Mapping[str, Any]

    @property
    def unusable(self) -> str:
        """Reason why the reply cannot be attacked, or ""."""
        if error := self.values.get("error"):
            return f"the client failed: {error.get('reason') or error.get('code')}"
        if dropped := self.values.get("dropped"):
            return f"its arrays were not recorded: {dropped}"
        if not self.values.get("arrays"):
            return "it holds no arrays"
        return "" if self.sent else "the weights that it answers were not recorded"

    def arrays(self) -> Arrays:
        """Name -> array of the only record, or of "arrays", Flower's usual name."""
        return self._read(self.arrays_file)

    def sent_arrays(self) -> Arrays:
        """Name -> array of that record in the message before this reply: the global weights."""
        return self._read(self.sent_file)

    @property
    def reported(self) -> list[Mapping[str, Any]]:
        """The reply's metrics, and the configuration in its message."""
        return [*self.values.get("metrics", {}).values(), *self.values.get("sent-config", {}).values()]

    def number(self, *names: str) -> float | None:
        """The first of these numbers in the reply, else in the settings; None where neither has one."""
        return first_number([*self.reported, self.settings], names)

    @property
    def arrays_file(self) -> Path:
        """The file that ``arrays()`` reads; ``RecordingError`` for a reply without arrays."""
        return self._file(self.values.get("arrays", {}))

    @property
    def sent_file(self) -> Path:
        """The file that ``sent_arrays()`` reads; ``RecordingError`` where the recording lacks the weights sent."""
        return self._file(self.sent)

    def _file(self, files: Mapping[str, str]) -> Path:
        name = "arrays" if "arrays" in files else next(iter(files), "")
        if name not in files:
            raise RecordingError(f"{self.path} has no record {name!r}; it has {', '.join(map(repr, files)) or 'none'}")
        path = self.path.parent / files[name]
        if path.parent != self.path.parent:
            raise RecordingError(f"{self.path} names {files[name]!r}; allowed: files of its own folder")
        return path

    def _read(self, path: Path) -> Arrays:
        try:
            with safe_open(regular(path), framework="np") as file:
                order = json.loads((file.metadata() or {}).get("order", "[]"))
                return {name: file.get_tensor(name) for name in order or file.keys()}
        except (SafetensorError, OSError, ValueError, TypeError, RecursionError) as error:
            raise RecordingError(f"{path} cannot be read as safetensors: {error}") from error


def strategy_of(folder: Path) -> tuple[str, ...]:
    """Class names of the recorded strategy and of those that it wraps, outermost first; ``RecordingError`` for a folder of none."""
    return tuple(map(str, _about(folder).get("strategy", ())))


def read_recording(folder: Path) -> list[RecordedReply]:
    """The replies to training in a recording, by round and in order of arrival; of a killed run, the complete ones.

    Raises:
        RecordingError: When the folder holds no recording of this format, or a JSON file of it is damaged.
    """
    about = _about(folder)
    return [reply for at in sorted(folder.glob("round-*")) for reply in _replies(at, about.get("settings", {}))]


def _about(folder: Path) -> dict[str, Any]:
    if not (folder / ABOUT).is_file():
        raise RecordingError(f"{folder} holds no recording (no {ABOUT})")
    about = _read_json(folder / ABOUT)
    if not isinstance(about.get("settings", {}), dict):
        raise RecordingError(f"{folder / ABOUT}: settings is no object")
    if about.get("format") != FORMAT:
        raise RecordingError(f"{folder / ABOUT}: format is {about.get('format')!r}; this version reads {FORMAT}")
    return about


def _replies(folder: Path, settings: Mapping[str, Any]) -> Iterator[RecordedReply]:
    sent = _read_json(folder / "sent.json") if (folder / "sent.json").is_file() else {}
    contents = sent.get("contents", [])
    if not isinstance(contents, list) or not all(isinstance(entry, dict) for entry in contents):
        raise RecordingError(f"{folder / 'sent.json'}: contents is no list of objects")
    for content in contents:
        _require_records(folder / "sent.json", content)
    for path in sorted(folder.glob("train-*.json")):
        values = _read_json(path)
        number, at, node = values.get("round"), values.get("sent"), values.get("node")
        if not isinstance(number, int) or not isinstance(node, int):
            raise RecordingError(f"{path}: round is {number!r} and node {node!r}; allowed: whole numbers")
        _require_records(path, values)
        answered = contents[at] if isinstance(at, int) and 0 <= at < len(contents) else {}
        values["sent-config"] = answered.get("config", {})
        yield RecordedReply(number, node, path, values, answered.get("arrays", {}), settings)


def _require_records(path: Path, values: Mapping[str, Any]) -> None:
    """Raises ``RecordingError`` unless the records of a message are objects, of files and of values."""
    for key, kind in {"arrays": str, "metrics": dict, "config": dict}.items():
        records = values.get(key) or {}
        if not isinstance(records, dict) or not all(isinstance(record, kind) for record in records.values()):
            raise RecordingError(f"{path}: {key} is {str(records)[:120]!r}; allowed: an object of records")
    if not isinstance(values.get("error") or {}, dict):
        raise RecordingError(f"{path}: error is {str(values['error'])[:120]!r}; allowed: an object")


def plain(value: Any) -> Any:
    """A JSON value: text for infinite numbers, NaN and types that JSON lacks, and the length of bytes in their place."""
    if isinstance(value, bytes):
        return f"{len(value)} bytes, not recorded"
    known = value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))
    return value if known else str(value)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return read_object(path)
    except (OSError, ValueError, RecursionError) as error:
        raise RecordingError(f"{path} cannot be read as JSON: {error}") from error
