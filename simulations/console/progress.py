"""Progress of a command: a bar on a terminal; elsewhere a plain line now and then."""

from __future__ import annotations

import time

from rich.progress import BarColumn, Progress, TextColumn

from simulations.console.terminal import Terminal

SECONDS_BETWEEN_LINES = 10.0
"""Where the output is no terminal."""
BAR_WIDTHS = (10, 40)
"""Characters of the bar on a narrow terminal, and on a wide one."""


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
        self._what, self._line, self._printed = "", "", 0.0

    def __enter__(self) -> Display:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def show(self, what: str, done: int = 0, total: int = 0, more: str = "") -> None:
        """Show that ``done`` of ``total`` steps are done; a total of 0 means unknown, and ``more`` is appended.

        Where the output is no terminal, a line tells it at the beginning and at the end of ``what``, and now and then.
        """
        note, now = (f"{done} of {total}" if total else "") + more, time.monotonic()
        self._bar.update(self._row, description=what, total=total or None, completed=done, note=note)
        line, due = f"{what}: {note}".rstrip(": "), what != self._what or bool(total and done == total)
        if self._console.is_terminal or line == self._line or not (due or now - self._printed > SECONDS_BETWEEN_LINES):
            return
        self._what, self._line, self._printed = what, line, now
        self._console.say(line)
