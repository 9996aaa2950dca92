"""The card of a run: what its studies found, tried and left out; the sentences are in the template."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attacks.metrics.guesses import MEMBERSHIP_TPR
from attacks.metrics.metric import LABELS, MEMBERSHIP
from clients.data.datasets import is_public
from clients.external_app.plan import OWN_DATA
from clients.models.library import LIBRARIES
from simulations.card.markdown import Ready, render
from simulations.experiment.experiment import scenarios
from simulations.report import text
from simulations.report.analysis.caveats import is_adaptive
from simulations.report.analysis.failures import failures, not_run
from simulations.report.analysis.finding import KNOWN_LABELS, Finding, strongest
from simulations.report.analysis.message import worst
from simulations.report.analysis.run import Summary, read_run
from simulations.report.analysis.sentences import MOST_EPSILON, sentence
from simulations.report.columns import Cards
from simulations.report.page.page import GLOSSARY, progress
from simulations.report.sections.external_app import Told
from simulations.report.studies.cell import Cell
from simulations.report.studies.messages import stand_ins
from simulations.report.studies.rows import grouped
from simulations.run_folder.run_config import command_of
from simulations.runtime.findings import costs
from simulations.settings.errors import ConfigError
from strategies.outsourced.observations import MODEL

KNOWLEDGE = ("labels", "learning_rate", "auxiliary_data", "batch_norm_statistics")
"""Facts of threat cards that say what an attacker knew."""
EFFORT = ("iterations", "restarts", "training_iterations")


@dataclass(frozen=True)
class Facts(Summary):
    """One study of a run, with the settings of `fedveil run`, or none for an audit of another kind."""

    settings: Mapping[str, Any]

    @property
    def names(self) -> dict[str, str]:
        """Its names by what they are of: of data only if it is a public set of fedveil, of own code without its place."""
        experiment, scenario, data, model, cut = self.study.name
        known = data.partition(":")[0] if is_public(data) else data if data == OWN_DATA else "the operator's own data"
        model = model if model.partition(":")[0] in LIBRARIES else model.rpartition(":")[2]
        return {"experiment": experiment, "scenario": scenario, "data": known, "model": model, "cut": cut}

    @property
    def cells(self) -> list[Cell]:
        """All attacks of its findings, without upper bounds."""
        return [cell for of in self.findings for cell in of.cells]

    def tried(self, differing: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Each attack: its messages, the defences that it is made against, effort, and knowledge in ``differing`` facts."""
        names, known = text.short_names(self.study.pipelines), {of.defense: of.known for of in self.findings}
        for attack, cells in grouped((one for one in self.cells if one.has_result), lambda cell: cell.attack).items():
            on = grouped(cells, lambda cell: cell.observation).items()
            facts = [*(key for key in KNOWLEDGE if key in differing), *EFFORT]
            values = {key.replace("_", " "): _each(cell.fact(key) for cell in cells) for key in facts}
            yield {
                "attack": attack,
                "on": [(what, _each(map(str, sorted({cell.rung for cell in of})))) for what, of in on],
                "against": _each(names[cell.defense] for cell in cells if is_adaptive(cell, known[cell.defense])),
                "facts": "; ".join(f"{key}: {value}" for key, value in values.items() if value not in ("", "none")),
                "passed": sum(cell.status == "ok" for cell in cells),
                "cells": len(cells),
            }

    def labels(self, of: Finding, real: bool) -> Cell | None:
        """What recovered most labels of messages that clients send unasked where these are ``real``, else of requests."""
        able = [cell for cell in of.cells if (cell.observation not in stand_ins()) is real]
        return strongest([cell for cell in able if cell.card.labels not in KNOWN_LABELS], LABELS.decides)

    @property
    def unknown(self) -> list[str]:
        """What an external app or a recording left open, each a sentence."""
        told = [row.read(Told) for row in self.study.rows]
        return list(dict.fromkeys(said for facts in told for said in (*facts.warnings, *facts.assumed)))


def chosen(summaries: Sequence[Summary], wanted: str) -> list[Summary]:
    """The studies with the ``wanted`` defence alone, beside no defence; ``ConfigError`` where none has this text or name."""
    names = {of.name(line): line.defense for of in summaries for line in of.findings}
    short = text.short_names(list(names.values()))
    known = {name.casefold(): of for of, name in short.items()} | {name.casefold(): of for name, of in names.items()}
    if wanted.casefold() not in known:
        raise ConfigError(f"--defense is {wanted!r}; the run has: {'; '.join(names)}")
    kept = ("", known[wanted.casefold()])
    found = [Summary(one.study, [line for line in one.findings if line.defense in kept]) for one in summaries]
    return [one for one in found if any(line.defense == kept[1] for line in one.findings)]


def card_of(folder: Path, defense: str) -> tuple[str, str]:
    """The card of all defences, or of one beside none, and a sentence on damaged rows, or "".

    Raises:
        ConfigError: When the folder holds no row that can be read, or no such defence.
    """
    run = read_run(folder)
    if not run.rows:
        raise ConfigError(f"{folder}: rows.jsonl holds no row that can be read")
    own = "output-dir" in run.settings  # an app, or a recording, has settings of other meanings
    summaries = chosen(run.summaries, defense) if defense else run.summaries
    studies = [Facts(of.study, of.findings, run.settings if own else {}) for of in summaries]
    versions, about, state = (
        value if isinstance(value := run.config.get(key), Mapping) else {} for key in ("versions", "run", "progress")
    )
    state = {**state, "failed": "the log says why"} if state.get("failed") else state
    seeds = ",".join(map(str, sorted({seed for one in studies for seed in one.study.seeds})))
    files = [file for name in ("rows.jsonl", "config.json") if (file := folder / name).is_file()]
    context = {
        "digest": hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest(),
        "studies": studies, "omitted": sum(len(of.findings) for of in run.summaries) - sum(len(of.findings) for of in summaries),
        "versions": versions, "started": about.get("started"), "public": is_public,
        "notes": [progress(state) if state else "", run.damage.removeprefix(f"{folder}: "), *run.other_notes],
        "command": Ready(command_of("RUN", run.config, seeds, "again")) if own else "",
        "abouts": {name: of.about for name, of in scenarios().items()}, "glossary": GLOSSARY, "knowledge": KNOWLEDGE,
        "members": (MEMBERSHIP.decides, MEMBERSHIP_TPR.of()), "labels": LABELS.decides, "most_epsilon": MOST_EPSILON,
        "cards": Cards, "costs": costs, "exp": math.exp, "failures": failures, "not_run": not_run, "sentence": sentence,
        "worst": worst, "model_title": MODEL.title,
    }  # fmt: skip
    return render(context), run.damage


def _each(words: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(filter(None, words)))
