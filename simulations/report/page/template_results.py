"""Sections of one study for most readers: headline, summary, plane, pictures and curves, as Jinja text."""

from __future__ import annotations

from simulations.report.page.template_leaks import LEAKS
from simulations.report.section import sections

HEADLINE = """
<section id="headline{{ s }}">
<header><h2>Headline</h2><p>The strongest attack on each defence.
{%- if 'blurred' in view.scale_db %} For scale: a blurred copy of the original scores
{{ view.scale_db['blurred'] | decibel }} dB.{% endif %}
{%- if 'class-mean' in view.scale_db %} The mean of the other images of the same class scores
{{ view.scale_db['class-mean'] | decibel }} dB
{%- if 'class-mean' in view.scale_picked %} and identifies {{ view.scale_picked['class-mean'] | percent }} of the images
{%- endif %}.{% endif %} <a href="attacks.html#attacks{{ s }}">Every attack in every round</a> is on a page of its own, with null
baselines, costs and further scores. <a href="#glossary">Glossary</a>.</p></header>
<ul class="lines">
{% for line in view.lines %}{% set best = line.strongest %}
<li id="defence{{ s }}-{{ loop.index }}">
  <div>
    <p class="verdicts"><a class="who" href="#defence{{ s }}-{{ loop.index }}">{{ who(line.defense) }}</a>
    {% for of, word in verdicts(line) %}<span>{{ of ~ ': ' if of }}{{ verdict(word) }}</span>{% endfor %}</p>
    <details><summary>In words</summary>
    <p>{{ sentence(line) | capital | replace('n = ', 'n&nbsp;=&nbsp;' | safe)
      | replace(' %', '&nbsp;%' | safe) }}</p></details>
    <p class="meta">
    {% for one in line.at_size %}<span>{{ one }}</span>
    {% endfor %}
    {% for cell in line.leading %}
    <span>{{ cell.attack | breakable }}, {{ round_name(cell.round, cell.final) }}
      {{- ', ' if cell.observation }}{{ cell.observation }}
      {{- ', adaptive to this defence' if (line.defense, cell.attack) in view.adaptive }}</span>
    {% endfor %}
    {% if line.deployed %}
    <span>test accuracy {{ line.deployed.mean | percent }}
      {%- if line.change %} ({{ line.change.mean | points }} points
      {%- set ends = within(line.change.low, line.change.high, points) %}{{ ', ' ~ ends if ends }}){% endif %}
      {{- ', ' ~ line.cost_note if line.cost_note }}</span>
    {% endif %}
    {% if line.epsilon is not none %}
    <span>ε = {{ line.epsilon | two }}
      {%- if line.epsilon_with_probes is not none %}, with the audit's probes
        {{ line.epsilon_with_probes | two }}{% endif %}
      {%- if line.epsilon_all_cuts is not none %} at one cut,
      {{ line.epsilon_all_cuts | two }} at all cuts together{% endif %}</span>{% endif %}
    {% if line.shown %}<span>{{ line.shown.level ~ ' ' if line.shown.level }}ε claimed {{ line.shown.claimed | two }},
      ε shown at least {{ line.shown.plain | two }}
      without an assumption (gap {{ line.shown.gap | two }})
      {%- if line.shown.gaussian_adds %}, at least {{ line.shown.gaussian | two }} if noise is Gaussian
      (gap {{ line.shown.gap_gaussian | two }}){% endif %};
      {{ (line.shown.confidence * 100) | round(1) | plain }}&nbsp;% confidence
      {%- if line.shown.seeds > 1 %} in one of {{ line.shown.seeds }} seeds, not corrected for them{% endif %},
      {{ line.shown.canaries }} canaries
      {{- ', which could not have refuted the claim' if not line.shown.could_refute
        else ', which could have refuted the claim only if noise is Gaussian'
        if not line.shown.exceeded_by(line.shown.largest_plain) }};
      <a href="#audited_epsilon{{ s }}">audit</a></span>{% endif %}
    {% if line.budget %}<span>{{ line.budget }}</span>{% endif %}
    </p>
    {% if line.windows %}
    <details><summary>Windows that were shuffled</summary><p>{{ line.windows.text }}</p></details>
    {% endif %}
    {% for caveat in line.all_caveats %}
    <p class="caveat{{ ' alarm' if not caveat.startswith('adaptive') }}">{{ caveat }}</p>
    {% endfor %}
  </div>
  <div>
    {% for strip in view.best.get(line.defense, []) %}
    <figure class="target"><figcaption>{{ strip.target }}
      {%- if loop.first and best.recovered %} ({{ recovered_of(best) }} recovered){% endif %}</figcaption>
    {{ row_of(strip) }}</figure>
    {% endfor %}</div>
</li>
{% endfor %}
</ul>
</section>
"""

