"""The command ``fedveil search``: its options; its implementation is imported only when it runs."""

from pathlib import Path
from typing import Annotated

import typer

from simulations.console.results import AsJson


def search(
    config: Annotated[Path | None, typer.Argument(help="TOML file of settings; without it, the defaults.")] = None,
    setting: Annotated[
        list[str] | None, typer.Option("--set", "-s", metavar="KEY=VALUE", help="One setting, over the file.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="New folder for the results.", show_default="runs/search-DATE-TIME"),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Go on with the killed search in DIR, with the settings it had; -s may change workers.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything, say what would be scored, and start and write nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Search policies for ATS that hide much and cost little accuracy, before any client trains.

    Writes policies.json, which `ATS(policies="DIR/policies.json")` reads. It prints the `fedveil run` that attacks the result.
    `fedveil list search` lists the settings.

    Exit codes: 0 when all went well, 2 for settings that cannot be run, 3 when fewer policies passed than were wanted, 130 when the
    search was stopped.

    --json prints "directory", "file" (policies.json), "policies", "wanted", how many candidates were "scored" and "passed",
    "accuracy_threshold" and "scores" of each chosen policy.
    """
    from simulations.search.working import work

    work(config, setting or [], out, resume, dry_run=dry_run, as_json=as_json)
