from pathlib import Path

import pytest

from simulations import server_app
from simulations.server_app import SHARE, Throttle


def test_reports_of_a_running_run_take_a_small_share_of_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now, cost, written = 0.0, 0.5, list[float]()

    def write(directory: Path) -> Path:
        nonlocal now
        written.append(now)
        now += cost
        return directory

    monkeypatch.setattr(server_app, "write_report", write)
    monkeypatch.setattr("time.monotonic", lambda: now)
    throttle = Throttle()
    for _ in range(1000):
        now += 1.0
        throttle(Path())
    assert written[0] == 1.0  # after the first round there is one
    assert 0.8 * SHARE < cost * len(written) / now <= SHARE
    throttle, cost, before = Throttle(), 0.0, len(written)
    for _ in range(3):
        throttle(Path())
    assert len(written) == before + 3, "a report that costs nothing is written after every round"
