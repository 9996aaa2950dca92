"""The work of ``fedveil search --objective measured``: progress, the result, and the page."""

from __future__ import annotations

import json
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import typer

from defenses.images.ats import ATS
from simulations.console.command_line import errors, fail, read_toml, setting_of
from simulations.console.progress import Display
from simulations.console.results import print_json, table, terminal_for
from simulations.console.terminal import Terminal
from simulations.run_folder.run_directory import write_atomically
from simulations.runtime.launch import end_politely
from simulations.search.measured.page import write_measured_page
from simulations.search.measured.search import Found, MeasuredFolder, WeakAttackError, run_search
from simulations.search.measured.sentences import about_candidates, notice, percent, verdict
from simulations.search.measured.settings import CHANGEABLE, Measured, keys
from simulations.settings.errors import ConfigError, require_known

console = Terminal(highlight=False)

RESULT = "policies.json"


def work(
    config: Path | None,
    setting: list[str],
    out: Path | None,
    resume: Path | None,
    *,
    quiet: bool = False,
    as_json: bool = False,
) -> None:
    """Run the command with its options as they were written."""
    shown = terminal_for(console, quiet=quiet or as_json)
    try:
        folder = _folder(config, setting, out, resume)
    except ConfigError as error:
        fail(str(error))
    for line in filter(None, (folder.notice, notice(folder.search))):
        errors.say(line)
    started = time.monotonic()
    end_politely()
    try:
        with Display(shown) as display:
            found = run_search(folder, lambda what, done, of: display.show(what, done, of, ""))
    except WeakAttackError as error:
        fail(f"{error}, and start a new search in another folder")
    except ConfigError as error:
        fail(f"{error}\nwhat was judged is kept; continue with: fedveil search --resume {folder.path}")
    except KeyboardInterrupt:
        errors.say(f"\nstopped; continue with: fedveil search --resume {folder.path}")
        raise typer.Exit(130) from None
    finally:
        folder.close()
    shown.say(f"finished in {time.monotonic() - started:.0f} s")
    page = write_measured_page(folder.path, found)
    _conclude(shown, folder, found, page, as_json=as_json)


def _folder(config: Path | None, settings: list[str], out: Path | None, resume: Path | None) -> MeasuredFolder:
    chosen = dict(setting_of(text, keys()) for text in settings)
    if resume is not None:
        if config or out:
            raise ConfigError("--resume takes the settings of the search itself: leave out CONFIG and --out")
        for key in chosen:
            require_known("setting", key, keys(), listed="measured-search")
            if key not in CHANGEABLE:
                raise ConfigError(
                    f"-s {key}: --resume takes it from the search itself, whose results would change with it; only "
                    f"{' and '.join(CHANGEABLE)} may be others"
                )
        return MeasuredFolder.resume(resume.resolve(), chosen)
    search = Measured.from_mapping((read_toml(config) if config else {}) | chosen)
    search.check()
    path = out or Path("runs") / datetime.now().strftime("search-%Y%m%d-%H%M%S")
    return MeasuredFolder.create(path.resolve(), search)


def _conclude(shown: Terminal, folder: MeasuredFolder, found: Found, page: Path, *, as_json: bool) -> None:
    rows = [
        [one.hybrid or "none", one.origin, percent(one.accuracy.mean), f"{one.recovered} of {one.attacked}"]
        for one in found.held_out
    ]
    shown.say(about_candidates(found))
    shown.print(table(["policies", "origin"], ["accuracy", "recovered"], rows, "On held-out images"))
    for line in verdict(found):
        shown.say(line)
    result = keep_result(folder, found)
    if result:
        shown.say(f'policies: {result}\ndefence:  ATS(policies="{result}")')
    shown.say(f"page: {page}")
    if as_json:
        print_json({
            "directory": str(folder.path), "page": str(page), "file": str(result) if result else None,
            "recommended": [one.outcome.hybrid for one in found.recommended], "confirmed": list(found.confirmed),
            "verdict": verdict(found),
        })  # fmt: skip


def keep_result(folder: MeasuredFolder, found: Found) -> Path | None:
    """Write the recommended hybrid as a file of policies, which ``ATS.read`` reads; None where there is none."""
    if not found.recommended:
        return None
    channels = folder.search.channels()
    best = found.recommended[0].outcome.hybrid
    result: dict[str, Any] = {
        "defense": "ATS", "objective": "measured", "policies": best, "channels": channels, "dataset": folder.search.dataset,
        "model": folder.search.model, "seed": folder.search.seed, "verdict": verdict(found),
    }  # fmt: skip
    write_atomically(folder.path / RESULT, json.dumps(result, indent=1))
    _ = ATS.read(folder.path / RESULT)
    return folder.path / RESULT
