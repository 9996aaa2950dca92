"""``fedveil check-app PATH``."""

import json
from pathlib import Path
from typing import Annotated

import typer

from simulations.console.command_line import fail
from simulations.console.terminal import Terminal
from simulations.settings.errors import ConfigError

console = Terminal(highlight=False)


def check_app(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="Folder of the app, with its pyproject.toml.")],
    nodes: Annotated[
        int,
        typer.Option(
            min=1,
            max=10_000,
            metavar="N",
            help="Nodes of the federation; at most 10000, because the app's server holds a message for each in memory.",
        ),
    ] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON instead.")] = False,
) -> None:
    """Try a Flower app up to its first round, as an audit would, and print the lines to add. Nothing trains.

    A child process imports the app and runs its ServerApp up to the first message of training, without network where the system can
    take it away; the model is tried as attacks use it. No data are loaded. Of the source the check reads the imports and the call
    that starts the strategy: where the images come from, and how the app normalises them, is yours to fill in.

    Exit codes: 0 for an app that is ready or becomes so by the added lines, 2 for one that cannot be audited or checked.
    """
    from simulations.external_app.check.checking import check_app as check
    from simulations.external_app.check.report import printed

    try:
        report = check(path, nodes)
    except ConfigError as error:
        fail(str(error))
    console.say(json.dumps(report.to_json()) if as_json else printed(report))
    raise typer.Exit(report.exit_code)
