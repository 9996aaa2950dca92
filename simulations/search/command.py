"""The command ``fedveil search``: finds policies for a defence, shows how far it is, and writes a result that clients can use."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from simulations.command_line import fail, read_toml, value_of
from simulations.errors import ConfigError
from simulations.search.algorithm import PolicySearch, Step, seconds_left
from simulations.search.folder import AUDIT, SearchFolder
from simulations.search.scorer import DegenerateModelError, check
from simulations.search.settings import Search, keys
from simulations.search.space import text_of

console = Console(highlight=False)

EXIT_TOO_FEW = 3
"""Fewer policies passed than were asked for."""


def search(
    config: Annotated[Path | None, typer.Argument(help="TOML file of settings; without it, the defaults.")] = None,
    setting: Annotated[
        list[str] | None, typer.Option("--set", "-s", metavar="KEY=VALUE", help="One setting, over the file.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="New folder for the results.", show_default="runs/search-DATE-TIME")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Go on with the killed search in DIR, with the settings it had.")
    ] = None,
) -> None:
    """Searches policies for ATS that hide much and cost little accuracy, before any client trains.

    Writes policies.json, which `ATS(policies="DIR/policies.json")` reads, and a page about the search. Every setting is in `fedveil
    list search`.

    Exit codes: 0 when all went well, 2 for settings that cannot be run, 3 when fewer policies passed than were asked for, 130 when
    it was stopped.
    """
    try:
        folder = _folder(config, setting or [], out, resume)
    except ConfigError as error:
        fail(str(error))
    started = time.monotonic()
    try:
        with _Display(console) as display:
            result = PolicySearch(folder, display.show).run()
    except DegenerateModelError as error:
        fail(
            f"{error}\nstart a new search with other settings and another --out"
        )  # to go on would train the same again
    except ConfigError as error:
        fail(f"{error}\nwhat was scored is kept; continue with: fedveil search --resume {folder.path}")
    except KeyboardInterrupt:
        console.print(f"\nstopped; continue with: fedveil search --resume {folder.path}", soft_wrap=True, markup=False)
        raise typer.Exit(130) from None
    finally:
        folder.close()
    path = folder.keep_result(result)
    from simulations.search.page import write_page

    page = write_page(folder, result)
    console.print(
        f"finished in {time.monotonic() - started:.0f} s: {result['policies'] or 'no policy passed'}", markup=False
    )
    for one in result["scores"]:
        console.print(
            f"  {one['policy']}: privacy score {one['privacy']:.4f}, accuracy score {one['accuracy']:.4f}", markup=False
        )
    console.print(f"page:     {page}\npolicies: {path}", soft_wrap=True, markup=False)
    if result["policies"]:
        console.print(f'defence:  ATS(policies="{path}")', soft_wrap=True, markup=False)
        console.print(
            f"attack it, beside random policies: fedveil run {path.with_name('audit.toml')} --out {path.with_name(AUDIT)}\n"
            f"and show that on the page:          fedveil search --resume {folder.path}",
            soft_wrap=True,
            markup=False,
        )
    found = len(result["policies"].split("+")) if result["policies"] else 0
    if found < result["wanted"]:
        least = result["accuracy_threshold"]
        # Policies share no transform, so that longer ones use the library up sooner.
        advice = "lower longest, or ask for fewer" if least is None else (
            f"lower accuracy-threshold (it is {least:.4f}), raise accuracy-factor, or score more candidates"
        )  # fmt: skip
        console.print(f"{found} of {result['wanted']} policies passed: {advice}", soft_wrap=True, markup=False)
        raise typer.Exit(EXIT_TOO_FEW)


def _folder(config: Path | None, settings: list[str], out: Path | None, resume: Path | None) -> SearchFolder:
    """The folder of a new search that passed its checks, or of one that goes on.

    Raises:
        ConfigError: Naming what is wrong.
    """
    if resume is not None:
        if config or settings or out:
            raise ConfigError("--resume takes the settings of the search itself: leave out CONFIG, -s and --out")
        folder = SearchFolder.resume(resume.resolve())
        try:
            check(folder.search)  # what it reads may be gone since
        except ConfigError as error:
            folder.close()
            raise ConfigError(f"--resume {folder.path}: {error}") from error
        return folder
    values: dict[str, Any] = read_toml(config) if config else {}
    known = keys()
    for text in settings:
        key, equals, word = text.partition("=")
        if not equals:
            raise ConfigError(f"-s {text!r}: expected key=value")
        values[key.strip()] = value_of(word, type(known[key.strip()].default) if key.strip() in known else str)
    search = Search.from_mapping(values)
    check(search)
    return SearchFolder.create(
        (out or Path("runs") / datetime.now().strftime("search-%Y%m%d-%H%M%S")).resolve(), search
    )


class _Display:
    """A bar with the best policies so far and the time left; plain lines where the output is no terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[note]}"))
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._row = self._bar.add_task("starting", total=None, note="")
        self._what, self._since, self._before, self._done, self._told = "", 0.0, 0, 0, 0.0

    def __enter__(self) -> _Display:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def show(self, step: Step) -> None:
        """Shows a step."""
        now = time.monotonic()
        if step.what != self._what or step.done < self._done:  # another step, or the next round of candidates
            self._what, self._since, self._before = step.what, now, step.done
        self._done = step.done
        left = seconds_left(now - self._since, step.done, self._before, step.total)
        note = f"{step.done} of {step.total}" if step.total else ""
        note += (
            "" if left is None else f", about {left / 60:.0f} min left" if left > 90 else f", about {left:.0f} s left"
        )
        note += "".join(f"; {text_of((one.policy,))} {one.scores.privacy:.3f}" for one in step.best)
        self._bar.update(self._row, description=step.what, total=step.total or None, completed=step.done, note=note)
        if not self._console.is_terminal and (step.done in (self._before, step.total) or now - self._told > 10):
            self._told = now
            self._console.print(f"{step.what}: {note}".rstrip(": "), markup=False, soft_wrap=True)
