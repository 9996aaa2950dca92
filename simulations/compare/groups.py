"""Grouping of runs: the same experiment with other seeds forms a group, and groups are named by their differences."""

import functools
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulations.console.terminal import Terminal
from simulations.report.analysis.run import ReadRun, read_run
from simulations.report.text import count
from simulations.run_folder.folder_lock import require_rows
from simulations.run_folder.run_config import FREE_ON_RESUME, OWN_CODE, command_of
from simulations.runtime.findings import print_read
from simulations.settings.errors import ConfigError

FREE = FREE_ON_RESUME | {"seed", "experiment"}
"""Settings in which runs of one group may differ: the seed, and what changes no number."""

LONGEST = 80
"""Characters of a name; longer ones give way to the folder's, and stand in a table."""


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed alone, read as one.

    Attributes:
        folders: Their folders, in the order in which they were given.
        run: All their rows, under the configuration of the first.
        differs: Key -> value of the settings (and versions, "version of PACKAGE") in which groups differ; "" where it has none.
        unfinished: Folders of runs that were not finished, as their configurations say.
        damaged: A sentence for each folder with damaged lines of rows, which counts them.
        notes: What else readers must know of the folders' files.
    """

    folders: tuple[Path, ...]
    run: ReadRun
    differs: Mapping[str, str]
    unfinished: tuple[Path, ...] = ()
    damaged: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Settings that distinguish the group from the others; its experiment or folder where nothing does."""
        settings = ", ".join(f"{key}={value}" for key, value in self.differs.items())
        if len(settings) > LONGEST:
            return self.folders[0].name
        return settings or str(self.run.settings.get("experiment") or self.folders[0].name)

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds of all its runs, sorted."""
        return tuple(sorted({row.seed for row in self.run.rows}))

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "name": self.name,
            "folders": [str(folder.resolve()) for folder in self.folders],
            "seeds": list(self.seeds),
            "unfinished": [str(folder.resolve()) for folder in self.unfinished],
            "outcomes": self.run.to_json(),
        }


def grouped(folders: Sequence[Path]) -> tuple[Group, ...]:
    """Groups in order of appearance.

    Raises:
        ConfigError: When a folder holds no run, or two runs have the same settings and the same seed.
    """
    together: dict[str, dict[Path, ReadRun]] = {}
    for folder in folders:
        require_rows(folder, "DIR")
        run = read_run(folder)
        mine = together.setdefault(json.dumps(_facts(run), sort_keys=True), {})
        seed = run.settings.get("seed")
        for other, known in mine.items():
            if known.settings.get("seed") == seed:
                raise ConfigError(
                    f"{folder} and {other} are the same experiment with the same seed {seed}; give one of them"
                )
        mine[folder] = run
    facts = [json.loads(key) for key in together]
    every = dict.fromkeys(key for shared in facts for key in shared)
    keys = [key for key in every if len({str(shared.get(key)) for shared in facts}) > 1]
    return tuple(
        Group(
            tuple(mine),
            functools.reduce(ReadRun.beside, mine.values()),
            {key: str(shared.get(key, "")) for key in keys},
            unfinished=tuple(folder for folder, run in mine.items() if not run.finished),
            damaged=tuple(run.damage for run in mine.values() if run.damage),
            notes=tuple(f"{folder}: {note}" for folder, run in mine.items() for note in run.other_notes),
        )
        for shared, mine in zip(facts, together.values(), strict=True)
    )


def _facts(run: ReadRun) -> dict[str, str]:
    """All that must agree within a group, as text."""
    facts = {key: str(value) for key, value in run.settings.items() if key not in FREE}
    # Versions may write the text of the same pipelines in other ways.
    facts |= {"defenses": "; ".join(pipeline or "no defence" for pipeline in run.order)} if run.order else {}
    for what, key in (("code", OWN_CODE), ("version", "versions")):
        entry = run.config.get(key)
        facts |= {f"{what} of {name}": str(text) for name, text in entry.items()} if isinstance(entry, Mapping) else {}
    return facts


def print_groups(console: Terminal, groups: Sequence[Group]) -> None:
    """Print a table of each study of each group, under the group's name and seeds."""
    for group in groups:
        seeds = f"{count(len(group.seeds), 'seed')}: {', '.join(map(str, group.seeds))}"
        print_read(console, group.run, f"{group.name} ({seeds})")
        for folder in group.unfinished:
            console.say(f"  not finished: {folder}")


MORE_SEEDS = 5
"""Seeds that the commands add."""
LEAST_TARGETS = 16
"""Fewest attacked images of a client in the command for more images."""


def what_next(groups: Sequence[Group]) -> Mapping[str, str]:
    """Commands under "seeds" and "images", one a line; none where runs of other commands are among the compared ones."""
    if not all("output-dir" in group.run.settings for group in groups):
        return {}
    given = [str(folder) for group in groups for folder in group.folders]
    first = max((seed for group in groups for seed in group.seeds), default=-1) + 1
    asked = [group.run.settings.get("probe-targets") for group in groups]
    targets = max([LEAST_TARGETS, *(2 * number for number in asked if isinstance(number, int))])
    return {
        "seeds": _commands(groups, f"{first}..{first + MORE_SEEDS - 1}", "more-seeds", given),
        "images": _commands(groups, f"0..{MORE_SEEDS - 1}", "more-images", [], f"probe-targets={targets}"),
    }


def _commands(groups: Sequence[Group], seeds: str, out: str, given: Sequence[str], *changed: str) -> str:
    """Commands for runs of each experiment in new folders, and one that compares these with the ``given`` folders."""
    folders = [out] if len(groups) == 1 else [f"{out}-{number}" for number in range(1, len(groups) + 1)]
    words = [shlex.quote(folder) for folder in given] + [f"{folder}/seed-*" for folder in folders]
    lines = [
        command_of(group.folders[0], group.run.config, seeds, folder, *changed)
        for group, folder in zip(groups, folders, strict=True)
    ]
    return "\n".join([*lines, f"fedveil compare {' '.join(words)} --out comparison.html"])
