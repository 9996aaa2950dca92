"""The report's page as Jinja text; a Python string, because a Flower app bundle leaves other files out."""

from __future__ import annotations

from simulations.report.page.template_details import CONFIGURATION, DETAILS
from simulations.report.page.template_results import RESULTS

MACROS = """
{% macro label(defense, plain='') -%}
  {% if defense %}<code>{{ defense | breakable }}</code>{% else %}{{ plain or plain_name }}{% endif %}
{%- endmacro %}

{% macro who(defense) -%}
  {{ faces[defense] | swatch }}{{ label(defense) }}
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

{# Column headings; those that start with # stand over numbers. #}
{% macro head(names) %}
<thead><tr>
{% for name in names %}
  <th scope="col"{% if name.startswith('#') %} class="num"{% endif %}>{{ name.removeprefix('#') }}</th>
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

{# The same with the mark of a score that says nothing: an AUC and a rate of membership differ in the records they need. #}
{% macro marked(value, show, show_ends, edge=false) %}
{% set shown = show(value.mean if value else none) %}
{{ number(shown ~ (value.status | dagger if value else ''), within(value.low, value.high, show_ends) if value else '', edge) }}
{% endmacro %}

{# How many true images were identified, with the exact interval of the share and the chance of a blind guess. #}
{% macro picked_out(cell, edge=false) %}
{% set found = cell.scores.get(('retrieval', 'original')) %}
<td class="num{{ ' edge' if edge }}">{{ cell | picked or nothing }}
  {% if cell.picked %}
  <small>{{ within(found.low, found.high, percentage) }} %</small>
  {% if cell.chance_of_retrieval %}<small>chance {{ cell.chance_of_retrieval | percent }}</small>{% endif %}
  {% endif %}</td>
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

{% macro pairs(found, caption) %}
{{ table(caption, 'pairs tall') }}
<tbody>
{% for key, value in found.items() %}
<tr><th scope="row"><code>{{ key }}</code></th><td class="text"><code>{{ value | setting }}</code></td></tr>
{% endfor %}
</tbody></table></div>
{% endmacro %}

{% macro chart(drawings) %}
{% for kind, drawing in drawings %}<div class="{{ kind }}">{{ drawing }}</div>{% endfor %}
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
{{ tiles(one.strips[:2]) }}
{% endmacro %}

{% macro rest(one) %}
{% if one.strips | length > 2 %}{{ tiles(one.strips[2:]) }}{% endif %}
{% if one.hidden %}
<p class="soft small after">{{ count(one.hidden, 'target') }} of which less was recovered only in the pictures folder.</p>
{% endif %}
{% endmacro %}

{% macro gallery(found) %}
{% for of in found.values() %}
{{ grid(of[0]) }}
{% set more = of[0].strips[2:] | length %}
{% if more or of[0].hidden or of | length > 1 %}
<details><summary>{{ 'Other rounds: ' if of | length > 1 }}
{%- for one in of[1:] %}{{ round_mark(one.round, one.final) }}{{ ', ' if not loop.last }}{% endfor %}
{{- '; ' if of | length > 1 and more }}{{ count(more, 'more target') if more or of | length == 1 }}</summary>
{{ rest(of[0]) }}
{% for one in of[1:] %}{{ grid(one) }}{{ rest(one) }}{% endfor %}
</details>
{% endif %}
{% endfor %}
{% endmacro %}
"""

