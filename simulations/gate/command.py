"""``fedveil gate DIR ...``."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from simulations.console.command_line import fail, read_toml
from simulations.console.results import AsJson, print_json, terminal_for
from simulations.console.terminal import Terminal
from simulations.gate.limits import TABLE, GateLimits
from simulations.settings.errors import ConfigError

console = Terminal(highlight=False)


def gate(
    runs: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Folders of runs that differ in their seed alone.")
    ],
    defense: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="The defence, as the table names it; needed where a run has several."),
    ] = None,
    message: Annotated[
        str,
        typer.Option(
            metavar="TITLE",
            help="Only messages of this title, or real: those that clients send unasked.",
            show_default="all",
        ),
    ] = "",
    max_recognisable: Annotated[
        float | None, typer.Option(metavar="SHARE", help="Largest share of attacked images that become recognisable.")
    ] = None,
    max_identifiable: Annotated[
        float | None, typer.Option(metavar="SHARE", help="Largest share of attacked images that are identified.")
    ] = None,
    max_tpr: Annotated[
        float | None, typer.Option(metavar="SHARE", help="Largest rate of found members at 1 % false positives.")
    ] = None,
    max_epsilon: Annotated[
        float | None, typer.Option(metavar="NUMBER", help="Largest epsilon that training may spend.")
    ] = None,
    level: Annotated[
        str | None, typer.Option(metavar="LEVEL", help="What that epsilon must protect: example or client.")
    ] = None,
    min_accuracy: Annotated[float | None, typer.Option(metavar="SHARE", help="Least test accuracy.")] = None,
    limits: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="TOML file with these limits in its table gate; options come before it."),
    ] = None,
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the checks as JUnit XML.")] = None,
    as_json: AsJson = False,
) -> None:
    """Hold a run, or several with other seeds, against limits; for the checks before a release.

    Intervals decide: a limit holds where the whole 95 % interval is within it, and is broken where the whole interval lies beyond
    it and chance. Else more images are needed, and the line says how many. What was not measured, or not validated, never passes.
    A limit of 0 holds where nothing was found among so many images that 5 % are excluded.

    --json prints "gate", "exit" and "checks"; each check has its "limit", what it is "of", its "outcome", the words "said", the
    measured "value" with "low" and "high", what is "allowed", and how many "more" records would decide.

    Exit codes: 0 when all limits hold, 1 when one does not, 2 for a wrong call, 5 when it is undecided.
    """
    given = {
        "max-recognisable": max_recognisable, "max-identifiable": max_identifiable, "max-tpr": max_tpr,
        "max-epsilon": max_epsilon, "level": level, "min-accuracy": min_accuracy,
    }  # fmt: skip
    chosen = {key: value for key, value in given.items() if value is not None}
    try:
        if junit is not None:
            if not junit.parent.is_dir():
                raise ConfigError(f"--junit is {junit}; expected a file in a folder that is there")
            junit.unlink(missing_ok=True)  # an earlier gate's must not stand for one that ends in an error
        wanted = GateLimits.read(_table(limits), chosen)
        from simulations.compare.groups import grouped
        from simulations.gate.check import EXIT, worst
        from simulations.gate.checks import checks_of, require_messages
        from simulations.gate.junit import to_junit
        from simulations.report import write_page

        groups = grouped(runs)
        if len(groups) > 1:
            names = ", ".join(group.name for group in groups)
            raise ConfigError(f"the runs differ in more than their seed: {names}; gate each by itself")
        require_messages(groups[0], wanted, message)
        checks = checks_of(groups[0], wanted, defense, message)
        if junit is not None:
            write_page(junit, to_junit(checks))
    except ConfigError as error:
        fail(str(error))
    except OSError as error:
        fail(f"{error.filename or junit}: {error.strerror}")
    outcome = worst(checks)
    shown = terminal_for(console, quiet=as_json)
    for check in checks:
        shown.say(f"{check.outcome.value:<10}{check.text}")
    shown.say(f"gate: {outcome.value}")
    if as_json:
        print_json({"gate": outcome.value, "exit": EXIT[outcome], "checks": list(map(asdict, checks))})
    raise typer.Exit(EXIT[outcome])


def _table(path: Path | None) -> dict[str, Any]:
    """The table of limits in a file; empty without a file."""
    if path is None:
        return {}
    table = read_toml(path).get(TABLE)
    if not isinstance(table, dict):
        raise ConfigError(f"--limits: {path} has no table [{TABLE}]")
    return table
