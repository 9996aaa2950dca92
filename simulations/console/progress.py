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


class Display:
    """A bar with the steps that are done, shown within ``with``."""

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
        self._what, self._printed = "", 0.0

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
        self._what = what
        note = (f"{done} of {total}" if total else "") + more
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
