"""The page of a search: the chosen policies, the agreement of both privacy scores, and three figures of ATS (1, 5 and 7)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from defenses.images.transforms import LIBRARY
from simulations.report import write_page
from simulations.report.drawing.canvas import Canvas, Mark, ink, paint, style
from simulations.report.drawing.domains import bounds
from simulations.report.page.page import render
from simulations.report.text import decibel, plain
from simulations.search.attacked import read_attacked
from simulations.search.folder import CANDIDATE, IDENTITY, SINGLE, TRANSFER, Scored, SearchFolder
from simulations.search.settings import PAPER
from simulations.search.space import text_of
from simulations.search.two_scores import TwoScores

WIDTH, HEIGHT = 1040.0, 360.0
MOST_CURVES = 4
MOST_LISTED = 20
"""Policies of the list of the most private."""


def write_search_page(folder: SearchFolder, result: Mapping[str, Any]) -> Path:
    """Write ``search.html`` from the folder's content."""
    chosen = set(result["policies"].split("+")) if result["policies"] else set()
    candidates, identity = folder.of(CANDIDATE), folder.scored.get((IDENTITY, ()))
    least = result["accuracy_threshold"]
    passed = folder.passed(least)
    two = TwoScores.of(candidates, passed, result["policies"], result["channels"], folder.search)
    own = [one for one in candidates if name(one) in chosen]
    most_private = [one for one in folder.passed(None) if name(one) in chosen]
    context = {
        "title": f"Policy search on {folder.search.dataset}",
        "result": result,
        "search": folder.search,
        "chosen": [*([identity] if identity else []), *own] if own else [],
        "best": passed[:MOST_LISTED],
        "two": two,
        "agreement": agreement(two, chosen),
        "ways": ways([*([identity] if identity else []), *most_private[:MOST_CURVES]]),
        "singles": single_scores(folder.of(SINGLE), identity),
        "scatter": scatter(candidates, identity, chosen, least),
        "transfers": folder.of(TRANSFER),
        "name": name,
        "words": words,
        "paper": PAPER,
        "outcome": read_attacked(folder, result),
        "levels": levels,
        "took": sum(one.scores.seconds for one in folder.scored.values()),
    }
    write_page(folder.path / "search.html", render(BODY, context))
    return folder.path / "search.html"


def name(one: Scored) -> str:
    """The policy as text."""
    return text_of((one.policy,)) or "none"


def words(one: Scored) -> str:
    """Effect of the policy, transform by transform."""
    steps = (f"{LIBRARY[index].name} {LIBRARY[index].level}" for index in one.policy)
    return ", then ".join(steps) or "leaves images as they are"


def levels(values: tuple[float | None, float | None]) -> str:
    """PSNR on the initial and on the final model."""
    return " / ".join(map(decibel, values))


def ways(shown: Sequence[Scored]) -> Markup | str:
    """Fig. 1: GradSim on the path from noise to the image, without a policy and with the chosen ones."""
    if not shown:
        return ""
    low, high = bounds([value for one in shown for value in (*one.scores.curve, 1.0)], least=0.2)
    with style():
        canvas = _canvas((0.0, 1.0), (max(low, -1.0), min(high, 1.0)), "i, from noise (0) to the image (1)", "GradSim")
        for at, one in enumerate(shown):
            steps = len(one.scores.curve)
            colour = f"var(--d{at % 5})" if one.policy else "var(--none)"
            along = [j / steps for j in range(steps + 1)]
            canvas.axes.plot(along, [*one.scores.curve, 1.0], color=paint(colour), label=_label(one))
        canvas.axes.legend(loc="upper left", labelcolor="linecolor")
        return canvas.svg("Gradient similarity on the way from noise to the image")


def single_scores(singles: Sequence[Scored], identity: Scored | None) -> Markup | str:
    """Fig. 5: the privacy score of each single transform; transforms of equal effect stand together."""
    if not singles or identity is None or identity.scores.privacy is None:
        return ""
    known = [(one.policy[0], one.scores.privacy) for one in singles if one.scores.privacy is not None]
    up = bounds([*(value for _, value in known), identity.scores.privacy], least=0.05)
    with style():
        canvas = _canvas((-1.0, float(len(LIBRARY))), up, "transform of the library", PRIVACY)
        canvas.axes.axhline(identity.scores.privacy, color=paint("var(--none)"))
        canvas.name("no policy", len(LIBRARY), identity.scores.privacy, "var(--none)", va="bottom", ha="right")
        tips = {index: f"{index} {LIBRARY[index].name} {LIBRARY[index].level}: {value:.4f}" for index, value in known}
        canvas.marks([Mark(index, value, "circle", "var(--d1)", tips[index]) for index, value in known])
        for index, value in known:
            canvas.name(str(index), index, value, xytext=(0, 7), textcoords="offset points", ha="center", va="bottom")
        return canvas.svg("Privacy score of each single transform")


