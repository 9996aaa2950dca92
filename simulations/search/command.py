"""The command ``fedveil search``: its options; its implementation is imported only when it runs."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from simulations.console.results import AsJson, Quiet
from simulations.search.measured.names import is_measured


class SearchObjective(StrEnum):
    """What chooses policies."""

    PAPER = "paper"
    MEASURED = "measured"


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
            help="Go on with the killed search in DIR, with the settings it had; -s may change workers and ray-address.",
        ),
    ] = None,
    objective: Annotated[
        SearchObjective | None,
        typer.Option(
            help="paper: the paper's scores choose policies. measured: short trainings and short attacks choose hybrids. "
            "--resume takes it from the search itself.",
            show_default="paper",
        ),
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Search policies for ATS that hide much and cost little accuracy, before any client trains.

    Writes policies.json, which `ATS(policies="DIR/policies.json")` reads, and a page about the search. Every setting is in `fedveil
    list search`, and with `--objective measured` in `fedveil list measured-search`.

    --json prints "directory", "page", "file" (policies.json), "policies", "wanted", how many candidates were "scored"
    and "passed", "privacy_score", "accuracy_threshold" and "scores" of each chosen policy.

    Exit codes: 0 when all went well, 2 for settings that cannot be run, 3 when fewer policies passed than were asked for, 130 when
    it was stopped.

    With `--objective measured` --json prints "directory", "page", "file" (None without a recommendation), "recommended",
    "confirmed" and "verdict"; exit code 3 is not used.
    """
    if objective == SearchObjective.MEASURED or (objective is None and resume is not None and is_measured(resume)):
        from simulations.search.measured.working import work
    else:
        from simulations.search.working import work

    work(config, setting or [], out, resume, quiet=quiet, as_json=as_json)
