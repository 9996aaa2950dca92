from __future__ import annotations

from pathlib import Path

from simulations.report.throttle import SHARE, Throttle


def test_reports_of_a_running_run_take_a_small_share_of_its_time() -> None:
    """A run of 1,000 rounds of a second, whose report takes half a second to write."""
    now = 0.0
    written: list[float] = []

    def write(directory: Path) -> Path:
        nonlocal now
        written.append(now)
        now += 0.5
        return directory

    throttle = Throttle(write, lambda: now)
    for _ in range(1000):
        now += 1.0
        throttle(Path())
    assert written[0] == 1.0  # after the first round there is one
    assert 0.8 * SHARE < 0.5 * len(written) / now <= SHARE


def test_reports_that_cost_nothing_are_written_after_every_round() -> None:
    written: list[Path] = []

    def write(directory: Path) -> Path:
        written.append(directory)
        return directory

    throttle = Throttle(write, lambda: 7.0)
    for _ in range(3):
        throttle(Path("run"))
    assert written == [Path("run")] * 3
