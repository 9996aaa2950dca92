"""The finding of each chart as a sentence, which stands over it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from attacks.metrics.metric import MEMBERSHIP
from simulations.report.analysis.line import Line
from simulations.report.drawing.looks import Look
from simulations.report.studies.cell import Cell
from simulations.report.studies.score import Score
from simulations.report.text import count, dagger, decibel, percent, points, round_name, two


def plane_finding(lines: Sequence[Line], faces: Mapping[str, Look]) -> str:
    """The defence with the fewest recovered images, by attacks that succeed without it, and its cost; "" without both numbers."""
    known = [
        line
        for line in lines
        if line.defense
        and line.strongest
        and line.strongest.recovered
        and line.strongest.status == "ok"
        and line.deployed
    ]
    if not known:
        return ""
    best = min(known, key=lambda line: (_share(line), -(line.cost.mean or 0.0) if line.cost else math.inf))
    recovered, n = best.strongest.recovered if best.strongest and best.strongest.recovered else (0, 0)
    cost = f"changes accuracy by {points(best.cost.mean)} points" if best.cost else "has no measured cost"
    return f"Fewest images recovered: {recovered} of {n}, under {faces[best.defense].name}, which {cost}."


def accuracy_finding(lines: Sequence[Line], faces: Mapping[str, Look]) -> str:
    """The defences with the lowest and the highest accuracy as deployed."""
    last = max((line.round for line in lines if line.round is not None), default=None)
    known = [
        (line.deployed.mean, line.defense)
        for line in lines
        if line.deployed and line.deployed.mean is not None and line.round == last
    ]
    if len(known) < 2:
        return ""
    (low, worst), (high, best) = min(known), max(known)
    return f"Test accuracy ends between {percent(low)} ({faces[worst].name}) and {percent(high)} ({faces[best].name})."


def epsilon_finding(
    spent: Mapping[str, Mapping[int, Score]],
    faces: Mapping[str, Look],
    levels: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Epsilon at the end for the defences with a bound, each with what it protects (defence -> a word of ``level_of``)."""
    ends = [
        " ".join(filter(None, (faces[one].name, levels.get(one), two(of[max(of)].mean), f"after round {max(of)}")))
        for one, of in spent.items()
        if of
    ]
    return f"Budget spent, ε: {', '.join(ends)}." if ends else ""


def gains_finding(lines: Sequence[Line], faces: Mapping[str, Look]) -> str:
    """The largest gain of a recovered image, and the number of recovered images under that defence."""
    counted = [line for line in lines if line.strongest and line.strongest.recovered and line.strongest.status == "ok"]
    if counted and not any(
        line.strongest.recovered[0] for line in counted if line.strongest and line.strongest.recovered
    ):
        return "No image was recovered."
    gains = [
        (max(line.strongest.gains[0]), line)
        for line in counted
        if line.strongest and line.strongest.gains and line.strongest.gains[0]
    ]
    if not gains:
        return ""
    gain, line = max(gains, key=lambda found: found[0])
    return f"The largest gain of a recovered image is {decibel(gain)} dB, under {faces[line.defense].name}."


def members_finding(cells: Sequence[Cell], faces: Mapping[str, Look]) -> str:
    """The number of tests that infer members, and the highest AUC."""
    known = [(auc, cell) for cell in cells if (auc := cell.mean(*MEMBERSHIP.decides)) is not None]
    if not known:
        return ""
    auc, cell = max(known, key=lambda found: found[0])
    shown = sum(cell.tells_members for _, cell in known)
    where = f"{faces[cell.defense].name}, {round_name(cell.round, cell.final)}"
    tests = f"{shown} of {count(len(known), 'test')} {'shows' if shown == 1 else 'show'} members"
    return f"{tests}; highest AUC {two(auc)}{dagger(cell.status)} ({where})."


def _share(line: Line) -> float:
    return (line.strongest.share.mean or 0.0) if line.strongest and line.strongest.share else 0.0
