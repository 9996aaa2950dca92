"""The console that all commands print to."""

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from clients.wire.texts import plain


class Terminal(Console):
    """Print foreign text safely: none of its characters controls the terminal (``plain``).

    Colours and the movements of a progress bar are rich's own, and stay.
    """

    def say(self, text: str) -> None:
        """Print a text as it is: square brackets are no markup, and the terminal wraps long lines."""
        self.print(text, markup=False, emoji=False, soft_wrap=True)

    def render_str(self, text: str, **options: Any) -> Text:
        """As rich reads it, with the text made plain: before it is wrapped, and cut to the width of a column."""
        return super().render_str(plain(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """As rich renders it, with whatever did not come as a string made plain, too."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else plain(text), style, control)
