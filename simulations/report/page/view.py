"""Content of one study's sections, as the page's templates read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from attacks.metrics.guesses import MEMBERSHIP_LOW_TPR
from attacks.metrics.images import PSNR
from attacks.metrics.metric import IMAGES, MEMBERSHIP
from simulations.report import text
from simulations.report.analysis.adaptive import apart as apart_by_message
from simulations.report.analysis.adaptive import is_adaptive
from simulations.report.analysis.conclusion import not_distinguished
from simulations.report.analysis.failures import failures
from simulations.report.analysis.line import Line
from simulations.report.analysis.outcome import outcomes
from simulations.report.analysis.run import ReadRun
from simulations.report.analysis.sentences import called
from simulations.report.drawing import plots
from simulations.report.drawing.looks import Faces, is_dp_sgd
from simulations.report.drawing.picture_index import Picture
from simulations.report.drawing.pictures import EVERY, Embedder, Strip, best_recovered, captioned, drawn, grids
from simulations.report.drawing.roc import roc_charts
from simulations.report.page.tables import cards, control_table, others
from simulations.report.section import sections
from simulations.report.studies.plain import plain_words_of
from simulations.report.studies.study import Study, mean_each

OPTIONAL = (
    *("protected", "recovered", "picked", "labels", "attributes", "membership"),
    *("epsilon", "epsilon_with_probes", "epsilon_all_cuts", "seconds", "bytes"),
)
"""Numbers of a line that the summary has a column, or a note, for where any line has them."""


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
    control = control_table(study)
    controlled = [row for row in control.rows if row.metric == PSNR.name]
    # Where every attack is given something, as the labels, the run is still worth nothing if none of them works.
    able = [row for row in controlled if row.attack not in study.upper_bounds] or controlled
    images = [verdict for row in able for verdict in row.verdicts if verdict]
    enough = [verdict for verdict in images if not verdict.too_few]
    judged = [verdict for verdict in enough if not verdict.open]
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
    found = list(outcomes(lines))
    best = {line.defense: best_pictures(line, reconstructed, embed) for line in lines}
    return {
        "study": study,
        "lines": lines,
        "plain": plain,
        "not_distinguished": not_distinguished(lines),
        "outcomes": found,
        "place": {line.defense: place for place, line in enumerate(lines, 1)},
        "claims": list(dict.fromkeys(text for line in lines for text in line.said_by_the_app)),
        "probed": any(line.probe or line.update for line in lines),
        "updates": any(line.update for line in lines),
        "tried": any(IMAGES.decides in cell.scores for line in lines for cell in apart_by_message(line.cells)[1]),
        "of_images": any(one.of == "images" for one in found),
        "all_images": all(one.of == "images" for one in found),
        "doubted": any(text.dagger(one.status) for one in found),
        "best": best,
        "star": star(lines, best, plain.name),
        "has": _columns(lines),
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
        "control": control,
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
    """The best-recovered image of the headline's attack, and that of all attacks where another attack made it."""
    if line.strongest is None:
        return []
    found = [best_recovered(pictures, line.strongest, embed, "best-recovered image of the strongest attack")]
    if better := line.better_image([line.strongest]):
        caption = f"best-recovered image of all attacks, by {called(better)}"
        found.append(best_recovered(pictures, better, embed, caption))
    return [one for one in found if one]


def star(lines: Sequence[Line], best: Mapping[str, Sequence[Strip]], plain: str) -> Strip | None:
    """The first screen's picture: of the defence with the most recovered images, else of the run without one."""
    shown = [line for line in lines if best[line.defense]]
    if not shown:
        return None
    defense = max(shown, key=lambda line: (bool(line.defense), line.share)).defense
    strip = best[defense][0]
    name = text.short_names([defense])[defense] if defense else plain
    return replace(strip, target=f"{name}: {strip.target}")


def _columns(lines: Sequence[Line]) -> dict[str, bool]:
    """Which optional columns of the summary have anything to show."""
    found = {name: any(getattr(line, name) is not None for line in lines) for name in OPTIONAL}
    return found | {"claimed": any(claim.number for line in lines for claim in line.claims)}
