"""What ``fedveil attack`` does with its options: an update in a file, or the folder of a recording."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attacks.metrics.metric import IMAGES
from attacks.progress import watched
from simulations.console.progress import Display
from simulations.console.terminal import Terminal
from simulations.external_app.recorded import attack_file
from simulations.external_app.recorded.attack_recording import prepare_recording, run_recording
from simulations.external_app.recorded.known import doubts_of
from simulations.external_app.recorded.replies import RecordingRequest
from simulations.external_app.recorded.request import Request
from simulations.forecast.preflight import require_folder
from simulations.report.sections.external_app import RECORDED
from simulations.run_folder.rows import Row
from simulations.settings.errors import ConfigError


def attack_update(console: Terminal, request: Request, out: Path) -> bool:
    """Attack one update and print the results; returns whether all attacks failed, or raises ``ConfigError`` before any work."""
    _require_new(out)
    prepared = attack_file.prepare(request)
    out.mkdir(parents=True, exist_ok=True)
    for notice in prepared.notices:
        console.say(f"notice: {notice}")
    with _shown(console) as begin:
        entries = attack_file.run(prepared, out, begin)
    for entry in entries:
        console.say(_ended(entry))
    console.say(f"results: {out / 'result.json'}")
    return all(entry["failure"] for entry in entries)


def attack_recording(console: Terminal, request: RecordingRequest, out: Path) -> bool:
    """Attack a recording and print assumptions and results; returns or raises as ``attack_update`` does."""
    _require_new(out)
    prepared = prepare_recording(request)
    out.mkdir(parents=True, exist_ok=True)
    replayed = prepared.replayed
    console.print(f"{len(replayed.attackable)} replies of {len(replayed.nodes)} nodes to attack", soft_wrap=True)
    for doubt in doubts_of(replayed.attackable[0].request, replayed.attackable[0].parsed):
        console.say(f"notice: {request.options.model} {doubt}")
    for server_round, node, why in replayed.unusable:
        console.say(f"notice: round {server_round}, node {node}: {why}")
    for sentence in replayed.assumed:
        console.say(f"not known: {sentence}")
    with _shown(console) as begin:
        rows = run_recording(prepared, out, begin)
    for row in rows:
        if row.is_attack and (row.metric, row.reference) == IMAGES.decides:
            console.say(_scored(row))
    console.say(f"report: {out / 'report.html'}")
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


def _scored(row: Row) -> str:
    """One line on how an attack on a round scored."""
    shown = "no score" if row.value is None else f"PSNR {row.value:.2f} dB, n = {row.n}"
    return f"round {row.round}, {row.attack}: {shown}, {row.status}"


def _ended(entry: dict[str, Any]) -> str:
    """One line on how an attack on a recorded update ended."""
    scores = ", ".join(
        f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {[round(v, 3) for v in value]}"
        for key, value in entry["scores"].items()
    )
    ended = f"failed: {entry['failure']}" if entry["failure"] else scores or "done"
    return f"{entry['attack']}: {ended} ({entry['seconds']:.1f} s)"
