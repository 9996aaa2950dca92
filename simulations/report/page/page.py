"""The report, from rows, pictures and configuration: the page, and the view of each of its studies."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attacks.metrics.images import LEAST_STRUCTURE
from simulations.experiment.experiment import all_settings
from simulations.report import text
from simulations.report.analysis.caveats import is_adaptive
from simulations.report.analysis.failures import not_run
from simulations.report.analysis.finding import Finding
from simulations.report.analysis.message import MEANING, Message, Verdict
from simulations.report.analysis.run import Summary, read_run
from simulations.report.columns import Cards, Table
from simulations.report.drawing import plots
from simulations.report.drawing.looks import Faces, looks
from simulations.report.drawing.picture_index import Picture, read_index
from simulations.report.drawing.pictures import Embedder, Grid, Strip, best_guess, captioned, drawn, grids
from simulations.report.drawing.plots import Chart
from simulations.report.page.tables import glance, ladder, tables
from simulations.report.page.templates import render
from simulations.report.section import Content, Section, sections
from simulations.report.studies.cell import SEEN
from simulations.report.studies.plain import plain_words_of
from simulations.report.studies.rows import grouped
from simulations.report.studies.study import Study
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


FEW = 2
"""Kinds and sizes of messages that the first table holds; of more there is a ladder."""


Strips = Mapping[str, Sequence[Strip]]
"""By defence."""


@dataclass(frozen=True)
class View(Summary):
    """One study's content: its findings with pictures, charts and tables.

    Attributes:
        own: Each section for which the study has something, and its content.
        star: The first screen's picture.
        grids: Reconstructions, the best of each defence; ``own_grids``: name of a section -> grids that it shows itself.
        own_pictures: Name of a section -> defence -> strips; ``drawn``: defence -> class representatives.
        plane: Privacy against accuracy; ``curves``: (caption, chart) over the rounds.
        tables: The tables below the first screen.
        not_run: (reason, attacks, names of defences) of attacks that did not apply or were not needed.
    """

    own: Mapping[Section, Content]
    star: Strip | None
    grids: Sequence[Grid]
    own_grids: Mapping[str, Sequence[Grid]]
    own_pictures: Mapping[str, Strips]
    drawn: Strips
    plane: Chart | None
    curves: Sequence[tuple[str, Chart]]
    cards: Cards
    tables: Mapping[str, Table]
    not_run: Sequence[tuple[str, Sequence[str], Sequence[str]]]

    @classmethod
    def of(cls, summary: Summary, pictures: Sequence[Picture], faces: Faces, embed: Embedder) -> View:
        """Of one study and its pictures."""
        study, findings = summary.study, summary.findings
        guessed = of_messages(study, pictures)
        # Where the headline is of one round, its pictures come first.
        leading = {finding.defense: finding.strongest.round for finding in findings if finding.strongest}
        names, numbered = text.short_names(study.pipelines), Cards(study.cells)
        return cls(
            study,
            findings,
            own={section: content for section in sections() if (content := section.view(study, findings))},
            star=next(stars(summary, guessed, embed), None),
            grids=grids(guessed, study.pipelines, embed, study.upper_bounds, leading),
            own_grids={
                section.name: grids(
                    [of for of in pictures if section.own_pictures.get(of.observation) == ()], study.pipelines, embed
                )
                for section in sections()
            },
            own_pictures={section.name: captioned(pictures, section.own_pictures, embed) for section in sections()},
            drawn=drawn([picture for picture in pictures if picture.attack in study.class_attacks], embed),
            plane=plots.plane(findings, faces),
            curves=plots.over_rounds(study, faces),
            cards=numbered,
            tables=tables(study, findings, summary.plain, numbered),
            not_run=[(why, attacks, [names[name] for name in of]) for why, attacks, of in not_run(study.all_rows)],
        )

    @property
    def columns(self) -> Sequence[Message]:
        """The messages of the first table: all if they are few, else the largest real one and the smallest request."""
        real, asked = [rung for rung in self.ladder if rung.real], [rung for rung in self.ladder if not rung.real]
        return self.ladder if len(self.ladder) <= FEW else [*real[-1:], *asked[: FEW - len(real[-1:])]]

    @property
    def glance(self) -> Table:
        """The first table."""
        return glance(self.findings, self.columns, self.study.attacks)

    @property
    def every_message(self) -> Table | None:
        """The ladder of messages, where the first table does not hold all of them."""
        return ladder(self.findings, self.ladder) if len(self.ladder) > len(self.columns) else None

    @property
    def fewer(self) -> str:
        """Why some counts are of fewer images than others; "" where all are of as many."""
        every = ((sent.place, sent.score.attacked) for of in self.findings for sent in of.messages if sent.score)
        attacked = grouped(every, lambda pair: pair[0]).values()
        fewer = {str(n) for of in attacked for _, n in of if 0 < n < max(most for _, most in of)}
        why = "batches are of random size, or some images, clients or seeds have no score"
        return f"Counts of fewer images (of {', '.join(sorted(fewer))}): {why}." if fewer else ""

    @property
    def claims(self) -> Sequence[str]:
        """What an external app says of its differential privacy and of its accuracy, each sentence once."""
        said = [claim.text for of in self.findings for claim in of.claims]
        said += [of.reported.text for of in self.findings if of.reported]
        return list(dict.fromkeys(said))

    @property
    def adaptive(self) -> Collection[tuple[str, str]]:
        """(defence, attack) for attacks that were made against the defence."""
        known = {finding.defense: finding.known for finding in self.findings}
        return {(cell.defense, cell.attack) for cell in self.study.cells if is_adaptive(cell, known[cell.defense])}


def own_pictures(study: Study, pictures: Sequence[Picture], alone: bool) -> list[Picture]:
    """Pictures of one study: all of a single study, else those that name its experiment, or its cut's phase."""
    if alone:
        return list(pictures)
    if study.cut:
        mine = [picture for picture in pictures if picture.target[0] in ("", study.name[0])]
        return [picture for picture in mine if picture.round in study.final_rounds]
    return [picture for picture in pictures if picture.target[0] and picture.target[0] == study.name[0]]


def of_messages(study: Study, pictures: Sequence[Picture]) -> list[Picture]:
    """Pictures of attacked images: without class representatives, and without those that a section shows itself."""
    apart = {observation for section in sections() for observation in section.own_pictures}
    return [one for one in pictures if one.attack not in study.class_attacks and one.observation not in apart]


def stars(summary: Summary, pictures: Sequence[Picture], embed: Embedder) -> Iterator[Strip]:
    """The best guess from each defence and message, the first screen's picture first: from messages with the worst verdict.

    Of these, from real messages first, then under a defence, then where most images are recognisable.
    """

    def rank(pair: tuple[Finding, Message]) -> tuple[int, bool, bool, float]:
        of, sent = pair
        return list(Verdict).index(sent.verdict), not sent.real, not of.defense, -(sent.cell.mean(*SEEN) or 0.0)

    pairs = [(of, message) for of in summary.findings for message in of.messages]
    for of, message in sorted(pairs, key=rank):
        if strip := best_guess(pictures, message.cell, embed):
            name = text.short_names([of.defense])[of.defense] if of.defense else summary.plain.name
            yield replace(strip, target=f"{', '.join(filter(None, (name, message.title)))}: {strip.target}")


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
