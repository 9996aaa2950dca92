"""The report's section on curves over epsilon: accuracy, recovered images and membership, apart for each level and defence."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from simulations.report.analysis.adaptive import once_per_update
from simulations.report.analysis.line import Line
from simulations.report.drawing.figures import Across, Point, curves
from simulations.report.drawing.looks import Faces, Look
from simulations.report.drawing.plots import BROAD, for_screens
from simulations.report.section import Section
from simulations.report.studies.rows import grouped
from simulations.report.studies.stages import names_of
from simulations.report.studies.study import Study
from simulations.report.text import count, percent, plain, two, whole_percent

LEAST_POINTS = 3
"""Epsilons from which on a curve is drawn: two points are no curve."""
ACCURACY, RECOVERED, MEMBERS = "accuracy", "images recovered", "members found"
LOOKS: Faces = {
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
        delta: Of all its epsilons; None where the rows do not say.
        lines: In order of epsilon.
        plain: The line of no defence; None without one.
        chart: For large and small screens; empty for fewer than ``LEAST_POINTS`` epsilons.
    """

    kind: str
    neighbours: str
    delta: float | None
    lines: tuple[Line, ...]
    plain: Line | None
    chart: tuple[tuple[str, Markup], ...]

    @property
    def why_no_chart(self) -> str:
        """Why there is no curve; "" with one."""
        if self.chart:
            return ""
        few = count(len({line.epsilon for line in self.lines}), "epsilon")
        return f"No curve: {few} of this level, defence and δ, and a curve needs {LEAST_POINTS}."

    @property
    def shown(self) -> bool:
        """Whether any of these epsilons was audited."""
        return any(line.shown for line in self.lines)

    @property
    def probed(self) -> bool:
        """Whether messages of the audit spent more than training."""
        return any(line.epsilon_with_probes is not None for line in self.lines)

    @property
    def caveats(self) -> tuple[str, ...]:
        """What holds for the strongest attacks on these defences, each caveat once."""
        best = [line.strongest for line in self.lines if line.strongest]
        return tuple(dict.fromkeys(text for cell in best for text in once_per_update(cell)))

    @property
    def level(self) -> str:
        """What the epsilons protect, "example-level" or "client-level"; "" with unknown neighbours."""
        return self.lines[0].level


def epsilon_curves(_: Study, lines: Sequence[Line]) -> tuple[EpsilonCurve, ...]:
    """The section: empty while no kind of pipeline has ``LEAST_POINTS`` finite epsilons."""
    bounded = [line for line in lines if line.epsilon is not None and 0 < line.epsilon < math.inf]
    groups = grouped(bounded, lambda line: (" | ".join(names_of(line.defense)), line.neighbours, line.delta))
    plain = next((line for line in lines if not line.defense), None)
    found = [_curve(*key, of, plain) for key, of in groups.items()]
    return tuple(found) if any(one.chart for one in found) else ()


def _curve(kind: str, neighbours: str, delta: float | None, lines: Sequence[Line], none: Line | None) -> EpsilonCurve:
    ordered = tuple(sorted(lines, key=lambda line: line.epsilon or 0.0))
    series: dict[str, list[Point]] = defaultdict(list)
    for line in ordered:
        assert line.epsilon is not None
        share = line.strongest.share if line.strongest else None
        for name, score in ((ACCURACY, line.deployed), (RECOVERED, share), (MEMBERS, line.found_members)):
            if score is not None and score.mean is not None:
                tip = f"{kind}, {line.level} \N{GREEK SMALL LETTER EPSILON} = {two(line.epsilon)}: {name} {percent(score.mean)}"
                series[name].append(Point.of(math.log10(line.epsilon), score, tip))
    if len({line.epsilon for line in ordered}) < LEAST_POINTS or not series:
        return EpsilonCurve(kind, neighbours, delta, ordered, none, ())
    level = ordered[0].level or "claimed"
    across = Across(
        f"{level} \N{GREEK SMALL LETTER EPSILON} of {kind} (logarithmic)",
        lambda value: plain(float(f"{10**value:.3g}")),
        f"over the {level} epsilon of {kind}",
        "no defence, accuracy",
    )
    without = none.deployed.mean if none and none.deployed else None
    ends = [math.log10(line.epsilon) for line in (ordered[0], ordered[-1]) if line.epsilon]
    reference = [Point(end, without) for end in ends] if without is not None else []
    title = "Share: accuracy as deployed, images recovered, members found at 1\N{NO-BREAK SPACE}% false positives"
    how = whole_percent, reference, (0.0, 1.0), (), across
    chart = for_screens(lambda width: curves(series, LOOKS, width, title if width == BROAD else "Share", *how))
    return EpsilonCurve(kind, neighbours, delta, ordered, none, tuple(chart))


