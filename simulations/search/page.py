"""The page of a search: what was found, how far both privacy scores agree, and the three pictures of ATS (Figs. 1, 5 and 7)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

from defenses.images.transforms import LIBRARY
from simulations.report.drawing.canvas import Canvas, Mark, ink, paint, style
from simulations.report.drawing.domains import bounds
from simulations.report.page.style import CSS
from simulations.report.text import decibel, fixed, plain
from simulations.run_folder.run_directory import write_atomically
from simulations.search.attacked import read_attacked
from simulations.search.folder import CANDIDATE, IDENTITY, SINGLE, TRANSFER, Scored, SearchFolder
from simulations.search.settings import PAPER
from simulations.search.space import text_of
from simulations.search.two_scores import TwoScores

WIDTH, HEIGHT = 1040.0, 360.0
MOST_CURVES = 4


def write_page(folder: SearchFolder, result: Mapping[str, Any]) -> Path:
    """Writes ``search.html`` from what the folder holds."""
    chosen = set(result["policies"].split("+")) if result["policies"] else set()
    candidates = folder.of(CANDIDATE)
    page = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(TEMPLATE)
    passed = folder.passed(result["accuracy_threshold"])
    two = TwoScores.of(candidates, passed, result["policies"], result["channels"], folder.search)
    rendered = page.render(
        css=Markup(CSS + OWN_CSS), result=result, search=folder.search, settings=folder.search.to_mapping(),
        identity=folder.scored.get((IDENTITY, ())), chosen=[one for one in candidates if name(one) in chosen],
        best=passed[:20], two=two, agreement=agreement(two, chosen), ways=ways(folder, chosen), singles=single_scores(folder),
        scatter=scatter(folder, chosen, result["accuracy_threshold"]), transfers=folder.of(TRANSFER), name=name, words=words,
        number=lambda value: fixed(value, 4), paper=PAPER, attacked=read_attacked(folder, result), share=share,
        levels=levels, seconds=sum(one.scores.seconds for one in folder.scored.values()),
    )  # fmt: skip
    write_atomically(folder.path / "search.html", rendered)
    return folder.path / "search.html"


def name(one: Scored) -> str:
    """The policy as text."""
    return text_of((one.policy,)) or "none"


def words(one: Scored) -> str:
    """What the policy does, in order."""
    return (
        ", then ".join(f"{LIBRARY[index].name} {LIBRARY[index].level}" for index in one.policy)
        or "leaves images as they are"
    )


def share(value: float | None) -> str:
    """In per cent."""
    return "-" if value is None else f"{100 * value:.1f} %"


def levels(values: tuple[float | None, float | None]) -> str:
    """PSNR on the initial and on the final model."""
    return " / ".join("-" if value is None else decibel(value) for value in values)


def ways(folder: SearchFolder, chosen: set[str]) -> Markup | str:
    """Fig. 1: GradSim on the way from noise to the image, without a policy and with those that were chosen."""
    shown = [one for one in (folder.scored.get((IDENTITY, ())),) if one]
    shown += [one for one in folder.passed(None) if name(one) in chosen][:MOST_CURVES]
    if not shown:
        return ""
    low, high = bounds([value for one in shown for value in (*one.scores.curve, 1.0)], least=0.2)
    with style():
        canvas = _canvas((0.0, 1.0), (max(low, -1.0), min(high, 1.0)), "i, from noise (0) to the image (1)", "GradSim")
        for at, one in enumerate(shown):
            steps = len(one.scores.curve)
            colour = "var(--none)" if at == 0 and not one.policy else f"var(--d{at % 5})"
            label = name(one) if one.policy else "no policy"
            along = [j / steps for j in range(steps + 1)]
            canvas.axes.plot(along, [*one.scores.curve, 1.0], color=paint(colour), label=label)
        canvas.axes.legend(loc="upper left", labelcolor="linecolor")
        return canvas.svg("Gradient similarity on the way from noise to the image")


def single_scores(folder: SearchFolder) -> Markup | str:
    """Fig. 5: the privacy score of each single transform; those that do the same stand together."""
    found = {one.policy: one.scores.privacy for one in folder.of(SINGLE)}
    identity = folder.scored.get((IDENTITY, ()))
    if not found or identity is None or identity.scores.privacy is None:
        return ""
    known = [(policy[0], value) for policy, value in found.items() if value is not None]
    low, high = bounds([*(value for _, value in known), identity.scores.privacy], least=0.05)
    with style():
        canvas = _canvas(
            (-1.0, float(len(LIBRARY))), (low, high), "transform of the library", "S_pri, lower is more private"
        )
        canvas.axes.axhline(identity.scores.privacy, color=paint("var(--none)"))
        canvas.name("no policy", len(LIBRARY), identity.scores.privacy, "var(--none)", va="bottom", ha="right")
        tips = {index: f"{index} {LIBRARY[index].name} {LIBRARY[index].level}: {value:.4f}" for index, value in known}
        canvas.marks([Mark(index, value, "circle", "var(--d1)", tips[index]) for index, value in known])
        for index, value in known:
            canvas.name(str(index), index, value, xytext=(0, 7), textcoords="offset points", ha="center", va="bottom")
        return canvas.svg("Privacy score of each single transform")


def scatter(folder: SearchFolder, chosen: set[str], least: float | None) -> Markup | str:
    """Fig. 7: both scores of all policies that have both."""
    found = [one for one in folder.of(CANDIDATE) if one.scores.privacy is not None]
    identity = folder.scored.get((IDENTITY, ()))
    if not found:
        return ""
    every = [*found, *([identity] if identity else [])]
    across = bounds([one.scores.accuracy for one in every] + ([least] if least is not None else []), least=0.02)
    down = bounds([one.scores.privacy for one in every], least=0.02)
    with style():
        canvas = _canvas(across, down, "S_acc, higher tells images apart better", "S_pri, lower is more private")
        if least is not None:
            canvas.axes.axvline(least, color=paint("var(--soft)"))
        canvas.marks(
            [_score(one, "var(--d1)", "circle", True) for one in every if one.policy and name(one) not in chosen]
        )
        own = [one for one in every if one.policy and name(one) in chosen]
        canvas.marks([_score(one, "var(--d2)", "diamond") for one in own])
        canvas.marks([_score(one, "var(--none)", "circle") for one in every if not one.policy])
        texts = [
            canvas.axes.text(one.scores.accuracy, one.scores.privacy or 0.0, name(one) if one.policy else "no policy",
                             color=ink("var(--d2)" if one.policy else "var(--none)"))
            for one in [*own, *(one for one in every if not one.policy)]
        ]  # fmt: skip
        canvas.keep_apart(texts, [(one.scores.accuracy, one.scores.privacy or 0.0) for one in every])
        return canvas.svg("Accuracy and privacy scores of the policies")


def agreement(two: TwoScores, chosen: set[str]) -> Markup | str:
    """The score that chooses against the other, of all policies that have both."""
    if not two.scored:
        return ""
    points = [(one.scores.privacy or 0.0, one.scores.other or 0.0, name(one)) for one in two.scored]
    across, up = bounds([x for x, _, _ in points], least=0.02), bounds([y for _, y, _ in points], least=0.02)
    with style():
        canvas = _canvas(across, up, f"{two.own_name} (chooses)", two.other_name)
        for own in (False, True):
            shape, colour, size = ("diamond", "var(--d2)", 9.0) if own else ("circle", "var(--d1)", 6.0)
            canvas.marks([
                Mark(x, y, shape, colour, f"{text}: {two.own_name} {x:.4f}, {two.other_name} {y:.4f}", not own, size)
                for x, y, text in points if (text in chosen) == own
            ])  # fmt: skip
        return canvas.svg("Both privacy scores of the policies")


def _score(one: Scored, colour: str, shape: str, hollow: bool = False) -> Mark:
    tip = f"{name(one)}: S_pri {one.scores.privacy:.4f}, S_acc {one.scores.accuracy:.4f}"
    return Mark(one.scores.accuracy, one.scores.privacy or 0.0, shape, colour, tip, hollow, 6.0 if hollow else 9.0)


def _canvas(across: tuple[float, float], up: tuple[float, float], x_title: str, y_title: str) -> Canvas:
    canvas = Canvas(WIDTH, HEIGHT)
    canvas.axes.set(xlim=across, ylim=up)
    canvas.titles(x_title, y_title)
    canvas.ticks(8, 6, plain, plain)
    return canvas


OWN_CSS = """
.wide { overflow-x: auto; } table { border-collapse: collapse; } td, th { text-align: left; padding: 4px 18px 4px 0;
  border-bottom: 1px solid var(--rule); font-variant-numeric: tabular-nums; }