SUMMARY_HEAD = """
{% set more = has.labels + has.attributes + 2 * has.membership + has.epsilon + has.seconds + has.bytes %}
{{ head(['Defence', '|attack', has.recovered and '#recovered', has.picked and '#identified', '|#clean',
  has.protected and '#protected', '#change', '|#original', '#over null', '#best image', '#transf.', '#SSIM',
  has.labels and '|#labels found', has.attributes and '|#attribute read, %', has.membership and '#member AUC',
  has.membership and '#TPR at 1\\u00a0% FPR', has.epsilon and '#ε (δ)', has.seconds and '#time', has.bytes and '#bytes'],
  [('', 1), ('Strongest attack', 1 + has.recovered + has.picked), ('Test accuracy, %', 2 + has.protected),
  ('PSNR of that attack, dB', 5), ('', more)]) }}
"""

SUMMARY_ROWS = """
<tbody>
{% for line in view.lines %}{% set best = line.strongest %}
<tr><th scope="row">{{ who(line.defense) }}
  {% if line.round is not none %}<small>after round {{ line.round }}</small>{% endif %}
  {% if line.failed_clients %}<small>{{ count(line.failed_clients, 'client failure') }}</small>{% endif %}</th>
{% if best %}
<td class="edge wide">{{ attack_names[best.attack] | breakable }}{{ best.status | dagger }}
  <small>{{ round_name(best.round, best.final) }}, n = {{ best.psnr.n }}
  {%- if best.psnr.failures %}, {{ count(best.psnr.failures, 'failure') }}{% endif %}</small></td>
{% if has.recovered %}{{ recovered_images(line, best) }}{% endif %}
{% if has.picked %}{{ picked_out(best) }}{% endif %}
{% else %}
<td class="edge wide soft">no score yet</td>{% for _ in range(has.recovered + has.picked) %}{{ number(nothing) }}{% endfor %}
{% endif %}
{{ score(line.clean, percentage, true) }}
{% if has.protected %}{{ score(line.protected, percentage) }}{% endif %}
{{ change_of(line) }}
{% if best %}
{{ score(best.psnr, decibel, true) }}
{{ over_null(best) }}
{{ best_image(best) }}
{{ number(best.mean('psnr', 'transformed') | decibel) }}
{{ number(best.mean('ssim', 'original') | two) }}
{% else %}{% for _ in range(5) %}{{ number(nothing, '', loop.first) }}{% endfor %}
{% endif %}
{% if has.labels %}{{ labels_found(line.labels) }}{% endif %}
{% if has.attributes %}{{ attribute_read(line.attributes) }}{% endif %}
{% if has.membership %}
{{ marked(line.membership.scores.get(('membership-auc', '')) if line.membership else none, two, two) }}
{{ members_of(line) }}
{% endif %}
{% if has.epsilon %}
<td class="num">{{ line.epsilon | two }}
  {% if line.epsilon is not none and line.delta is not none %}<small>δ = {{ line.delta | plain }}</small>{% endif %}
  {% if line.epsilon is not none and line.neighbours %}<small>{{ line.neighbours }}</small>{% endif %}
  {% if line.epsilon_with_probes is not none %}
  <small>probes: {{ line.epsilon_with_probes | two }}</small>
  {% endif %}
  {% if line.shown %}<small>shown ≥ {{ line.shown.plain | two }}</small>
  {% if line.shown.gaussian_adds %}<small>≥ {{ line.shown.gaussian | two }} if noise is Gaussian</small>{% endif %}{% endif %}
  {% if line.epsilon_all_cuts is not none %}
  <small>all cuts: {{ line.epsilon_all_cuts | two }}</small>
  {% endif %}
</td>
{% endif %}
{% if has.seconds %}{{ cost(line.seconds_ratio, line.seconds | seconds, line.seconds) }}{% endif %}
{% if has.bytes %}{{ cost(line.bytes_ratio, line.bytes | size, line.bytes) }}{% endif %}
</tr>
{% endfor %}
</tbody></table></div>
"""

SUMMARY_MACROS = """
{% macro cost(ratio, absolute, value) %}
{{ number(ratio | times, absolute, value=value) if ratio is not none else number(absolute, value=value) }}
{% endmacro %}

{% macro labels_found(cell) %}
{% if cell %}{% set found = cell.scores['label-accuracy', ''] %}
<td class="num edge" title="{{ cell.attack }}">{{ found.mean | percent }}{{ found.status | dagger }}
  {% for value in cell.null_scores.get(('label-accuracy', ''), {}).values() %}
  <small>chance {{ value | whole_percent }}</small>
  {% endfor %}
  <small>{{ round_name(cell.round, cell.final) }}</small></td>
{% else %}{{ number(nothing, '', true) }}{% endif %}
{% endmacro %}

{% macro attribute_read(cell) %}
{% if cell %}{% set found = cell.scores['attribute-accuracy', ''] %}
<td class="num edge" title="{{ cell.attack }}">{{ percentage(found.mean) ~ (found.status | dagger) }}
  <small>{{ within(found.low, found.high, percentage) }}</small>
  {% for value in cell.null_scores.get(('attribute-accuracy', ''), {}).values() %}
  <small>most frequent {{ value | percentage }}</small>
  {% endfor %}</td>
{% else %}{{ number(nothing, '', true) }}{% endif %}
{% endmacro %}
{% set has = view.has %}
"""

