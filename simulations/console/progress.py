"""Progress of a command: a bar on a terminal; elsewhere a plain line now and then."""

from __future__ import annotations

import time

from rich.progress import BarColumn, Progress, TextColumn

from simulations.console.terminal import Terminal

SECONDS_BETWEEN_LINES = 10.0
"""Where the output is no terminal."""
BAR_WIDTHS = (10, 40)
"""Characters of the bar on a narrow terminal, and on a wide one."""


WIDE = 120
"""Characters of a line with room for a bar between two long texts."""


class Pace:
    """The speed of a work from now on; ``done`` of its steps are done already."""

    def __init__(self, done: int = 0) -> None:
        self._since = self._last = time.monotonic()
        self._before = self._done = done

    def left(self, done: int, total: int) -> float | None:
        """Seconds for the steps that are left; None until a step is done."""
        now = time.monotonic()
        if done != self._done:
            self._last, self._done = now, done
        steps, left = done - self._before, total - done
        if steps <= 0:
            return None
        # The step at work takes as long as the others did, or longer where it already did.
        each = max((self._last - self._since) / steps, (now - self._since) / (steps + 1))
        return max(each * left - (now - self._last), 0.0)


def left_text(seconds: float | None, of: str = "") -> str:
    """The time left for a work in words, after a comma; "" where it is unknown."""
    if seconds is None:
        return ""
    time_left = f"{seconds / 60:.0f} min" if seconds > 90 else f"{seconds:.0f} s"
    return f", about {time_left}{of and f' of {of}'} left"


class Display:
    """A bar with the steps that are done and the time left, shown within ``with``."""

    def __init__(self, console: Terminal) -> None:
        least, most = BAR_WIDTHS
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=max(least, min(most, console.width - 80))),
            TextColumn("{task.fields[note]}", markup=False),
        )
        self._console = console
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._row = self._bar.add_task("starting", total=None, note="")
        self._what, self._done, self._pace, self._printed = "", 0, Pace(), 0.0

    @property
    def is_wide(self) -> bool:
        """Whether a line has room for long texts on both sides of the bar."""
        return self._console.width >= WIDE

    def __enter__(self) -> Display:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def show(self, what: str, done: int = 0, total: int = 0, more: str = "") -> None:
        """Show that ``done`` of ``total`` steps are done; a total of 0 means unknown, and ``more`` is appended."""
        begins = what != self._what
        if begins or done < self._done:  # another work, or the next of several searches
            self._what, self._pace = what, Pace(done)
        self._done = done
        note = (f"{done} of {total}{left_text(self._pace.left(done, total))}" if total else "") + more
        self.draw(what, done, total, note)
        self.say(f"{what}: {note}".rstrip(": "), due=begins or bool(total and done == total))

    def draw(self, what: str, done: int, total: int, note: str) -> None:
        """Draw the bar of a terminal between two texts; a total of 0 is not known yet."""
        self._bar.update(self._row, description=what, total=total or None, completed=done, note=note)

    def say(self, line: str, *, due: bool) -> bool:
        """Print a line where the output is no terminal, if it is due or the last one is some seconds old; returns whether."""
        now = time.monotonic()
        wanted = not self._console.is_terminal and (due or now - self._printed > SECONDS_BETWEEN_LINES)
        if wanted:
            self._printed = now
            self._console.say(line)
        return wanted
