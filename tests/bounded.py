"""A piece of a test that must end soon and in little memory; what does not is stopped, so that no machine is eaten."""

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import psutil


@contextmanager
def bounded(seconds: int = 10, size: int = 2**31) -> Iterator[None]:
    """Ends what is within after so many processor seconds (``TimeoutError``); it may reserve at most ``size`` bytes more than now.

    Torch raises ``RuntimeError`` where the system gives it no memory, Python and NumPy ``MemoryError``.
    """

    def late(*_: object) -> None:
        raise TimeoutError(f"not ended after {seconds} s")

    limits = resource.getrlimit(resource.RLIMIT_AS)
    before = signal.signal(signal.SIGPROF, late)
    resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + size, limits[1]))
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
        resource.setrlimit(resource.RLIMIT_AS, limits)