SUMMARY_TEXT = """
<header><h2>Summary</h2><p>One row per defence. The change compares accuracy with the {{ view.plain.run }} of the same round, in
percentage points. {% if view.lines | selectattr('canaries') | list %}With canaries in training it is not the defence's cost: the
{{ view.plain.run }} had none. {% endif -%}
If a defence also protects test images{{ view.deployed_on }}, accuracy is measured on protected ones. The
interval of a change takes both accuracies as of different images, which makes it rather too wide than too narrow.
<i>Original</i> compares the guess with the person's image, <i>transf.</i> with what the model saw. Small print is the
95&nbsp;% interval of the mean
{%- if study.seeds | length > 1 %} over {{ study.seeds | length }} seeds
{%- else %}. Accuracy without one gets Wilson's interval over the test images{% endif %}.
† marks an attack that did not break the {{ view.plain.run }}, too few images for a verdict (fewer than {{ least_images }})
{{- ', or a test of membership on too few records' if has.membership }}.</p>
</header>
"""

SUMMARY_NOTES = """
<p class="soft small after">
{% if has.epsilon %}
ε is the budget that {{ "the queries at one cut have" if has.epsilon_all_cuts else "the messages of training, or queries, have" }}
spent so far, at the given δ
{%- if has.epsilon_with_probes %}; with the probe messages that only the audit asks for, it is the number after “probes”{% endif %}
{%- if has.epsilon_all_cuts %}; each cut is a deployment of its own, but this run sent the same images at all of them,
and what it spent of an image by that is the number after “all cuts”{% endif %}.
ε is claimed by the defence's own account; the PSNR beside it is measured.
{% if view.sections.audited_epsilon %}Behind “shown” is a lower bound that canaries gave without an assumption about the
mechanism; below it, the one that assumes Gaussian noise. {% endif %}
{% endif %}
{% if has.seconds %}Time is what a client computes in a round. {% endif %}
{% if has.bytes %}Bytes are what a client sends in a round. {% endif %}
{% if has.seconds or has.bytes %}&times; is relative to {{ view.plain.name | lower }}. {% endif %}
{% if has.attributes %}
Attribute read is the share of images whose sensitive attribute the strongest attack guesses, beside that of its most frequent
value.
{% endif %}
{% if has.membership %}
Member AUC and TPR are each of the attack and round that has the highest.
{% endif %}
{% if has.labels %}
Labels found is the attack furthest above chance, of those that do not know the labels.
{% endif %}
</p>
"""

SUMMARY = (
    SUMMARY_MACROS
    + '<section id="summary{{ s }}">'
    + SUMMARY_TEXT
    + "{{ table('Summary', 'fitted') }}"
    + SUMMARY_HEAD
    + SUMMARY_ROWS
    + SUMMARY_NOTES
    + "</section>"
)

PLANE = """
{% if view.plane %}
<section id="plane{{ s }}">
<header><h2>Privacy against accuracy</h2><p>A better defence lies further right (more
accurate) and lower (fewer images recovered by its strongest attack).
{% if view.lines | selectattr('canaries') | list %}Canaries in training lower the accuracy of audited defences. {% endif %}
{%- if view.dp_sgd %}DP-SGD, the baseline with a proof, is joined by a dashed line in order of
its example-level ε. {% endif %}
{%- if view.strengths %} Defences that differ only in their strength are joined by a dashed line in its order.
{% endif %}Bars are 95&nbsp;% intervals;
hollow points are not validated, or of too few images.</p></header>
<figure class="panel">{{ view.plane }}</figure>
</section>
{% endif %}
"""

PICTURES = """
{% if view.grids %}
<section id="pictures{{ s }}">
<header><h2>Pictures</h2><p>What the attacks reconstructed beside the original, the two best-recovered images of each defence.
<a href="attacks.html#pictures{{ s }}">All pictures</a>. The best-recovered image lies furthest above both its null baseline and
its own mean colour. <i>Protected</i> is {{ view.pictures_show or 'what the model was trained on' }}. Judge with your eyes: PSNR
agrees only roughly with what people recognise.</p></header>
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

RESULTS = HEADLINE + SUMMARY + PLANE + PICTURES + LEAKS + "".join(one.framed for one in sections()) + CURVES
