"""``fedveil compare A B ...``."""

from pathlib import Path
from typing import Annotated

import typer

from simulations.console.command_line import errors, fail
from simulations.console.results import AsJson, print_json, terminal_for
from simulations.console.terminal import Terminal
from simulations.settings.errors import ConfigError

console = Terminal(highlight=False)
PAGE = "comparison.html"
"""The page's name, without --out in the folder of the first run."""


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Folders of runs.")],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The page, a file that ends in .html.", show_default="comparison.html in the first DIR"
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Put several runs side by side on one page; those that differ in their seed alone are put together.

    The table has one line for each group of runs and defence. Without --out the page is comparison.html in the folder of the first
    run, beside its report.html; the last line of the output names the file. An earlier comparison is replaced, no other file.

    --json prints "page" and "groups"; each group has its "name",
    "folders", "seeds", "unfinished" folders and "outcomes", which have the keys of `fedveil run --json`.

    Exit codes: 0 when the page was written, 2 when a folder holds no run, two runs are the same, or the page cannot be written or
    would replace another file.
    """
    from simulations.compare.compared import Compared
    from simulations.compare.groups import grouped, print_groups
    from simulations.compare.page import require_page, write_comparison

    page = out or runs[0] / PAGE
    try:
        groups = grouped(runs)
        require_page(page)
        for damage in (text for group in groups for text in group.damaged):
            errors.say(f"warning: {damage}")
        write_comparison(groups, page)
    except ConfigError as error:
        fail(str(error))
    except OSError as error:
        fail(f"--out: cannot write {page}: {error.strerror}")
    if as_json:
        print_json(Compared(groups, page).to_json())
    else:
        print_groups(console, groups)
    terminal_for(console, quiet=as_json).say(f"page: {page.resolve()}")
