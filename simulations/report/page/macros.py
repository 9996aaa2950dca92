"""Jinja macros that the pages share; Python strings, because a Flower app bundle leaves other files out."""

from __future__ import annotations

MACROS = """
{% macro label(defense, plain='') -%}
  {% if defense %}<code>{{ defense | breakable }}</code>{% else %}{{ plain or plain_name }}{% endif %}
{%- endmacro %}

{% macro who(defense) -%}
  {{ faces[defense] | swatch }}{{ label(defense) }}
{%- endmacro %}

{# A word of the report's glossary: a link to it, and what it means as a tooltip. #}
{% macro term(name, shown='') -%}
  <a class="term" href="#glossary" title="{{ glossary[name] }}">{{ shown or name }}</a>
{%- endmacro %}

{# Stands beside every attack that was given what no server of the run has. #}
{% macro bound(attack) -%}
  {% if attack in upper_bounds %}<small>upper bound: {{ upper_bounds[attack] }}</small>{% endif %}
{%- endmacro %}

{# An attack, and whether it was made against the defence that it faces. #}
{% macro named(cell, adaptive) -%}
  <code>{{ cell.name | breakable }}</code>
  {{- bound(cell.attack) }}
  {%- if (cell.defense, cell.attack) in adaptive %}<small>adaptive to this defence</small>{% endif %}
{%- endmacro %}

{# Column headings: # before one stands over numbers, | before that opens a group; what is false is left out. Above them
   ``groups``, pairs of a text, or "", and the number of its columns. #}
{% macro head(names, groups=[]) %}
<thead>
{% if groups %}
<tr class="group">
{% for text, span in groups if span %}
{% set tag = 'th' if text else 'td' %}
<{{ tag }}{% if not loop.first %} class="edge"{% endif %}{% if span > 1 %} colspan="{{ span }}"{% endif %}>{{ text }}</{{ tag }}>
{% endfor %}
</tr>
{% endif %}
<tr>
{% for name in names if name %}
{% set shown = name | replace('|', '', 1) %}
{% set look = ['num' if shown.startswith('#'), 'edge' if name.startswith('|')] | select('string') | join(' ') %}
<th scope="col"{% if look %} class="{{ look }}"{% endif %}>{{ shown.removeprefix('#') }}</th>
{% endfor %}
</tr></thead>
{% endmacro %}

{# ``value``: what the column is sorted by, where its numbers have different units. #}
{% macro number(shown, below='', edge=false, value=none) %}
<td class="num{{ ' edge' if edge }}"{% if value is not none %} data-value="{{ value }}"{% endif %}>
  {{- shown }}{% if below %}<small>{{ below }}</small>{% endif %}</td>
{% endmacro %}

{# A mean over its interval. #}
{% macro score(value, show, edge=false) %}
{{ number(show(value.mean if value else none), within(value.low, value.high, show) if value else '', edge) }}
{% endmacro %}

{# The change in accuracy, and whether it is the defence's cost. #}
{% macro change_of(line) %}
{% set ends = within(line.change.low, line.change.high, points) if line.change else '' %}
<td class="num">{{ points(line.change.mean if line.change else none) }}
  {%- for below in (ends, line.cost_note.partition(':')[0]) if below %}<small>{{ below }}</small>{% endfor %}</td>
{% endmacro %}

{# The highest true positive rate of membership at 1 % false positives, and by which attack, where another has the highest AUC. #}
{% macro members_of(line) %}
{% set rate, cell = line.found_members, line.membership_rate %}
<td class="num">{{ percent(rate.mean if rate else none) ~ (rate.status | dagger if rate else '') }}
  {%- if rate %}{% set ends = within(rate.low, rate.high, percentage) %}{% if ends %}<small>{{ ends }}</small>{% endif %}
  {%- if cell != line.membership %}<small>by {{ cell.attack | breakable }}, {{ round_name(cell.round, cell.final) }}
  {{- ', ' ~ cell.observation if cell.observation }}</small>{% endif %}{% endif %}</td>
{% endmacro %}

{# A mean over its interval, with the mark of a score that says nothing: an AUC and a rate of membership differ in the records
   that they need. #}
{% macro marked(value, show, show_ends, edge=false) %}
{% set shown = show(value.mean if value else none) %}
{{ number(shown ~ (value.status | dagger if value else ''), within(value.low, value.high, show_ends) if value else '', edge) }}
{% endmacro %}

{# How many true images were identified, with the exact interval of the share and the chance of a null guess. #}
{% macro picked_out(cell, edge=false) %}
{% set found = cell.scores.get(('identified', 'original')) %}
<td class="num{{ ' edge' if edge }}">{{ cell | picked or nothing }}
  {% if cell.picked %}
  <small>{{ within(found.low, found.high, percentage) }} %</small>
  {% if cell.chance_of_retrieval %}<small>chance {{ cell.chance_of_retrieval | percent }}</small>{% endif %}
  {% endif %}</td>
{% endmacro %}

{# A share of images, its interval and number of images, and what a null guess would get; with how good the oracle is. #}
{% macro share(found, chance, oracle=none, edge=false) %}
<td class="num{{ ' edge' if edge }}">{{ (found.mean if found else none) | percent }}
  {% if found %}
  <small>{{ within(found.low, found.high, percentage) }}</small>
  <small>n = {{ found.n }}</small>
  {% if chance is not none %}<small>chance {{ chance | percent }}</small>{% endif %}
  {% if oracle is not none %}<small>oracle {{ oracle | percent }}</small>{% endif %}
  {% endif %}</td>
{% endmacro %}

{% macro recognised(cell, edge=false) %}
{{ share(cell.scores.get(('recognition', '')), cell.card.chance_of_recognition, cell.mean('oracle-accuracy'), edge) }}
{% endmacro %}

{# How many images of how many an attack recovered. #}
{% macro recovered_of(cell) -%}
  {% if cell.recovered %}{{ cell.recovered[0] }} of {{ cell.recovered[1] }}{% endif %}
{%- endmacro %}

{# How many images the strongest attack recovered, with its interval and the chance of as many. #}
{% macro recovered_images(line, cell) %}
<td class="num">{{ recovered_of(cell) or nothing }}
  {% if cell.recovered %}
  <small>{{ within(cell.share.low, cell.share.high, percentage) }} %</small>
  {% if cell.recovered[0] and line.chance_of_as_many(cell) is not none %}
  <small>chance ≤ {{ line.chance_of_as_many(cell) | brief }}</small>{% endif %}
  {% if cell.recovered[0] and cell.recovered_by_class and cell.recovered_by_class[0] %}
  <small>class mean {{ cell.recovered_by_class | join(' of ') }}</small>{% endif %}
  {% if cell.detailed is not none and cell.detailed < cell.recovered[0] %}
  <small>{{ cell.detailed }} above own colour</small>{% endif %}
  {% endif %}</td>
{% endmacro %}
{# The best-recovered image: its gain over its own null baseline, and its PSNR; else the highest PSNR. #}
{% macro best_image(cell) %}
{% if cell.best %}{{ number(cell.best.gain | signed, (cell.best.psnr | decibel) ~ ' dB') }}
{% else %}{{ number(nothing, ('highest ' ~ (cell.psnr.worst | decibel)) if cell.psnr.worst is not none else '') }}{% endif %}
{% endmacro %}

{# Opens a table that scrolls by itself, and can be scrolled by keys; no two areas share a name. how: "tall", "pairs", "fitted". #}
{% set areas = namespace(all=[]) %}
{% macro table(caption, how='') %}
{% set same = areas.all | select('equalto', caption) | list | length %}{% set areas.all = areas.all + [caption] %}
<div class="scroll {{ how }}" tabindex="0" role="region" aria-label="{{ caption }}{{ ', ' ~ (same + 1) if same }}"><table
{%- if 'pairs' in how %} class="pairs"{% endif %}><caption class="unseen">{{ caption }}</caption>
{% endmacro %}

{# What was read, in a word. #}
{% macro verdict(word) -%}
  <b class="word {{ word | replace(' ', '-') }}">{{ word }}</b>
{%- endmacro %}

{% macro status(name) %}
<td class="status {{ {'ok': 'good', 'failed': 'bad'}.get(name, '') }}">
  {{- {'ok': '✓ ok', 'failed': '✗ failed', 'not-validated': '† not validated',
    'under-powered': '† under-powered'}.get(name, name) -}}
</td>
{% endmacro %}

{# The first cells of an attack's row, up to its status: the defence, and the attack with what stands below it. #}
{% macro attacked(cell, adaptive, more='') %}
<tr{% if cell.status | dagger %} class="doubt"{% endif %}>
<td class="tight">{{ who(cell.defense) }}</td>
<td class="attack">{{ named(cell, adaptive) }}{{ more }}</td>
{% endmacro %}

{# Below an attack: when it was run, and why it failed. #}
{% macro below(cell, why='', at='') %}
<small>{{ at or round_name(cell.round, cell.final) }}</small>{% if why %}<small>{{ why }}</small>{% endif %}
{% endmacro %}

{# A defence as the head of its row, with the round of its scores. #}
{% macro defended(line) %}
<th scope="row">{{ who(line.defense) }}
  {% if line.round is not none %}<small>after round {{ line.round }}</small>{% endif %}</th>
{% endmacro %}

{# PSNR over the best null baseline. #}
{% macro over_null(cell) %}
{% set null = cell.best_null %}
{{ number(cell.gap | signed, null[0] ~ ' ' ~ (null[1] | decibel) if null else '') }}
{% endmacro %}

{# PSNR, over null, SSIM, identified, n, failures. #}
{% macro image_scores(cell) %}
{{ score(cell.psnr, decibel) }}
{{ over_null(cell) }}
{{ score(cell.scores.get(('ssim', 'original')), two) }}
{{ picked_out(cell) }}
{{ number(cell.psnr.n if cell.psnr else nothing) }}
{{ number(cell.psnr.failures if cell.psnr else nothing) }}
{% endmacro %}

{# Threat cards of another adversary than the page's. #}
{% macro own_cards(cards, whose, alarm=false) %}
<h3>Threat cards of {{ whose }}</h3>
<div class="banner{{ ' alarm' if alarm }}">
{% for key, value in cards.shared.items() %}<span class="fact"><b>{{ key | replace('_', ' ') }}</b> {{ value }}</span>
{% endfor %}</div>
{% if cards.differing %}{{ card_table(cards, 'Threat cards of ' ~ whose) }}{% endif %}
{% endmacro %}

{# The settings in which threat cards differ. #}
{% macro card_table(cards, caption) %}
{{ table(caption, 'after') }}
{{ head(['#Card', 'Attacks'] + cards.differing | map('replace', '_', ' ') | list) }}
<tbody>
{% for card, attacks, values in cards.rows %}
<tr>{{ number(card) }}
<td class="attack">{% for attack in attacks %}<code>{{ attack | breakable }}</code>{{ ', ' if not loop.last }}{% endfor %}</td>
{% for value in values %}<td class="text">{{ value or nothing }}</td>{% endfor %}</tr>
{% endfor %}
</tbody></table></div>
{% endmacro %}

{% macro pairs(found, caption) %}
{{ table(caption, 'pairs tall') }}
<tbody>
{% for key, value in found.items() %}
<tr><th scope="row"><code>{{ key }}</code></th><td class="text"><code>{{ value | setting }}</code></td></tr>
{% endfor %}
</tbody></table></div>
{% endmacro %}

{% macro panels(drawings) %}
<div class="panels">
{% for caption, drawing in drawings %}
<figure class="panel"><figcaption>{{ caption | breakable }}</figcaption>{{ drawing }}</figure>
{% endfor %}
</div>
{% endmacro %}

{% macro row_of(strip) %}
<div class="tiles">
{% for tile in strip.tiles %}
  <figure class="tile">
    {% if tile.uri %}<img src="{{ tile.uri }}" alt="{{ tile.name }}, {{ strip.target }}" title="{{ tile.source }}">
    {% else %}<div class="empty">no picture</div>{% endif %}
    <figcaption><b>{{ tile.name | breakable }}</b> {# #}
    {%- if tile.psnr is not none %}{{ tile.psnr | decibel }} dB{% endif %}</figcaption>
  </figure>
{% endfor %}
</div>
{% endmacro %}

{% macro tiles(strips) %}
<div class="strips" style="--strip: {{ 24 + 80 * [strips[0].tiles | length, 9] | min }}px">
{% for strip in strips %}
  <figure class="target">
    <figcaption>{{ strip.target or 'target' }}</figcaption>
    {{ row_of(strip) }}
  </figure>
{% endfor %}
</div>
{% endmacro %}

{% macro grid(one) %}
<h3>{{ who(one.defense) }}
<span class="soft">{{ round_name(one.round, one.final) }}{{ ', ' ~ one.source if one.source }}</span></h3>
{{ tiles(one.strips) }}
{% endmacro %}

{# The best-recovered images of each defence; ``every``: all that are kept, of all rounds, folded. #}
{% macro gallery(found, every=false) %}
{% for of in found.values() %}
{% for one in of %}
{% if not every %}{{ grid(one) }}
{% else %}
<details><summary>{{ who(one.defense) }},
{{ round_name(one.round, one.final) }}: {{ count(one.strips | length, 'target') }}</summary>
{{ grid(one) }}
{% if one.hidden %}
<p class="soft small after">{{ count(one.hidden, 'target') }} of which less was recovered only in the pictures folder.</p>
{% endif %}
</details>
{% endif %}
{% endfor %}
{% endfor %}
{% endmacro %}
"""
