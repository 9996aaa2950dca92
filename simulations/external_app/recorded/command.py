"""The work of ``fedveil attack``: attacks on an update in a file or on the folder of a recording, and the findings shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.table import Table

from attacks.descent import watched
from attacks.metrics.costs import ATTACK
from attacks.metrics.metric import LABELS, LEAST_IMAGES
from attacks.observations import untried
from simulations.console.command_line import errors
from simulations.console.progress import Display
from simulations.console.results import print_json, table
from simulations.console.terminal import Terminal
from simulations.external_app.recorded.attack_file import doubts_of
from simulations.external_app.recorded.audit import prepare, run
from simulations.external_app.recorded.settings import Request
from simulations.report.analysis.run import ReadRun, read_run
from simulations.report.analysis.verdict import Verdict
from simulations.report.studies.cell import FOUND, Cell
from simulations.report.text import NOTHING, dagger, decibel, percent, percentage, within
from simulations.run_folder.rows import Row
from strategies.external_app.claim import Claim

UNJUDGED = (
    f"  unknown: a verdict needs a recorded round with the originals of {LEAST_IMAGES} images or more, and a control that passes; "
    "PSNR shows little alone"
)


@dataclass(frozen=True)
class AttackFinding:
    """The result of one attack on the updates of a round.

    Attributes:
        attack: Attack text.
        round: Of the recording; 1 for the update in a file.
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
    round: int
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


def of_rows(read: ReadRun, rows: Iterable[Row]) -> list[AttackFinding]:
    """The findings of the attacks, in order of rounds."""
    failures = {(row.round, row.attack): row.message for row in rows if row.is_attack and row.metric == ATTACK.name}
    findings = [one for summary in read.summaries for one in summary.findings]
    found = [
        _of_cell(cell, failures.get((cell.round, cell.attack), ""), one.verdict_of(cell))
        for one in findings
        for cell in one.cells
    ]
    return sorted(found, key=lambda one: one.round)


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
    out: Path,
    *,
    scored: bool,
    as_json: bool,
    claims: Sequence[Claim],
) -> bool:
    """Print a table of the attacks, or where the guesses are if none was ``scored``, and as errors which attacks failed.

    With ``as_json`` also a line of JSON, as `fedveil attack --help` describes it. Returns whether all attacks failed.
    """  # fmt: skip
    made, page = [one for one in found if not one.failure], out / "report.html"
    if scored:
        console.print(_table(found))
        if any(one.verdict == Verdict.UNKNOWN for one in made):
            console.say(UNJUDGED)
    elif made:
        names = "; ".join(dict.fromkeys(one.attack for one in made))
        console.say(f"No guess was scored, as no originals were given. The guesses of {names} are in {out / 'guesses'}")
    for one in found:
        if one.failure:
            if untried(one.failure):
                console.say(f"round {one.round}, {one.attack} {one.failure}")
            else:
                errors.say(f"round {one.round}, {one.attack} failed: {one.failure}")
    console.say(f"report: {page}")
    if as_json:
        about = {"claims": list(map(asdict, claims)), "attacks": list(map(asdict, found))}
        print_json({"directory": str(out), "page": str(page), "scored": scored, **about})
    return not made


def _table(found: Sequence[AttackFinding]) -> Table:
    """A line for each attack on each round."""
    judged = ["verdict"] if any(one.verdict for one in found) else []
    rows = (
        [
            str(one.round),
            one.attack,
            *([one.verdict or NOTHING] if judged else []),
            one.result,
            "\n".join(f"{name} {decibel(value)}" for name, value in one.decibels.items() if value is not None)
            or NOTHING,
            percent(one.labels),
        ]
        for one in found
    )
    return table(["round", "attack", *judged, "identified"], ("PSNR, dB", "labels"), rows)


def attack_updates(console: Terminal, request: Request, out: Path, *, as_json: bool = False) -> bool:
    """Attack an update or a recording, print assumptions and results, and with ``as_json`` a line of JSON.

    Returns:
        Whether all attacks failed.

    Raises:
        ConfigError: Before any work.
    """
    prepared = prepare(request)
    out.mkdir(parents=True, exist_ok=True)
    replayed, recorded = prepared.replayed, request.update.is_dir()
    if recorded:
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
        rows = run(prepared, out, begin)
    found, scored = of_rows(read_run(out), rows), bool(prepared.truth)
    if recorded and not scored:
        console.say(
            "for scores: clients.save_originals keeps the originals in the client; the report shows the lines to add"
        )
    return _conclude(console, found, out, scored=scored, as_json=as_json, claims=replayed.claims)


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
