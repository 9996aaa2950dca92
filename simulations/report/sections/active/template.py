"""The section on an active server, as Jinja text."""

from __future__ import annotations

ACTIVE = """
{% if view.sections.active %}{% set told = view.sections.active %}
<section id="active{{ s }}" class="active">
<header><h2>Active server</h2><p>This server sent clients models of its own making in place of the agreed one, and read the answers.
It is another adversary than the honest-but-curious one of the rest of this page: nothing here counts in the headline, in the
summary or in a conclusion, and a client that checks what it is sent need not answer.</p></header>
<div class="banner alarm"><b>Not honest but curious.</b> Each row needs a server that deviates from the protocol.</div>
{{ table('Active server', 'tall after') }}
{{ head(['Defence', 'Attack', 'Status', '#Refused by', '#PSNR, dB', '#over null', '#SSIM', '#identified', '#n', '#Failures',
  '#Threat class', '#Card']) }}
<tbody>
{% for one in told.reads %}{% set cell = one.cell %}{% set null = cell.best_null %}
<tr{% if cell.status | dagger %} class="doubt"{% endif %}>
<td class="tight">{{ who(cell.defense) }}</td>
<td class="attack"><code class="status bad">{{ cell.attack | breakable }}</code>
  <small>{{ round_name(cell.round, cell.final) }}</small>
  {% if one.why %}<small>{{ one.why }}</small>{% endif %}</td>
{% if cell.has_result or one.why %}{{ status(cell.status) }}{% else %}<td class="status">no answer</td>{% endif %}
{{ number(one.refused[0] ~ ' of ' ~ one.refused[1] if one.refused else nothing) }}
{{ score(cell.psnr, decibel) }}
{{ number(cell.gap | signed if cell.gap is not none else nothing,
  null[0] ~ ' ' ~ (null[1] | decibel) if null else '') }}
{{ score(cell.scores.get(('ssim', 'original')), two) }}
{{ picked_out(cell) }}
{{ number(cell.psnr.n if cell.psnr else nothing) }}
{{ number(cell.psnr.failures if cell.psnr else nothing) }}
{{ number(cell.fact('threat_class') or nothing) }}
{{ number(told.cards.numbers.get(cell.card, nothing)) }}
</tr>
{% endfor %}
</tbody></table></div>
{% if view.own_grids.active %}{{ gallery(view.own_grids.active) }}{% endif %}
<h3>Threat cards of the active server</h3>
<div class="banner alarm">
{% for key, value in told.cards.shared.items() %}<span class="fact"><b>{{ key | replace('_', ' ') }}</b> {{ value }}</span>
{% endfor %}</div>
{% if told.cards.differing %}
{{ table('Threat cards of the active server', 'after') }}
{{ head(['#Card', 'Attacks'] + told.cards.differing | map('replace', '_', ' ') | list) }}
<tbody>
{% for card, attacks, values in told.cards.rows %}
<tr><td class="num status bad">{{ card }}</td><td class="attack">
{% for attack in attacks %}<code>{{ attack | breakable }}</code> {% endfor %}</td>
{% for value in values %}<td class="text">{{ value or nothing }}</td>{% endfor %}</tr>
{% endfor %}
</tbody></table></div>
{% endif %}
</section>
{% endif %}
"""
