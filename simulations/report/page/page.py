"""From rows, pictures and configuration to one HTML page."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from inspect import isfunction
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from attacks.metrics.images import PSNR
from attacks.metrics.metric import MEMBERSHIP
from attacks.metrics.registry import metric_label
from simulations.experiment.experiment import all_settings
from simulations.report import text
from simulations.report.analysis.adaptive import is_adaptive
from simulations.report.analysis.conclusion import conclusion, recovers, verdicts
from simulations.report.analysis.failures import failures
from simulations.report.analysis.line import Line
from simulations.report.analysis.outcome import outcomes
from simulations.report.analysis.run import ReadRun, read_run
from simulations.report.analysis.sentences import called, picked, sentence
from simulations.report.drawing import plots
from simulations.report.drawing.looks import MARKERS, Look, is_dp_sgd, looks
from simulations.report.drawing.picture_index import Picture, read_index
from simulations.report.drawing.pictures import LONG, Embedder, Strip, best_recovered, captioned, drawn, grids
from simulations.report.drawing.placing import placed
from simulations.report.drawing.roc import roc_charts
from simulations.report.page.glossary import GLOSSARY, OF_MESSAGES
from simulations.report.page.script import SCRIPT, SCRIPT_HASH
from simulations.report.page.style import CSS
from simulations.report.page.tables import cards, control_table, others, tally
from simulations.report.page.template import BODY, whole
from simulations.report.section import sections
from simulations.report.studies.baselines import FAR_MORE
from simulations.report.studies.control import LEAST_IMAGES
from simulations.report.studies.plain import plain_words_of
from simulations.report.studies.recovery import DEFINITION, RECOVERED
from simulations.report.studies.study import Study, mean_each
from simulations.run_folder.rows import Row, number_of

CONFIG_KEYS = ("config", "pipelines", "defenses", "versions", "progress", "command", "run")
"""What ``config.json`` may hold; anything else is shown as it is."""


def build(directory: Path) -> tuple[str, list[Row]]:
    """The page, and the validated rows of a run directory with the shares of recovered images, as far as its parts exist."""
    run = read_run(directory)
    rows, config, order = run.rows, run.config, run.order
    listed, picture_notes = read_index(directory)
    pictures = placed(listed, directory / "pictures")
    # One look per pipeline for the whole page, including pipelines that have not started.
    every = dict.fromkeys([*order, *(row.defense for row in rows), *(picture.defense for picture in pictures)])
    faces = looks(sorted(every, key=lambda one: one != ""))
    embed = Embedder(directory / "pictures")
    studies = run.studies
    alone = len(studies) == 1
    plain = plain_words_of(rows)
    faces = {one: replace(face, name=plain.name) if one == "" else face for one, face in faces.items()}
    views = [_view(study, run, _own(study, pictures, alone), faces, embed) for study in studies]
    claimed = {id(picture) for study in studies for picture in _own(study, pictures, alone)}
    loose = [picture for picture in pictures if id(picture) not in claimed]
    upper_bounds = {attack: why for study in studies for attack, why in study.upper_bounds.items()}
    settings = config.get("config")
    changed, unchanged = by_default(settings) if isinstance(settings, Mapping) else ({}, {})
    context = {
        "title": ": ".join(filter(None, (studies[0].name[0] if studies else "", "fedveil report"))),
        "about": about(config.get("run")),
        "changed": changed,
        "unchanged": unchanged,
        "faces": faces,
        "attack_names": text.short_names(list(dict.fromkeys(row.attack for row in rows if row.attack)), LONG),
        "upper_bounds": upper_bounds,
        "alone": alone,
        "plain_name": plain.name,
        "glossary": {
            term: said
            for term, said in GLOSSARY.items()
            if term not in OF_MESSAGES or any(view["probed"] for view in views)
        },
        "studies": views,
        "loose": grids(loose, order, embed, upper_bounds),
        "progress": progress(config.get("progress")),
        "config": config,
        "unknown": {key: value for key, value in config.items() if key not in CONFIG_KEYS},
        "command": f"fedveil report {shlex.quote(directory.resolve().name)}",
        "directory": shlex.quote(directory.resolve().name),
        # Last: embedding pictures adds notes.
        "notes": [*run.notes, *picture_notes, *embed.notes()],
    }
    return render(BODY, context), [*rows, *_derived(studies)]


def _derived(studies: Sequence[Study]) -> list[Row]:
    """The shares of recovered images, which the page counts and ``rows.jsonl`` does not hold; each once."""
    found = (row for study in studies for row in study.all_rows if row.metric == RECOVERED[0])
    return list({row.to_json(): row for row in found}.values())


def progress(state: Any) -> str:
    """What an unfinished run has done, or "" for a finished one."""
    if not isinstance(state, Mapping) or state.get("finished"):
        return ""
    at, last, pipeline, pipelines = (state.get(key, "?") for key in ("round", "rounds", "pipeline", "of"))
    where = f"round {at} of {last} of pipeline {pipeline} of {pipelines}"
    if state.get("failed"):
        return f"run stopped after {where}: {text.setting(state['failed'])}"
    return f"run in progress: {where}"


def about(run: Any) -> list[str]:
    """When, how long and where a run computed, as far as its configuration says."""
    if not isinstance(run, Mapping):
        return []
    seconds = run.get("seconds")
    took = text.seconds(number_of(seconds)) if isinstance(seconds, int | float) else ""
    facts = [run.get("started"), took and f"{took} of computing", run.get("machine")]
    return [text.setting(one) for one in facts if one]


def by_default(config: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings that are not their defaults, and those that are; what no scenario here knows counts as set."""
    known = {key: spec.default for key, spec in all_settings().items()}
    unchanged = {key: value for key, value in config.items() if key in known and value == known[key]}
    return {key: value for key, value in config.items() if key not in unchanged}, unchanged


