"""Grouping of runs: the same experiment with other seeds forms a group, and groups are named by their differences."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from simulations.report.analysis.run import ReadRun, read_run
from simulations.run_folder.places import require_rows
from simulations.run_folder.run_config import FREE_ON_RESUME, OWN_CODE
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
        damaged: A sentence for each folder with damaged lines of rows, which counts them.
        notes: What else readers must know of the folders' files.
    """

    folders: tuple[Path, ...]
    run: ReadRun
    differs: Mapping[str, str]
    damaged: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Settings that distinguish the group from the others; its experiment or folder where nothing does."""
        settings = ", ".join(f"{key}={value}" for key, value in self.differs.items())
        if len(settings) > LONGEST:
            return self.folders[0].name
        return settings or str(_config(self.run).get("experiment") or self.folders[0].name)

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds of all its runs, sorted."""
        return tuple(sorted({row.seed for row in self.run.rows}))

    @property
    def unfinished(self) -> tuple[Path, ...]:
        """Folders of runs that were not finished, as their configurations say."""
        return tuple(folder for folder in self.folders if not _finished(read_run(folder)))


def grouped(folders: Sequence[Path]) -> tuple[Group, ...]:
    """Groups in order of appearance.

    Raises:
        ConfigError: When a folder holds no run, or two runs have the same settings and the same seed.
    """
    together: dict[str, list[tuple[Path, ReadRun]]] = {}
    for folder in folders:
        require_rows(folder, "DIR")
        run = read_run(folder)
        mine = together.setdefault(json.dumps(_facts(run), sort_keys=True), [])
        seed = _config(run).get("seed")
        for other, known in mine:
            if _config(known).get("seed") == seed:
                raise ConfigError(
                    f"{folder} and {other} are the same experiment with the same seed {seed}; give one of them"
                )
        mine.append((folder, run))
    facts = [json.loads(key) for key in together]
    every = dict.fromkeys(key for one in facts for key in one)
    keys = [key for key in every if len({str(one.get(key)) for one in facts}) > 1]
    return tuple(
        Group(
            tuple(folder for folder, _ in mine),
            functools.reduce(ReadRun.beside, (_called_as(mine[0][1], run) for _, run in mine)),
            {key: str(one.get(key, "")) for key in keys},
            tuple(run.damage for _, run in mine if run.damage),
            tuple(f"{folder}: {one}" for folder, run in mine for one in run.other_row_notes + run.config_notes),
        )
        for one, mine in zip(facts, together.values(), strict=True)
    )


def _called_as(first: ReadRun, run: ReadRun) -> ReadRun:
    """The run under the first's experiment name: rows of another name would be another study, and never be averaged with them."""
    name, own = (_config(one).get("experiment") for one in (first, run))
    if name == own or not isinstance(name, str):
        return run
    return replace(run, rows=tuple(replace(row, experiment=name) for row in run.rows))


def _facts(run: ReadRun) -> dict[str, str]:
    """All that must agree within a group, as text."""
    facts = {key: str(value) for key, value in _config(run).items() if key not in FREE}
    # Versions may write the text of the same pipelines in other ways.
    facts |= {"defenses": "; ".join(one or "no defence" for one in run.order)} if run.order else {}
    for what, key in (("code", OWN_CODE), ("version", "versions")):
        found = run.config.get(key)
        facts |= {f"{what} of {name}": str(one) for name, one in found.items()} if isinstance(found, Mapping) else {}
    return facts


def _config(run: ReadRun) -> Mapping[str, Any]:
    found = run.config.get("config")
    return found if isinstance(found, Mapping) else {}


def _finished(run: ReadRun) -> bool:
    progress = run.config.get("progress")
    return isinstance(progress, Mapping) and progress.get("finished") is True
