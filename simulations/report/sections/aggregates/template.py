"""The section on sums of clients' updates, as Jinja text."""

from __future__ import annotations

AGGREGATES = """
{% if view.sections.aggregates %}{% set told = view.sections.aggregates %}
<section id="aggregates{{ s }}">
<header><h2>Sums of clients</h2><p>What the same attacks read where the server sees only the sum of n clients' one-step probes, as
secure aggregation leaves it (assumed, not run: the simulated server holds the single updates and hides them from these attacks).
With n = 1 the sum is the plain probe. Nothing here counts in the headline, in the summary or in a conclusion.</p></header>
{% if told.reads %}
{{ table('Sums of clients', 'tall after') }}
{{ head(['Defence', 'Attack', 'Status', '#Clients', '#PSNR, dB', '#over null', '#SSIM', '#identified', '#n', '#Failures',
  '#Card']) }}
<tbody>
{% for one in told.reads %}{% set cell = one.cell %}{% set null = cell.best_null %}
<tr{% if cell.status | dagger %} class="doubt"{% endif %}>
<td class="tight">{{ who(cell.defense) }}</td>
<td class="attack">{{ named(cell, view.adaptive) }}<small>{{ round_name(cell.round, cell.final) }}</small>
  {% if one.why %}<small>{{ one.why }}</small>{% endif %}</td>
{{ status(cell.status) }}
{{ number(one.clients) }}
{{ score(cell.psnr, decibel) }}
{{ number(cell.gap | signed if cell.gap is not none else nothing,
  null[0] ~ ' ' ~ (null[1] | decibel) if null else '') }}
{{ score(cell.scores.get(('ssim', 'original')), two) }}
{{ picked_out(cell) }}
{{ number(cell.psnr.n if cell.psnr else nothing) }}
{{ number(cell.psnr.failures if cell.psnr else nothing) }}
{{ number(told.cards.numbers.get(cell.card, nothing)) }}
</tr>
{% endfor %}
</tbody></table></div>
<p class="soft small after">Each client scores the guesses against its own images, matched by assignment: a guess counts for at most
one image of each client, and with n clients each image chooses among n times as many guesses. Candidates are 100 for each guess
where a client has so many images; else the chance of a blind guess, given under “identified”, is higher.</p>
{% endif %}
{% for why in told.withheld %}<p class="soft small after">{{ why }}</p>{% endfor %}
{% if told.reads %}
<h3>Threat cards of the sums</h3>
<div class="banner">
{% for key, value in told.cards.shared.items() %}<span class="fact"><b>{{ key | replace('_', ' ') }}</b> {{ value }}</span>
{% endfor %}</div>
{% if told.cards.differing %}
{{ table('Threat cards of the sums', 'after') }}
{{ head(['#Card', 'Attacks'] + told.cards.differing | map('replace', '_', ' ') | list) }}
<tbody>
{% for card, attacks, values in told.cards.rows %}
<tr>{{ number(card) }}<td class="attack">
{% for attack in attacks %}<code>{{ attack | breakable }}</code> {% endfor %}</td>
{% for value in values %}<td class="text">{{ value or nothing }}</td>{% endfor %}</tr>
{% endfor %}
</tbody></table></div>
{% endif %}
{% endif %}
</section>
{% endif %}
"""
