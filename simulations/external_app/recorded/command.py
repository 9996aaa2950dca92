"""The work of ``fedveil attack``: an attack on an update in a file, or on the folder of a recording."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from attacks.descent import watched
from simulations.console.command_line import errors
from simulations.console.progress import Display
from simulations.console.results import print_json
from simulations.console.terminal import Terminal
from simulations.external_app.recorded import attack_file
from simulations.external_app.recorded.arguments.settings import Request
from simulations.external_app.recorded.attack_recording import prepare_recording, run_recording
from simulations.external_app.recorded.findings import AttackFinding, of_entries, of_recording, print_found
from simulations.external_app.recorded.known import doubts_of
from simulations.report.analysis.run import read_run
from simulations.report.sections.external_app import RECORDED
from simulations.run_folder.places import require_folder
from simulations.settings.errors import ConfigError
from strategies.external_app.claim import Claim


def attack_update(console: Terminal, request: Request, out: Path, *, as_json: bool = False) -> bool:
    """Attack one update and print the results, with ``as_json`` as a line of JSON; returns whether all attacks failed.

    Raises:
        ConfigError: Before any work.
    """
    _require_new(out)
    prepared = attack_file.prepare(request)
    out.mkdir(parents=True, exist_ok=True)
    for notice in prepared.notices:
        console.say(f"notice: {notice}")
    with _shown(console) as begin:
        entries = attack_file.run(prepared, out, begin)
    found = of_entries(entries)
    scored = bool(prepared.truth)
    print_found(console, found, out, scored=scored)
    console.say(f"results: {out / 'result.json'}")
    if as_json:
        _print_json(found, out, out / "result.json", scored=scored)
    return all(entry["failure"] for entry in entries)


def attack_recording(console: Terminal, request: Request, out: Path, *, as_json: bool = False) -> bool:
    """Attack a recording and print assumptions and results; returns or raises as ``attack_update`` does."""
    _require_new(out)
    prepared = prepare_recording(request)
    out.mkdir(parents=True, exist_ok=True)
    replayed = prepared.replayed
    console.print(f"{len(replayed.attackable)} replies of {len(replayed.nodes)} nodes to attack", soft_wrap=True)
    for doubt in doubts_of(replayed.attackable[0].settings, replayed.attackable[0].parsed):
        console.say(f"notice: {request.settings.model} {doubt}")
    for server_round, node, why in replayed.unusable:
        console.say(f"notice: round {server_round}, node {node}: {why}")
    for warning in replayed.warnings:
        errors.say(f"warning: {warning}")
    for sentence in replayed.assumed:
        console.say(f"not known: {sentence}")
    for claim in replayed.claims:
        console.say(f"claim of the app: {claim.text}")
    with _shown(console) as begin:
        rows = run_recording(prepared, out, begin)
    found = of_recording(read_run(out), rows)
    scored = bool(prepared.truth)
    print_found(console, found, out / "guesses", scored=scored)
    if not scored:
        console.say(
            "for scores: clients.save_originals keeps the originals in the client; the report shows the lines to add"
        )
    console.say(f"report: {out / 'report.html'}")
    if as_json:
        _print_json(found, out, out / "report.html", scored=scored, claims=replayed.claims)
    failed = {(row.round, row.attack) for row in rows if row.is_attack and row.metric == "attack"}
    return failed == {(row.round, row.attack) for row in rows if row.is_attack and row.metric != RECORDED}


def _require_new(out: Path) -> None:
    """Raises ``ConfigError`` for a folder that cannot be written, or holds results."""
    require_folder(out, "--out")
    if (out / "result.json").exists() or (out / "rows.jsonl").exists():
        raise ConfigError(f"--out {out} already holds results; name another folder")


@contextmanager
def _shown(console: Terminal) -> Iterator[Callable[[str], object]]:
    """Shows which attack runs and how far it is; yields what takes its name."""
    name = "reading"

    def begin(attack: str) -> None:
        nonlocal name
        display.show(name := attack)

    def watch(done: int, total: int) -> None:
        if done < total:  # an attack searches many times: no line for the end of each
            display.show(name, done, total)

    with Display(console) as display, watched(watch):
        yield begin


def _print_json(
    found: Sequence[AttackFinding], out: Path, page: Path, *, scored: bool, claims: Sequence[Claim] = ()
) -> None:
    """What attacks found, as `fedveil attack --help` describes it."""
    about = {"claims": [one.to_json() for one in claims], "attacks": list(map(asdict, found))}
    print_json({"directory": str(out), "page": str(page), "scored": scored, **about})
