"""Files that appear whole or not at all: written beside their place and moved there; a failed write leaves nothing.

Files of tensors also carry a digest of what is in them, so that one flipped bit is an error and never another number.
"""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from clients.wire.texts import regular
from defenses.tensors import Tensors

PARTIAL = ".tmp"
"""Ends the name of a file that is being written; a killed process leaves it."""

DIGEST = "digest"
"""Key of a file's metadata."""


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Context that yields a path to write; at its end the file is moved to ``path``, or removed where writing failed."""
    partial = path.with_name(path.name + PARTIAL)
    try:
        yield partial
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def save_tensors(path: Path, tensors: Tensors, metadata: Mapping[str, str]) -> None:
    """Write a safetensors file, whole or not at all (``OSError``), with a digest of its name, tensors and metadata."""
    signed = {**metadata, DIGEST: _digest(path, tensors, metadata)}
    with whole(path) as partial:
        try:
            save_file(dict(tensors), partial, metadata=signed)
        except SafetensorError as error:  # which does not say that it is the system's
            raise OSError(f"{path} cannot be written: {error}") from error


def load_tensors(path: Path) -> tuple[Tensors, dict[str, str]]:
    """Tensors and metadata of a file that ``save_tensors`` wrote.

    Raises:
        OSError: When there is none.
        SafetensorError: When it is none.
        ValueError: When it holds other tensors or metadata than were written, or is another file under this name.
    """
    with safe_open(regular(path), framework="pt") as file:
        metadata = dict(file.metadata() or {})
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    kept = metadata.pop(DIGEST, "no digest")
    if kept != (digest := _digest(path, tensors, metadata)):
        raise ValueError(f"its digest is {digest}, and {kept} was written")
    return tensors, metadata


def _digest(path: Path, tensors: Tensors, metadata: Mapping[str, str]) -> str:
    """32 hexadecimal digits of all that a file holds; of its name, too: a file in the place of another is damage."""
    digest = hashlib.blake2b(
        repr((path.name, sorted(metadata.items()))).encode(errors="backslashreplace"), digest_size=16
    )
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(repr((name, tuple(tensor.shape), str(tensor.dtype))).encode())
        # NumPy has no bfloat16; every one is a float32.
        digest.update((tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy().tobytes())
    return digest.hexdigest()
