"""``fedveil compare A B ...``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simulations.console.command_line import fail
from simulations.console.terminal import Terminal
from simulations.settings.errors import ConfigError

console = Terminal(highlight=False)


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Folders of runs.")],
    out: Annotated[Path, typer.Option(help="The page.")] = Path("comparison.html"),
) -> None:
    """Put several runs side by side on one page; those that differ in their seed alone are put together."""
    from simulations.compare.groups import grouped
    from simulations.compare.page import write_comparison

    try:
        groups = grouped(runs)
        write_comparison(groups, out)
    except ConfigError as error:
        fail(str(error))
    except OSError as error:
        fail(f"--out: cannot write {out}: {error.strerror}")
    for group in groups:
        console.say(f"{group.name}: seeds {', '.join(map(str, group.seeds))}")
    console.say(f"page: {out.resolve()}")
