"""How far a search is: searches report their steps to a function, where one was set."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Watch = Callable[[int, int], None]
"""(steps done, steps of this search) after every step; an attack may search several times, each from 0 on."""

_watch: ContextVar[Watch | None] = ContextVar("watch", default=None)


@contextmanager
def watched(watch: Watch) -> Iterator[None]:
    """Within, and in this thread, every search reports to ``watch`` how far it is."""
    token = _watch.set(watch)
    try:
        yield
    finally:
        _watch.reset(token)


def reported(steps: Iterable[int], count: int) -> Iterator[int]:
    """Iterate over ``count`` steps of a search, and report each step when the next one begins."""
    watch = _watch.get()
    for step in steps:
        yield step
        if watch is not None:
            watch(step + 1, count)
