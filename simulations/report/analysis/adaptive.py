"""Caveats on the attacks that ran: adaptive ones that are missing, and probes that are no measure of training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attacks.metrics.metric import CELLS, FAMILIES, IMAGES
from simulations.report.studies.cell import Cell
from simulations.report.studies.messages import MessageSize
from simulations.report.studies.stages import names_of
from simulations.run_folder.rows import Row
from strategies.audit.threat_card import Strength

UNTESTED = "untested against an adaptive attacker"


def is_adaptive(cell: Cell, known: Any) -> bool:
    """Whether the attack was made against its cell's defence, whose configuration is ``known``."""
    return any(_runs(name, cell) for name in _adaptive_names(known))


def adapted(cells: Sequence[Cell], known: Any) -> bool:
    """Whether an attack that was made against the defence has a score of images or rows among them."""
    return any(is_adaptive(cell, known) and cell.has_result for cell in cells)


def _adaptive_names(known: Any) -> list[str]:
    names = known.get("adaptive_attacks") if isinstance(known, Mapping) else None
    return [str(name) for name in names] if isinstance(names, list | tuple) else []


def _runs(name: str, cell: Cell) -> bool:
    """Whether the attack, or a stage of its chain, is the named one, with settings under which it knows the defence."""
    return cell.knows_defenses and name in names_of(cell.attack)


def adaptive_caveats(cells: Sequence[Cell], known: Any, *, running: bool = False) -> list[str]:
    """Caveats on the adaptive attacks on one defence: those that did not run, and data that none attacked.

    Args:
        cells: All attacks on the defence, without upper bounds.
        known: Its configuration, as in ``is_adaptive``.
        running: The run goes on, so that a missing attack waits.
    """
    able = [cell for cell in cells if cell.has_result]
    by_name = {name: [cell for cell in able if _runs(name, cell)] for name in _adaptive_names(known)}
    if not by_name:
        return [UNTESTED]
    # Where an attack ran with settings that keep it from knowing the defence, the one that knows it is missing.
    missing = [
        f"{name} that knows the defence" if any(name in names_of(cell.attack) for cell in able) else name
        for name, found in by_name.items()
        if not found
    ]
    if len(missing) == len(by_name):
        did = "did not run" if not running else "waits" if len(missing) == 1 else "wait"
        return [f"{UNTESTED}: {', '.join(missing)} {did}"]
    did = "wait" if running else "did not run"
    caveats = [f"adaptive attacks that {did}: {', '.join(missing)}"] if missing else []
    ran = [one for one in FAMILIES if any(one.scored(cell.scores) for found in by_name.values() for cell in found)]
    if IMAGES not in ran and CELLS not in ran:
        on = " and ".join(one.attacked for one in ran)
        caveats.append(f"no adaptive attack on images {'has run yet' if running else 'ran'}, only on {on}")
    return caveats


def untested(cells: Sequence[Cell], others: Sequence[Cell], known: Any) -> list[str]:
    """Caveat that adaptive attacks on images ran on a defence's ``others`` alone, not on the messages that ``cells`` are of."""
    alone = adapted(others, known) and not adapted(cells, known)
    return ["no adaptive attack on images ran on these messages"] if alone else []


def once_per_update(cell: Cell) -> list[str]:
    """Caveat that the attacked probe was protected more strongly than one step of the training whose accuracy is shown."""
    if cell.card.defense_strength not in (Strength.ONE_STEP, Strength.FEW_STEPS):
        return []
    # Text of a pipeline names the argument of every defence that has it; others act once per update whatever is set.
    advice = "compare training updates" + (", or choose per='step'" if "per='update'" in cell.defense else "")
    steps = "one step" if cell.rung.steps == 1 else f"{cell.rung.steps} steps"
    return [
        f"not the strength of the accuracy beside it: the defence acts once per update, on a probe of {steps} as strongly as "
        f"on all steps of a round; {advice}"
    ]


def out_of_reach(cell: Cell, strongest: Cell | None, rows: Sequence[Row]) -> list[str]:
    """Caveat that the strongest attack without a defence does not apply to the messages of an attack that found nothing.

    Args:
        cell: The attack by which nothing is found under a defence.
        strongest: The strongest one on such messages without a defence.
        rows: Those of all attacks under the defence.
    """
    unable = {
        row.attack
        for row in rows
        if row.status == "not-applicable"
        and (row.card.observation, MessageSize.of(row.card)) == (cell.observation, cell.rung)
    }
    if strongest is None or strongest.attack == cell.attack or strongest.attack not in unable:
        return []
    return [f"{strongest.attack}, the strongest attack without a defence, does not apply to these messages"]
