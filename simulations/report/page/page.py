"""The report, from rows, pictures and configuration."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from attacks.metrics.images import LEAST_STRUCTURE
from simulations.experiment.experiment import all_settings
from simulations.report import text
from simulations.report.analysis.run import read_run
from simulations.report.analysis.verdict import MEANING, Verdict
from simulations.report.drawing.looks import looks
from simulations.report.drawing.picture_index import read_index
from simulations.report.drawing.pictures import Embedder, grids
from simulations.report.page.templates import render
from simulations.report.page.view import View, own_pictures
from simulations.report.studies.plain import plain_words_of
from simulations.run_folder.rows import Row, number_of
from simulations.run_folder.run_config import command_of

GLOSSARY = {
    **{text.capital(word): f"{text.capital(MEANING[word])}." for word in Verdict},
    "Identified": "The guess is nearer to the attacked image than to up to 99 others of its class and client, after mean and "
    'contrast are removed. "Chance" is how often a guess does that which knows the class alone: once in 100 times with 99 others.',
    "Structure": "Correlation of a guess and its image, mean and contrast removed. Recognisable images have "
    f"{LEAST_STRUCTURE:g} or more.",
    "Null baseline": "The score of a guess made without the message: a grey image, or the mean of the client's own images.",
    "Probe": "A request that an ordinary client does not answer: the gradient of a few images. Smaller messages usually leak more.",
    "Training update": "What a client sends after each round of training: a real update.",
    "Positive control": "The same attack without the defence, on messages of the same size or a smaller one. If it finds "
    "no images there, its failure elsewhere shows nothing. † marks a score that is not validated so, or of too few images.",
    "Adaptive attack": "An attack that knows the defence and its settings, though not its random draws.",
    "Upper bound": "An attack that knows what no server of this run knows, such as the true labels. No verdict counts it.",
    "ε (epsilon)": "A proven bound, smaller is stronger: one example, or one client, multiplies the probability of all that "
    "the server may see by at most e to the power of ε, but for a probability of δ.",
    "Threat card": "What an attack saw and knew, recorded with every number.",
}
"""Term -> meaning."""


CONFIG_KEYS = ("config", "pipelines", "defenses", "versions", "progress", "command", "run")
"""What ``config.json`` may hold; anything else is shown as it is."""


def build(directory: Path) -> tuple[str, Sequence[Row]]:
    """The page and the validated rows of a run directory, as far as its parts exist."""
    run = read_run(directory)
    rows, config, order = run.rows, run.config, run.order
    pictures, picture_notes = read_index(directory)
    # One look per pipeline for the whole page, including pipelines that have not started.
    known = dict.fromkeys([*order, *(row.defense for row in rows), *(picture.defense for picture in pictures)])
    faces = looks(sorted(known, key=lambda pipeline: pipeline != ""))
    embed = Embedder(directory / "pictures")
    studies = run.studies
    alone = len(studies) == 1
    plain = plain_words_of(rows)
    faces = {pipeline: replace(face, name=plain.name) if pipeline == "" else face for pipeline, face in faces.items()}
    own = [own_pictures(study, pictures, alone) for study in studies]
    views = [View.of(summary, of, faces, embed) for summary, of in zip(run.summaries, own, strict=True)]
    claimed = {id(picture) for of in own for picture in of}
    loose = [picture for picture in pictures if id(picture) not in claimed]
    upper_bounds = {attack: why for study in studies for attack, why in study.upper_bounds.items()}
    changed, unchanged = by_default(run.settings)
    title = ": ".join(filter(None, (studies[0].name[0] if studies else "", "fedveil")))
    context = {
        "about": about(config.get("run")),
        "changed": changed,
        "unchanged": unchanged,
        "faces": faces,
        "adaptive": {pair for view in views for pair in view.adaptive},
        "upper_bounds": upper_bounds,
        "alone": alone,
        "plain_name": plain.name,
        "glossary": GLOSSARY,
        "studies": views,
        "loose": grids(loose, order, embed, upper_bounds),
        "progress": progress(config.get("progress")),
        "config": config,
        "unknown": {key: value for key, value in config.items() if key not in CONFIG_KEYS},
        "command": f"fedveil report {shlex.quote(directory.resolve().name)}",
        "repeat": command_of(run.settings.get("output-dir", directory.name), config, "0..4", "five"),
        "directory": shlex.quote(directory.resolve().name),
    }
    # Last: embedding pictures adds notes.
    notes = [*run.notes, *picture_notes, *embed.notes()]
    return render("report.html", context | {"title": f"{title} report", "notes": notes}), rows


def progress(state: Any) -> str:
    """Progress of an unfinished run in words, or "" for a finished one."""
    if not isinstance(state, Mapping) or state.get("finished"):
        return ""
    at, last, pipeline, pipelines = (state.get(key, "?") for key in ("round", "rounds", "pipeline", "of"))
    where = f"round {at} of {last} of pipeline {pipeline} of {pipelines}"
    if state.get("failed"):
        return f"run stopped after {where}: {text.setting(state['failed'])}"
    begun, done = (number_of(state.get(key)) or 0 for key in ("attacks", "attacks_done"))
    waits = f"; {done:g} of {begun:g} attacks have finished" if begun > done else ""
    return f"run in progress: {where}{waits}"


def about(run: Any) -> list[str]:
    """Start, duration and machine of a run, as far as its configuration states them."""
    if not isinstance(run, Mapping):
        return []
    seconds = run.get("seconds")
    took = text.seconds(number_of(seconds)) if isinstance(seconds, int | float) else ""
    facts = [run.get("started"), took and f"{took} of computing", run.get("machine"), run.get("machines")]
    return [text.setting(fact) for fact in facts if fact]


def by_default(config: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings that differ from their defaults, and those that do not; an unknown setting counts as set."""
    known = {key: spec.default for key, spec in all_settings().items()}
    unchanged = {key: value for key, value in config.items() if key in known and value == known[key]}
    return {key: value for key, value in config.items() if key not in unchanged}, unchanged
