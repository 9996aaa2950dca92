from pathlib import Path

from simulations.report.throttle import SHARE, Throttle


def test_reports_of_a_running_run_take_a_small_share_of_its_time() -> None:
    for cost in (0.5, 0.0):
        now, written = [0.0], list[float]()

        def write(directory: Path, now: list[float] = now, written: list[float] = written, cost: float = cost) -> Path:
            written.append(now[0])
            now[0] += cost
            return directory

        throttle = Throttle(write, lambda now=now: now[0])
        for _ in range(1000):
            now[0] += 1.0
            throttle(Path())
        assert written[0] == 1.0  # after the first round there is one
        if cost:
            assert 0.8 * SHARE < cost * len(written) / now[0] <= SHARE
        else:
            assert len(written) == 1000
