"""Sections with the evidence, as Jinja text: positive control, failures, threat cards, configuration."""

from __future__ import annotations

CONTROL = """
<section id="control{{ s }}">
<header><h2>Positive control</h2><p>An attack counts in a round only if, {{ view.plain.without }}, it identifies images beyond
chance (exact binomial test at 5&nbsp;%, corrected for all attacks tried), in messages of the same size or a smaller one; of other numbers,
only if the whole 95&nbsp;% interval lies above the null baseline. With fewer than {{ least_images }} images there is no verdict. A
chain such as <code>A() | B()</code>, where B undoes a defence, is judged by A where it has no row of its own here.</p></header>
{% if view.plain.alone and view.control.rows %}
<p>An app has no second run to compare with, so each attack is tested on the {{ view.plain.run }} itself. A score is tested once for
each kind of message and each round, so there can be more tests than scores.</p>
{% endif %}
{% if view.control.rows %}
<details{{ ' open' if view.control.rows | length <= 2 }}>
{% set tests, failures = view.control.tests, view.control.failed.values() | map('length') | sum %}
<summary>{{ count(view.control.rows | length, 'score') }} of
{{ 'the ' ~ view.plain.run if view.plain.alone else 'undefended images' }}
{%- if failures %}, <span class="status bad">✗ {{ failures }} of {{ count(tests, 'test') }} failed</span>:
{% for attack, rounds in view.control.failed.items() %}
{{ attack_names[attack] | breakable }} ({{ rounds | unique | join(', ') }}){{ '; ' if not loop.last }}
{%- endfor %}
{% elif tests %}, {{ 'all of ' if tests > 1 }}{{ count(tests, 'test') }} passed{% endif %}</summary>
{{ table('Positive control', '') }}
<thead><tr><th scope="col">Attack on the {{ view.plain.run }}</th><th scope="col">Score</th>
{% for at, final, observation in view.control.columns %}
<th scope="col">{{ round_name(at, final) }}{% if observation %}, {{ observation }}{% endif %}</th>
{% endfor %}</tr></thead>
<tbody>
{% for row in view.control.rows %}
<tr><th scope="row"><code>{{ row.attack | breakable }}</code>{{ bound(row.attack) }}</th>
<td>{{ row.metric | metric_label }}</td>
{% for check in row.checks %}
{% if check %}{{ checked(check, row.metric) }}
{% else %}<td>{{ nothing }}</td>{% endif %}
{% endfor %}</tr>
{% endfor %}
</tbody></table></div></details>
{% else %}<p class="soft">No attack on the {{ view.plain.run }} has a score, so no attack is validated.</p>{% endif %}
</section>
"""

CONTROL_MACROS = """
{% macro checked(check, metric) %}
{% set passed = check.passed == check.seeds %}{% set show = percent if metric == 'identified' else two %}
<td class="verdict">
  {% if not check.judged %}<span class="status">† {{ show(check.value) }}</span>
  {% else %}<span class="status {{ 'good' if passed else 'bad' }}">{{ '✓' if passed else '✗' }} {{ show(check.value) }}</span>
  {% endif %}
  {% if check.null %}<span class="soft">against {{ check.null[0] }} {{ show(check.null[1]) }}</span>{% endif %}
  {% if check.seeds > 1 %}<small>{{ check.passed }} of {{ check.seeds }} seeds</small>{% endif %}
  {% if not check.judged %}<small>no verdict: n = {{ check.n }}</small>{% endif %}
  {% for reason in check.reasons %}<small>{{ reason }}</small>{% endfor %}
</td>
{% endmacro %}
"""

FAILURES = """
<section id="failures{{ s }}">
<header><h2>Failures</h2><p>Clients that could not answer, questions that a node's own configuration refuses, and attacks
that did not finish. They are listed because a number that leaves them out would look better than it is.</p></header>
{% if view.failures %}
{{ table('Failures', 'tall') }}
{{ head(['Defence', 'What failed', 'Rounds', '#Seed', '#Trials', 'Numbers concerned', 'Message']) }}
<tbody>
{% for one in view.failures %}
<tr><td class="tight">{{ who(one.defense) }}</td>
<td><code>{{ one.what or 'training' }}</code>{{ bound(one.what) }}</td>
<td>{{ one.rounds | unique | join(', ') }}</td>
{{ number(one.seed) }}
{{ number(one.trials or nothing) }}
<td>{{ one.metrics | join(', ') }}</td>
<td class="text">{{ one.message or 'no message' }}</td></tr>
{% endfor %}
</tbody></table></div>
{% else %}<p class="soft">Nothing failed.</p>{% endif %}
</section>
"""

