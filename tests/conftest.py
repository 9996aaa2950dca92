"""One torch thread for all tests: many small operations, which threads only make wait for each other."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow tests first: what one worker waits for at the end is then a quick file, and not minutes of a runtime."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
