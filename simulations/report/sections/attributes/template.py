"""The section on a sensitive attribute, as Jinja text."""

from __future__ import annotations

ATTRIBUTES = """
{% if view.sections.attributes %}{% set told = view.sections.attributes %}
<section id="attributes{{ s }}">
<header><h2>Sensitive attribute</h2><p>Guesses of an attribute that the task does not ask for, made from what the clients sent
anyway or from one-step probes, and scored by its owners. The bar is to answer always with the value that is right
most often. A static adversary learned without the defences; a retrained one as clients with these defences send, and is
what a defence has to be judged by.
{%- if told.retrained %} Under a defence the retrained one reads more than the most frequent value, with its whole interval, in
{{ told.reading }} of {{ count(told.retrained, 'case') }}.{% endif %}</p></header>
{{ table('Sensitive attribute', 'tall') }}
{{ head(['Defence', 'Attack', 'Learned', 'Status', '#Accuracy, %', '#Most frequent, %', '#n', '#On its own held-out, %',
  '#Failures', '#Card']) }}
<tbody>
{% for one in told.found %}
<tr{% if one.cell.status | dagger %} class="doubt"{% endif %}>
<td class="tight">{{ who(one.cell.defense) }}</td>
<td class="attack">{{ named(one.cell, view.adaptive) }}<small>{{ round_name(one.cell.round, one.cell.final) }},
  {{ one.cell.observation }}</small></td>
<td>{{ one.kind }}</td>
{{ status(one.cell.status) }}
{{ score(one.accuracy, percentage) }}
{{ number(one.null | percentage if one.null is not none else nothing) }}
{{ number(one.accuracy.n) }}
{{ number(one.cell.mean('holdout_accuracy') | percentage,
  'most frequent ' ~ (one.cell.mean('holdout_majority') | percentage) if one.cell.mean('holdout_majority') is not none else '') }}
{{ number(one.accuracy.failures) }}
{{ number(view.cards.numbers.get(one.cell.card, nothing)) }}
</tr>
{% endfor %}
</tbody></table></div>
<p class="soft small after">Small print is the exact 95&nbsp;% interval. † marks an adversary that reads no more than the most
frequent value where nothing is protected, or too few guesses for a verdict.</p>
</section>
{% endif %}
"""
