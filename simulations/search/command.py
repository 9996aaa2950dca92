"""The command ``fedveil search``: its options; its implementation is imported only when it runs."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from simulations.console.results import AsJson, Quiet
from simulations.search.measured.names import is_by_scores, is_measured


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

    Writes policies.json, which `ATS(policies="DIR/policies.json")` reads, and a page about the search. Exit codes: 0 when all went
    well, 2 for settings that cannot be run, 130 when it was stopped.

    `--objective paper` has the settings of `fedveil list search`. --json prints "directory", "page", "file" (policies.json),
    "policies", "wanted", how many candidates were "scored" and "passed", "privacy_score", "accuracy_threshold" and "scores" of each
    chosen policy. Exit code 3: fewer policies passed than were wanted.

    `--objective measured` has the settings of `fedveil list measured-search`, and writes policies.json only if it recommends a
    hybrid. --json prints "directory", "page", "file" (null without a recommendation), "recommended", "confirmed" and "verdict".
    """
    if resume is not None and objective is not None:
        other = {SearchObjective.PAPER: is_measured, SearchObjective.MEASURED: is_by_scores}[objective]
        if other(resume):
            from simulations.console.command_line import fail

            kind = "measured" if objective == SearchObjective.PAPER else "paper"
            fail(f"--resume {resume} holds a search with --objective {kind}; leave out --objective {objective.value}")
    if objective == SearchObjective.MEASURED or (objective is None and resume is not None and is_measured(resume)):
        from simulations.search.measured.working import work
    else:
        from simulations.search.working import work

    work(config, setting or [], out, resume, quiet=quiet, as_json=as_json)
