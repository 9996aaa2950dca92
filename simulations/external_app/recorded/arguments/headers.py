"""Facts from the files of recorded arrays and of originals: counters, sizes and normalisation. No large array is read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError, safe_open

from clients.wire.texts import regular
from strategies.recording.files import RecordedReply, RecordingError

T = TypeVar("T")


def _read(path: Path, fact: Callable[[Any], T], unknown: T) -> T:
    """A fact from an open safetensors file; ``unknown`` where the file lacks it, or cannot be read."""
    try:
        with safe_open(regular(path), framework="np") as file:
            return fact(file)
    except (SafetensorError, OSError, ValueError, TypeError, KeyError, AttributeError):
        return unknown


def count_of_images(path: Path) -> int:
    """The number of images in a file of originals; 0 where it holds none, or cannot be read."""
    return _read(path, lambda file: int(file.get_slice("images").get_shape()[0]), 0)


def counted_steps(reply: RecordedReply) -> int:
    """Increase of BatchNorm's batch counters between the sent weights and the reply; 0 where they disagree.

    A counter is a whole number without dimensions. PyTorch raises it at each forward pass in train mode.
    """
    try:
        before, after = (_read(path, _counters, dict[str, int]()) for path in (reply.sent_file, reply.arrays_file))
    except RecordingError:
        return 0
    steps = {after[name] - before[name] for name in before if name in after}
    return max(steps.pop(), 0) if len(steps) == 1 else 0


def _counters(file: Any) -> dict[str, int]:
    slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
    counters = [name for name, one in slices.items() if one.get_dtype() == "I64" and not one.get_shape()]
    return {name: int(file.get_tensor(name)) for name in counters}


def originals_file(folder: Path, reply: RecordedReply) -> Path | None:
    """The file with the true images behind a reply: of its round and node, else of its node in all rounds; None without one."""
    names = (f"round-{reply.round:04d}-node-{reply.node}", f"node-{reply.node}")
    return next((path for name in names if (path := folder / f"{name}.safetensors").is_file()), None)


def normalisation_of(path: Path) -> str:
    """The client's normalisation, such as "0.5,0.5/0.2,0.3"; empty where the file does not state it."""

    def stated(file: Any) -> str:
        found = json.loads((file.metadata() or {}).get("normalisation", "{}"))
        return "/".join(",".join(f"{float(one):.9g}" for one in found[key]) for key in ("mean", "std"))

    return _read(path, stated, "")
