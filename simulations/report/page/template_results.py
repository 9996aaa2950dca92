"""Sections of one study for most readers: headline, summary, plane, pictures and curves, as Jinja text."""

from __future__ import annotations

from simulations.report.page.template_leaks import LEAKS
from simulations.report.section import sections

SUMMARY = """
<section id="cost{{ s }}">
<header><h2>Cost and budget</h2><p>Accuracy after the last complete round, on protected test images where the defence protects
them{{ view.deployed_on }}; its change against {{ view.plain.name | lower }} in the same round, in percentage points. Below a number
is its 95&nbsp;% interval
{%- if study.seeds | length > 1 %} over {{ study.seeds | length }} seeds{% endif %}.
{%- if view.lines | selectattr('canaries') | list %} With canaries in training the change is not the defence's cost.{% endif %}
</p></header>
{% set has = view.has %}
{{ table('Cost and budget', 'fitted') }}
{{ head(['Defence', '|#clean, %', has.protected and '#protected, %', '#change', has.epsilon and '|#ε', has.epsilon and 'its terms',
  has.labels and '|#labels inferred', has.membership and '|#member AUC', has.membership and '#TPR at 1\\u00a0% FPR',
  has.seconds and '|#time', has.bytes and '#bytes']) }}
<tbody>
{% for line in view.lines %}
<tr><th scope="row">{{ who(line.defense) }}
  {% if line.round is not none %}<small>after round {{ line.round }}</small>{% endif %}
  {% if line.failed_clients %}<small>{{ count(line.failed_clients, 'client failure') }}</small>{% endif %}
  {% for one in line.at_size %}<small>{{ one }}</small>{% endfor %}
  {% if line.windows %}<small>{{ line.windows.text }}</small>{% endif %}</th>
{{ score(line.clean, percentage, true) }}
{% if has.protected %}{{ score(line.protected, percentage) }}{% endif %}
{{ change_of(line) }}
{% if has.epsilon %}{{ number(line.epsilon | two, 'δ = ' ~ (line.delta | plain) if line.epsilon is not none
  and line.delta is not none else '', true) }}
<td class="text">{{ line.budget }}</td>{% endif %}
{% if has.labels %}{{ labels_found(line.labels) }}{% endif %}
{% if has.membership %}
{{ marked(line.membership.scores.get(('membership-auc', '')) if line.membership else none, two, two, true) }}
{{ members_of(line) }}
{% endif %}
{% if has.seconds %}{{ cost(line.seconds_ratio, line.seconds | seconds, line.seconds) }}{% endif %}
{% if has.bytes %}{{ cost(line.bytes_ratio, line.bytes | size, line.bytes) }}{% endif %}
</tr>
{% endfor %}
</tbody></table></div>
{% if has.seconds or has.bytes %}<p class="soft small after">Time is what a client computes in a round, bytes are what it sends;
&times; is relative to {{ view.plain.name | lower }}.</p>{% endif %}
</section>
{% if view.plane %}
<section id="plane{{ s }}">
<header><h2>Privacy against accuracy</h2><p>A better defence lies further right (more accurate) and lower (fewer images
identified, in the messages with the worst verdict).
{%- if view.dp_sgd %} DP-SGD, the baseline with a proof, is joined by a dashed line in order of its ε.{% endif %}
Bars are 95&nbsp;% intervals.</p></header>
<figure class="panel">{{ view.plane }}</figure>
</section>
{% endif %}
{% if view.grids %}
<section id="pictures{{ s }}">
<header><h2>Pictures</h2><p>Original, protected image and guesses of the two most similar guesses of each defence, by structure.
<i>Protected</i> is {{ view.pictures_show or 'what the model was trained on' }}.
<a href="attacks.html#pictures{{ s }}">All pictures</a>.</p></header>
{{ gallery(view.grids) }}
</section>
{% endif %}
"""

CURVES = """
<section id="curves{{ s }}">
<header><h2>Over the rounds</h2><p>{% if view.panels %}Each attack has a chart of what it recovers early and late; the
dotted line is the best null baseline, and
charts in dB share one axis. {% endif %}
{%- if view.accuracy or view.panels %}Bars are 95&nbsp;% intervals; hollow points are not
validated, or of too few images.{% endif %}</p></header>
{% if view.accuracy %}<figure class="panel">{{ view.accuracy }}</figure>{% endif %}
{% if view.panels %}
<details{{ ' open' if view.panels | length <= 3 }}>
<summary>{{ count(view.panels | length, 'chart') }}, one for each attack</summary>
{{ panels(view.panels) }}</details>
{% endif %}
{% if not view.accuracy and not view.panels %}<p class="soft">
{%- if not view.most_rounds %}Nothing was measured.
{%- elif view.most_rounds < least_rounds %}No attack ran in more than {{ count(view.most_rounds, 'round') }}; a chart of an attack
needs {{ least_rounds }} or more.
{%- else %}No attack has a score that a chart shows.{% endif %}</p>{% endif %}
</section>
"""

RESULTS = SUMMARY + LEAKS + "".join(one.framed for one in sections()) + CURVES
