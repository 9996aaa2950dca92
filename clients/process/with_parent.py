"""Worker processes that end with their parent process, however the parent ended."""

from __future__ import annotations

import multiprocessing
import os
from threading import Thread


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