def _own(study: Study, pictures: Sequence[Picture], alone: bool) -> list[Picture]:
    """Pictures of one study: all when there is only one, else those that name its experiment, or are of its cut's phase."""
    if alone:
        return list(pictures)
    if study.cut:
        mine = [one for one in pictures if one.target[0] in ("", study.name[0])]
        return [one for one in mine if one.round in study.final_rounds]
    return [one for one in pictures if one.target[0] and one.target[0] == study.name[0]]


@cache
def _environment() -> jinja2.Environment:
    """With the filters and functions that templates of pages use."""
    found = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    named: dict[str, Any] = {one.__name__: one for one in (metric_label, sentence, picked, recovers, verdicts)}
    named |= {name: value for name, value in vars(text).items() if isfunction(value) and not name.startswith("_")}
    found.filters.update(named | {"swatch": _swatch})
    limits = {"least_images": LEAST_IMAGES, "far_more": FAR_MORE, "most_strips": plots.MOST_STRIPS}
    texts = {"definition": DEFINITION, "nothing": text.NOTHING}
    around = {"css": Markup(CSS), "script": Markup(SCRIPT), "script_hash": SCRIPT_HASH}
    found.globals.update(named | limits | texts | around | {"null_heads": _null_heads})
    return found


@cache
def _template(body: str) -> jinja2.Template:
    return _environment().from_string(whole(body))


def render(body: str, context: Mapping[str, Any]) -> str:
    """The page around the Jinja text of its body."""
    return _template(body).render(context).lstrip()


def _null_heads(names: Sequence[str], mark: str) -> list[str]:
    """Column headings, see the macro ``head``."""
    return [mark + name for name in names]


def _swatch(look: Look) -> Markup:
    shown = '<span class="swatch" style="color:{}" data-mark="{}"></span>'
    return Markup(shown).format(look.color, MARKERS[look.shape][1])


