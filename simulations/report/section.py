"""What a section of one scenario is, and which there are."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from defenses.registry import collected, modules_in
from simulations.report.analysis.line import Line
from simulations.report.studies.study import Study


@dataclass(frozen=True)
class Section:
    """A section that the report has for studies of one scenario.

    Attributes:
        name: As templates find what ``view`` returned: ``view.sections.NAME``; the section's anchor.
        title: In the page's list of contents.
        view: The study and its lines -> what the template shows; None where the study has nothing for it.
        template: Jinja text, rendered once for every study.
        deployed_on: What the accuracy as deployed is measured on besides protected test images, as " or tokens".
        metrics: Numbers of the run that it shows, which are then not listed among the others.
        pictures_show: What the pictures of protected images are, where this needs saying.
        own_pictures: What pictures were made from that the section shows itself, as "observation" in their index -> their kinds
            in order: the template finds them as ``view.own_pictures.NAME``, defence -> strips, and the galleries leave them out.
            Without kinds they are grids of all attacks, ``view.own_grids.NAME``.
        first: What ``view`` returned -> what a reader must know before any other section, or "".
    """

    name: str
    title: str
    view: Callable[[Study, Sequence[Line]], Any]
    template: str
    metrics: tuple[str, ...] = ()
    deployed_on: str = ""
    pictures_show: str = ""
    own_pictures: Mapping[str, Sequence[str]] = field(default_factory=dict)
    first: Callable[[Any], str] = lambda _: ""


@functools.cache
def sections() -> tuple[Section, ...]:
    """Those of the folders beside this module, by name, and those of other packages (entry points "fedveil.sections").

    Raises:
        RegistryError: Of another package: when one cannot be loaded, or has a name that is taken.
    """
    modules = modules_in("simulations.report.sections", without=__name__)
    return tuple(collected(Section, "section", "fedveil.sections", modules, "SECTION").values())
