"""Content of one study's sections, as the page's templates read it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from attacks.metrics.guesses import MEMBERSHIP_LOW_TPR
from attacks.metrics.metric import MEMBERSHIP
from simulations.report import text
from simulations.report.analysis.adaptive import is_adaptive
from simulations.report.analysis.failures import failures
from simulations.report.analysis.line import Line
from simulations.report.analysis.outcome import Finding, Message, outcomes
from simulations.report.analysis.run import ReadRun
from simulations.report.analysis.sentences import in_plain_words, notes, recommendation
from simulations.report.analysis.verdict import Judged, Verdict
from simulations.report.drawing import plots
from simulations.report.drawing.looks import Faces, is_dp_sgd
from simulations.report.drawing.picture_index import Picture
from simulations.report.drawing.pictures import EVERY, Embedder, Strip, best_guess, captioned, drawn, grids
from simulations.report.drawing.roc import roc_charts
from simulations.report.page.tables import cards, control_table, fewer_images, others
from simulations.report.section import sections
from simulations.report.studies.cell import SEEN
from simulations.report.studies.plain import plain_words_of
from simulations.report.studies.study import Study, mean_each

OPTIONAL = ("protected", "labels", "membership", "epsilon", "seconds", "bytes")
"""Numbers of a line that have a column where any line has them."""
FEW = 2
"""Kinds and sizes of messages that the first table holds; of more there is a ladder."""


def own_pictures(study: Study, pictures: Sequence[Picture], alone: bool) -> list[Picture]:
    """Pictures of one study: all of a single study, else those that name its experiment, or its cut's phase."""
    if alone:
        return list(pictures)
    if study.cut:
        mine = [one for one in pictures if one.target[0] in ("", study.name[0])]
        return [one for one in mine if one.round in study.final_rounds]
    return [one for one in pictures if one.target[0] and one.target[0] == study.name[0]]


def view(
    study: Study, run: ReadRun, pictures: Sequence[Picture], faces: Faces, embed: Embedder, every: Embedder
) -> dict[str, Any]:
    """Content of one study's sections; ``every`` embeds the pictures of the page of every attack."""
    defenses, lines, plain = run.defenses, run.lines(study), plain_words_of(study.rows)
    of_sections = {
        one.name: [picture for picture in pictures if one.own_pictures.get(picture.observation) == ()]
        for one in sections()
        if () in one.own_pictures.values()
    }
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
    columns, found = columns_of(lines), outcomes(lines)
    return {
        "study": study,
        "lines": lines,
        "plain": plain,
        "findings": found,
        "said": in_plain_words(lines, plain),
        "recommendation": recommendation(lines),
        "columns": first_columns(columns),
        "ladder": columns if len(columns) > FEW else [],
        "notes": notes(lines, plain.name.lower()),
        "fewer": fewer_images(found),
        "claims": list(dict.fromkeys(said for line in lines for said in line.said_by_the_app)),
        "tested": sum(map(bool, study.pipelines)),
        "has_epsilon": any(one.epsilon or one.numbered_claims for one in found),
        "star": star(lines, reconstructed, embed, plain.name),
        "has": {name: any(getattr(line, name) is not None for line in lines) for name in OPTIONAL},
        "dp_sgd": any(map(is_dp_sgd, study.pipelines)),
        "plane": plots.plane(lines, faces),
        "curves": plots.over_rounds(study, faces),
        "grids": grids(reconstructed, study.pipelines, embed, study.upper_bounds, leading),
        "every_grid": [
            (anchor, title, grids(of, study.pipelines, every, study.upper_bounds, leading, EVERY))
            for anchor, title, of in (
                ("pictures", "Pictures", reconstructed),
                *((one.name, one.title, of_sections[one.name]) for one in sections() if one.name in of_sections),
            )
            if of
        ],
        "sections": shown,
        "own_grids": {name: grids(of, study.pipelines, embed) for name, of in of_sections.items()},
        "own_pictures": {one.name: captioned(pictures, one.own_pictures, embed) for one in sections()},
        "first": list(filter(None, (one.first(shown[one.name]) for one in own))),
        "steps": [step for one in own for step in one.steps(shown[one.name])],
        "own": own,
        "deployed_on": "".join(one.deployed_on for one in own),
        "pictures_show": "; ".join(one.pictures_show for one in own if one.pictures_show),
        "drawn": drawn([one for one in pictures if one.attack in study.class_attacks], embed),
        "membership": members,
        "roc": roc_charts(study, faces),
        "low_rates": any(MEMBERSHIP_LOW_TPR.of() in cell.scores for cell in members),
        "representatives": [cell for cell in study.cells if cell.draws_classes],
        "attacked": attacked,
        "scored": any(c.has_result for c in (*study.cells, *study.active_cells, *study.aggregate_cells)),
        "adaptive": {(c.defense, c.attack) for c in study.cells if is_adaptive(c, defenses.get(c.defense))},
        "has_recognition": any(cell.mean("recognition") is not None for cell in attacked),
        "control": control_table(study),
        "null_names": sorted(nulls, key=lambda name: nulls[name]),
        "scale_names": sorted({name for cell in study.cells for name in cell.scales}),
        "cards": cards(study.cells),
        "failures": failures(study.all_rows),
        "others": others(study),
    }


def columns_of(lines: Sequence[Line]) -> list[Judged]:
    """Each kind and size of message once, as some line has it: real ones first, each from the smallest to the largest."""
    found = {one.title: one for line in lines for one in line.judged}
    return sorted(found.values(), key=lambda one: (not one.real, one.rung.size if one.rung else (0, 0)))


def first_columns(columns: Sequence[Judged]) -> list[Judged]:
    """The messages of the first table: the largest real one, and the smallest request."""
    real, asked = [one for one in columns if one.real], [one for one in columns if not one.real]
    return list(columns) if len(columns) <= FEW else [*real[-1:], *asked[: FEW - len(real[-1:])]]


def message_of(finding: Finding, title: str) -> Message | None:
    """What was found in the messages of a column."""
    return next((one for one in finding.messages if one.title == title), None)


def star(lines: Sequence[Line], pictures: Sequence[Picture], embed: Embedder, plain: str) -> Strip | None:
    """The first screen's picture: the best guess from the messages with the worst verdict.

    Of these, from real messages first, then under a defence, then where most images are recognisable.
    """

    def rank(pair: tuple[Line, Judged]) -> tuple[int, bool, bool, float]:
        line, one = pair
        seen = one.cell.mean(*SEEN) if one.cell else None
        return list(Verdict).index(one.verdict), not one.real, not line.defense, -(seen or 0.0)

    found = [(line, one) for line in lines for one in line.judged]
    for line, one in sorted(found, key=rank):
        if one.cell and (strip := best_guess(pictures, one.cell, embed)):
            name = text.short_names([line.defense])[line.defense] if line.defense else plain
            return replace(strip, target=f"{', '.join(filter(None, (name, one.title)))}: {strip.target}")
    return None
