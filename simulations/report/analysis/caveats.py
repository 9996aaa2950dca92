"""What a reader must know of a defence's results, each a short clause."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attacks.metrics.metric import MEMBERSHIP
from simulations.report.analysis.adaptive import adaptive_caveats, once_per_update, out_of_reach, untested
from simulations.report.analysis.message import Message
from simulations.report.analysis.verdict import Verdict
from simulations.report.studies.cell import FOUND, Cell
from simulations.report.studies.control import LEAST_IMAGES
from simulations.report.studies.intervals import LEVEL, by_chance
from simulations.report.studies.plain import plain_words
from simulations.report.studies.score import PARTLY_FAILED
from simulations.run_folder.rows import Row
from strategies.audit.threat_card import KEPT_STATISTICS

INITIAL_AVERAGES = (
    "tests of membership read models with the initial running averages of BatchNorm, because clients keep theirs: a membership AUC "
    "near 0.5 shows nothing"
)
"""Caveat on membership where a defence keeps running averages at the client and no test found members."""


def message_caveats(
    one: Message,
    judged: Sequence[Message],
    known: Any,
    plain: Cell | None,
    rows: Sequence[Row],
) -> Iterator[str]:
    """Caveats on one kind and size of message, among all of a defence.

    Args:
        one: What attacks found there.
        judged: The same of all messages.
        known: The defence's configuration.
        plain: The strongest attack on such messages without a defence.
        rows: All of the defence.
    """
    yield from _doubts(one)
    yield from once_per_update(one.cell)
    if one.cell.defense:
        yield from untested(one.cells, [cell for other in judged if other is not one for cell in other.cells], known)
        yield from out_of_reach(one.cell, plain, rows)


def defense_caveats(defense: str, cells: Sequence[Cell], known: Mapping[str, Any], *, running: bool) -> Iterator[str]:
    """Caveats whatever was attacked: the adaptive attacks that a defence lacks, and what its configuration says."""
    if defense:
        yield from adaptive_caveats(cells, known, running=running)
    yield from map(str, known.get("caveats") or ())


def membership_caveats(cell: Cell | None) -> Iterator[str]:
    """Why a test of membership that found no members may say little."""
    kept = cell is not None and cell.card.more.get("batch_norm_statistics") == KEPT_STATISTICS
    if cell and kept and MEMBERSHIP.decides not in cell.leaking:
        yield INITIAL_AVERAGES


def _doubts(one: Message) -> Iterator[str]:
    """Why the score of the strongest attack may say little."""
    cell, unknown = one.cell, one.verdict is Verdict.UNKNOWN
    plain = plain_words(cell.card)
    if cell.status == "not-validated" and unknown:
        if cell.defense == "":
            yield f"positive control failed: this attack does not break the {plain.run}"
        elif plain.alone:
            yield f"not validated: there is no run without {plain.acting} beside this one"
        else:
            yield f"not validated: this attack did not break the {plain.run} either, so its failure shows nothing"
    looked = cell.scores.get(FOUND)
    if looked and looked.n and by_chance(looked.n, looked.n, 1.0 if cell.chance is None else cell.chance) > LEVEL:
        yield "could not be judged: there are too few other images to look for the true ones among"
    elif looked and looked.attacked < LEAST_IMAGES and unknown:
        yield f"too few images for a verdict: {looked.attacked} were attacked, and {LEAST_IMAGES} are needed"
    if cell.status == PARTLY_FAILED:
        yield "partly failed: some seeds have no score, and the mean leaves them out"
    further = cell.card.more.get("caveats")
    yield from map(str, further if isinstance(further, list) else ())
