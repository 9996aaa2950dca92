"""The page of every attack: its rows, the null baselines, other numbers, threat cards and all pictures, as Jinja text."""

from __future__ import annotations

MACROS = """
{# Against the original and the transformed image, with the best null baseline for the original below. #}
{% macro both(cell, metric, show, edge=false) %}
{% set nulls = cell.null_scores.get((metric, 'original'), {}).values() | list %}
{{ number(show(cell.mean(metric, 'original')) ~ ' / ' ~ show(cell.mean(metric, 'transformed')),
  'null ' ~ show(nulls | min if metric == 'mse' else nulls | max) if nulls else '', edge) }}
{% endmacro %}

{% macro labels(cell) %}
{% set found = cell.scores.get(('label-accuracy', '')) %}
<td class="num edge">{{ cell.mean('label-accuracy') | percent }}
  {% if found %}<small>{{ within(found.low, found.high, percentage) }}</small>{% endif %}
  {% for name, value in cell.null_scores.get(('label-accuracy', ''), {}).items() %}
  <small>{{ name }} {{ value | percent }}</small>
  {% endfor %}</td>
{% endmacro %}

{% macro attack_table(cells, null_names, card_numbers, recognition=false, adaptive=[], scale_names=[],
  caption='All attacks') %}
{% set looked = cells | selectattr('identified') | list | length > 0 %}
{{ table(caption, 'tall dense') }}
{{ head(['Defence', 'Attack', '#Round', 'Status', '|#mean', '#highest', looked and '|#identified',
  looked and '#recognisable', recognition and '|#recognised']
  + null_heads(null_names[:1], '|#') + null_heads(null_names[1:], '#') + null_heads(scale_names, '|#')
  + ['|#SSIM', '#MSE', '#PSNR transf.', '|#labels', '#cost', '#time', '#n', '#failures', '#model acc.', '#card'],
  [('', 4), ('PSNR, dB', 2), ('Images', looked and 2), ('Oracle', recognition and 1),
  ('Null baselines, dB', null_names | length), ('Scales, dB', scale_names | length), ('Original / transformed', 3), ('', 7)]) }}
<tbody>
{% for cell in cells %}
{{ attacked(cell, adaptive, below(cell, at=cell.observation) if cell.observation else '') }}
{{ number(round_mark(cell.round, cell.final)) }}
{{ status(cell.status) }}
{{ score(cell.psnr, decibel, true) }}
{{ number((cell.psnr.worst if cell.psnr else none) | decibel) }}
{% if looked %}{{ identified_of(cell, true) }}
{{ number(cell.recognisable | join(' of ') if cell.recognisable else nothing) }}{% endif %}
{% if recognition %}{{ recognised(cell, true) }}{% endif %}
{% for name in null_names %}{{ number(cell.nulls.get(name) | decibel, '', loop.first) }}{% endfor %}
{% for name in scale_names %}{{ number(cell.scales.get(name) | decibel, '', true) }}{% endfor %}
{{ both(cell, 'ssim', two, true) }}
{{ both(cell, 'mse', brief) }}
{{ score(cell.scores.get(('psnr', 'transformed')), decibel) }}
{{ labels(cell) }}
{{ number(cell.cost | plain) }}
{{ number(cell.mean('attack-seconds') | seconds, value=cell.mean('attack-seconds')) }}
{{ number(cell.leading.n) }}
{{ number(cell.leading.failures) }}
{{ number(cell.model_accuracy | percent) }}
{{ number(card_numbers.get(cell.card, nothing)) }}
</tr>
{% endfor %}
</tbody></table></div>
{% endmacro %}
"""

