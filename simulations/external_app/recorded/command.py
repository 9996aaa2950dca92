"""The work of ``fedveil attack``: attacks on an update in a file or on the folder of a recording, and the findings shown."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.table import Table

from attacks.descent import watched
from attacks.metrics.costs import ATTACK
from attacks.metrics.metric import LABELS, LEAST_IMAGES
from attacks.observations import UNTRIED, Untried, untried
from simulations.console.command_line import errors
from simulations.console.progress import Display
from simulations.console.results import print_json, table
from simulations.console.terminal import Terminal
from simulations.external_app.recorded.audit import prepare, run
from simulations.external_app.recorded.settings import Request
from simulations.report.analysis.message import Verdict
from simulations.report.analysis.run import ReadRun, read_run
from simulations.report.studies.cell import FOUND, Cell
from simulations.report.studies.score import Score
from simulations.report.text import NOTHING, dagger, decibel, percent, percentage, within
from simulations.run_folder.rows import Row
from strategies.external_app.claim import Claim

UNJUDGED = (
    f"  unknown: a verdict needs a recorded round with the originals of {LEAST_IMAGES} images or more, and a control that passes; "
    "PSNR shows little alone"
)


@dataclass(frozen=True)
class Attacked:
    """An attack on the updates of a round: its cell, which is without scores where it failed, and why; "" where it gave a guess."""

    cell: Cell
    judged: Verdict
    failure: str = ""

    @property
    def verdict(self) -> str:
        """As the report of a run says it; "" where no image was scored."""
        return self.judged.value if self.cell.psnr else ""

    @property
    def decibels(self) -> dict[str, float | None]:
        """PSNR of its images, mean and best, and the mean of the best null baseline."""
        images, null = self.cell.psnr or Score(None), self.cell.best_null
        return {"mean": images.mean, "best": images.worst, "null": null[1] if null else None}

    @property
    def result(self) -> str:
        """What was found in words, or the failure."""
        if self.failure:
            return "not tried" if untried(self.failure) else "failed"
        cell = self.cell
        if not cell.identified:
            return NOTHING
        interval = within(cell.scores[FOUND].low, cell.scores[FOUND].high, percentage)
        count = " of ".join(map(str, cell.identified)) + dagger(cell.status if cell.psnr else "")
        return f"{count}{f' ({interval} %)' if interval else ''}\n{(cell.recognisable or [None])[0]} recognisable"

    def to_json(self) -> dict[str, Any]:
        """For programs, as `fedveil attack --help` describes it."""
        cell, share, psnr = self.cell, self.cell.scores.get(FOUND) or Score(None), self.decibels
        identified, attacked = cell.identified or (None, None)
        return {
            "attack": cell.attack, "round": cell.round, "identified": identified, "attacked": attacked,
            "recognisable": cell.recognisable[0] if cell.recognisable else None,
            "share": share.mean, "low": share.low, "high": share.high,
            "psnr": psnr["mean"], "best_psnr": psnr["best"], "null_psnr": psnr["null"], "verdict": self.verdict,
            "labels": cell.mean(*LABELS.decides), "status": cell.status if cell.psnr else "", "failure": self.failure,
        }  # fmt: skip


def of_rows(read: ReadRun, rows: Iterable[Row]) -> list[Attacked]:
    """The attacks, in order of rounds."""
    failures = {
        (row.round, row.attack): Untried(row.message, row.status) if row.status in UNTRIED else row.message
        for row in rows
        if row.is_attack and row.metric == ATTACK.name
    }
    attacks = []
    for finding in (outcome for summary in read.summaries for outcome in summary.findings):
        for cell in finding.cells:
            failure = failures.get((cell.round, cell.attack), "")
            shown = replace(cell, scores={}, null_scores={}) if failure else cell
            attacks.append(Attacked(shown, finding.verdict_of(cell), failure))
    return sorted(attacks, key=lambda attack: attack.cell.round)


def _conclude(
    console: Terminal,
    attacks: Sequence[Attacked],
    out: Path,
    *,
    scored: bool,
    as_json: bool,
    claims: Sequence[Claim],
) -> bool:
    """Print a table of the attacks, or where the guesses are if none was ``scored``, and as errors which attacks failed.

    With ``as_json`` also a line of JSON, as `fedveil attack --help` describes it. Returns whether all attacks failed.
    """  # fmt: skip
    made, page = [attack for attack in attacks if not attack.failure], out / "report.html"
    if scored:
        console.print(_table(attacks))
        if any(attack.verdict == Verdict.UNKNOWN for attack in made):
            console.say(UNJUDGED)
    elif made:
        names = "; ".join(dict.fromkeys(attack.cell.attack for attack in made))
        console.say(f"No guess was scored, as no originals were given. The guesses of {names} are in {out / 'guesses'}")
    for entry in attacks:
        if entry.failure:
            if untried(entry.failure):
                console.say(f"round {entry.cell.round}, {entry.cell.attack} {entry.failure}")
            else:
                errors.say(f"round {entry.cell.round}, {entry.cell.attack} failed: {entry.failure}")
    console.say(f"report: {page}")
    if as_json:
        about = {"claims": list(map(asdict, claims)), "attacks": [attack.to_json() for attack in attacks]}
        print_json({"directory": str(out), "page": str(page), "scored": scored, **about})
    return not made


def _table(attacks: Sequence[Attacked]) -> Table:
    judged = ["verdict"] if any(attack.verdict for attack in attacks) else []
    rows = (
        [
            str(attack.cell.round),
            attack.cell.attack,
            *([attack.verdict or NOTHING] if judged else []),
            attack.result,
            "\n".join(f"{name} {decibel(value)}" for name, value in attack.decibels.items() if value is not None)
            or NOTHING,
            percent(attack.cell.mean(*LABELS.decides)),
        ]
        for attack in attacks
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
    for server_round, node, why in replayed.unusable:
        console.say(f"notice: round {server_round}, node {node}: {why}")
    for warning in replayed.warnings:
        errors.say(f"warning: {warning}")
    for sentence in replayed.assumed:
        console.say(f"not known: {sentence}")
    for claim in replayed.claims:
        console.say(f"claim of the app: {claim.text}")
    with watching(console) as begin:
        rows = run(prepared, out, begin)
    attacks, scored = of_rows(read_run(out), rows), bool(prepared.truth)
    if recorded and not scored:
        console.say(
            "for scores: clients.save_originals keeps the originals in the client; the report shows the lines to add"
        )
    return _conclude(console, attacks, out, scored=scored, as_json=as_json, claims=replayed.claims)


@contextmanager
def watching(console: Terminal) -> Iterator[Callable[[str], object]]:
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
