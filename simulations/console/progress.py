"""How far a command's work is: a bar on a terminal; elsewhere a plain line now and then."""

from __future__ import annotations

import time

from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn

from simulations.console.terminal import Terminal

SECONDS_BETWEEN_LINES = 10.0
"""Where the output is no terminal."""


def bar_on(console: Terminal, *more: ProgressColumn) -> Progress:
    """A bar between a description and the field ``note``, which goes when the work ends; nothing where there is no terminal."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[note]}", markup=False),
    )
    return Progress(*columns, *more, console=console, transient=True, disable=not console.is_terminal)


class Display:
    """A bar with the steps that are done and the time left, shown within ``with``."""

    def __init__(self, console: Terminal) -> None:
        self._console, self._bar = console, bar_on(console)
        self._row = self._bar.add_task("starting", total=None, note="")
        self._what, self._since, self._before, self._done, self._printed = "", 0.0, 0, 0, 0.0

    def __enter__(self) -> Display:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def show(self, what: str, done: int = 0, total: int = 0, more: str = "") -> None:
        """Shows that ``done`` of ``total`` steps of a work are done; a total of 0 is not known yet, ``more`` stands behind."""
        now = time.monotonic()
        begins = what != self._what
        if begins or done < self._done:  # another work, or the next of several searches
            self._what, self._since, self._before = what, now, done
        self._done = done
        note = f"{done} of {total}{_left(now - self._since, done - self._before, total - done)}" if total else ""
        note += more
        self._bar.update(self._row, description=what, total=total or None, completed=done, note=note)
        due = begins or (total and done == total) or now - self._printed > SECONDS_BETWEEN_LINES
        if due and not self._console.is_terminal:
            self._printed = now
            self._console.say(f"{what}: {note}".rstrip(": "))


def _left(seconds: float, steps: int, left: int) -> str:
    """The time for the steps that are left, from that of the steps since the work began; "" where nothing is known yet."""
    if steps <= 0:
        return ""
    expected = seconds / steps * left
    return f", about {expected / 60:.0f} min left" if expected > 90 else f", about {expected:.0f} s left"
