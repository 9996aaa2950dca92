"""The epsilon of one defence by each accountant: from the rows, and in words."""

from __future__ import annotations

import math
from collections.abc import Mapping

from attacks.metrics.training import EPSILON_BY
from defenses.training.accounting import MEANING
from simulations.report.studies.study import Study
from simulations.report.text import two

SAME = 1e-6
"""Relative difference up to which an accountant's epsilon is the claimed one."""


def epsilon_by_accountant(study: Study, defense: str) -> dict[str, float]:
    """Name of an accountant -> the largest epsilon of all rounds; empty where clients report none."""
    found = {}
    for name in MEANING:
        series = study.series(defense, f"{EPSILON_BY.name}{name}").values()
        if values := [score.mean for score in series if score.mean is not None]:
            found[name] = max(values)
    return found


def accountants_text(found: Mapping[str, float], claimed: float | None) -> str:
    """Each accountant's epsilon and what it is; "" without any. That of the claim is named."""
    if not found:
        return ""
    of = next((name for name, value in found.items() if claimed and math.isclose(value, claimed, rel_tol=SAME)), "")
    texts = [
        f"{name.upper() if len(name) == 3 else name} {two(value)} ({'claimed; ' if name == of else ''}{MEANING[name]})"
        for name, value in found.items()
    ]
    return f"epsilon by accountant: {', '.join(texts)}"
