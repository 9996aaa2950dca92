"""Commands for more runs of compared experiments, with more seeds or more attacked images."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from simulations.compare.groups import Group
from simulations.report.repeat import command_of, settings_in

MORE_SEEDS = 5
"""Seeds that the commands add."""
LEAST_TARGETS = 16
"""Fewest attacked images of a client in the command for more images."""


def what_next(groups: Sequence[Group]) -> Mapping[str, str]:
    """Commands under "seeds" and "images", one a line; none where runs of other commands are among the compared ones."""
    runs = [group.run.config for group in groups]
    if not runs or any("output-dir" not in settings_in(one) for one in runs):
        return {}
    first = max((seed for group in groups for seed in group.seeds), default=-1) + 1
    seeds = f"{first}..{first + MORE_SEEDS - 1}"
    given = [str(folder) for group in groups for folder in group.folders]
    found = [settings_in(one).get("probe-targets") for one in runs]
    targets = max([LEAST_TARGETS, *(2 * one for one in found if isinstance(one, int))])
    return {
        "seeds": _commands(runs, seeds, "more-seeds", given),
        "images": _commands(runs, f"0..{MORE_SEEDS - 1}", "more-images", [], probe_targets=targets),
    }


def _commands(runs: Sequence[Mapping[str, Any]], seeds: str, out: str, given: Sequence[str], **changed: object) -> str:
    """Commands for runs of each experiment in new folders, and one that compares these with the ``given`` folders."""
    folders = [out] if len(runs) == 1 else [f"{out}-{number}" for number in range(1, len(runs) + 1)]
    words = [shlex.quote(one) for one in given] + [f"{one}/seed-*" for one in folders]
    lines = [command_of(run, seeds, folder, **changed) for run, folder in zip(runs, folders, strict=True)]
    return "\n".join([*lines, f"fedveil compare {' '.join(words)} --out comparison.html"])
