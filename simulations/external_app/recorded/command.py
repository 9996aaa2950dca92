"""The work of ``fedveil attack``: an attack on an update in a file, or on the folder of a recording, and the findings shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.table import Table
from torch import Tensor

from attacks.descent import watched
from attacks.metrics.costs import ATTACK
from attacks.metrics.metric import LABELS
from attacks.observations import untried
from simulations.console.command_line import errors
from simulations.console.progress import Display
from simulations.console.results import print_json, table
from simulations.console.terminal import Terminal
from simulations.external_app.recorded import attack_file
from simulations.external_app.recorded.arguments.settings import Request
from simulations.external_app.recorded.audit import prepare_recording, run_recording
from simulations.external_app.recorded.known import doubts_of
from simulations.report.analysis.run import ReadRun, read_run
from simulations.report.analysis.verdict import Verdict
from simulations.report.studies.cell import FOUND, Cell
from simulations.report.studies.control import LEAST_IMAGES
from simulations.report.text import NOTHING, dagger, decibel, percent, percentage, within
from simulations.run_folder.rows import Row
from strategies.external_app.claim import Claim

UNJUDGED = (
    f"  unknown: a verdict needs a recorded round with the originals of {LEAST_IMAGES} images or more, and a control that passes; "
    "PSNR shows little alone"
)


@dataclass(frozen=True)
class AttackFinding:
    """The result of one attack on an update, or on the replies of a recorded round.

    Attributes:
        attack: Attack text.
        round: Of the recording; None of a single update.
        identified: Images that it identifies, of ``attacked``; ``recognisable``: that are recognisable in its guesses. None where
            that was not judged.
        share: Of identified ones, in [0, 1], with the 95 % interval ``low`` to ``high``.
        psnr: Mean over its images, in dB; ``best_psnr``: the highest; ``null_psnr``: the mean of the best null baseline, a guess
            without an attack. None where no image was scored.
        verdict: As the report of a run says it; "" where no image was scored.
        labels: Share of the classes that it has right; None where they were not scored.
        status: Of its score, such as "not-validated"; "" where there is none.
        failure: Why it gave no guess; "" where it gave one.
    """

    attack: str
    round: int | None = None
    identified: int | None = None
    recognisable: int | None = None
    attacked: int | None = None
    share: float | None = None
    low: float | None = None
    high: float | None = None
    psnr: float | None = None
    best_psnr: float | None = None
    null_psnr: float | None = None
    verdict: str = ""
    labels: float | None = None
    status: str = ""
    failure: str = ""

    @property
    def decibels(self) -> dict[str, float | None]:
        """The PSNR by name."""
        return {"mean": self.psnr, "best": self.best_psnr, "null": self.null_psnr}

    @property
    def result(self) -> str:
        """What was found in words, or the failure."""
        if self.failure:
            return "not tried" if untried(self.failure) else "failed"
        if self.identified is None:
            return NOTHING
        interval = within(self.low, self.high, percentage)
        of = f"{self.identified} of {self.attacked}{dagger(self.status)}" + (f" ({interval} %)" if interval else "")
        return f"{of}\n{self.recognisable} recognisable"


def of_entries(entries: Iterable[Mapping[str, Any]], truth: Mapping[str, Tensor]) -> list[AttackFinding]:
    """Findings on a single update, from the entries of ``result.json``; its images are too few to judge an attack by."""
    found, grey = [], attack_file.compared(truth)["null"].get("grey", {}).get("psnr", ())
    for entry in entries:
        scores = {} if entry["failure"] else entry["scores"]  # those of a failed attack are of a grey image
        psnr, labels = scores.get("psnr"), scores.get("label-accuracy")
        images: dict[str, Any] = {"psnr": fmean(psnr), "best_psnr": max(psnr), "null_psnr": fmean(grey)} if psnr else {}
        word = Verdict.UNKNOWN.value if psnr else ""
        found.append(AttackFinding(entry["attack"], labels=labels, failure=entry["failure"], verdict=word, **images))
    return found


def of_recording(read: ReadRun, rows: Iterable[Row]) -> list[AttackFinding]:
    """Findings on a recording, in order of rounds."""
    failures = {(row.round, row.attack): row.message for row in rows if row.is_attack and row.metric == ATTACK.name}
    findings = [one for summary in read.summaries for one in summary.findings]
    found = [
        _of_cell(cell, failures.get((cell.round, cell.attack), ""), one.verdict_of(cell))
        for one in findings
        for cell in one.cells
    ]
    return sorted(found, key=lambda one: one.round or 0)


def _of_cell(cell: Cell, failure: str, verdict: Verdict) -> AttackFinding:
    if failure:
        return AttackFinding(cell.attack, cell.round, failure=failure)
    images, share = cell.psnr, cell.scores.get(FOUND)
    identified, attacked = cell.identified or (None, None)
    return AttackFinding(
        cell.attack,
        cell.round,
        identified,
        cell.recognisable[0] if cell.recognisable else None,
        attacked,
        *((share.mean, share.low, share.high) if share else (None, None, None)),
        *((images.mean, images.worst) if images else (None, None)),
        cell.best_null[1] if cell.best_null else None,
        verdict.value if images else "",
        cell.mean(*LABELS.decides),
        cell.status if images else "",
    )


def _conclude(
    console: Terminal,
    found: Sequence[AttackFinding],
    page: Path,
    guesses: Path,
    *,
    scored: bool,
    as_json: bool,
    claims: Sequence[Claim] = (),
) -> bool:
    """Print a table of the attacks, or where the guesses are if none was ``scored``, and as errors which attacks failed.

    With ``as_json`` also a line of JSON, as `fedveil attack --help` describes it. Returns whether all attacks failed.
    """  # fmt: skip
    made = [one for one in found if not one.failure]
    if scored:
        console.print(_table(found))
        if any(one.verdict == Verdict.UNKNOWN for one in made):
            console.say(UNJUDGED)
    elif made:
        names = "; ".join(dict.fromkeys(one.attack for one in made))
        console.say(f"No guess was scored, as no originals were given. The guesses of {names} are in {guesses}")
    for one in found:
        if one.failure:
            where = "" if one.round is None else f"round {one.round}, "
            if untried(one.failure):
                console.say(f"{where}{one.attack} {one.failure}")
            else:
                errors.say(f"{where}{one.attack} failed: {one.failure}")
    console.say(f"{'report' if page.suffix == '.html' else 'results'}: {page}")
    if as_json:
        about = {"claims": list(map(asdict, claims)), "attacks": list(map(asdict, found))}
        print_json({"directory": str(page.parent), "page": str(page), "scored": scored, **about})
    return not made


def _table(found: Sequence[AttackFinding]) -> Table:
    """A line for each attack, and of a recording for each round."""
    rounds = [] if all(one.round is None for one in found) else ["round"]
    judged = ["verdict"] if any(one.verdict for one in found) else []
    rows = (
        [
            *(str(one.round) for _ in rounds),
            one.attack,
            *([one.verdict or NOTHING] if judged else []),
            one.result,
            "\n".join(f"{name} {decibel(value)}" for name, value in one.decibels.items() if value is not None)
            or NOTHING,
            percent(one.labels),
        ]
        for one in found
    )
    return table([*rounds, "attack", *judged, "identified"], ("PSNR, dB", "labels"), rows)


def attack_update(console: Terminal, request: Request, out: Path, *, as_json: bool = False) -> bool:
    """Attack one update and print the results, with ``as_json`` as a line of JSON; returns whether all attacks failed.

    Raises:
        ConfigError: Before any work.
    """
    prepared = attack_file.prepare(request)
    out.mkdir(parents=True, exist_ok=True)
    for notice in prepared.notices:
        console.say(f"notice: {notice}")
    with _shown(console) as begin:
        entries = attack_file.run(prepared, out, begin)
    for entry in entries:
        if entry["missing"]:
            console.say(f"{entry['attack']} {entry['missing']}")
    found = of_entries(entries, prepared.truth)
    return _conclude(console, found, out / "result.json", out, scored=bool(prepared.truth), as_json=as_json)


def attack_recording(console: Terminal, request: Request, out: Path, *, as_json: bool = False) -> bool:
    """Attack a recording and print assumptions and results; returns or raises as ``attack_update`` does."""
    prepared = prepare_recording(request)
    out.mkdir(parents=True, exist_ok=True)
    replayed = prepared.replayed
    console.print(f"{len(replayed.attackable)} replies of {len(replayed.nodes)} nodes to attack", soft_wrap=True)
    for doubt in doubts_of(request.settings):
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
    found, scored = of_recording(read_run(out), rows), bool(prepared.truth)
    if not scored:
        console.say(
            "for scores: clients.save_originals keeps the originals in the client; the report shows the lines to add"
        )
    return _conclude(
        console, found, out / "report.html", out / "guesses", scored=scored, as_json=as_json, claims=replayed.claims
    )


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