ABOUT = """Accuracy as deployed, images that the strongest attack recovered, and members found, over the claimed ε. Each figure has
the ε of one level and one defence. An example-level ε protects one example, and a client-level ε all examples of a client: no axis
holds both, and the same number means different things on two axes."""

TEMPLATE = """
{% for curve in shown %}
<h3>{{ curve.kind }}{{ ', ' ~ curve.level if curve.level }}</h3>
{% if curve.neighbours or curve.delta is not none %}<p class="soft small">
{%- if curve.neighbours %}Neighbours: {{ curve.neighbours | neighbours }}. {% endif %}
{%- if curve.delta is not none %}δ = {{ curve.delta | plain }}.{% endif %}</p>{% endif %}
{% if curve.chart %}<figure class="panel">{{ chart(curve.chart) }}</figure>
{% else %}<p class="soft small">{{ curve.why_no_chart }}</p>{% endif %}
{{ table(curve.kind ~ ' over ε', 'plain') }}
{{ head(['Defence', '#ε claimed', curve.probed and '#with probes', curve.shown and '#ε shown', '#Accuracy', '#Images recovered',
  '#Members found']) }}
<tbody>
{% for line in ([curve.plain] if curve.plain else []) + (curve.lines | list) %}{% set best = line.strongest %}
<tr><th scope="row">{{ who(line.defense) }}</th>
{{ number(line.epsilon | two, curve.level) if line.defense else number('none') }}
{% if curve.probed %}{{ number(line.epsilon_with_probes | two) }}{% endif %}
{% if curve.shown %}{{ number('≥ ' ~ (line.shown.plain | two) if line.shown else nothing) }}{% endif %}
<td class="num">{{ percentage(line.deployed.mean if line.deployed else none) }}
  {%- set ends = within(line.deployed.low, line.deployed.high, percentage) if line.deployed else '' %}
  {%- for below in (ends, line.cost_note) if below %}<small>{{ below }}</small>{% endfor %}</td>
{{ number(best.recovered[0] ~ ' of ' ~ best.recovered[1] if best and best.recovered else nothing,
  'from ' ~ best.observation ~ 's' if best and best.recovered and best.observation else '') }}
{{ members_of(line) }}</tr>
{% endfor %}
</tbody></table></div>
{% for text in curve.caveats %}<p class="caveat alarm">Images recovered: {{ text }}.</p>
{% endfor %}
{% endfor %}
<p class="soft small after">Members found: the true positive rate at a false positive rate of 1&nbsp;%; an attack that guesses has
1&nbsp;%. ε covers all rounds of training
{%- if shown | selectattr('probed') | list %}, but no probes that only the audit sends. From such probes images are recovered as
well; <i>with probes</i> is the ε of training and of these probes together{% endif %}. The accuracies are those of this run's
settings, which are not tuned for each ε.</p>
"""

SECTION = Section(
    name="epsilon_curve",
    title="Over the privacy budget",
    about=ABOUT,
    view=epsilon_curves,
    template=TEMPLATE,
)
