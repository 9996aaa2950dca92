"""The command ``fedveil``: run an experiment, attack a recorded update, search policies, list what there is."""

import sys
from importlib.metadata import version
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

import typer

from simulations.card.command import card
from simulations.compare.command import compare
from simulations.console.command_line import errors, fail, paragraphs, parse_seeds, read_toml, setting_of, sizes_of
from simulations.console.results import AsJson, Quiet, terminal_for
from simulations.console.terminal import Terminal
from simulations.external_app.check.command import check_app
from simulations.external_app.command import attack
from simulations.gate.command import gate
from simulations.run_folder.folder_lock import require_rows
from simulations.runtime.user_cache import keep_bytecode
from simulations.search.command import search
from simulations.settings.defaults import DEFAULT_CLIENTS
from simulations.settings.errors import ConfigError
from simulations.settings.presets import chosen

app = typer.Typer(
    help="What a curious federated-learning server can see: train, attack, report.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
console = Terminal(highlight=False)


def _folder(text: str) -> Path:
    """An option's folder. Of nothing, as of a shell's variable that is not set, a path makes the folder one stands in."""
    if not text:
        raise typer.BadParameter("it is empty; expected a folder")
    return Path(text)


def _show_version(wanted: bool) -> None:
    if wanted:
        console.print(f"fedveil {version('fedveil')}")
        raise typer.Exit


@app.callback()
def fedveil(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """What a curious federated-learning server can see: train, attack, report."""


@app.command(epilog="Example: fedveil run --preset quick --out quick")
def run(
    config: Annotated[Path | None, typer.Argument(help="Settings: a TOML file, or config.json of a run.")] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            "-s",
            metavar="KEY=VALUE",
            help="One setting, over the file and those before; `fedveil list settings` shows all.",
        ),
    ] = None,
    preset: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="A configuration that comes with fedveil, such as quick; `fedveil list presets` describes all.",
        ),
    ] = "",
    size: Annotated[
        str,
        typer.Option(metavar="NAME", help="The experiment of CONFIG or --preset at another size, such as paper."),
    ] = "",
    out: Annotated[
        Path | None,
        typer.Option(parser=_folder, metavar="DIR", help="New folder for the results.", show_default="runs/DATE-TIME"),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(parser=_folder, metavar="DIR", help="Continue the killed run in DIR, with the settings it had."),
    ] = None,
    seeds: Annotated[
        str,
        typer.Option(
            metavar="0..4",
            help="One run for each of these seeds, in folders of --out, and a page of all; the same command again goes on.",
            show_default=False,
        ),
    ] = "",
    jobs: Annotated[
        int,
        typer.Option(
            min=0, metavar="N", help="Runs of --seeds at the same time; 0: as many as cores and free memory hold."
        ),
    ] = 0,
    clients: Annotated[
        int | None, typer.Option(min=1, help="Simulated clients.", show_default=str(DEFAULT_CLIENTS))
    ] = None,
    cpus_per_client: Annotated[int, typer.Option(min=1, help="CPUs of each client worker.")] = 1,
    gpus_per_client: Annotated[
        float | None,
        typer.Option(
            min=0.0, help="Share of a GPU of each client worker; 0: none is reserved.", show_default="equal shares"
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything, name the attacks, and start and write nothing.")
    ] = False,
    in_process: Annotated[
        bool,
        typer.Option(
            "--in-process",
            help="Without Flower's runtime and Ray: one client after the other in this process. Same rows; --resume does likewise.",
        ),
    ] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Run an experiment in a private local Flower runtime, and show its progress, what it found and where the report is.

    CONFIG is a TOML file of settings, or the config.json in the folder of a run, whose settings are run again; without it, the
    default audit runs.

    --json prints "directory", "seed" and "outcomes" of each run, one outcome for each defence: "study", "defense", "messages",
    "accuracy", "epsilon" and "warnings". Each message has its "message", "real" (whether clients send it unasked), "images",
    "steps", "verdict", "found" of "attacked" images, "share" with "low" and "high", the strongest "attack" and the "difference" to
    no defence. Accuracy has "mean", "low", "high", "n" and "change"; epsilon has "spent", "level", "terms", "by_accountant" and
    "shown" (a lower bound).

    Exit codes: 0 when all went well, 1 when the run failed, 2 for settings that cannot be run, 3 when the run ended but attacks
    gave no score (they are listed), 130 when it was stopped.
    """
    from simulations.settings.common import others_declare, read
    from simulations.settings.scenarios import SETTINGS

    try:  # what needs no torch comes first: importing that takes seconds
        values = dict(_pair(text) for text in setting or [])
        if jobs and not seeds:
            raise ConfigError(f"--jobs is {jobs}; it is for the runs of --seeds: leave it out")
        wanted = _seeds(seeds, resume, out, values)
        if out is not None and str(out.resolve()) != str(values.get("output-dir", out.resolve())):
            raise ConfigError(f"--out is {out}, and -s output-dir is {values['output-dir']}; give one of them")
        file = chosen(config, preset, size)
        for size_name in dict.fromkeys((size, *sizes_of(file))):  # a size that is not asked for may be wrong, too
            given = (read_toml(file, size_name) if file else {}) | values
            if resume is None and not others_declare():  # else it takes the run's own settings, or the package's
                read(given, SETTINGS)
    except ConfigError as error:
        fail(str(error))
    from simulations.run.command import RunRequest, begin

    shown = terminal_for(console, quiet=quiet or as_json)
    asked = RunRequest(
        file, values, out, resume, clients, wanted, cpus_per_client, gpus_per_client, in_process, jobs, size, as_json,
    )  # fmt: skip
    raise typer.Exit(begin(shown, asked, dry_run=dry_run))


app.command(
    epilog="Example: fedveil attack recording/ -s model=cnn -s num-classes=10 -s input-shape=3,32,32 --out leak"
)(attack)
app.command(epilog="Example: fedveil search -s dataset=photos --out search")(search)
app.command(epilog="Example: fedveil check-app my_app/ --nodes 10")(check_app)
app.command(epilog="Example: fedveil card quick --defense DPSGD")(card)
app.command(epilog="Example: fedveil compare runs/* --out comparison.html")(compare)
app.command(
    epilog="Example: fedveil gate runs/0 --defense 'DPSGD(target_epsilon=8.0)' --max-recognisable 0 --max-epsilon 8"
)(gate)


@app.command(epilog="Example: fedveil report quick")
def report(directory: Annotated[Path, typer.Argument(help="Folder of a run.")]) -> None:
    """Rebuild report.html and rows.csv from a run's rows and pictures.

    Exit codes: 0 when the report was written, 2 when the folder holds no run, or a report and no row that can be read.
    """
    try:
        require_rows(directory, "DIRECTORY")
    except ConfigError as error:
        fail(str(error))
    from simulations.report import write_report
    from simulations.report.studies.rows import read_row_file

    try:
        row_file = read_row_file(directory / "rows.jsonl")
        if not row_file.rows and (directory / "report.html").exists():
            why = row_file.damaged(directory) if row_file.damage else f"{directory}: rows.jsonl holds no row"
            fail(f"{why}. The present report.html is kept; restore rows.jsonl from a copy")
        if row_file.damage:
            errors.say(f"warning: {row_file.damaged(directory)}")
        console.say(f"report: {write_report(directory.resolve())}")
    except OSError as error:
        fail(f"DIRECTORY: the report of {directory} cannot be made: {error}")


@app.command("list", epilog="Example: fedveil list defenses")
def list_(
    what: Annotated[
        str,
        typer.Argument(
            help="scenarios, defenses, attacks, datasets, models, settings, presets, search or attack; without it, all."
        ),
    ] = "",
) -> None:
    """List scenarios, defences, attacks, data sets, models, settings and presets, with parameters, defaults and sources.

    Presets are the configurations that come with fedveil: `fedveil run --preset NAME`. Without one, the default audit
    runs. The settings of `fedveil search` and `attack` are under "search" and "attack".
    """
    try:
        from simulations.catalogue import SECTIONS, print_section

        if what and what not in SECTIONS:
            fail(f"nothing is called {what!r} here; known: {', '.join(SECTIONS)}")
        for section in [what] if what else SECTIONS:
            print_section(console, section)
    except ValueError as error:  # of a registry, whose own class brings torch with it
        fail(str(error))


for _one in app.registered_commands:
    # Typer keeps the line ends of docstrings, which are those of the source, and wraps at the terminal's width besides.
    _one.help = paragraphs(_one.callback.__doc__ or "" if _one.callback else "")


def main() -> None:
    """Run the command ``fedveil``."""
    keep_bytecode()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a path may hold characters that the terminal's encoding lacks
            stream.reconfigure(errors="backslashreplace")
    app()


def _seeds(text: str, resume: Path | None, out: Path | None, values: dict[str, Any]) -> list[int]:
    """What --seeds asks for; none where it is not given."""
    if not text:
        return []
    if resume is not None:
        raise ConfigError("--seeds goes on by itself: give the same command again, without --resume")
    wanted = parse_seeds(text)
    if "seed" in values:
        raise ConfigError("--seeds and -s seed=... say the same; give one of them")
    if out is None and "output-dir" not in values:
        raise ConfigError("--seeds needs --out, the folder that gets one folder for each seed")
    return wanted


def _pair(text: str) -> tuple[str, Any]:
    """A setting of a run; where another package offers scenarios, what they have is read, which imports torch."""
    from clients.wire.schema import fields_of
    from simulations.settings.common import others_declare
    from simulations.settings.scenarios import SETTINGS

    known = fields_of(*SETTINGS.values())
    if text.partition("=")[0].strip() not in known and others_declare():
        from simulations.experiment.experiment import all_settings

        known = all_settings()
    return setting_of(text, known)


if __name__ == "__main__":
    main()
