"""Results of a function over many inputs, computed in worker processes."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from itertools import islice
from multiprocessing import get_context
from threading import Thread
from typing import Any, TypeVar


def end_with_parent() -> None:
    """End this process when its parent ends; in a process that ``multiprocessing`` did not start, nothing happens.

    A worker waits at a pipe that it holds both ends of: without this, it would never learn that no more work comes, and would
    keep its memory, its locks and whatever it computes for good.
    """

    def wait_and_end() -> None:
        if (parent := multiprocessing.parent_process()) is not None:
            parent.join()
            os._exit(1)

    Thread(target=wait_and_end, daemon=True).start()


T = TypeVar("T")
AT_ONCE = 2
"""Inputs that are at a process or wait for it."""


def in_workers(work: Callable[..., T], inputs: Iterable[tuple[Any, ...]], workers: int) -> Generator[T, None, None]:
    """Yield ``work(*input)`` of each input as soon as it is known, in any order, from processes of one thread.

    Inputs that no process has begun are dropped when the generator is closed. ``BrokenProcessPool``: a process was killed.
    """
    pool = ProcessPoolExecutor(workers, get_context("spawn"), _begin)
    try:
        todo = iter(inputs)
        waiting = {pool.submit(work, *arguments) for arguments in islice(todo, workers * AT_ONCE)}
        while waiting:
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            waiting |= {pool.submit(work, *arguments) for arguments in islice(todo, len(done))}
            yield from (future.result() for future in done)
    finally:
        pool.shutdown(cancel_futures=True)


def _begin() -> None:
    """A process of one thread, which ends with its command: else it would keep the locks of a folder."""
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C, which a terminal sends to all, is for the command
    torch.set_num_threads(1)
    end_with_parent()
