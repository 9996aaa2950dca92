"""The report's section on curves over epsilon: accuracy, recovered images and membership, apart for each level and defence."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from simulations.report.analysis.line import Line
from simulations.report.drawing.figures import Across, Point, curves
from simulations.report.drawing.looks import Look
from simulations.report.drawing.plots import BROAD, NARROW
from simulations.report.section import Section
from simulations.report.studies.score import Score
from simulations.report.studies.stages import names_of
from simulations.report.studies.study import Study
from simulations.report.text import percent, plain, two, whole_percent

LEAST_POINTS = 3
"""Epsilons from which on a curve is drawn: two points are no curve."""
ACCURACY, RECOVERED, MEMBERS = "accuracy", "images recovered", "members found"
LOOKS: Mapping[str, Look] = {
    ACCURACY: Look(ACCURACY, "var(--d0)", "circle"),
    RECOVERED: Look(RECOVERED, "var(--d1)", "square"),
    MEMBERS: Look(MEMBERS, "var(--d2)", "diamond"),
}
"""Curve -> its look."""


@dataclass(frozen=True)
class EpsilonCurve:
    """The pipelines of one kind whose epsilons have the same neighbours.

    Attributes:
        kind: Names of the defences of the pipelines, such as "DPSGD".
        neighbours: Between which data sets the epsilons hold, a name of ``defenses.neighbours``.
        lines: In order of epsilon.
        chart: For large and small screens; empty for fewer than ``LEAST_POINTS`` epsilons.
    """

    kind: str
    neighbours: str
    lines: tuple[Line, ...]
    chart: tuple[tuple[str, Markup], ...]

    @property
    def level(self) -> str:
        """What the epsilons protect, "example-level" or "client-level"; "" with unknown neighbours."""
        return self.lines[0].level


def members_found(line: Line) -> Score | None:
    """True positive rate at 1 % false positives of the strongest attack on membership; None without one."""
    return line.membership.scores.get(("membership-tpr", "")) if line.membership else None


def epsilon_curves(_: Study, lines: Sequence[Line]) -> tuple[EpsilonCurve, ...]:
    """The section: empty while no kind of pipeline has ``LEAST_POINTS`` finite epsilons."""
    groups: dict[tuple[str, str], list[Line]] = defaultdict(list)
    for line in lines:
        if line.epsilon is not None and math.isfinite(line.epsilon) and line.epsilon > 0:
            groups[" | ".join(names_of(line.defense)), line.neighbours].append(line)
    found = [_curve(kind, neighbours, of) for (kind, neighbours), of in groups.items()]
    return tuple(found) if any(one.chart for one in found) else ()


def _curve(kind: str, neighbours: str, lines: Sequence[Line]) -> EpsilonCurve:
    ordered = tuple(sorted(lines, key=lambda line: line.epsilon or 0.0))
    series: dict[str, list[Point]] = defaultdict(list)
    for line in ordered:
        assert line.epsilon is not None
        share = line.strongest.share if line.strongest else None
        for name, score in ((ACCURACY, line.deployed), (RECOVERED, share), (MEMBERS, members_found(line))):
            if score is not None and score.mean is not None:
                tip = f"{kind}, {line.level} \N{GREEK SMALL LETTER EPSILON} = {two(line.epsilon)}: {name} {percent(score.mean)}"
                at = math.log10(line.epsilon)
                series[name].append(Point(at, score.mean, score.low, score.high, hollow=score.status != "ok", tip=tip))
    if len(ordered) < LEAST_POINTS or not series:
        return EpsilonCurve(kind, neighbours, ordered, ())
    level = ordered[0].level or "claimed"
    across = Across(
        f"{level} \N{GREEK SMALL LETTER EPSILON} of {kind} (logarithmic)",
        lambda value: plain(float(f"{10**value:.3g}")),
        f"over the {level} epsilon of {kind}",
    )
    title = "Share: accuracy as deployed, images recovered, members found at 1\N{NO-BREAK SPACE}% false positives"
    chart = tuple(
        (
            name,
            curves(
                series, LOOKS, width, title if width == BROAD else "Share", whole_percent, (), (0.0, 1.0), (), across
            ),
        )
        for name, width in (("broad", BROAD), ("narrow", NARROW))
    )
    return EpsilonCurve(kind, neighbours, ordered, chart)


ABOUT = """Accuracy as deployed, images that the strongest attack recovered, and members found, over the claimed ε. Each figure has
the ε of one level and one defence. An example-level ε protects one example, and a client-level ε all examples of a client: no axis
holds both, and the same number means different things on two axes."""

TEMPLATE = """
{% for curve in shown %}
<h3>{{ curve.kind }}{{ ', ' ~ curve.level if curve.level }}</h3>
{% if curve.neighbours %}<p class="soft small">Neighbours: {{ curve.neighbours | neighbours }}.</p>{% endif %}
{% if curve.chart %}<figure class="panel">{{ chart(curve.chart) }}</figure>{% endif %}
{{ table(curve.kind ~ ' over ε', 'plain') }}
{{ head(['Defence', '#ε claimed', '#ε shown', '#Accuracy', '#Images recovered', '#Members found']) }}
<tbody>
{% for line in curve.lines %}{% set best = line.strongest %}
<tr><th scope="row">{{ who(line.defense) }}</th>
{{ number(line.epsilon | two, curve.level) }}
{{ number('≥ ' ~ (line.shown.plain | two) if line.shown else nothing) }}
{{ score(line.deployed, percentage) }}
{{ number(best.recovered[0] ~ ' of ' ~ best.recovered[1] if best and best.recovered else nothing) }}
{{ marked(line.membership.scores.get(('membership-tpr', '')) if line.membership else none, percent, percentage) }}</tr>
{% endfor %}
</tbody></table></div>
{% endfor %}
<p class="soft small after">Members found: the true positive rate at a false positive rate of 1&nbsp;%; an attack that guesses has
1&nbsp;%. ε covers all rounds of training. The accuracies are those of this run's settings, which are not tuned for each ε.</p>
"""

SECTION = Section(
    name="epsilon_curve",
    title="Over the privacy budget",
    about=ABOUT,
    view=epsilon_curves,
    template=TEMPLATE,
)
