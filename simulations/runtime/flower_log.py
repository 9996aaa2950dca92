"""Flower's log in a file, for a run in this process."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def flower_log(path: Path) -> Iterator[int]:
    """Context in which Flower's logger writes to the end of a file and nowhere else; yields the file's size before.

    Handlers, propagation and level of the logger are put back at the end.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    begin = path.stat().st_size if path.is_file() else 0
    log, kept = logging.getLogger("flwr"), logging.FileHandler(path, encoding="utf-8", errors="backslashreplace")
    kept.setFormatter(logging.Formatter("%(asctime)s %(levelname)s: %(message)s"))
    before = log.handlers, log.propagate, log.level
    log.handlers, log.propagate = [kept], False
    if not log.isEnabledFor(logging.INFO):
        log.setLevel(logging.INFO)
    try:
        yield begin
    finally:
        log.handlers, log.propagate = before[:2]
        log.setLevel(before[2])
        kept.close()
