"""Protected copies of pictures: the draws of a copy follow from a secret, the pixels and the defence."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from attacks.image_measures import mean_psnr
from clients.data.files.decoding import FullScale
from clients.data.images import DataError
from clients.process.worker_processes import in_workers
from clients.secrets.draws import digest_of
from defenses.base import Batch
from defenses.pipeline import Pipeline
from defenses.spec import parse
from simulations.protect.pictures import read, write
from simulations.settings.errors import ConfigError


@dataclass(frozen=True)
class Order:
    """Settings for the copy of each picture, from the folder ``root`` to the folder ``out``, by the defences of a text.

    Attributes:
        size: Side of the copies; 0: that of the sources.
        source: Name of the folder or data set, without its place.
        place: Full path of the sources. The manifest has only a digest of it.
        scale: Levels that become 0 and 255 in the sources beyond 8 bits; see ``clients.data.files.decoding.full_scale``.
    """

    root: Path
    out: Path
    pipeline: str
    secret: str
    size: int
    source: str
    place: str = ""
    scale: FullScale | None = None


@dataclass(frozen=True)
class Copy:
    """A line of the manifest: one picture with its copy, or with the reason of a failure.

    Attributes:
        source: Path in the source folder.
        output: Path in the target folder; "" where there is none.
        sha256: Of the source file.
        shape: (C, H, W) of the copy.
        psnr: Of the copy to the picture, in dB; at most 100.
        notes: What of the source is not in the copy.
        idle: Why the defence does nothing to a picture of that size, or less than it says; see ``InputDefense.idle``.
        windows: What settings in pixels mean at that size; see ``InputDefense.at_size``.
        error: Why there is no copy; "" where there is one.
    """

    source: str
    output: str = ""
    sha256: str = ""
    shape: tuple[int, ...] = ()
    psnr: float | None = None
    notes: tuple[str, ...] = ()
    idle: tuple[str, ...] = ()
    windows: tuple[str, ...] = ()
    error: str = ""


def protect_image(pipeline: Pipeline, image: Tensor, secret: str) -> Tensor:
    """Protect a picture (C, H, W) by the input stages of a pipeline; equal for equal secret, pixels and pipeline.

    Its name is no part of the key: a picture under two names would be published under two draws, whose mean is less noisy.
    """
    batch = Batch(image.unsqueeze(0), torch.ones(1, 1))
    key = ("protect", secret, digest_of(batch, str(pipeline)))
    return pipeline.protect_batch(pipeline.protect_once(batch, key), key).images[0].clamp(0, 1)


def copy(order: Order, source: str, output: str) -> Copy:
    """Protect one file; returns its line of the manifest."""
    path = order.root / source
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        found = read(path, order.size, order.scale)
        image, pipeline = found.image, parse(order.pipeline)
        if why := pipeline.unfit(*image.shape):
            raise DataError(why)
        protected = protect_image(pipeline, image, order.secret)
        write(order.out / output, protected)
    except (OSError, ValueError, RuntimeError, MemoryError) as error:  # of torch, a RuntimeError for memory of the CPU
        return Copy(source, error=str(error) or type(error).__name__)
    distance, shape = mean_psnr(protected[None], image[None]), tuple(protected.shape)
    idle, windows = (tuple(said(*image.shape[1:])) for said in (pipeline.idle, pipeline.at_size))
    return Copy(source, output, digest, shape, distance, found.notes, idle, windows)


def copies(order: Order, names: Sequence[tuple[str, str]], workers: int) -> Iterator[Copy]:
    """Protect files (source, output) in several processes, in any order, or in this one where ``workers`` is 1.

    Raises:
        ConfigError: When one of the processes was killed.
    """
    if workers == 1 or len(names) < 2:
        yield from (copy(order, *name) for name in names)
        return
    try:
        with closing(in_workers(partial(copy, order), names, workers)) as found:
            yield from found
    except BrokenProcessPool:
        raise ConfigError(
            "a process that protects pictures was killed, perhaps for want of memory; go on with the same command, --resume and "
            "fewer workers"
        ) from None
