"""Findings of groups of runs, as the terminal shows them and as programs read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from simulations.compare.groups import Group
from simulations.console.terminal import Terminal
from simulations.report.analysis.outcome import outcomes
from simulations.report.text import count
from simulations.runtime.findings import print_read


def print_groups(console: Terminal, groups: Sequence[Group]) -> None:
    """Print a table of each study of each group, under the group's name and seeds."""
    for group in groups:
        seeds = f"{count(len(group.seeds), 'seed')}: {', '.join(map(str, group.seeds))}"
        print_read(console, group.run, f"{group.name} ({seeds})")
        for folder in group.unfinished:
            console.say(f"  not finished: {folder}")


def group_as_json(group: Group) -> dict[str, Any]:
    """A group for programs."""
    found = [
        {"study": " · ".join(study.words), **asdict(one)}
        for study in group.run.studies
        for one in outcomes(group.run.lines(study))
    ]
    return {
        "name": group.name,
        "folders": [str(folder.resolve()) for folder in group.folders],
        "seeds": list(group.seeds),
        "unfinished": [str(folder.resolve()) for folder in group.unfinished],
        "outcomes": found,
    }
