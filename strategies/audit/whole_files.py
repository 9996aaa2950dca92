"""Files that are there whole or not at all: written beside their place and moved there; nothing is left of what could not be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

PARTIAL = ".tmp"
"""Ends the name of a file that is being written; a killed process leaves it."""


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Yields where to write; on the way out that is moved to ``path``, or removed where writing failed, as on a full disk."""
    partial = path.with_name(path.name + PARTIAL)
    try:
        yield partial
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Writes a safetensors file, whole or not at all.

    Raises:
        OSError: When it cannot be written.
    """
    with whole(path) as partial:
        try:
            save_file(dict(tensors), partial, metadata=dict(metadata))
        except SafetensorError as error:  # which does not say that it is the system's
            raise OSError(f"{path} cannot be written: {error}") from error
