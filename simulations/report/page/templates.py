"""The templates of pages: Jinja, CSS and JavaScript in files of ``report/templates``.

Their names end in .md, as a Flower app bundle has Markdown and leaves .html, .css and .js out.
"""

import base64
import hashlib
from collections.abc import Mapping
from functools import cache
from inspect import isfunction
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from attacks.metrics.metric import LEAST_IMAGES
from attacks.metrics.registry import metric_label
from simulations.report import text
from simulations.report.analysis.message import rule
from simulations.report.drawing.looks import MARKERS

SWATCH = Markup('<span class="swatch" style="color:{}" data-mark="{}"></span>')
TEMPLATES = Path(__file__).parents[1] / "templates"


def render(name: str, context: Mapping[str, Any]) -> str:
    """A page; its template, and all that it includes, may call every macro of ``macros.html``."""
    return environment().get_template(name).render({**macros(context), **context})


def macros(context: Mapping[str, Any]) -> Mapping[str, Any]:
    """The macros of one page: that of tables keeps which captions the page has."""
    return vars(environment().get_template("macros.html").make_module(dict(context)))


def read(name: str) -> str:
    """Text of a template by its name without .md, such as "style.css"."""
    return (TEMPLATES / f"{name}.md").read_text(encoding="utf-8")


@cache
def environment() -> jinja2.Environment:
    """With the filters and functions that templates of pages use; cards have another kind of escaping."""
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, undefined=jinja2.StrictUndefined,
        loader=jinja2.FunctionLoader(lambda name: (read(name), name, None)),
    )  # fmt: skip
    named: dict[str, Any] = {metric_label.__name__: metric_label}
    named |= {name: value for name, value in vars(text).items() if isfunction(value) and not name.startswith("_")}
    environment.filters.update(named, outline=lambda look: MARKERS[look.shape][0])
    environment.filters["swatch"] = lambda look: SWATCH.format(look.color, MARKERS[look.shape][1])
    script = read("script.js")
    # The page's policy lets this text run, by its hash, and nothing else.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment.globals.update(named, least_images=LEAST_IMAGES, nothing=text.NOTHING, rule=rule())
    environment.globals.update(script_hash=f"sha256-{digest}", script=Markup(script), css=Markup(read("style.css")))
    return environment
