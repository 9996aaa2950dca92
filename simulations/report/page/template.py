"""The report's page and the frame of all pages, as Jinja text."""

from __future__ import annotations

from simulations.report.page.macros import MACROS
from simulations.report.page.template_details import CONFIGURATION, DETAILS
from simulations.report.page.template_results import RESULTS

FRONT = """
{% set ids = namespace(all=[]) %}{% for view in studies %}{% set ids.all = ids.all + [
  ('glance' if view.findings | selectattr('messages') | list else 'cost') ~ ('' if alone else loop.index)] %}{% endfor %}
<a class="skip" href="#{{ ids.all[0] if studies else 'configuration' }}">Skip to the results</a>
<p class="kicker">fedveil privacy audit</p>
<h1>What the server could see</h1>
{% for view in studies %}{% set study = view.study %}
<p class="facts">
  {% if study.name[0] %}<b>{{ study.name[0] }}</b> ·{% endif %}
  {{ study.words[1 if study.name[0] else 0:] | join(' · ') }} ·
  {{ numbered('seed', study.seeds) }} ·
  {% if view.tested %}{{ count(view.tested, 'defence') }} ·{% endif %}
  {{ count(study.attacks | length, 'attack') }}
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
{% endfor %}{% if not view.scored %}
<p class="banner"><b>No attack has a score.</b> Nothing on this page shows how well a defence protects
{%- if not alone %} {{ view.study.words | join(' · ') }}{% endif %}.</p>
{% endif %}{% endfor %}
{% for view in studies %}{% set s = '' if alone else loop.index %}{% set shown = view.columns %}
{% if view.findings | selectattr('messages') | list %}
<section class="glance" id="glance{{ s }}">
<div>
{% if not alone %}<h2>{{ view.study.words | join(' · ') }}</h2>{% endif %}
<div class="said">{% for said in view.said %}<p>{{ said }}</p>{% endfor %}
{% if view.recommendation %}<p><b>{{ view.recommendation }}</b></p>{% endif %}</div>
{{ table('At a glance' ~ ('' if alone else ' ' ~ loop.index), 'plain') }}
<thead><tr><th scope="col">Defence</th>
{% for column in shown %}<th scope="col">{{ column.message or 'Messages' }}
  {% if column.size %}<small>{{ column.size }}</small>{% endif %}</th>{% endfor %}
<th scope="col" class="num">Accuracy</th>
{% if view.has_epsilon %}<th scope="col" class="num">ε</th>{% endif %}</tr></thead>
<tbody>
{% for one in view.findings %}
<tr><th scope="row">{{ who(one.defense) }}</th>
{% for column in shown %}{% set message = one | message_of(column.title) %}
<td data-from="{{ column.message }}{{ ', ' ~ column.size if column.size }}">{% if message %}{{ verdict(message.verdict) }}
  {% if message.shown %}<small><b>{{ message.shown }}</b>{{ ' (' ~ message.interval ~ ')' if message.interval }}</small>{% endif %}
  {% if message.difference %}<small>{{ message.difference.word }}</small>{% endif %}
  {% if message.attack %}<small>by {{ attack_names[message.attack] | breakable }}</small>{% endif %}
{% else %}{{ nothing }}{% endif %}</td>
{% endfor %}
{% if one.accuracy %}{{ accuracy_of(one.accuracy) }}
{% elif one.reported %}{{ number(one.reported.number, one.reported.detail) }}
{% else %}{{ number(nothing) }}{% endif %}
{% if view.has_epsilon %}
<td class="num folds">{% if one.numbered_claims %}{% for claim in one.numbered_claims %}{{ claim.number }}<small>
{{- claim.detail }}</small>{% endfor %}{% elif one.epsilon %}{{ one.epsilon.spent | two }}{% endif %}
{%- if one.epsilon %}{% for below in one.epsilon.lines %}<small>{{ below }}</small>{% endfor %}{% endif %}</td>
{% endif %}</tr>
{% endfor %}
</tbody></table></div>
<p class="soft small after">{{ rule }} A difference to no defence is paired by image and corrected for the number of defences.
An attack that fails shows only that this attack fails. <a href="#glossary">Glossary</a>.</p>
</div>
{% if view.star %}<figure class="target"><figcaption>{{ view.star.target }}</figcaption>{{ row_of(view.star) }}</figure>{% endif %}
</section>
{% if view.ladder %}
<section id="ladder{{ s }}">
<header><h2>Where the leak ends</h2><p>The same attacks on messages of growing size, in images. A probe is a request that an
ordinary client does not answer. An attack that finds nothing in a message counts only where it finds images in a smaller one, or
in the same one without a defence.</p></header>
{{ table('Where the leak ends' ~ s, 'plain') }}
<thead><tr><th scope="col">Defence</th>
{% for column in view.ladder %}
<th scope="col">{{ column.message }}{% if column.size %}<small>{{ column.size }}</small>{% endif %}</th>
{% endfor %}</tr></thead>
<tbody>
{% for one in view.findings %}
<tr><th scope="row">{{ who(one.defense) }}</th>
{% for column in view.ladder %}{% set message = one | message_of(column.title) %}
<td>{% if message %}{{ verdict(message.verdict) }}{% if message.shown %}<small>{{ message.shown }}</small>{% endif %}
{% else %}{{ nothing }}{% endif %}</td>
{% endfor %}</tr>
{% endfor %}
</tbody></table></div>
</section>
{% endif %}
{% endif %}
{% if view.notes %}
<section id="caveats{{ s }}">
<header><h2>What to keep in mind</h2></header>
<ul class="small">{% for note in view.notes %}<li>{{ note }}</li>{% endfor %}</ul>
</section>
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
  <a href="#{{ ids.all[0] }}">Results</a><a href="#cost">Cost and budget</a>
  {% if studies[0].plane %}<a href="#plane">Privacy against accuracy</a>{% endif %}
  {% if studies[0].grids %}<a href="#pictures">Pictures</a>{% endif %}
  {% if studies[0].membership %}<a href="#membership">Membership</a>{% endif %}
  {% for name, title in studies[0].titles %}<a href="#{{ name }}">{{ title }}</a>{% endfor %}
  {% if studies[0].representatives %}<a href="#representatives">Class representatives</a>{% endif %}
  <a href="#curves">Over the rounds</a><a href="#control">Positive control</a><a href="attacks.html">All attacks</a>
  <a href="#failures">Failures</a><a href="#cards">Threat cards</a>
{% else %}
  {% for view in studies %}
  <a href="#{{ ids.all[loop.index0] }}">{{ view.study.words | join(' · ') or 'unnamed study' }}</a>
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
