"""The report's page and the frame of all pages, as Jinja text."""

from __future__ import annotations

from simulations.report.page.macros import MACROS
from simulations.report.page.template_details import CONFIGURATION, DETAILS
from simulations.report.page.template_results import RESULTS

FRONT = """
<a class="skip" href="#{{ 'headline' if alone else 'headline1' if studies else 'configuration' }}">Skip to the results</a>
<p class="kicker">fedveil privacy audit</p>
<h1>What the server could see</h1>
{% for view in studies %}{% set study = view.study %}
<p class="facts">
  {% if study.name[0] %}<b>{{ study.name[0] }}</b> ·{% endif %}
  {{ study.words[1 if study.name[0] else 0:] | join(' · ') }} ·
  {{ numbered('seed', study.seeds) }} ·
  {% if study.pipelines | select | list %}{{ count(study.pipelines | select | list | length, 'defence') }} ·{% endif %}
  {{ count(study.attacks | length, 'attack') }} ·
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
{% for view in studies %}{% for warning in view.first %}
<p class="banner"><b>{{ warning }}</b></p>
{% endfor %}{% for sentence, lines in view.steps %}
<p>{{ sentence }}</p>
<pre tabindex="0">{{ lines }}</pre>
{% endfor %}{% endfor %}
{% for view in studies if not view.scored %}
<p class="banner"><b>No attack has a score.</b> Nothing on this page shows how well a defence protects
{%- if not alone %} {{ view.study.words | join(' · ') }}{% endif %}.</p>
{% endfor %}
{% for view in studies if view.too_few %}
<p class="banner"><b>Too few images for a verdict.</b> At most {{ count(view.too_few, 'image') }} of the {{ view.plain.run }}
{%- if not alone %} of {{ view.study.words | join(' · ') }}{% endif %} {{ 'was' if view.too_few == 1 else 'were' }} attacked
in a round, and a verdict needs {{ least_images }} or more: counts are of these few images alone, and nothing here says that a
defence works.
{% if not view.sections.recorded %}Raise <code>probe-targets</code>, <code>probe-images</code> or the number of clients.
{% endif %}</p>
{% endfor %}
{% for view in studies if view.open %}
<p class="banner"><b>Could not be judged.</b> A client{{ '' if alone else ' of ' ~ view.study.words | join(' · ') }} has fewer
than 10 other images to look for the attacked ones among (100 are best). So nothing here says that an attack or a
defence works.</p>
{% endfor %}
{% for view in studies if view.unbroken %}
<p class="banner alarm"><b>Positive control failed.</b> No attack passed the test on the images of the {{ view.plain.run }}
{%- if not alone %} of {{ view.study.words | join(' · ') }}{% endif %}
{%- for line in view.lines if not line.defense and line.strongest and recovers(line.strongest) %}, although the strongest recovered
{{ recovered_of(line.strongest) }}{% endfor %}: nothing here is evidence for any defence.</p>
{% endfor %}
{% for view in studies %}{% if view.lines | selectattr('cells') | list %}
{% set messages = view.outcomes | map(attribute='message') | unique | list %}
{% set apart = messages | length > 1 %}{% set s = '' if alone else loop.index %}
<section class="glance{{ ' apart' if apart }}" id="glance{{ '' if alone else loop.index }}">
<div>
{% if not alone %}<h2>{{ view.study.words | join(' · ') }}</h2>{% endif %}
{% if view.probed %}<p>The table shows what the {{ term('Strongest attack', 'strongest attack') }} recovered
{{- ' from ' ~ messages[0] ~ 's' if not apart and messages[0] }}. In a {{ term('One-step probe', 'one-step probe') }}, the server
asks a client for the gradient of a few images. {{ term('Training update', 'Training updates') }} are what a client
sends after a round of training{{ '' if view.updates else '. No attack on images of training updates ' ~
('has a score' if view.tried else 'ran') }}.</p>{% endif %}
{{ table('At a glance' ~ ('' if alone else ' ' ~ loop.index), 'plain') }}
{{ head(['Defence', apart and 'From', term('Verdict'),
  '#' ~ term('Recovered', 'Images recovered' if view.all_images else ''), '#Accuracy',
  (view.has.epsilon or view.has.claimed) and ('#ε claimed' if view.sections.audited_epsilon else '#Budget ε')]) }}
<tbody>
{% for one in view.outcomes %}
<tr><th scope="row">
  {%- if one.first %}{{ who(one.defense) }}{% else %}<span class="unseen">{{ label(one.defense) }}</span>{% endif %}</th>
{% if apart %}<td>{{ one.message }}</td>{% endif %}
<td>{{ verdict(one.verdict) }}{% if one.attack %}<small>strongest: {{ attack_names[one.attack] | breakable }}</small>{% endif %}
{%- if view.plain.alone and one.warnings %}<small><a href="#defence{{ s }}-{{ view.place[one.defense] }}">
{{- count(one.warnings | length, 'warning') }}</a></small>
{%- else %}{% for warning in one.warnings %}{% set parts = warning.split(': ') %}
<small>{{ parts[:2 if parts[0] in messages else 1] | join(': ') if apart else warning }}</small>
{%- endfor %}{% endif %}</td>
{{ number((one.shown or nothing) ~ (one.status | dagger), one.interval) }}
{% if one.reported and one.accuracy is none %}
<td class="num">{{ one.reported.number }}<small>{{ one.reported.detail }}</small></td>
{% else %}
<td class="num">{{ one.accuracy | percent if one.first else '' }}
{%- for below in (one.change_text, one.cost_note.partition(':')[0]) if below %}<small>{{ below }}</small>{% endfor %}</td>
{% endif %}
{% if one.numbered_claims %}
<td class="num folds">{% for claim in one.numbered_claims %}{{ claim.number }}<small>{{ claim.detail }}</small>{% endfor %}
{%- for below in (one.protects,) + one.shown_epsilon if below %}<small>{{ below }}</small>{% endfor %}</td>
{% elif view.has.epsilon or view.has.claimed %}
<td class="num folds">{{ one.epsilon | two if one.first else '' }}
{%- for below in (one.protects,) + one.shown_epsilon + one.further_epsilon if below %}<small>{{ below }}</small>{% endfor %}</td>
{% endif %}</tr>
{% endfor %}
</tbody></table></div>
<p class="soft small after">{% if view.of_images %}{{ definition }}
<i>Readable</i>: at least half of the images. <i>Partly readable</i>: fewer, or the attack identifies images or exceeds the
baselines beyond chance. <i>Not recovered</i>: neither. <i>Unknown</i>: no attack on images
has a score, fewer than {{ least_images }} images were attacked, the mean exceeds the baselines but its interval does not, or no
attack works {{ view.plain.without }}.
{% endif %}A range below a count is its 95&nbsp;% interval, not corrected
for the choice of the strongest attack. An attack that fails shows only that this attack fails.
{{ view.not_distinguished }} <a href="#glossary">Glossary</a>.</p>
</div>
{% if view.star %}<figure class="target"><figcaption>{{ view.star.target }}</figcaption>{{ row_of(view.star) }}</figure>{% endif %}
</section>
{% if view.control.failed and not view.unbroken %}
<p class="facts small after"><a href="#control{{ '' if alone else loop.index }}"
title="{{ glossary['Positive control'] }}">Positive control</a>: an attack must work on the {{ view.plain.run }}.
{{ view.control.failed.values() | map('length') | sum }} of {{ count(view.control.tests, 'check') }} of this failed (
{%- for attack in view.control.failed %}{{ attack_names[attack] | breakable }}{{ ', ' if not loop.last }}{% endfor %}).
{{ 'A † marks the results of these attacks' if view.doubted else 'No score of the first table depends on these attacks; a † marks
their results elsewhere' }}.</p>
{% endif %}
{% endif %}
{% for claim in view.claims %}
<p class="facts small after">{% if loop.first %}<b>Claimed by the app.</b> {% endif %}{{ claim }}</p>
{% endfor %}{% endfor %}
{% if notes %}
<div class="banner alarm"><b>Notes on the data</b>
<ul>{% for note in notes %}<li>{{ note }}</li>{% endfor %}</ul></div>
{% endif %}
<nav aria-label="Contents">
{% if alone %}
  <a href="#headline">Headline</a><a href="#summary">Summary</a>
  {% if studies[0].plane %}<a href="#plane">Privacy against accuracy</a>{% endif %}
  {% if studies[0].grids %}<a href="#pictures">Pictures</a>{% endif %}
  {% if studies[0].membership %}<a href="#membership">Membership</a>{% endif %}
  {% for name, title in studies[0].titles %}<a href="#{{ name }}">{{ title }}</a>{% endfor %}
  {% if studies[0].representatives %}<a href="#representatives">Class representatives</a>{% endif %}
  <a href="#curves">Over the rounds</a><a href="#control">Positive control</a><a href="attacks.html">All attacks</a>
  <a href="#failures">Failures</a><a href="#cards">Threat cards</a>
{% else %}
  {% for view in studies %}
  <a href="#headline{{ loop.index }}">{{ view.study.words | join(' · ') or 'unnamed study' }}</a>
  {% endfor %}
{% endif %}
<a href="#glossary">Glossary</a><a href="#configuration">Configuration</a>
</nav>
"""

STUDIES = (
    """
{% for view in studies %}
{% set study = view.study %}{% set s = '' if alone else loop.index %}
{% if not alone %}<h2 class="study">{{ study.words | join(' · ') or 'unnamed study' }}</h2>{% endif %}
"""
    + RESULTS
    + DETAILS
    + """
{% endfor %}
{% if loose %}
<section id="pictures">
<header><h2>Pictures</h2><p>These pictures do not say which experiment they belong to.</p></header>
{{ gallery(loose) }}
</section>
{% endif %}
"""
)

BODY = FRONT + STUDIES + CONFIGURATION


def whole(body: str) -> str:
    """A page around the Jinja text of its body, which may use all macros; its title is the context's ``title``."""
    return f"""{MACROS}<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src '{{{{ script_hash }}}}'">
<title>{{{{ title }}}}</title>
<style>{{{{ css }}}}</style>
</head>
<body>
<main>
{body}
</main>
<script>{{{{ script }}}}</script>
</body>
</html>
"""