def _view(
    study: Study, run: ReadRun, pictures: Sequence[Picture], faces: Mapping[str, Look], embed: Embedder
) -> dict[str, Any]:
    """Everything that the sections of one study show."""
    defenses, lines, plain = run.defenses, run.lines(study), plain_words_of(study.rows)
    columns, control = control_table(study)
    controlled = [row for row in control if row.metric == PSNR.name]
    # Where every attack is given something, as the labels, the run is still worth nothing if none of them works.
    able = [row for row in controlled if row.attack not in study.upper_bounds] or controlled
    images = [verdict for row in able for verdict in row.verdicts if verdict]
    enough = [verdict for verdict in images if not verdict.too_few]
    judged = [verdict for verdict in enough if not verdict.open]
    whole = {one.name: [o for o, kinds in one.own_pictures.items() if not kinds] for one in sections()}
    apart = {observation for one in sections() for observation in one.own_pictures}
    reconstructed = [one for one in pictures if one.attack not in study.class_attacks and one.observation not in apart]
    nulls = mean_each(cell.nulls for cell in study.cells)
    # GAN attacks and scored attacks on membership have tables of their own.
    attacked = [c for c in study.cells if not c.draws_classes and c.mean(*MEMBERSHIP.decides) is None]
    members = [cell for cell in study.cells if cell.mean(*MEMBERSHIP.decides) is not None]
    # Where the headline is of one round, its pictures come first.
    leading = {line.defense: line.strongest.round for line in lines if line.strongest}
    shown = {one.name: one.view(study, lines) for one in sections()}
    own = [one for one in sections() if shown[one.name]]
    found = list(outcomes(lines))
    best = {line.defense: best_pictures(line, reconstructed, embed) for line in lines}
    return {
        "study": study,
        "lines": lines,
        "plain": plain,
        "conclusion": conclusion(lines, plain),
        "outcomes": found,
        "probed": any(line.probe or line.update for line in lines),
        "updates": any(line.update for line in lines),
        "of_images": any(one.of == "images" for one in found),
        "doubted": any(text.dagger(cell.status) for line in lines for cell in line.leading),
        "best": best,
        "star": star(lines, best, plain.name),
        "has": _columns(lines),
        "strips": plots.strips(lines, faces),
        "dp_sgd": any(map(is_dp_sgd, study.pipelines)),
        "planes": plots.planes(lines, faces),
        "accuracy": plots.accuracy(study, faces),
        "panels": plots.panels(study, faces),
        "grids": grids(reconstructed, study.pipelines, embed, study.upper_bounds, leading),
        "sections": shown,
        "own_grids": {
            name: grids([one for one in pictures if one.observation in of], study.pipelines, embed, {})
            for name, of in whole.items()
        },
        "own_pictures": {one.name: captioned(pictures, one.own_pictures, embed) for one in sections()},
        "first": list(filter(None, (one.first(shown[one.name]) for one in own))),
        "titles": [(one.name, one.title) for one in own],
        "deployed_on": "".join(one.deployed_on for one in own),
        "pictures_show": "; ".join(one.pictures_show for one in own if one.pictures_show),
        "drawn": drawn([one for one in pictures if one.attack in study.class_attacks], embed),
        "membership": members,
        "roc": roc_charts(study, faces),
        "representatives": [cell for cell in study.cells if cell.draws_classes],
        "attacked": attacked,
        "adaptive": {(c.defense, c.attack) for c in study.cells if is_adaptive(c, defenses.get(c.defense))},
        "has_recognition": any(cell.mean("recognition") is not None for cell in attacked),
        "control_columns": columns,
        "control": control,
        "tally": tally(columns, control),
        "unbroken": bool(judged) and not any(verdict.passed for verdict in judged),
        "too_few": max(verdict.n for verdict in images) if images and not enough else 0,
        "open": bool(enough) and not judged,
        "null_names": sorted(nulls, key=lambda name: nulls[name]),
        "scale_db": mean_each(line.strongest.scales for line in lines if line.strongest),
        "scale_picked": mean_each(line.strongest.picked_scales for line in lines if line.strongest),
        "scale_names": sorted({name for cell in study.cells for name in cell.scales}),
        "cards": cards(study.cells),
        "failures": failures(study.all_rows),
        "others": others(study),
        "rounds": sorted({row.round for row in study.rows if not row.final}),
    }


def best_pictures(line: Line, pictures: Sequence[Picture], embed: Embedder) -> list[Strip]:
    """The best-recovered image of the headline's attack, and that of all attacks where it is another's."""
    if line.strongest is None:
        return []
    found = [best_recovered(pictures, line.strongest, embed, "best-recovered image")]
    if better := line.better_image([line.strongest]):
        caption = f"best-recovered image of all attacks, by {called(better)}"
        found.append(best_recovered(pictures, better, embed, caption))
    return [one for one in found if one]


def star(lines: Sequence[Line], best: Mapping[str, Sequence[Strip]], plain: str) -> Strip | None:
    """The picture of the first screen: of the defence under which most images are recovered, else of no defence."""
    shown = [line for line in lines if best[line.defense]]
    if not shown:
        return None
    defense = max(shown, key=lambda line: (bool(line.defense), _share(line))).defense
    strip = best[defense][0]
    name = text.short_names([defense])[defense] if defense else plain
    return replace(strip, target=f"{name}, {strip.target}")


def _share(line: Line) -> float:
    """The share of images that the strongest attack recovered."""
    return (line.strongest.share.mean or 0.0) if line.strongest and line.strongest.share else 0.0


def _columns(lines: Sequence[Line]) -> dict[str, bool]:
    """Which optional columns of the summary have anything to show."""
    return {
        "protected": any(line.protected for line in lines),
        "recovered": any(line.strongest and line.strongest.recovered for line in lines),
        "picked": any(line.strongest and line.strongest.picked for line in lines),
        "labels": any(line.labels for line in lines),
        "attributes": any(line.attributes for line in lines),
        "membership": any(line.membership for line in lines),
        "epsilon": any(line.epsilon is not None for line in lines),
        "probes": any(line.epsilon_with_probes is not None for line in lines),
        "cuts": any(line.epsilon_all_cuts is not None for line in lines),
        "seconds": any(line.seconds is not None for line in lines),
        "bytes": any(line.bytes is not None for line in lines),
    }
