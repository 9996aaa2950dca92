"""What keeps tests apart fails when it should: tests/isolation.py, tests/skips.py."""

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.isolation import leaving_nothing, state
from tests.skips import REASONS, allowed

ROOT = Path(__file__).resolve().parents[2]
ENDED = threading.Event()
CHANGES: dict[str, Callable[[], object]] = {
    "logging.disable": lambda: logging.disable(logging.INFO),
    "SIGTERM": lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN),
    "sys.path": lambda: sys.path.insert(0, "/nowhere"),
    "environment variable LEFT": lambda: os.environ.update(LEFT="1"),
    "environment variable PATH": lambda: os.environ.pop("PATH"),
    "working directory": lambda: os.chdir("/"),
    "torch's default type": lambda: torch.set_default_dtype(torch.float64),
    "logger root": lambda: logging.root.addHandler(logging.NullHandler()),
    "logger flwr": lambda: setattr(logging.getLogger("flwr"), "propagate", not logging.getLogger("flwr").propagate),
    "torch's default device": lambda: torch.set_default_device("meta"),
    "NumPy's errors": lambda: np.seterr(divide="raise"),
    "torch's gradients": lambda: torch.set_grad_enabled(False),
    "thread left": threading.Thread(target=ENDED.wait, name="left", daemon=True).start,
}


def test_what_is_left_behind_is_named_and_put_back(monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests) -> None:
    monkeypatch.setattr("tests.isolation.PATIENCE", 0.01)
    before = state()
    for name, change in CHANGES.items():
        with subtests.test(name), pytest.raises(AssertionError, match=f"left behind: {name}"), leaving_nothing():
            change()
        assert state() == before
    ENDED.set()


def test_default_generators_start_alike_and_are_put_back() -> None:
    drawn = []
    before = torch.random.get_rng_state(), np.random.get_state()[1]
    for _ in range(2):
        with leaving_nothing():
            drawn.append((float(torch.rand(())), float(np.random.rand())))
    assert drawn[0] == drawn[1]
    assert torch.equal(torch.random.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])


def test_only_skips_on_the_list_are_allowed() -> None:
    """Also that each entry is needed: some file says it."""
    files = [path for path in (ROOT / "tests").rglob("*.py") if path.name != "skips.py"]
    texts = "".join(path.read_text(encoding="utf-8") for path in files)
    assert all(allowed(f"it {reason}") and allowed(f"{reason} here") for reason in REASONS)
    assert not any(map(allowed, ("flaky", "expected to fail", f"flaky, {REASONS[0]} or not")))
    for reason in REASONS:
        assert reason in texts or reason == "not begun within"