def scatter(
    candidates: Sequence[Scored], identity: Scored | None, chosen: Collection[str], least: float | None
) -> Markup | str:
    """Fig. 7: both scores of all policies that have both."""
    found = [one for one in candidates if one.scores.privacy is not None]
    if not found:
        return ""
    every = [*found, *([identity] if identity else [])]
    across = bounds([*(one.scores.accuracy for one in every), least], least=0.02)
    up = bounds([one.scores.privacy for one in every], least=0.02)
    places = {id(one): (one.scores.accuracy, one.scores.privacy or 0.0) for one in every}
    with style():
        canvas = _canvas(across, up, "S_acc, higher tells images apart better", PRIVACY)
        if least is not None:
            canvas.axes.axvline(least, color=paint("var(--soft)"))
        tips = [f"S_pri {y:.4f}, S_acc {x:.4f}" for x, y in places.values()]
        _points(canvas, [(one, *places[id(one)], tip) for one, tip in zip(every, tips, strict=True)], chosen)
        named = [one for one in every if name(one) in chosen] + [one for one in every if not one.policy]
        texts = [
            canvas.axes.text(*places[id(one)], _label(one), color=ink("var(--d2)" if one.policy else "var(--none)"))
            for one in named
        ]
        canvas.keep_apart(texts, list(places.values()))
        return canvas.svg("Accuracy and privacy scores of the policies")


def agreement(two: TwoScores, chosen: Collection[str]) -> Markup | str:
    """The choosing score against the other, of all policies that have both."""
    if not two.scored:
        return ""
    values = [(one.scores.privacy or 0.0, one.scores.other or 0.0) for one in two.scored]
    across, up = (bounds(along, least=0.02) for along in zip(*values, strict=True))
    tips = [f"{two.own_name} {x:.4f}, {two.other_name} {y:.4f}" for x, y in values]
    with style():
        canvas = _canvas(across, up, f"{two.own_name} (chooses)", two.other_name)
        points = zip(two.scored, values, tips, strict=True)
        _points(canvas, [(one, *place, tip) for one, place, tip in points], chosen)
        return canvas.svg("Both privacy scores of the policies")


def _points(canvas: Canvas, points: Sequence[tuple[Scored, float, float, str]], chosen: Collection[str]) -> None:
    """Draws policies, (x, y, scores in words) of each: the others, those that were chosen, and no policy, in their looks."""
    looks: dict[str, tuple[str, str, bool, float]] = {
        "other": ("circle", "var(--d1)", True, 6.0),
        "chosen": ("diamond", "var(--d2)", False, 9.0),
        "none": ("circle", "var(--none)", False, 9.0),
    }
    for which, (shape, colour, hollow, size) in looks.items():
        canvas.marks([
            Mark(x, y, shape, colour, f"{name(one)}: {tip}", hollow, size)
            for one, x, y, tip in points
            if which == ("none" if not one.policy else "chosen" if name(one) in chosen else "other")
        ])  # fmt: skip


def _label(one: Scored) -> str:
    return name(one) if one.policy else "no policy"


def _canvas(across: tuple[float, float], up: tuple[float, float], x_title: str, y_title: str) -> Canvas:
    canvas = Canvas(WIDTH, HEIGHT)
    canvas.axes.set(xlim=across, ylim=up)
    canvas.titles(x_title, y_title)
    canvas.ticks(8, 6, plain, plain)
    return canvas


PRIVACY = "S_pri, lower is more private"
"""An axis."""

