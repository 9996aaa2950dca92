"""The work of ``fedveil search``: find policies, show progress, and print the result that clients can use."""

import shlex
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import typer

from clients.wire.schema import fields_of
from defenses.images.ats import ATS, parse_policies
from defenses.images.transforms import LIBRARY
from simulations.console.command_line import errors, fail, read_toml, setting_of
from simulations.console.progress import Display
from simulations.console.results import print_json, table, terminal_for
from simulations.console.terminal import Terminal
from simulations.search.algorithm import PolicySearch
from simulations.search.scorer import DegenerateModelError
from simulations.search.settings import Search
from simulations.search.space import text_of
from simulations.settings.errors import ConfigError

console = Terminal(highlight=False)

KEYS = ("policies", "wanted", "scored", "passed", "accuracy_threshold", "scores")
"""Of a result: what ``--json`` prints."""
SHARED = ("dataset", "data-dir", "image-size", "model", "width", "norm")
"""Settings that a search and a run that attacks its result have in common."""
EXIT_TOO_FEW = 3
"""Fewer policies passed than were asked for."""


def work(
    config: Path | None,
    setting: list[str],
    out: Path | None,
    resume: Path | None,
    *,
    dry_run: bool = False,
    as_json: bool = False,
) -> None:
    """Run ``fedveil search`` with its options as they were written."""
    shown = terminal_for(console, quiet=as_json)
    try:
        search = _search(config, setting, out, resume, dry_run=dry_run)
    except ConfigError as error:
        fail(str(error))
    if isinstance(search, Search):
        shown.say(f"data and model: {search.dataset}, {search.model}")
        shown.say(f"to score:       {search.candidates} policies, each on {search.images} images; 2 are chosen")
        return
    started = time.monotonic()
    try:
        with Display(shown) as display:
            search.show = display.show
            result = search.run()
    except DegenerateModelError as error:  # to go on would train the same again
        fail(f"{error}\nstart a new search with other settings")
    except ConfigError as error:
        fail(f"{error}\nwhat was scored is kept; continue with: fedveil search --resume {search.path}")
    except KeyboardInterrupt:
        errors.say(f"\nstopped; continue with: fedveil search --resume {search.path}")
        raise typer.Exit(130) from None
    finally:
        search.close()
    shown.say(f"finished in {time.monotonic() - started:.0f} s")
    _conclude(shown, search, result, as_json=as_json)


def _search(
    config: Path | None, settings: list[str], out: Path | None, resume: Path | None, *, dry_run: bool
) -> PolicySearch | Search:
    """A new search, or one that goes on, in perhaps another number of processes; in a dry run the checked settings alone."""
    chosen = dict(setting_of(text, fields_of(Search)) for text in settings)
    if resume is None:
        path = (out or Path("runs") / datetime.now().strftime("search-%Y%m%d-%H%M%S")).resolve()
        search = Search.read((read_toml(config) if config else {}) | chosen)
        if not dry_run:
            return PolicySearch.create(path, search)
        PolicySearch.pictures(path, search)
        return search
    if dry_run:
        raise ConfigError("--dry-run is for a new search, and a begun one was checked: leave out --resume")
    if config or out or chosen.keys() - {"workers"}:
        raise ConfigError(
            "--resume takes the settings of the search itself, as its scores would change with others: leave out CONFIG, --out and "
            "every -s but workers"
        )
    return PolicySearch.resume(resume.resolve(), chosen)


def _conclude(console: Terminal, search: PolicySearch, result: Mapping[str, Any], *, as_json: bool) -> None:
    """Prints what was found, and what to do with it; ends the command where it is less than was asked for."""
    count, wanted = len(result["scores"]), result["wanted"]
    if count:
        rows = [[kept["policy"], *(f"{kept[key]:.4f}" for key in ("privacy", "accuracy"))] for kept in result["scores"]]
        console.print(table(["policy"], ["S_pri", "S_acc"], rows))
        for policy in parse_policies(result["policies"]):
            steps = (f"{LIBRARY[index].name} {LIBRARY[index].level}" for index in policy)
            console.say(f"{text_of([policy])}: {', then '.join(steps)}")
    of = f"of {result['scored']} scored candidates, of which {result['passed']} passed"
    console.say(f"{count} {'policy' if count == 1 else 'policies'} {of}: {result['policies'] or 'none'}")
    console.say(f"policies: {search.result_path}")
    if count:
        console.say(f'defence:  ATS(policies="{search.result_path}")')
        console.say(f"attack:   {_command(search.search, result)}")
    if as_json:
        about = {key: result[key] for key in KEYS}
        print_json({"directory": str(search.path), "file": str(search.result_path), **about})
    if count < wanted:
        least = f"lower accuracy-threshold (it is {result['accuracy_threshold']:.4f}), or score more candidates"
        errors.say(f"{count} of {wanted} policies passed: {least}")
        raise typer.Exit(EXIT_TOO_FEW)


def _command(search: Search, result: Mapping[str, Any]) -> str:
    known = search.to_mapping()
    settings = {key: known[key] for key in SHARED if known[key]}
    settings |= {"seed": search.seed, "probe-mode": "eval", "update-attacks": ""}  # as the paper attacks
    settings["defenses"] = repr(ATS(policies=result["policies"], channels=result["channels"]))
    return shlex.join(["fedveil", "run", *(word for key in settings for word in ("-s", f"{key}={settings[key]}"))])
