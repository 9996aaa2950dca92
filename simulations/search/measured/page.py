"""The page of a measured search: its front, its verdict on held-out images, and all hybrids that were judged."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from simulations.report import write_page
from simulations.report.drawing.canvas import Canvas, Mark, style
from simulations.report.drawing.domains import bounds
from simulations.report.page.page import render
from simulations.report.studies.recovery import DEFINITION
from simulations.report.text import count, plain
from simulations.search.measured.proposals import CONTROL, NONE, PAPER, RANDOM, SCORED
from simulations.search.measured.results import MeanInterval
from simulations.search.measured.search import Found
from simulations.search.measured.sentences import about_candidates, headline, percent, points, verdict
from simulations.search.measured.settings import Measured
from simulations.search.measured.trials import front
from simulations.search.measured.verdict import in_order

WIDTH, HEIGHT = 1040.0, 420.0
LOOKS = {
    NONE: ("circle", "var(--none)", False),
    PAPER: ("square", "var(--d3)", False),
    CONTROL: ("circle", "var(--d1)", True),
    RANDOM: ("circle", "var(--d1)", False),
    SCORED: ("diamond", "var(--d2)", False),
}
"""Origin -> shape, colour, whether hollow."""
NAMES = {
    NONE: "no defence",
    PAPER: "a paper's",
    CONTROL: "control",
    RANDOM: "random",
    SCORED: "of policies with low S_pri",
}
"""Origin -> its word in the legend."""


def write_measured_page(folder: Path, found: Found) -> Path:
    """Write ``search.html``."""
    on_front = {one.hybrid for one in front(found.chosen_among)}
    context = {
        "search": found.search,
        "found": found,
        "headline": headline(found),
        "sentences": verdict(found),
        "definition": DEFINITION,
        "held_out": plane([(one.hybrid, one.origin, one.accuracy.mean, one.share.mean) for one in found.held_out]),
        "chosen": plane([
            (one.hybrid, one.origin, one.last.accuracy, one.last.share) for one in found.chosen_among if one.complete
        ]),
        "on_front": on_front,
        "candidates": in_order(found.search, found.chosen_among),
        "about_candidates": about_candidates(found),
        "budgets": budgets(found.search),
        "as_percent": percent,
        "spanned": span,
        "lost_points": points,
        "random": any(one.origin == CONTROL for one in found.held_out),
        "origin_of": lambda one: f"{one.origin}, chosen" if one.hybrid in found.confirmed else one.origin,
    }  # fmt: skip
    write_page(folder / "search.html", render(BODY, {"title": f"Measured search on {found.search.dataset}"} | context))
    return folder / "search.html"


def span(value: MeanInterval) -> str:
    """A share with its interval."""
    if not math.isfinite(value.high):
        return percent(value.mean)
    return f"{percent(value.mean)} ({100 * value.low:.1f} to {100 * value.high:.1f})"


def budgets(search: Measured) -> list[str]:
    """What each rung spends, as a sentence."""
    found = []
    for number in range(search.rungs):
        rung = search.rung(number)
        trained = ", LearnedRestorer among the adaptive attacks" if rung.restorer else ""
        passes = f"{search.local_epochs} pass{'' if search.local_epochs == 1 else 'es'}"
        found.append(
            f"Rung {number + 1}: {count(rung.rounds, 'round')} of {passes}, "
            f"{rung.images * search.num_clients} attacked images{trained}."
        )
    return found


def plane(shown: Sequence[tuple[str, str, float, float]]) -> Markup | str:
    """Accuracy against the share of recovered images; (hybrid, origin, accuracy, share) of each."""
    if not shown:
        return ""
    with style():
        canvas = Canvas(WIDTH, HEIGHT)
        across, up = bounds([one[2] for one in shown], least=0.05), (-0.05, 1.05)
        canvas.axes.set(xlim=across, ylim=up)
        canvas.titles("accuracy on clean images", "share of recovered images")
        canvas.ticks(8, 6, plain, plain)
        for origin, (shape, colour, hollow) in LOOKS.items():
            canvas.marks([
                Mark(x, y, shape, colour, f"{hybrid or 'none'} ({of}): {percent(x)}, {percent(y)} recovered", hollow, 9.0)
                for hybrid, of, x, y in shown
                if of == origin
            ])  # fmt: skip
        known = {of for _, of, _, _ in shown}
        canvas.legend([
            (NAMES[origin], Mark(0, 0, *LOOKS[origin][:2], "", LOOKS[origin][2], 9.0)) for origin in LOOKS if origin in known
        ])  # fmt: skip
        return canvas.svg("Accuracy and share of recovered images")


BODY = """
<p class="kicker">fedveil search --objective measured</p>
<h1>{{ headline }}</h1>
<p class="facts">ATS on {{ search.dataset }} with {{ search.model }}, seed {{ search.seed }}.
{% for line in sentences %}{{ line }} {% endfor %}</p>
<section id="held-out"><header><h2>On held-out images</h2><p>{{ definition }} Each hybrid was trained with and attacked on images
and seeds that the search did not use. Intervals are 95 %. Those of accuracies are over seeds (Student's t), and never narrower than
one seed's test images allow (Wilson; for points lost Newcombe), because all seeds share them. Those of shares are over images
(Clopper-Pearson) or over seeds (Student's t); each end is that of the wider one. Images of one seed share its model.
{% if random %}Controls are random hybrids, and none of them was chosen. The difference from them has the wider of two intervals
likewise: over images and random hybrids, and over seeds.{% endif %}</p></header>{{ held_out }}
{{ table('Held out') }}
{{ head(['Policies', 'Origin', '#Accuracy', '#Points lost', '#Recovered', '#Share', '#Gain, dB']) }}
<tbody>
{% for one in found.held_out %}
<tr><td>{{ one.hybrid or "none" }}</td><td>{{ origin_of(one) }}</td>{{ number(spanned(one.accuracy)) }}
{{ number(lost_points(one.lost)) }}
{{ number(one.recovered ~ " of " ~ one.attacked) }}{{ number(spanned(one.share)) }}{{ number("%.1f"|format(one.gain.mean)) }}</tr>
{% endfor %}
</tbody></table></div>
{% for one in found.failed %}<p>{{ one.hybrid or "none" }}, seed {{ one.seed }}, failed: {{ one.failure }}</p>{% endfor %}
</section>
<section id="front"><header><h2>The front of the search</h2><p>Hybrids that reached the last rung, on the images of the search. A
hybrid is on the front if no other is at least as good in accuracy, share of recovered images and gain over the null baselines, and
better in one of them. The chosen one has the lowest share of recovered images, plus the accuracy lost beyond
{{ "%g"|format(100 * search.tolerated) }} points over {{ "%g"|format(100 * search.exchange) }} points.
The best of many looks better here than it is: the table above corrects that.</p></header>{{ chosen }}</section>
<section id="candidates"><header><h2>All candidates</h2><p>{{ about_candidates }} No defence and the papers' hybrids stand
beside them. Hybrids with more rungs come first, then those with a better value of the rule of choice. Failed ones are
last.</p></header>
{{ table('All candidates') }}
{{ head(['Policies', 'Origin', 'Front', '#Rungs', '#Accuracy', '#Recovered', '#Gain, dB', 'Strongest attack']) }}
<tbody>
{% for one in candidates %}
<tr><td>{{ one.hybrid or "none" }}</td><td>{{ origin_of(one) }}</td>
<td>{{ "yes" if one.hybrid in on_front and one.complete else "" }}</td>
{{ number(one.rungs|length) }}
{% if one.failure or not one.rungs %}<td colspan="4">failed: {{ one.failure }}</td>
{% else %}{{ number(as_percent(one.last.accuracy)) }}{{ number(one.last.recovered ~ " of " ~ one.last.attacked) }}
{{ number("%.1f"|format(one.last.gain)) }}<td>{{ one.last.strongest }}</td>{% endif %}</tr>
{% endfor %}
</tbody></table></div></section>
<section id="budgets"><header><h2>Budgets</h2><p>{% for line in budgets %}{{ line }} {% endfor %}A hybrid
goes on to the next rung if it is among the best one in {{ search.reduction }} of those that have ended this one so far. So more of
the first ones go on. Their order is random. With several processes it also depends on their speed. A hybrid
that went on to no later rung is not on the front, although a longer training might have put it there.</p></header></section>
<section id="settings"><header><h2>Settings</h2><p>The search judged for {{ "%.0f"|format(found.seconds) }} s: the sum of all
judgements, of which several run at once.</p></header>
{{ pairs(search.to_mapping(), 'Settings') }}</section>
"""
