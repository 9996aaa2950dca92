"""Adaptive attacks: whether an attack was made against the defence, and the caveat where none was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attacks.metrics.metric import CELLS, FAMILIES, IMAGES
from simulations.report.studies.cell import Cell
from simulations.report.studies.stages import names_of

UNTESTED = "untested against an adaptive attacker"


def is_adaptive(cell: Cell, known: Any) -> bool:
    """Whether the attack was made against its cell's defence, whose configuration is ``known``."""
    return any(_runs(name, cell) for name in _adaptive_names(known))


def _adaptive_names(known: Any) -> list[str]:
    names = known.get("adaptive_attacks") if isinstance(known, Mapping) else None
    return [str(name) for name in names] if isinstance(names, list | tuple) else []


def adaptive_caveats(cells: Sequence[Cell], known: Any) -> list[str]:
    """Caveats on the adaptive attacks on one defence: those that did not run, and data that none attacked.

    Args:
        cells: All attacks on the defence.
        known: Its configuration, as in ``is_adaptive``.
    """
    names = _adaptive_names(known)
    if not names:
        return [UNTESTED]
    able = [cell for cell in cells if cell.has_result and not cell.is_upper_bound]
    by_name = {name: [cell for cell in able if _runs(name, cell)] for name in names}
    missing = [_asked(name, able) for name, found in by_name.items() if not found]
    if len(missing) == len(by_name):
        return [f"{UNTESTED}: {', '.join(missing)} did not run"]
    caveats = [f"adaptive attacks that did not run: {', '.join(missing)}"] if missing else []
    ran = [one for one in FAMILIES if any(one.scored(cell.scores) for found in by_name.values() for cell in found)]
    if IMAGES not in ran and CELLS not in ran:
        on = " and ".join(one.attacked for one in ran)
        caveats.append(f"no adaptive attack on images ran, only on {on}")
    return caveats


def _asked(name: str, cells: Sequence[Cell]) -> str:
    """An attack that is missing; where it ran with settings that keep it from knowing the defence, which one is missing."""
    return f"{name} that knows the defence" if any(name in names_of(cell.attack) for cell in cells) else name


def _runs(name: str, cell: Cell) -> bool:
    """Whether the attack, or a stage of its chain, is the named one, with settings under which it knows the defence."""
    return cell.knows_defenses and name in names_of(cell.attack)
