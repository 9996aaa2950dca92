"""The work of ``fedveil search``: find policies for a defence, show progress, and write a result that clients can use."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import typer

from simulations.console.command_line import errors, fail, read_toml, setting_of
from simulations.console.progress import Display
from simulations.console.results import print_json, table, terminal_for
from simulations.console.terminal import Terminal
from simulations.report.text import NOTHING
from simulations.search.algorithm import PolicySearch, SearchProgress
from simulations.search.folder import AUDIT, SearchFolder
from simulations.search.pictures import digests_of
from simulations.search.scorer import DegenerateModelError, check
from simulations.search.settings import OTHER, WITHOUT_EFFECT, Search, keys
from simulations.search.space import text_of
from simulations.search.workers import require_cluster
from simulations.settings.errors import ConfigError, require_known

console = Terminal(highlight=False)

KEYS = ("policies", "wanted", "scored", "passed", "privacy_score", "accuracy_threshold", "scores")
"""Of a result: what ``--json`` prints."""
SCORES = ("privacy", "other_privacy", "accuracy")
"""Of a chosen policy, in the order of the table."""
EXIT_TOO_FEW = 3
"""Fewer policies passed than were asked for."""


def work(
    config: Path | None,
    setting: list[str],
    out: Path | None,
    resume: Path | None,
    *,
    quiet: bool = False,
    as_json: bool = False,
) -> None:
    """Run ``fedveil search`` with its options as they were written."""
    shown = terminal_for(console, quiet=quiet or as_json)
    try:
        folder = _folder(config, setting, out, resume)
    except ConfigError as error:
        fail(str(error))
    started = time.monotonic()
    try:
        with Display(shown) as display:
            result = PolicySearch(folder, functools.partial(_show, display)).run()
    except DegenerateModelError as error:
        # To go on would train the same again.
        _give_up(folder, f"{error}\nstart a new search with other settings", " and another --out")
    except ConfigError as error:
        _give_up(folder, str(error), f"\nwhat was scored is kept; continue with: fedveil search --resume {folder.path}")
    except KeyboardInterrupt:
        errors.say(f"\nstopped; continue with: fedveil search --resume {folder.path}")
        raise typer.Exit(130) from None
    finally:
        folder.close()
    from simulations.search.page import write_search_page

    folder.keep_result(result)
    shown.say(f"finished in {time.monotonic() - started:.0f} s")
    _conclude(shown, folder, result, write_search_page(folder, result), as_json=as_json)


def _show(display: Display, step: SearchProgress) -> None:
    """Shows a step with the best policies so far."""
    best = "".join(f"; {text_of((one.policy,))} {one.scores.privacy:.3f}" for one in step.best)
    display.show(step.what, step.done, step.total, best)


def _give_up(folder: SearchFolder, error: str, where_kept: str) -> NoReturn:
    """Ends the command; a folder that holds nothing yet may be that of the next search."""
    if not folder.is_begun:
        folder.forget()
        where_kept = ""
    fail(error + where_kept)


def _conclude(console: Terminal, folder: SearchFolder, result: Mapping[str, Any], page: Path, *, as_json: bool) -> None:
    """Prints what was found, and what to do with it; ends the command where it is less than was asked for."""
    print_result(console, result)
    for line in _next_steps(folder, result):
        console.say(line)
    if lacking := _lacking(result):
        errors.say(lacking)
    console.say(f"page: {page}")
    if as_json:
        about = {key: result[key] for key in KEYS}
        print_json({"directory": str(folder.path), "page": str(page), "file": str(folder.result_path), **about})
    if lacking:
        raise typer.Exit(EXIT_TOO_FEW)


def print_result(console: Terminal, result: Mapping[str, Any]) -> None:
    """Print a line for each chosen policy with its scores, and the number of candidates."""
    own = result["privacy_score"]
    found, candidates = len(_policies(result)), result["scored"]
    if result["scores"]:
        rows = [
            [one["policy"], *(NOTHING if one[key] is None else f"{one[key]:.4f}" for key in SCORES)]
            for one in result["scores"]
        ]
        console.print(table(["policy"], [f"privacy ({own})", f"privacy ({OTHER[own]})", "accuracy"], rows))
    of = (
        f"of {candidates} scored candidates, of which {result['passed']} passed"
        if candidates
        else "drawn without scores"
    )
    console.say(f"{found} {'policy' if found == 1 else 'policies'} {of}: {result['policies'] or 'none'}")


def _policies(result: Mapping[str, Any]) -> list[str]:
    return result["policies"].split("+") if result["policies"] else []


def _next_steps(folder: SearchFolder, result: Mapping[str, Any]) -> Iterator[str]:
    """Where the result is, and what to do with it."""
    path = folder.result_path
    yield f"policies: {path}"
    if result["policies"]:
        yield f'defence:  ATS(policies="{path}")'
        yield f"attack it, beside random policies: fedveil run {path.with_name('audit.toml')} --out {path.with_name(AUDIT)}"
        yield f"and show that on the page:          fedveil search --resume {folder.path}"


def _lacking(result: Mapping[str, Any]) -> str:
    """What to change where fewer policies passed than were asked for; "" where as many did."""
    found, least = len(_policies(result)), result["accuracy_threshold"]
    if found >= result["wanted"]:
        return ""
    # Policies share no transform, so that longer ones use the library up sooner.
    advice = "lower longest, or ask for fewer" if least is None else (
        f"lower accuracy-threshold (it is {least:.4f}), raise accuracy-factor, or score more candidates"
    )  # fmt: skip
    return f"{found} of {result['wanted']} policies passed: {advice}"


def _folder(config: Path | None, settings: list[str], out: Path | None, resume: Path | None) -> SearchFolder:
    """The folder of a new search that passed its checks, or of one that goes on."""
    chosen = dict(setting_of(text, keys()) for text in settings)
    if resume is not None:
        if config or out:
            raise ConfigError("--resume takes the settings of the search itself: leave out CONFIG and --out")
        return _resumed(resume.resolve(), chosen)
    search = Search.from_mapping((read_toml(config) if config else {}) | chosen)
    pictures = _checked(search)
    path = out or Path("runs") / datetime.now().strftime("search-%Y%m%d-%H%M%S")
    folder = SearchFolder.create(path.resolve(), search)
    folder.take_up(search, pictures)
    return folder


def _resumed(path: Path, chosen: dict[str, Any]) -> SearchFolder:
    """The folder of a search that goes on, with settings that change no score."""
    for key in chosen:
        require_known("setting", key, keys(), listed="search")
        if key not in WITHOUT_EFFECT:
            raise ConfigError(
                f"-s {key}: --resume takes it from the search itself, whose scores would change with it; only "
                f"{' and '.join(WITHOUT_EFFECT)} may be others"
            )
    folder = SearchFolder.resume(path)
    try:
        search = Search.from_mapping(folder.search.to_mapping() | chosen)
        # What it reads may be gone since, or be something else.
        folder.take_up(search, _checked(search, finished=folder.result_path.is_file()))
    except ConfigError as error:
        folder.close()
        raise ConfigError(f"--resume {path}: {error}") from error
    return folder


def _checked(search: Search, *, finished: bool = False) -> dict[str, str]:
    """Refuses what could not be scored before anything is trained; returns the digests of the pictures.

    A finished search has a result, for whose page no cluster is needed.
    """
    check(search)
    if not finished:
        require_cluster(search)
    return digests_of(search)