BODY = """
{% macro policies(caption, rows) %}
{{ table(caption) }}
{{ head(['Policy', 'What it does', '#' ~ two.own_name ~ ' (chooses)', '#' ~ two.other_name, '#S_acc']) }}
<tbody>
{% for one in rows %}
<tr><td>{{ name(one) }}</td><td>{{ words(one) }}</td>{{ number(one.scores.privacy | fixed(4)) }}
{{ number(one.scores.other | fixed(4)) }}{{ number(one.scores.accuracy | fixed(4)) }}</tr>
{% endfor %}
</tbody></table></div>
{% endmacro %}
<p class="kicker">fedveil search</p>
<h1>{{ result.policies or "No policy passed" }}</h1>
<p class="facts">{{ result.defense }} on {{ search.dataset }} with {{ search.model }}, seed {{ search.seed }}:
{{ result.scored }} policies scored, {{ result.passed }} of them at or above the threshold
{%- if result.accuracy_threshold is not none %} {{ result.accuracy_threshold | fixed(4) }}{% endif %}.
A low privacy score means that gradients say little about the way to the image; it is a proxy, measured on {{ search.images }}
images with a model trained on {{ "%g"|format(100 * search.semi_share) }} % of the training images. Whether an attack fails is for
<code>fedveil run audit.toml --out audit</code> (in this folder) to say{% if not outcome %}; then <code>fedveil search
--resume</code> shows here what it found{% endif %}.</p>
{% if chosen %}
<section id="result"><header><h2>Chosen</h2><p>The most private policies that pass and share no transform.</p></header>
{{ policies('Chosen', chosen) }}</section>
{% endif %}
{% if agreement %}
<section id="two"><header><h2>Two privacy scores</h2><p>{{ two.rule }} {{ two.verdict }}</p></header>{{ agreement }}</section>
{% endif %}
{% if outcome is string %}
<section id="attacked"><header><h2>Attacked</h2><p>{{ outcome }}</p></header></section>
{% elif outcome %}
<section id="attacked"><header><h2>Attacked</h2><p>{{ outcome.verdicts|join(" ") }} Seeds
{{ outcome.seeds|join(", ") }}; {{ outcome.images }} attacked images for each hybrid; the initial / the final model; PSNR in
dB, means over images, of the strongest attack that knows no policies, and of the strongest that does.</p></header>
{{ table('Attacked') }}
{{ head(['Policies', '#Accuracy', '#To the transformed image', '#The mean image, to the same', '#To the original',
  '#Knowing the policies, to the original']) }}
<tbody>
{% for one in [outcome.none, outcome.found] + outcome.random|list %}
<tr><td>{{ one.policies or "none" }}{% if one is sameas outcome.found %} (found){% endif %}</td>{{ number(one.accuracy | percent) }}
{% for values in [one.seen, one.null, one.own, one.knowing] %}{{ number(levels(values)) }}{% endfor %}</tr>
{% endfor %}
</tbody></table></div></section>
{% endif %}
{% if ways %}
<section id="ways"><header><h2>Gradient similarity</h2><p>Mean over images of the cosine between the gradient at a point on the way
and the gradient of the image (Fig. 1 of the paper), {{ "of the whole gradients" if search.privacy_score == paper else
"a mean over parameter tensors" }}, as the score that chooses takes it. A flat curve gives an attacker no direction.</p></header>
{{ ways }}</section>
{% endif %}
{% if singles %}
<section id="singles"><header><h2>Single transforms</h2><p>{{ two.own_name }}, of all transforms that differ in effect (Fig. 5).</p>
</header>{{ singles }}</section>
{% endif %}
{% if scatter %}
<section id="scores"><header><h2>Privacy and accuracy</h2><p>{{ two.own_name }}, and S_acc, of policies that have
both (Fig. 7); the line is the threshold, left of which privacy was not scored.</p></header>{{ scatter }}</section>
{% endif %}
{% if best %}
<section id="best"><header><h2>Most private</h2><p>Of all that pass; those that share a transform cannot be in one hybrid.</p>
</header>{{ policies('Most private', best) }}</section>
{% endif %}
{% if transfers %}
<section id="transfer"><header><h2>On {{ search.transfer_to }}</h2><p>The same policies with a model semi-trained there.</p>
</header>{{ policies('On ' ~ search.transfer_to, transfers) }}</section>
{% endif %}
<section id="settings"><header><h2>Settings</h2><p>Scoring took {{ "%.0f"|format(took) }} s, all processes together.</p></header>
{{ pairs(search.to_mapping(), 'Settings') }}</section>
"""
