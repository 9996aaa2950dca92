"""Facts from the headers of recorded arrays and of originals: classes, channels, normalisation. No array is read."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open

from strategies.recording.files import RecordedReply, RecordingError


@dataclass(frozen=True)
class Header:
    """Name, shape and type ("F32", "I64", ...) of an array."""

    name: str
    shape: tuple[int, ...]
    dtype: str


def headers_of(path: Path) -> list[Header]:
    """Headers of a file's arrays in the model's order; none where the file does not record the order, or cannot be read."""
    if not path.is_file():
        return []
    try:
        with safe_open(path, framework="np") as file:
            order = json.loads((file.metadata() or {}).get("order", "[]"))
            slices = [(name, file.get_slice(name)) for name in order]
            return [Header(name, tuple(one.get_shape()), one.get_dtype()) for name, one in slices]
    except (SafetensorError, OSError, ValueError, TypeError):
        return []


def array_shape(path: Path, name: str) -> tuple[int, ...]:
    """Shape of one of a file's arrays; empty where the file does not hold it, or cannot be read."""
    if not path.is_file():  # to open a pipe is to wait for its writer
        return ()
    try:
        with safe_open(path, framework="np") as file:
            return tuple(file.get_slice(name).get_shape())
    except (SafetensorError, OSError, ValueError, TypeError):
        return ()


def classes_in(headers: list[Header]) -> tuple[int, str]:
    """Number of logits and the last layer's array that shows it, if the last arrays are a linear layer; else 0 and ""."""
    floating = [one for one in headers if one.dtype.startswith(("F", "BF"))]
    if floating and len(floating[-1].shape) == 2:
        return floating[-1].shape[0], floating[-1].name
    if len(floating) > 1 and len(floating[-2].shape) == 2 and floating[-1].shape == floating[-2].shape[:1]:
        return floating[-1].shape[0], floating[-1].name
    return 0, ""


def image_shape_in(headers: list[Header]) -> tuple[str, str]:
    """The part of "C,H,W" that the first layer shows, such as "3,H,W", and that layer's array; else two empty texts."""
    first = next((one for one in headers if len(one.shape) in (2, 4)), None)
    if first is None:
        return "", ""
    if len(first.shape) == 4 and first.shape[1] in (1, 3):
        return f"{first.shape[1]},H,W", first.name
    fits = [
        (channels, side)
        for channels in (1, 3)
        if len(first.shape) == 2 and (side := math.isqrt(first.shape[1] // channels)) ** 2 * channels == first.shape[1]
    ]
    if len(fits) != 1 or fits[0][1] < 2:
        return "", ""
    return f"{fits[0][0]},{fits[0][1]},{fits[0][1]}", first.name


def counted_steps(reply: RecordedReply) -> int:
    """Increase of BatchNorm's batch counters between the sent weights and the reply; 0 where they disagree.

    A counter is a whole number without dimensions. PyTorch raises it at each forward pass in train mode.
    """
    try:
        before, after = (_counters(path) for path in (reply.sent_file, reply.arrays_file))
    except (RecordingError, SafetensorError, OSError, ValueError, TypeError):
        return 0
    steps = {after[name] - before[name] for name in before if name in after}
    return max(steps.pop(), 0) if len(steps) == 1 else 0


def _counters(path: Path) -> dict[str, int]:
    names = [one.name for one in headers_of(path) if one.dtype == "I64" and one.shape == ()]
    with safe_open(path, framework="np") as file:
        return {name: int(file.get_tensor(name)) for name in names}


def originals_file(folder: Path, reply: RecordedReply) -> Path | None:
    """The file with the true images behind a reply: of its round and node, else of its node in all rounds; None without one."""
    names = (f"round-{reply.round:04d}-node-{reply.node}", f"node-{reply.node}")
    return next((path for name in names if (path := folder / f"{name}.safetensors").is_file()), None)


def normalisation_of(path: Path) -> str:
    """The client's normalisation, such as "0.5,0.5/0.2,0.3"; empty where the file does not state it."""
    if not path.is_file():
        return ""
    try:
        with safe_open(path, framework="np") as file:
            stated = json.loads((file.metadata() or {}).get("normalisation", "{}"))
        return "/".join(",".join(f"{float(one):.9g}" for one in stated[key]) for key in ("mean", "std"))
    except (SafetensorError, OSError, ValueError, TypeError, KeyError, AttributeError):
        return ""
