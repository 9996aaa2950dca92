"""What a tracker is told of a run."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from simulations.report.analysis.run import read_run
from simulations.report.analysis.sentences import sentence
from simulations.report.analysis.summary import summarise
from simulations.report.studies.rows import read_rows
from simulations.run_folder.rows import Row

ARTIFACTS = ("report.html", "rows.csv", "rows.jsonl", "config.json")
LONGEST_NAME = 250
"""Characters of a metric's name, of which MLflow takes no more."""
_ODD = re.compile(r"[^\w.]+")


@dataclass(frozen=True)
class Tracked:
    """A run as trackers know one.

    Attributes:
        experiment: What runs of one kind are gathered under.
        name: Of the run; its folder's.
        directory: Of the run.
        params: Setting -> its value as text, and ``version.PACKAGE``.
        metrics: Round -> name -> value; may be infinite (the PSNR of an exact copy). A name is
            ``DEFENCE/ATTACK/OBSERVATION/METRIC-REFERENCE`` with ``no-defence`` and ``training`` for what is not there; a number
            that the report does not let count has its status behind it, such as ``.not-validated``, so that no chart shows it as
            one that does.
        conclusions: The report's sentences, a defence each, in Markdown.
        artifacts: Files to keep with it.
    """

    experiment: str
    name: str
    directory: Path
    params: Mapping[str, str]
    metrics: Mapping[int, Mapping[str, float]]
    conclusions: str
    artifacts: tuple[Path, ...]

    @classmethod
    def of(cls, directory: Path) -> Self:
        """Reads a run's folder.

        Raises:
            OSError: When there is no run in it.
        """
        about = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        config = about.get("config", {})
        params = {key: value if isinstance(value, str) else json.dumps(value) for key, value in config.items()}
        params |= {f"version.{package}": version for package, version in about.get("versions", {}).items()}
        return cls(
            experiment=str(config.get("experiment") or "fedveil"),
            name=directory.name,
            directory=directory,
            params=params,
            metrics=_metrics(read_rows(directory / "rows.jsonl")[0]),
            conclusions=_conclusions(directory),
            artifacts=tuple(path for name in ARTIFACTS if (path := directory / name).is_file()),
        )


def _metrics(rows: list[Row]) -> dict[int, dict[str, float]]:
    found: dict[int, dict[str, float]] = {}
    for row in rows:
        if row.value is not None:
            of_round = found.setdefault(row.round, {})
            of_round[_free(metric_name(row), of_round)] = row.value
    return dict(sorted(found.items()))


def metric_name(row: Row) -> str:
    """What the number of a row is called in a tracker; letters, digits and ``_-./`` alone."""
    parts = [row.defense or "no-defence", row.attack or "training"]
    parts += [row.card.observation] if row.card.observation and row.attack else []
    parts += [f"client {row.client}"] if row.client is not None else []
    parts += [f"cut {row.cut}"] if row.cut else []
    parts += [f"{row.metric}-{row.reference}" if row.reference else row.metric]
    name = "/".join(_plain(part) for part in parts)
    return name if row.status == "ok" else f"{name}.{_plain(row.status)}"


def _plain(text: str) -> str:
    """``DPSGD(epsilon=2)`` -> "DPSGD-epsilon-2"."""
    return _ODD.sub("-", text).strip("-")


def _free(name: str, taken: Mapping[str, float]) -> str:
    """The name, or with a number behind it where another row of the round has it: no number may take another's place."""
    short = name if len(name) <= LONGEST_NAME else f"{name[:120]}...{name[-120:]}"
    return next(one for at in range(len(taken) + 1) if (one := f"{short}.{at + 1}" if at else short) not in taken)


def _conclusions(directory: Path) -> str:
    lines = [line for study in read_run(directory).studies for line in summarise(study, {})]
    return "\n\n".join(f"**{line.defense or 'No defence'}**: {sentence(line)}" for line in lines)