TABLES = """
<section id="attacks{{ s }}">
<header><h2>All attacks</h2><div><p>Every attack on every defence in every attacked round, with the null baselines beside it
{%- if view.membership or view.representatives %}; attacks on membership and GAN attacks have tables of their own{% endif %}.
</p>
<details><summary>How to read the columns</summary><p>
{% if upper_bounds %}Upper bounds were given what no server of this run has; they never make the headline. {% endif %}
{% if view.scale_names %}The scales help to read PSNR and are no baselines: a blurred copy of the original, and the mean of the
other images of the true class, which an attacker that knows only the class can guess. {% endif %}
{% if view.has_recognition %}Recognised is the share of images in which a classifier trained on clean data, the oracle, sees
the right class. {% endif %}
Failed trials are counted and scored as a grey image, never dropped. Cost is the attack's own matching loss; the card
says what the attacker knew. Small print is a 95&nbsp;% interval or a null baseline.</p></details></div></header>
{% if view.attacked %}
{{ attack_table(view.attacked, view.null_names, view.cards.numbers, view.has_recognition,
  view.adaptive, view.scale_names) }}
{% else %}<p class="soft">{{ 'Attacked only ' ~ study.apart | join(' and ') ~ ', which has a section of its own.' if study.apart
  else 'No attack has finished yet.' }}</p>{% endif %}
{% if study.null_cells %}
<details><summary>The null baselines{{ ' and the scales' if view.scale_names }} themselves</summary>
{{ attack_table(study.null_cells, [], {}, caption='Null baselines') }}</details>
{% endif %}
{% if view.others %}
<details><summary>Other numbers ({{ view.others | length }})</summary>
{{ table('Other numbers', 'tall') }}
{{ head(['Defence', 'Attack', '#Round', 'Metric', 'Status', '#Value', '#Worst', '#n', '#Failures']) }}
<tbody>
{% for one in view.others %}
<tr><td class="tight">{{ who(one.defense) }}</td>
<td class="attack"><code>{{ (one.attack or nothing) | breakable }}</code>{{ bound(one.attack) }}</td>
{{ number(one.round) }}
<td>{{ one.metric | metric_label }}{% if one.reference %} ({{ one.reference }}){% endif %}</td>
{{ status(one.score.status) }}
{{ score(one.score, plain) }}
{{ number(one.score.worst | plain) }}
{{ number(one.score.n) }}
{{ number(one.score.failures) }}
</tr>
{% endfor %}
</tbody></table></div>
</details>
{% endif %}
</section>
"""


CARDS = """
{% if view.cards.rows %}{% set cards = view.cards %}
<section id="cards{{ s }}">
<header><h2>Threat cards</h2><p>What the attacker observed, knew and spent, where attacks differ. What all share is in the
<a href="report.html#cards{{ s }}">report</a>.</p></header>
{{ card_table(cards, 'Threat cards') }}
</section>
{% endif %}
"""

PICTURES = """
{% for name, title, found in view.every_grid %}
<section id="{{ name }}{{ s }}">
<header><h2>{{ title }}</h2><p>Of each defence and attacked round, the best-recovered image first.</p></header>
{{ gallery(found, true) }}
</section>
{% endfor %}
"""

EVERY = (
    MACROS
    + """
<a class="skip" href="#{{ 'attacks' if alone else 'attacks1' }}">Skip to the attacks</a>
<p class="kicker">fedveil privacy audit</p>
<h1>Every attack</h1>
<p class="facts">What the <a href="report.html">report</a> sums up. All numbers: <a href="rows.csv">rows.csv</a>.</p>
{% if notes %}
<div class="banner alarm"><b>Notes on the data</b>
<ul>{% for note in notes %}<li>{{ note }}</li>{% endfor %}</ul></div>
{% endif %}
<nav aria-label="Contents">
{% for view in studies %}{% set s = '' if alone else loop.index %}
{% if not alone %}<b>{{ view.study.words | join(' · ') or 'unnamed study' }}</b>{% endif %}
<a href="#attacks{{ s }}">Attacks</a>
{% if view.cards.rows %}<a href="#cards{{ s }}">Threat cards</a>{% endif %}
{% for name, title, _ in view.every_grid %}<a href="#{{ name }}{{ s }}">{{ title }}</a>{% endfor %}
{% endfor %}
</nav>
{% for view in studies %}
{% set study = view.study %}{% set s = '' if alone else loop.index %}
{% if not alone %}<h2 class="study">{{ study.words | join(' · ') or 'unnamed study' }}</h2>{% endif %}
"""
    + TABLES
    + CARDS
    + PICTURES
    + """
{% endfor %}
{% if loose %}
<section id="loose">
<header><h2>Pictures of no experiment</h2><p>These pictures do not say which experiment they belong to.</p></header>
{{ gallery(loose, true) }}
</section>
{% endif %}
"""
)
