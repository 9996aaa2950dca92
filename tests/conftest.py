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
    """For `--dist loadgroup`: a file is a group, so that its tests share what it makes; the files of slow tests are two groups.

    These come first, so that nobody waits minutes for a runtime at the end, and in two workers at most: runtimes wait for each
    other's processes, and more of them at once take longer than one after the other.
    """
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
    slow = sorted({item.path for item in items if item.get_closest_marker("slow")})
    for item in items:
        name = (
            f"slow-{slow.index(item.path) % 2}" if item.get_closest_marker("slow") else item.nodeid.partition("::")[0]
        )
        item.add_marker(pytest.mark.xdist_group(name))
