"""What studies over several seeds have in common: a file of results that a killed study goes on from, and tables of means.

The first line of the file is the study with its settings, every further one an arm under a seed. Processes that compute different
arms or seeds may share it. Models that later arms need lie in a folder beside it.

Imported by ``vm_distillation.py`` and ``vm_detection.py``; prints nothing by itself.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.append(str(Path(__file__).resolve().parents[1]))  # for a script of the folder above

from audit_tables import table
from safetensors.torch import load_file, save_file
from torch import nn

from strategies.audit.score_rows import mean_and_interval

Numbers = Mapping[str, Any]
"""What is known of one arm under one seed: a number a key, or a list of them; JSON values only."""


class Column(NamedTuple):
    """A column of a table: which number, its heading, digits behind the point, and what it is multiplied by."""

    key: str
    title: str
    digits: int = 1
    scale: float = 1.0


class Results:
    """The file of one study.

    Args:
        path: Made, with its folder, if it does not exist.
        study: Name of the study.
        settings: All that its numbers depend on, beside seed and arm; JSON values.

    Raises:
        SystemExit: When the file is of another study, or of other settings, which it names.
    """

    def __init__(self, path: Path, study: str, settings: Mapping[str, Any]) -> None:
        self.path, self._found = path, dict[tuple[int, str], Numbers]()
        begun = {"study": study, "settings": json.loads(json.dumps(settings))}
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # until it is closed
            file.seek(0)
            *whole, cut_off = file.read().split("\n")
            if not whole and not cut_off:
                whole = [json.dumps(begun)]
                file.write(whole[0] + "\n")
            self._check(whole, begun)
            if cut_off:  # a process was killed while it wrote: that arm is not known
                file.truncate(sum(len(line.encode()) + 1 for line in whole))
        for one in map(json.loads, whole[1:]):
            self._found[one["seed"], one["arm"]] = one["numbers"]

    def _check(self, whole: Sequence[str], begun: Mapping[str, Any]) -> None:
        try:
            first = json.loads(whole[0])
            study, kept = first["study"], first["settings"]
        except (IndexError, ValueError, KeyError, TypeError):
            raise SystemExit(f"--out {self.path} holds no results of a study; name another file") from None
        if study != begun["study"]:
            raise SystemExit(f"--out {self.path} is of {study}, not of {begun['study']}; name another file")
        now = begun["settings"]
        other = [key for key in {**kept, **now} if kept.get(key) != now.get(key)]
        if other:
            told = ", ".join(f"{key} was {kept.get(key)!r} and is {now.get(key)!r}" for key in other)
            raise SystemExit(f"--out {self.path} was begun with other settings: {told}; name another file")

    def find(self, seed: int, arm: str) -> Numbers | None:
        """What is known of an arm; None before ``add``."""
        return self._found.get((seed, arm))

    def add(self, seed: int, arm: str, numbers: Numbers) -> Numbers:
        """Keeps an arm's numbers; they are on the disk when this returns. Returns what it keeps."""
        line = json.dumps({"seed": seed, "arm": arm, "numbers": dict(numbers)}, allow_nan=False)
        with self.path.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())
        kept: Numbers = json.loads(line)["numbers"]  # as whoever goes on from the file finds it
        self._found[seed, arm] = kept
        return kept

    def known(self, seed: int, arm: str, compute: Callable[[], Numbers]) -> Numbers:
        """An arm's numbers, computed and kept unless they are there already."""
        found = self.find(seed, arm)
        return self.add(seed, arm, compute()) if found is None else found

    def keep_model(self, seed: int, name: str, model: nn.Module) -> None:
        """Keeps the weights of a model that later arms need."""
        path = self._model_file(seed, name)
        path.parent.mkdir(exist_ok=True)
        partial = path.with_suffix(".tmp")
        save_file({key: tensor.contiguous() for key, tensor in model.state_dict().items()}, partial)
        partial.replace(path)

    def load_model(self, seed: int, name: str, model: nn.Module) -> bool:
        """Gives a model of the same architecture the weights that were kept; False where there are none."""
        path = self._model_file(seed, name)
        if path.is_file():
            model.load_state_dict(load_file(path))
        return path.is_file()

    def _model_file(self, seed: int, name: str) -> Path:
        return self.path.with_suffix(".models") / f"{name}-{seed}.safetensors"


def means(results: Results, seeds: Sequence[int], arms: Sequence[str], columns: Sequence[Column]) -> str:
    """A line an arm: the number of seeds, and the mean over them."""
    lines = []
    for arm in arms:
        found = [one for seed in seeds if (one := results.find(seed, arm)) is not None]
        lines.append([arm, str(len(found)), *(_mean([one.get(c.key) for one in found], c) for c in columns)])
    return table(["arm", "seeds", *(column.title for column in columns)], lines)


def differences(
    results: Results, seeds: Sequence[int], pairs: Sequence[tuple[str, str]], columns: Sequence[Column]
) -> str:
    """A line a pair of arms: the mean over seeds of first minus second, each seed paired, with its 95 % interval (t).

    One seed has no interval.
    """
    lines = []
    for first, second in pairs:
        both = [(results.find(seed, first), results.find(seed, second)) for seed in seeds]
        found = [(a, b) for a, b in both if a is not None and b is not None]
        cells = []
        for column in columns:
            told = [(a.get(column.key), b.get(column.key)) for a, b in found]
            gaps = [a - b if a is not None and b is not None else None for a, b in told]
            cells.append(_mean(gaps, column, interval=True))
        lines.append([f"{first} - {second}", str(len(found)), *cells])
    return table(["difference", "seeds", *(column.title for column in columns)], lines)


def _mean(values: Sequence[float | None], column: Column, *, interval: bool = False) -> str:
    """The mean as text; "-" where an arm has no such number."""
    known = [value * column.scale for value in values if value is not None]
    if not known or len(known) < len(values):
        return "-"
    found = mean_and_interval(known)
    text = f"{found['value']:+.{column.digits}f}" if interval else f"{found['value']:.{column.digits}f}"
    if not interval or found["ci_low"] is None:
        return text
    return f"{text} ({found['ci_low']:+.{column.digits}f} to {found['ci_high']:+.{column.digits}f})"
