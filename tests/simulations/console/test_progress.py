import io

import pytest

from simulations.console import progress
from simulations.console.progress import Display
from simulations.console.terminal import Terminal


def test_a_pipe_gets_a_line_now_and_then_with_the_time_left_of_this_search_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [1000.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    console = Terminal(file=(out := io.StringIO()), width=200)
    with Display(console) as display:
        display.show("training")
        for done in range(5):
            display.show("scoring", done, 100, "; [3-1-7] 0.5" if done == 4 else "")
            now[0] += 3
        display.show("another", 10, 20)
        display.show("another", 20, 20)
        for done in (90, 95, 5):
            display.show("matching", done, 100)
            now[0] += 20
        display.show("matching", 10, 100)
    assert out.getvalue().splitlines() == [
        "training", "scoring: 0 of 100", "scoring: 4 of 100, about 5 min left; [3-1-7] 0.5", "another: 10 of 20",
        "another: 20 of 20, about 0 s left", "matching: 90 of 100", "matching: 95 of 100, about 20 s left",
        "matching: 5 of 100", "matching: 10 of 100, about 6 min left",
    ]  # fmt: skip


def test_a_terminal_has_a_bar_and_no_lines() -> None:
    console = Terminal(file=(out := io.StringIO()), width=200, force_terminal=True)
    with Display(console) as display:
        display.show("[scoring]", 3, 10)
    assert "[scoring]" in out.getvalue(), "brackets of a name are no markup"
    assert "3 of 10" in out.getvalue()
