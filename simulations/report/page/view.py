"""Content of one study's sections, as the page's templates read it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from simulations.report import text
from simulations.report.analysis.caveats import is_adaptive
from simulations.report.analysis.failures import not_run
from simulations.report.analysis.finding import Finding
from simulations.report.analysis.message import Message
from simulations.report.analysis.run import Summary
from simulations.report.analysis.verdict import Verdict
from simulations.report.columns import Cards, Table
from simulations.report.drawing import plots
from simulations.report.drawing.looks import Faces
from simulations.report.drawing.picture_index import Picture
from simulations.report.drawing.pictures import Embedder, Grid, Strip, best_guess, captioned, drawn, grids
from simulations.report.drawing.plots import Chart
from simulations.report.page.tables import glance, ladder, tables
from simulations.report.section import Content, Section, sections
from simulations.report.studies.cell import SEEN
from simulations.report.studies.rows import grouped
from simulations.report.studies.study import Study

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
        apart = {observation for section in sections() for observation in section.own_pictures}
        guessed = [one for one in pictures if one.attack not in study.class_attacks and one.observation not in apart]
        # Where the headline is of one round, its pictures come first.
        leading = {finding.defense: finding.strongest.round for finding in findings if finding.strongest}
        names, numbered = text.short_names(study.pipelines), Cards(study.cells)
        return cls(
            study,
            findings,
            own={section: content for section in sections() if (content := section.view(study, findings))},
            star=star(summary, guessed, embed),
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
    def ladder(self) -> Sequence[Message]:
        """Each kind and size of message once: real ones first, each from the smallest to the largest."""
        messages = {message.place: message for finding in self.findings for message in finding.messages}
        return sorted(messages.values(), key=lambda message: message.order)

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


def star(summary: Summary, pictures: Sequence[Picture], embed: Embedder) -> Strip | None:
    """The first screen's picture: the best guess from the messages with the worst verdict.

    Of these, from real messages first, then under a defence, then where most images are recognisable.
    """

    def rank(pair: tuple[Finding, Message]) -> tuple[int, bool, bool, float]:
        of, sent = pair
        return list(Verdict).index(sent.verdict), not sent.real, not of.defense, -(sent.cell.mean(*SEEN) or 0.0)

    pairs = [(of, message) for of in summary.findings for message in of.messages]
    for of, message in sorted(pairs, key=rank):
        if strip := best_guess(pictures, message.cell, embed):
            name = text.short_names([of.defense])[of.defense] if of.defense else summary.plain.name
            return replace(strip, target=f"{', '.join(filter(None, (name, message.title)))}: {strip.target}")
    return None