CARDS = """
<section id="cards{{ s }}">
<header><h2>Threat cards</h2><p>What the attacker observed, knew and spent. Scores with different cards answer different
questions. Where randomness follows from the seed, a server could work out every draw of every defence; no attack of this
report does, so the scores are those of clients that keep a secret of their own, as deployed nodes do.</p></header>
{% set cards = view.cards %}
{% if cards.shared %}
<p class="small">The same for every attack:
{% for key, value in cards.shared.items() %}
<span class="fact"><span class="soft">{{ key | replace('_', ' ') }}</span> {{ value }}</span>
{% endfor %}</p>
{% endif %}
{% if cards.rows %}
<p class="small">Where they differ: <a href="attacks.html#cards{{ s }}">{{ count(cards.rows | length, 'card') }}</a>.</p>
{% else %}<p class="soft">{{ 'Those of attacks ' ~ study.apart | join(' and ') ~ ' are in sections of their own.' if study.apart
  else 'No attack has finished yet.' }}</p>{% endif %}
</section>
"""

CONFIGURATION = """
<section id="glossary">
<header><h2>Glossary</h2></header>
<dl>{% for term, meaning in glossary.items() %}<dt>{{ term }}</dt><dd>{{ meaning }}</dd>{% endfor %}</dl>
</section>
<section id="configuration">
<header><h2>Configuration</h2><p>What was set to something else than its default; the rest is folded, so that the
run can be repeated from this page.</p></header>
{% if config.get('config') is mapping and config['config'] %}
{% if changed %}{{ pairs(changed, 'Settings that differ from their defaults') }}{% endif %}
{% if unchanged %}
<details><summary>{{ count(unchanged | length, 'setting') }} as by default</summary>
{{ pairs(unchanged, 'Settings as by default') }}</details>
{% endif %}
{% else %}<p class="soft">No configuration was found.</p>{% endif %}
<details><summary>Defences, versions, and how to rebuild this page</summary>
{% if config.get('defenses') is mapping and config['defenses'] %}
<h3>Defences</h3>
{{ table('Defences of the configuration', '') }}
{{ head(['Pipeline', 'Adaptive attacks', 'Sources']) }}
<tbody>
{% for key, value in config['defenses'].items() %}
<tr><th scope="row">{{ label(key) }}</th>
{% if value is mapping %}
<td class="text">{{ value.get('adaptive_attacks') | listing }}</td>
<td class="text">{{ value.get('sources') | listing }}</td>
{% else %}
<td class="text" colspan="2">{{ value | setting }}</td>
{% endif %}</tr>
{% endfor %}
</tbody></table></div>
{% endif %}
{% for title, found in [('Versions', config.get('versions')), ('Also in the configuration file', unknown)] if found %}
<h3>{{ title }}</h3>
{% if found is mapping %}{{ pairs(found, title) }}{% else %}<pre>{{ found | setting }}</pre>{% endif %}
{% endfor %}
<h3>Rebuild this page</h3>
<pre>{{ config['command'] | setting if config.get('command') else command }}</pre>
<p class="soft small">The page is made from <code>rows.jsonl</code>, <code>config.json</code> and <code>pictures/</code>
only; the same numbers, one a line, are in <code>rows.csv</code>.</p>
</details>
{% if config.get('config') is mapping and 'output-dir' in config['config'] %}
<h3>What to do next</h3>
<ul>
<li>Repeat with other seeds and the settings above. One seed shows what happened once.
<pre tabindex="0">{{ repeat }}</pre></li>
<li>Attack more images: add <code>-s probe-targets=16</code> to that command. After 0 of 16, up to 21&nbsp;% of images could
still be identified.</li>
{% if config['config'].get('scenario', 'federated') == 'federated' %}
<li>Try a defence with a proof at several budgets: <code>fedveil run --preset dp_curve --out dp</code>.</li>
{% endif %}
<li>Put runs side by side: <code>fedveil compare {{ directory }} OTHER</code>. The command with <code>--seeds</code> does so with
its own runs.</li>
</ul>
{% endif %}
</section>
"""

DETAILS = CONTROL_MACROS + CONTROL + FAILURES + CARDS
