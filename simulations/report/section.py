"""Sections of the report for one scenario: interface and list."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from defenses.registry import collected, modules_in
from simulations.report.analysis.finding import Finding
from simulations.report.columns import Cards, Table
from simulations.report.studies.study import Study


@dataclass(frozen=True)
class OwnPictures:
    """Place of the section's own pictures; those of kinds are below a title and a text."""

    title: str = ""
    text: str = ""


KINDS = {str: "text", Markup: "markup", Table: "table", Cards: "cards", OwnPictures: "pictures"}
"""Type of a part of a section -> how the template shows it."""


@dataclass(frozen=True)
class Content:
    """What a section shows of a study.

    Attributes:
        parts: In order: a ``Table``; a text, as a paragraph of small print, or ``Markup`` as it is; ``OwnPictures``; threat cards
            (``Cards``).
        first: What a reader must know before any other section.
        steps: (What to do, lines of code or commands), shown below ``first``.
    """

    parts: Sequence[Any]
    first: str = ""
    steps: Sequence[tuple[str, str]] = ()

    @property
    def kinds(self) -> list[tuple[str, Any]]:
        """The parts behind their ``KINDS``."""
        return [(KINDS[type(part)], part) for part in self.parts]


@dataclass(frozen=True, eq=False)
class Section:
    """A section of the report for studies of one scenario.

    Attributes:
        name: The section's anchor; the pictures in ``own_pictures`` have it, too.
        title: Its heading, also in the page's list of contents.
        view: The study and its findings -> what it shows; None where the study has nothing for it.
        text: What the section is about.
        metrics: Numbers of the run that it shows, which are then not listed among the others.
        deployed_on: What the accuracy as deployed is measured on besides protected test images, as " or tokens".
        pictures_show: What the pictures of protected images are, where this needs saying.
        own_pictures: What pictures were made from that the section shows itself, as "observation" in their index -> their kinds
            in order: ``OwnPictures`` is their place, and the galleries leave them out. Without kinds they are grids of all attacks.
    """

    name: str
    title: str
    view: Callable[[Study, Sequence[Finding]], Content | None]
    text: str = ""
    metrics: tuple[str, ...] = ()
    deployed_on: str = ""
    pictures_show: str = ""
    own_pictures: Mapping[str, Sequence[str]] = field(default_factory=dict)


@functools.cache
def sections() -> tuple[Section, ...]:
    """Sections of ``report/sections``, by module name, and those of other packages (entry points "fedveil.sections").

    Raises:
        RegistryError: Of another package: when one cannot be loaded, or has a name that is taken.
    """
    modules = modules_in("simulations.report.sections")
    return tuple(collected(Section, "section", "fedveil.sections", modules, "SECTION").values())