"""

TABLE = """{% macro table(rows) %}
<div class="wide"><table><tr><th>Policy</th><th>What it does</th><th>{{ two.own_name }} (chooses)</th>
<th>{{ two.other_name }}</th><th>S_acc</th></tr>
{% for one in rows %}
<tr><td>{{ name(one) }}</td><td>{{ words(one) }}</td><td>{{ number(one.scores.privacy) }}</td>
<td>{{ number(one.scores.other) }}</td><td>{{ number(one.scores.accuracy) }}</td></tr>
{% endfor %}</table></div>
{% endmacro %}
"""

TEMPLATE = (
    TABLE
    + """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Policy search on {{ search.dataset }}</title><style>{{ css }}</style></head><body><main>
<p class="kicker">fedveil search</p>
<h1>{{ result.policies or "No policy passed" }}</h1>
<p class="facts">{{ result.defense }} on {{ search.dataset }} with {{ search.model }}, seed {{ search.seed }}:
{{ result.scored }} policies scored, {{ result.passed }} of them at or above the threshold
{%- if result.accuracy_threshold is not none %} {{ number(result.accuracy_threshold) }}{% endif %}.
A low privacy score means that gradients say little about the way to the image; it is a proxy, measured on {{ search.images }}
images with a model trained on {{ "%g"|format(100 * search.semi_share) }} % of the training images. Whether an attack fails is for
<code>fedveil run audit.toml --out audit</code> (in this folder) to say{% if not attacked %}; then <code>fedveil search
--resume</code> shows here what it found{% endif %}.</p>
{% if chosen %}
<section id="result"><header><h2>Chosen</h2><p>The most private policies that pass and share no transform.</p></header>
{{ table(([identity] if identity else []) + chosen) }}</section>
{% endif %}
{% if agreement %}
<section id="two"><header><h2>Two privacy scores</h2><p>{{ two.rule }} {{ two.verdict }}</p></header>{{ agreement }}</section>
{% endif %}
{% if attacked is string %}
<section id="attacked"><header><h2>Attacked</h2><p>{{ attacked }}</p></header></section>
{% elif attacked %}
<section id="attacked"><header><h2>Attacked</h2><p>{{ attacked.verdicts|join(" ") }} Seeds
{{ attacked.seeds|join(", ") }}; {{ attacked.images }} attacked images for each hybrid; the initial / the final model; PSNR in
dB, means over images, of the strongest attack that knows no policies, and of the strongest that does.</p></header>
<div class="wide"><table><tr><th>Policies</th><th>Accuracy</th><th>To the transformed image</th>
<th>The mean image, to the same</th><th>To the original</th>
<th>Knowing the policies, to the original</th></tr>
{% for one in [attacked.none, attacked.found] + attacked.random|list %}
<tr><td>{{ one.policies or "none" }}{% if one is sameas attacked.found %} (found){% endif %}</td><td>{{ share(one.accuracy) }}</td>
<td>{{ levels(one.seen) }}</td><td>{{ levels(one.null) }}</td><td>{{ levels(one.own) }}</td><td>{{ levels(one.knowing) }}</td></tr>
{% endfor %}</table></div></section>
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
</header>{{ table(best) }}</section>
{% endif %}
{% if transfers %}
<section id="transfer"><header><h2>On {{ search.transfer_to }}</h2><p>The same policies with a model semi-trained there.</p>
</header>{{ table(transfers) }}</section>
{% endif %}
<section id="settings"><header><h2>Settings</h2><p>Scoring took {{ "%.0f"|format(seconds) }} s, all processes together.</p></header>
<div class="wide"><table>
{% for key, value in settings.items() %}
<tr><td>{{ key }}</td><td>{{ value }}</td></tr>
{% endfor %}
</table></div></section>
</main></body></html>
"""
)
