"""Content of one study's sections, as the page's templates read it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from attacks.metrics.metric import MEMBERSHIP
from simulations.report import text
from simulations.report.analysis.adaptive import is_adaptive
from simulations.report.analysis.failures import Failure, failures, not_run
from simulations.report.analysis.finding import Finding
from simulations.report.analysis.message import Message
from simulations.report.analysis.run import Summary
from simulations.report.analysis.verdict import Verdict
from simulations.report.columns import Cards, cards
from simulations.report.drawing import plots
from simulations.report.drawing.chart import Chart
from simulations.report.drawing.looks import Faces
from simulations.report.drawing.picture_index import Picture
from simulations.report.drawing.pictures import EVERY, Embedder, Grid, Strip, best_guess, captioned, drawn, grids
from simulations.report.page.tables import ControlTable, control_table, fewer_images, others
from simulations.report.section import Content, Section, sections
from simulations.report.studies.cell import SEEN, Cell
from simulations.report.studies.score import Score
from simulations.report.studies.study import Study, mean_each

FEW = 2
"""Kinds and sizes of messages that the first table holds; of more there is a ladder."""


Grids = Mapping[str, Sequence[Grid]]
"""By defence."""
Strips = Mapping[str, Sequence[Strip]]
"""By defence."""
Charts = Sequence[tuple[str, Chart]]
"""With captions."""


@dataclass(frozen=True)
class View(Summary):
    """One study's content: its findings with pictures, charts and tables.

    Attributes:
        own: Each section for which the study has something, and its content.
        star: The first screen's picture.
        grids: Defence -> reconstructions, the best of each; ``every_grid``: (anchor, title, grids) for the page of every attack.
        own_grids: Name of a section -> grids that it shows itself; ``own_pictures``: -> defence -> strips.
        drawn: Defence -> class representatives, of attacks whose cells are ``representatives``.
        plane: Privacy against accuracy; ``curves``: charts over the rounds.
        membership: Scored attacks on membership; ``attacked``: all attacks that are neither these nor ``representatives``.
        control: The positive control.
        not_run: (reason, attacks, names of defences) of attacks that did not apply or were not needed.
    """

    own: Mapping[Section, Content]
    star: Strip | None
    grids: Grids
    every_grid: Sequence[tuple[str, str, Grids]]
    own_grids: Mapping[str, Grids]
    own_pictures: Mapping[str, Strips]
    drawn: Strips
    plane: Chart | None
    curves: Charts
    membership: Sequence[Cell]
    representatives: Sequence[Cell]
    attacked: Sequence[Cell]
    control: ControlTable
    cards: Cards
    failures: Sequence[Failure]
    not_run: Sequence[tuple[str, Sequence[str], Sequence[str]]]
    others: Mapping[tuple[str, str, str, str, str], Score]

    @classmethod
    def of(cls, summary: Summary, pictures: Sequence[Picture], faces: Faces, embed: Embedder, every: Embedder) -> View:
        """Of one study and its pictures; ``every`` embeds those of the page of every attack."""
        study, findings = summary.study, summary.findings
        apart = {observation for one in sections() for observation in one.own_pictures}
        guessed = [one for one in pictures if one.attack not in study.class_attacks and one.observation not in apart]
        gridded = {
            one: [picture for picture in pictures if one.own_pictures.get(picture.observation) == ()]
            for one in sections()
            if () in one.own_pictures.values()
        }
        # Where the headline is of one round, its pictures come first.
        leading = {one.defense: one.strongest.round for one in findings if one.strongest}
        titled = [("pictures", "Pictures", guessed), *((one.name, one.title, of) for one, of in gridded.items())]
        members = [cell for cell in study.cells if cell.mean(*MEMBERSHIP.decides) is not None]
        drawing = [cell for cell in study.cells if cell.draws_classes]
        names = text.short_names(study.pipelines)
        return cls(
            study,
            findings,
            own={one: found for one in sections() if (found := one.view(study, findings))},
            star=star(summary, guessed, embed),
            grids=grids(guessed, study.pipelines, embed, study.upper_bounds, leading),
            every_grid=[
                (anchor, title, grids(of, study.pipelines, every, study.upper_bounds, leading, EVERY))
                for anchor, title, of in titled
                if of
            ],
            own_grids={one.name: grids(of, study.pipelines, embed) for one, of in gridded.items()},
            own_pictures={one.name: captioned(pictures, one.own_pictures, embed) for one in sections()},
            drawn=drawn([one for one in pictures if one.attack in study.class_attacks], embed),
            plane=plots.plane(findings, faces),
            curves=plots.over_rounds(study, faces),
            membership=members,
            representatives=drawing,
            attacked=[cell for cell in study.cells if cell not in members and cell not in drawing],
            control=control_table(study),
            cards=cards(study.cells),
            failures=failures(study.all_rows),
            not_run=[(why, attacks, [names[one] for one in of]) for why, attacks, of in not_run(study.all_rows)],
            others=others(study),
        )

    @property
    def ladder(self) -> Sequence[Message]:
        """Each kind and size of message once: real ones first, each from the smallest to the largest."""
        found = {one.title: one for finding in self.findings for one in finding.messages}
        return sorted(found.values(), key=lambda one: one.order)

    @property
    def columns(self) -> Sequence[Message]:
        """The messages of the first table: all if they are few, else the largest real one and the smallest request."""
        real, asked = [one for one in self.ladder if one.real], [one for one in self.ladder if not one.real]
        return self.ladder if len(self.ladder) <= FEW else [*real[-1:], *asked[: FEW - len(real[-1:])]]

    @property
    def fewer(self) -> str:
        """Why some counts are of fewer images than others."""
        return fewer_images(self.findings)

    @property
    def claims(self) -> Sequence[str]:
        """What an external app says of its differential privacy and of its accuracy, each sentence once."""
        said = [one.text for of in self.findings for one in of.claims]
        said += [of.reported.text for of in self.findings if of.reported]
        return list(dict.fromkeys(said))

    @property
    def null_names(self) -> Sequence[str]:
        """Null baselines, the lowest first."""
        nulls = mean_each(cell.nulls for cell in self.study.cells)
        return sorted(nulls, key=lambda name: nulls[name])

    @property
    def adaptive(self) -> Collection[tuple[str, str]]:
        """(defence, attack) for attacks that were made against the defence."""
        known = {one.defense: one.known for one in self.findings}
        return {(cell.defense, cell.attack) for cell in self.study.cells if is_adaptive(cell, known[cell.defense])}


def own_pictures(study: Study, pictures: Sequence[Picture], alone: bool) -> list[Picture]:
    """Pictures of one study: all of a single study, else those that name its experiment, or its cut's phase."""
    if alone:
        return list(pictures)
    if study.cut:
        mine = [one for one in pictures if one.target[0] in ("", study.name[0])]
        return [one for one in mine if one.round in study.final_rounds]
    return [one for one in pictures if one.target[0] and one.target[0] == study.name[0]]


def star(summary: Summary, pictures: Sequence[Picture], embed: Embedder) -> Strip | None:
    """The first screen's picture: the best guess from the messages with the worst verdict.

    Of these, from real messages first, then under a defence, then where most images are recognisable.
    """

    def rank(pair: tuple[Finding, Message]) -> tuple[int, bool, bool, float]:
        of, one = pair
        return list(Verdict).index(one.verdict), not one.real, not of.defense, -(one.cell.mean(*SEEN) or 0.0)

    found = [(of, one) for of in summary.findings for one in of.messages]
    for of, one in sorted(found, key=rank):
        if strip := best_guess(pictures, one.cell, embed):
            name = text.short_names([of.defense])[of.defense] if of.defense else summary.plain.name
            return replace(strip, target=f"{', '.join(filter(None, (name, one.title)))}: {strip.target}")
    return None
