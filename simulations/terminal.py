"""The console that all commands print to."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from clients.told import plain


class Terminal(Console):
    """Prints text that files, clients and own code hand over as text: a terminal obeys no character of it (``plain``).

    Colours and the movements of a progress bar are rich's own, and stay.
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """As rich renders it, with the text of every part made plain."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else plain(text), style, control)
