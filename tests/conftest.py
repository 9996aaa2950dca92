"""One torch thread for all tests: many small operations, which threads only make wait for each other."""

import contextlib
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

torch.set_num_threads(1)

with contextlib.suppress(ImportError):
    # Where it counts lines (.ci/run), it would take its probes out of what has run and, to find that, read the locals of running
    # frames: these then keep tensors that were let go, and a peak of memory is another. In xdist's workers no option forbids it.
    from slipcover import Slipcover

    Slipcover.deinstrument_seen = lambda self: None


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run in this process gives its server all cores; with a test worker on each, their threads would wait for each other."""
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow tests first: what one worker waits for at the end is then a quick file, and not minutes of a runtime."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
