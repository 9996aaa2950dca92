"""Protecting one picture, the same way whenever it is asked for: its draws follow from a secret, its pixels and the defence."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from threading import Thread

import torch
from torch import Tensor

from clients.draws import digest_of
from defenses.base import Batch
from defenses.pipeline import Pipeline
from defenses.spec import parse
from defenses.vfe import vfe_image
from simulations.errors import ConfigError
from simulations.protect.pictures import PictureError, read, write

VFE_WINDOW = 8
"""Pixels; the size for which the paper works an example."""
AT_ONCE = 2
"""Pictures that are at a process or wait for it; what waits is dropped when the command is stopped."""


@dataclass(frozen=True)
class Order:
    """What to do with each picture.

    Attributes:
        root: Folder of the sources.
        out: Folder of the copies.
        pipeline: The defences' text.
        secret: Where draws start.
        size: Side of the copies; 0: that of the sources.
        source: What the sources are, in words.
    """

    root: Path
    out: Path
    pipeline: str
    secret: str
    size: int
    source: str


@dataclass(frozen=True)
class Copy:
    """A line of the manifest: one picture that was protected, or that could not be.

    Attributes:
        source: Path in the source folder.
        output: Path in the target folder; "" where there is none.
        sha256: Of the source file.
        shape: (C, H, W) of the copy.
        vfe_before: Mean VFE of windows of 8 pixels, values in [0, 1]; see ``defenses.vfe.vfe_image``.
        vfe_after: The same of the copy.
        notes: What of the source is not in the copy.
        idle: Why the defence does nothing to a picture of that size, or less than it says; see ``InputDefense.idle``.
        error: Why there is no copy; "" where there is one.
    """

    source: str
    output: str = ""
    sha256: str = ""
    shape: tuple[int, ...] = ()
    vfe_before: float | None = None
    vfe_after: float | None = None
    notes: tuple[str, ...] = ()
    idle: tuple[str, ...] = ()
    error: str = ""


def protect_image(pipeline: Pipeline, image: Tensor, secret: str) -> Tensor:
    """A picture (C, H, W) behind the input stages of a pipeline; the same for the same secret, pixels and pipeline.

    Its name is no part of the key. Were it the whole key, copies of other pictures of that name, or of the picture under another
    strength of the defence, would share draws and undo each other; were it a part of it, whoever has a picture under two names
    would publish it under two draws, of which the mean is less noisy than either.
    """
    batch = Batch(image.unsqueeze(0), torch.ones(1, 1))
    key = ("protect", secret, digest_of(batch, str(pipeline)))
    return pipeline.protect_batch(pipeline.protect_once(batch, key), key).images[0].clamp(0, 1)


def copy(order: Order, source: str, output: str) -> Copy:
    """Protects one file. What is wrong with it is part of the result."""
    path = order.root / source
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        picture = read(path, order.size)
        pipeline = parse(order.pipeline)
        if why := pipeline.unfit(*picture.image.shape):
            raise PictureError(why)
        protected = protect_image(pipeline, picture.image, order.secret)
        write(order.out / output, protected)
    except (PictureError, OSError, ValueError, RuntimeError, MemoryError) as error:
        return Copy(source, error=str(error) or type(error).__name__)
    before, after = (float(vfe_image(image, VFE_WINDOW)) for image in (picture.image, protected))
    idle = tuple(pipeline.idle(*picture.image.shape[1:]))
    return Copy(source, output, digest, tuple(protected.shape), before, after, picture.notes, idle)


def copies(order: Order, names: Sequence[tuple[str, str]], workers: int) -> Iterator[Copy]:
    """Protects files in several processes, in any order.

    Args:
        order: What to do.
        names: (source, output) of each.
        workers: Processes; 1: this one.

    Raises:
        ConfigError: When one of the processes was killed.
    """
    if workers == 1 or len(names) < 2:
        yield from (copy(order, *name) for name in names)
        return
    pool = ProcessPoolExecutor(workers, initializer=_begin_worker)
    try:
        todo = iter(names)
        waiting = {pool.submit(copy, order, *name) for name in islice(todo, workers * AT_ONCE)}
        while waiting:
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            waiting |= {pool.submit(copy, order, *name) for name in islice(todo, len(done))}
            yield from (one.result() for one in done)
    except BrokenProcessPool:
        raise ConfigError(
            "a process that protects pictures was killed, perhaps for want of memory; go on with the same command, --resume and "
            "fewer --workers"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _begin_worker() -> None:
    """A process of one thread, which ends with its command: else it would keep the target's lock, and write beside the next one."""
    torch.set_num_threads(1)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
        os._exit(1)