FRONT = """
<a class="skip" href="#{{ 'headline' if alone else 'headline1' }}">Skip to the results</a>
<p class="kicker">fedveil privacy audit</p>
<h1>What the server could see</h1>
{% for view in studies %}{% set study = view.study %}
<p class="facts">
  {% if study.name[0] %}<b>{{ study.name[0] }}</b> ·{% endif %}
  {{ study.words[1 if study.name[0] else 0:] | join(' · ') }} ·
  {{ 'seed' if study.seeds | length == 1 else 'seeds' }} {{ study.seeds | join(', ') }} ·
  {{ count(study.pipelines | length, 'pipeline') }} · {{ count(study.attacks | length, 'attack') }} ·
  {% if view.rounds %}
  {{ 'round' if view.rounds | length == 1 else 'rounds' }}
  {{ [view.rounds[0], view.rounds[-1]] | unique | join(' to ') }}{{ ' and the final model' if study.final_rounds }}
  {% else %}final model{% endif %}
</p>
{% else %}
<p class="facts">There are no results yet.</p>
{% endfor %}
{% if about or studies %}
<p class="facts small">{{ about | join(' · ') }}{{ ' · ' if about and studies }}
  {%- if studies %}all numbers: <a href="rows.csv">rows.csv</a>{% endif %}</p>
{% endif %}
{% if progress %}<p class="banner">{{ progress }}</p>{% endif %}
{% for view in studies %}{% for told in view.first %}
<p class="banner"><b>{{ told }}</b></p>
{% endfor %}{% endfor %}
{% for view in studies if view.too_few %}
<p class="banner"><b>Too few images for a verdict.</b> At most {{ count(view.too_few, 'image') }} of the {{ view.plain.run }}
{%- if not alone %} of {{ view.study.words | join(' · ') }}{% endif %} {{ 'was' if view.too_few == 1 else 'were' }} attacked
in a round, and a verdict needs {{ least_images }} or more: counts are of these few images alone, and nothing here says that a
defence works.
Raise <code>probe-targets</code>, <code>probe-images</code> or the number of clients.</p>
{% endfor %}
{% for view in studies if view.open %}
<p class="banner"><b>Could not be judged.</b> Whether the guesses{{ '' if alone else ' of ' ~ view.study.words | join(' · ') }} are
these very images can be told only where each client has others of their kind that they might have been nearer to, 10 or more and
100 at best: nothing here says that an attack works, or that a defence does.</p>
{% endfor %}
{% for view in studies if view.unbroken %}
<p class="banner alarm"><b>Positive control failed.</b> No attack passed the test on the images of the {{ view.plain.run }}
{%- if not alone %} of {{ view.study.words | join(' · ') }}{% endif %}
{%- for line in view.lines if not line.defense and line.strongest and recovers(line.strongest) %}, although the strongest recovered
{{ recovered_of(line.strongest) }}{% endfor %}: nothing here is evidence for any defence.</p>
{% endfor %}
{% for view in studies %}{% if view.conclusion %}
<p class="conclusion">{% if not alone %}<b>{{ view.study.words | join(' · ') }}.</b> {% endif %}{{ view.conclusion }}</p>
{% if view.tally.failed and not view.unbroken %}
<p class="facts small after"><a href="#control{{ '' if alone else loop.index }}">Positive control</a>: {{ view.tally.failed }} of
{{ count(view.tally.tests, 'test') }} on the {{ view.plain.run }} failed, of
{% for attack in view.tally.where %}{{ attack_names[attack] | breakable }}{{ ', ' if not loop.last }}{% endfor %}.
† marks their results.</p>
{% endif %}
{% endif %}{% endfor %}
{% if notes %}
<div class="banner alarm"><b>Notes on the data</b>
<ul>{% for note in notes %}<li>{{ note }}</li>{% endfor %}</ul></div>
{% endif %}
<nav aria-label="Contents">
{% if alone %}
  <a href="#headline">Headline</a><a href="#summary">Summary</a>
  {% if studies[0].planes %}<a href="#plane">Privacy against accuracy</a>{% endif %}
  {% if studies[0].grids %}<a href="#pictures">Pictures</a>{% endif %}
  {% if studies[0].membership %}<a href="#membership">Membership</a>{% endif %}
  {% for name, title in studies[0].titles %}<a href="#{{ name }}">{{ title }}</a>{% endfor %}
  {% if studies[0].representatives %}<a href="#representatives">Class representatives</a>{% endif %}
  <a href="#curves">Over the rounds</a><a href="#control">Positive control</a><a href="#attacks">All attacks</a>
  <a href="#failures">Failures</a><a href="#cards">Threat cards</a>
{% else %}
  {% for view in studies %}
  <a href="#headline{{ loop.index }}">{{ view.study.words | join(' · ') or 'unnamed study' }}</a>
  {% endfor %}
{% endif %}
<a href="#configuration">Configuration</a>
</nav>
"""

PAGE = f"""{MACROS}<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src '{{{{ script_hash }}}}'">
<title>{{{{ [studies[0].study.name[0] if studies else '', 'fedveil report'] | select | join(': ') }}}}</title>
<style>{{{{ css }}}}</style>
</head>
<body>
<main>
{FRONT}
{{% for view in studies %}}
{{% set study = view.study %}}{{% set s = '' if alone else loop.index %}}
{{% if not alone %}}<h2 class="study">{{{{ study.words | join(' · ') or 'unnamed study' }}}}</h2>{{% endif %}}
{RESULTS}{DETAILS}
{{% endfor %}}
{{% if loose %}}
<section id="pictures">
<header><h2>Pictures</h2><p>These pictures do not say which experiment they belong to.</p></header>
{{{{ gallery(loose) }}}}
</section>
{{% endif %}}
{CONFIGURATION}
</main>
<script>{{{{ script }}}}</script>
</body>
</html>
"""
