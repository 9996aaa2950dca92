"""Content of one study's sections, as the page's templates read it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from attacks.metrics.guesses import MEMBERSHIP_LOW_TPR
from attacks.metrics.metric import MEMBERSHIP
from simulations.report import text
from simulations.report.analysis.adaptive import is_adaptive
from simulations.report.analysis.failures import Failure, failures
from simulations.report.analysis.message import Message
from simulations.report.analysis.summary import Summary
from simulations.report.drawing import plots
from simulations.report.drawing.chart import Chart
from simulations.report.drawing.looks import Faces
from simulations.report.drawing.picture_index import Picture
from simulations.report.drawing.pictures import EVERY, Embedder, Grid, Strip, best_guess, captioned, drawn, grids
from simulations.report.drawing.roc import roc_charts
from simulations.report.page.tables import Cards, ControlTable, Other, cards, control_table, others
from simulations.report.section import Section, sections
from simulations.report.studies.cell import SEEN, Cell
from simulations.report.studies.study import Study, mean_each

FEW = 2
"""Kinds and sizes of messages that the first table holds; of more there is a ladder."""


@dataclass(frozen=True)
class View(Summary):
    """One study's content: its findings with pictures, charts and tables. Pictures are embedded when it is made.

    Attributes:
        faces: Looks of the pipelines.
        star: The first screen's picture.
        grids: Defence -> reconstructions, the best of each.
        every_grid: (anchor, title, grids) for the page of every attack.
        own_grids: Name of a section -> grids that it shows itself.
        own_pictures: Name of a section -> defence -> strips that it shows itself.
        drawn: Defence -> class representatives.
    """

    faces: Faces
    star: Strip | None
    grids: Mapping[str, Sequence[Grid]]
    every_grid: Sequence[tuple[str, str, Mapping[str, Sequence[Grid]]]]
    own_grids: Mapping[str, Mapping[str, Sequence[Grid]]]
    own_pictures: Mapping[str, Mapping[str, Sequence[Strip]]]
    drawn: Mapping[str, Sequence[Strip]]

    @classmethod
    def of(cls, summary: Summary, pictures: Sequence[Picture], faces: Faces, embed: Embedder, every: Embedder) -> View:
        """Of one study and its pictures; ``every`` embeds those of the page of every attack."""
        study, apart = summary.study, {observation for one in sections() for observation in one.own_pictures}
        guessed = [one for one in pictures if one.attack not in study.class_attacks and one.observation not in apart]
        gridded = [one for one in sections() if () in one.own_pictures.values()]
        mine = {
            one.name: [picture for picture in pictures if one.own_pictures.get(picture.observation) == ()]
            for one in gridded
        }
        # Where the headline is of one round, its pictures come first.
        leading = {one.defense: one.strongest.round for one in summary.findings if one.strongest}
        titled = [("pictures", "Pictures", guessed), *((one.name, one.title, mine[one.name]) for one in gridded)]
        return cls(
            study,
            summary.findings,
            faces,
            star=star(summary, guessed, embed),
            grids=grids(guessed, study.pipelines, embed, study.upper_bounds, leading),
            every_grid=[
                (anchor, title, grids(of, study.pipelines, every, study.upper_bounds, leading, EVERY))
                for anchor, title, of in titled
                if of
            ],
            own_grids={name: grids(of, study.pipelines, embed) for name, of in mine.items()},
            own_pictures={one.name: captioned(pictures, one.own_pictures, embed) for one in sections()},
            drawn=drawn([one for one in pictures if one.attack in study.class_attacks], embed),
        )

    @cached_property
    def sections(self) -> Mapping[str, Any]:
        """Name of each section for which the study has something -> what its template shows."""
        found = ((one.name, one.view(self.study, self.findings)) for one in sections())
        return {name: shown for name, shown in found if shown}

    @property
    def own(self) -> Sequence[Section]:
        """Those sections."""
        return [one for one in sections() if one.name in self.sections]

    @property
    def ladder(self) -> Sequence[Message]:
        """Each kind and size of message once: real ones first, each from the smallest to the largest."""
        found = {one.title: one for finding in self.findings for one in finding.messages}
        return sorted(found.values(), key=lambda one: (not one.real, one.rung.size if one.rung else (0, 0)))

    @property
    def columns(self) -> Sequence[Message]:
        """The messages of the first table: all if they are few, else the largest real one and the smallest request."""
        real, asked = [one for one in self.ladder if one.real], [one for one in self.ladder if not one.real]
        return self.ladder if len(self.ladder) <= FEW else [*real[-1:], *asked[: FEW - len(real[-1:])]]

    @property
    def claims(self) -> Sequence[str]:
        """What an external app says of its differential privacy and of its accuracy, each sentence once."""
        said = [one.text for of in self.findings for one in of.claims]
        said += [of.reported.text for of in self.findings if of.reported]
        return list(dict.fromkeys(said))

    @property
    def plane(self) -> Chart | None:
        """Privacy against accuracy."""
        return plots.plane(self.findings, self.faces)

    @cached_property
    def curves(self) -> Sequence[tuple[str, Chart]]:
        """Charts over the rounds."""
        return plots.over_rounds(self.study, self.faces)

    @cached_property
    def roc(self) -> Sequence[tuple[str, Chart]]:
        """Curves of attacks on membership."""
        return roc_charts(self.study, self.faces)

    @property
    def membership(self) -> Sequence[Cell]:
        """Scored attacks on membership."""
        return [cell for cell in self.study.cells if cell.mean(*MEMBERSHIP.decides) is not None]

    @property
    def low_rates(self) -> bool:
        """Whether a rate at 0.1 % false positives is among their scores."""
        return any(MEMBERSHIP_LOW_TPR.of() in cell.scores for cell in self.membership)

    @property
    def representatives(self) -> Sequence[Cell]:
        """Attacks that draw classes."""
        return [cell for cell in self.study.cells if cell.draws_classes]

    @property
    def attacked(self) -> Sequence[Cell]:
        """All other attacks."""
        apart = (*self.membership, *self.representatives)
        return [cell for cell in self.study.cells if cell not in apart]

    @property
    def has_recognition(self) -> bool:
        """Whether an oracle looked at their guesses."""
        return any(cell.mean("recognition") is not None for cell in self.attacked)

    @property
    def adaptive(self) -> Collection[tuple[str, str]]:
        """(defence, attack) for attacks that were made against the defence."""
        known = {one.defense: one.known for one in self.findings}
        return {(cell.defense, cell.attack) for cell in self.study.cells if is_adaptive(cell, known[cell.defense])}

    @property
    def null_names(self) -> Sequence[str]:
        """Null baselines, the lowest first."""
        nulls = mean_each(cell.nulls for cell in self.study.cells)
        return sorted(nulls, key=lambda name: nulls[name])

    @property
    def scale_names(self) -> Sequence[str]:
        """Scales by which PSNR is read."""
        return sorted({name for cell in self.study.cells for name in cell.scales})

    @cached_property
    def control(self) -> ControlTable:
        """The positive control."""
        return control_table(self.study)

    @cached_property
    def cards(self) -> Cards:
        """Threat cards."""
        return cards(self.study.cells)

    @cached_property
    def failures(self) -> Sequence[Failure]:
        """What failed."""
        return failures(self.study.all_rows)

    @cached_property
    def others(self) -> Sequence[Other]:
        """Numbers that have no other place."""
        return others(self.study)


def own_pictures(study: Study, pictures: Sequence[Picture], alone: bool) -> list[Picture]:
    """Pictures of one study: all of a single study, else those that name its experiment, or its cut's phase."""
    if alone:
        return list(pictures)
    if study.cut:
        mine = [one for one in pictures if one.target[0] in ("", study.name[0])]
        return [one for one in mine if one.round in study.final_rounds]
    return [one for one in pictures if one.target[0] and one.target[0] == study.name[0]]


def star(summary: Summary, pictures: Sequence[Picture], embed: Embedder) -> Strip | None:
    """The first screen's picture: the most similar guess under the defence with the worst verdict, else without one."""
    found = [
        (of, worst, strip)
        for of in sorted(summary.findings, key=lambda one: not one.defense)
        if (worst := of.worst) and worst.cell and (strip := best_guess(pictures, worst.cell, embed))
    ]
    if not found:
        return None
    of, worst, strip = max(found, key=lambda one: (one[1].cell.mean(*SEEN) or 0.0) if one[1].cell else 0.0)
    name = text.short_names([of.defense])[of.defense] if of.defense else summary.plain.name
    return replace(strip, target=f"{', '.join(filter(None, (name, worst.title)))}: {strip.target}")
