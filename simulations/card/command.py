"""``fedveil card FOLDER``."""

from pathlib import Path
from typing import Annotated

import typer

from simulations.console.command_line import errors, fail
from simulations.console.terminal import Terminal
from simulations.settings.errors import ConfigError

console = Terminal(highlight=False)
MARK = "Made by fedveil card"
"""By which a file is known for a card: it stands in the metadata, and is the title of a PDF."""


def card(
    directory: Annotated[Path, typer.Argument(help="Folder of a run.")],
    defense: Annotated[
        str, typer.Option(metavar="TEXT", help="The released defence, in whole or by its name.", show_default="all")
    ] = "",
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The card, .md or .pdf (by Chromium).", show_default="card.md in DIRECTORY"),
    ] = None,
) -> None:
    """Write one page for the decision on a release: what was trained, seen, tried and found, and what was not tested.

    It begins with metadata that Hugging Face reads, and can be a section of a model card. It holds no picture, no path, and no
    name of data but that of a public data set of fedveil. An earlier card is replaced, no other file.

    Exit codes: 0 when the card was written, 2 when the folder holds no run, the defence is not in it, or the card cannot be
    written or would replace another file.
    """
    from simulations.run_folder.folder_lock import require_ours, require_rows

    file = out or directory / "card.md"
    try:
        require_rows(directory, "DIRECTORY")
        if file.suffix.lower() not in (".md", ".pdf"):
            raise ConfigError(f"--out is {file}; expected the name of a file that ends in .md or .pdf")
        require_ours(file, "--out", MARK, "card")
        from simulations.card.pdf import require_browser, to_html, to_pdf

        browser = require_browser() if file.suffix.lower() == ".pdf" else ""
        from simulations.card.page import card_of
        from simulations.report import write_page

        text, damage = card_of(directory, defense)
        if damage:
            errors.say(f"warning: {damage}")
        write_page(file, to_pdf(to_html(text), browser) if browser else text)
    except ConfigError as error:
        fail(str(error))
    except OSError as error:
        fail(f"--out: cannot write {file}: {error.strerror}")
    console.say(f"card: {file.resolve()}")
