"""The report's section on claimed epsilons that canaries tested: bounds, gap, power, and what each view of the messages shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attacks.dp_audit.bounds import LITTLE
from attacks.dp_audit.verdict import SMALLEST
from attacks.metrics.training import EPSILON_SHOWN, EPSILON_SHOWN_GAUSSIAN
from simulations.report.analysis.line import Line
from simulations.report.section import Section
from simulations.report.studies.study import Study
from strategies.federated.shown_epsilon import CONFIDENCE, ShownEpsilon

NO_REFUTATION = "could not have refuted the claim"


@dataclass(frozen=True)
class AuditedEpsilon:
    """The section.

    Attributes:
        audits: Defence and its audit, which names what its epsilon protects.
        little: A bound that could not have exceeded this is without power.
        confidence: Least confidence of a refutation.
    """

    audits: tuple[tuple[str, ShownEpsilon], ...]
    little: float = LITTLE
    confidence: float = CONFIDENCE

    @property
    def seeds(self) -> int:
        """The most seeds of a defence."""
        return max(one.seeds for _, one in self.audits)

    @property
    def joint(self) -> float:
        """The confidence with which all bounds of all audits and seeds hold together, by a union bound; in [0, 1)."""
        return max(0.0, 1 - sum(one.seeds * (1 - one.confidence) for _, one in self.audits))

    def limit(self, largest: float, claimed: float) -> str:
        """What a bound cannot say that could be ``largest`` at most, beside a claim; "" for one with power."""
        powerless = "no power" if largest < self.little else ""
        return ", ".join(filter(None, [powerless, "" if largest > claimed + SMALLEST else NO_REFUTATION]))

    @property
    def levels(self) -> tuple[str, ...]:
        """What the epsilons protect, each level once."""
        return tuple(sorted({one.level for _, one in self.audits if one.level}))


def audited_epsilon(_: Study, lines: Sequence[Line]) -> AuditedEpsilon | None:
    """The section; None where no claim was audited."""
    audits = tuple((line.defense, line.shown) for line in lines if line.shown is not None)
    return AuditedEpsilon(audits) if audits else None


ABOUT = """A claimed ε is an upper bound by the defence's own account. Canaries show a lower bound. For an
example-level ε they are examples whose gradients the auditor chose, among the clients' own. For a client-level ε they
are clients whose whole updates the auditor chose. Each has a fair coin. The server guessed the coins from the
updates and numbers that it received. A bound above the claim refutes the claim, with the
bound's confidence and under its assumption. A bound below proves nothing."""

TEMPLATE = """
{{ table('Epsilon claimed and shown', 'plain') }}
{{ head(['Defence', '#ε claimed', '#ε shown', '#at most', '#if noise is Gaussian', '#at most', '#Canaries', 'Strongest view']) }}
<tbody>
{% for defense, one in shown.audits %}
<tr><th scope="row">{{ who(defense) }}</th>
{{ number(one.claimed | two, [one.level, one.neighbours, 'δ = ' ~ (one.delta | plain)] | select | join(', ')) }}
{{ number('≥ ' ~ (one.plain | two), 'above the claim' if one.gap < 0 else 'gap ' ~ (one.gap | two)) }}
{{ number(one.largest_plain | two, shown.limit(one.largest_plain, one.claimed)) }}
{{ number('≥ ' ~ (one.gaussian | two), 'above the claim' if one.gap_gaussian < 0 else 'gap ' ~ (one.gap_gaussian | two)) }}
{{ number(one.largest_gaussian | two, shown.limit(one.largest_gaussian, one.claimed)) }}
{{ number(one.canaries, one.correct ~ ' of ' ~ one.guesses ~ ' guesses right') }}
<td>{{ one.part }}<small>{{ (one.confidence * 100) | round(1) | plain }} % confidence
  {%- if one.seeds > 1 %} in one of {{ one.seeds }} seeds{% endif %}</small>
{% if one.uncorrected %}<small>{{ one.seeds_above }} of {{ one.seeds }} seeds above the claim, not corrected</small>{% endif %}
{% if one.covers %}<small>{{ one.covers }}</small>{% endif %}
{% if one.refuted_by %}<small>above the claim: {{ one.refuted_by | join(', ') }}</small>{% endif %}</td>
</tr>
{% endfor %}
</tbody></table></div>
<p class="soft small after"><i>ε shown</i> assumes nothing about the mechanism. <i>If noise is Gaussian</i> assumes that the
mechanism is as private as a Gaussian one (μ-GDP), and for some views that the scores of canaries are independent. <i>Gap</i> is the
claim less the bound above it. All bounds of a defence and seed hold together with the stated confidence.
<i>At most</i> is what the bound before it could have been if all guesses of these canaries had been right.
A bound that could not have exceeded
{{ shown.little | plain }} is no evidence of privacy, and a view that could not have exceeded the claim could not have refuted it.
{% if shown.levels | length > 1 %}An example-level ε is about one example, and a client-level ε about all examples of a client:
the two cannot be compared, whichever is smaller. {% endif %}
{% if shown.audits | length > 1 or shown.seeds > 1 %}{{ count(shown.audits | length, 'claim') }}
{{- ' was' if shown.audits | length == 1 else ' were' }} audited
{%- if shown.seeds > 1 %}, with up to {{ shown.seeds }} seeds{% endif %}; all bounds of
{{ 'all of them' if shown.audits | length > 1 else 'all seeds' }} hold together with
{{ (shown.joint * 100) | round(1) | plain }} % confidence (union bound). {% endif %}
{% if shown.seeds > 1 %}Of several seeds, the row has the one whose bound is nearest to its claim or furthest above it. Such a claim
is refuted only if the bounds of all seeds are above it, or if the confidence stays at {{ (shown.confidence * 100) | plain }} %
after a union bound over the seeds. {% endif %}
Canaries were among the
examples of training, or clients in it, which costs accuracy.</p>
<details><summary>Each view of the messages</summary>
{{ table('Views of an audit', 'tall') }}
{{ head(['Defence', 'View', '#Canaries', '#ε shown', '#at most', '#if noise is Gaussian', '#at most']) }}
<tbody>
{% for defense, one in shown.audits %}{% for part in one.parts %}
<tr><th scope="row">{{ who(defense) }}</th><td>{{ part.part }}
  {% if part.part in one.refuted_by %}<small>above the claim</small>{% endif %}</td>
{{ number(part.canaries) }}
{{ number('≥ ' ~ (part.plain | two)) }}
{{ number(part.largest_plain | two, shown.limit(part.largest_plain, one.claimed)) }}
{{ number('≥ ' ~ (part.gaussian | two)) }}
{{ number(part.largest_gaussian | two, shown.limit(part.largest_gaussian, one.claimed)) }}</tr>
{% endfor %}{% endfor %}
</tbody></table></div></details>
"""

SECTION = Section(
    name="audited_epsilon",
    title="Epsilon claimed and shown",
    about=ABOUT,
    view=audited_epsilon,
    template=TEMPLATE,
    metrics=(EPSILON_SHOWN.name, EPSILON_SHOWN_GAUSSIAN.name),
)
