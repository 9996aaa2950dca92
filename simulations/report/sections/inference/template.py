"""The section on edge-cloud inference, as Jinja text."""

from __future__ import annotations

from simulations.report.sections.inference.equation import RULE

MACROS = """
{# An accuracy before and after protection, with the interval of the latter; where nothing is protected, the one there is. #}
{% macro change(of, defense, edge=false) %}
{% set before, after = of.before, of.after %}
<td class="num{{ ' edge' if edge }}">
  {%- if defense and before %}<span class="soft">{{ percentage(before.mean) }} →</span> {% endif -%}
  {{ percentage(after.mean if after else none) ~ (after.status | dagger if after else '') }}
  {%- if after %}<small>{{ within(after.low, after.high, percentage) }}</small>{% endif %}</td>
{% endmacro %}

{% macro equation(adversary, edge=false) %}
{% set mood = {'satisfied': ' good', 'not satisfied': ' bad'} %}
<td class="status{{ ' edge' if edge }}{{ mood.get(adversary.equation, '') if adversary }}">
  {{- (adversary.equation if adversary) or nothing }}</td>
{% endmacro %}

"""

EXPLAINED = f"""
{{% if shown.infers and study.pipelines | select | list %}}<p class="soft small after">{RULE}
{{% if not shown.lines | selectattr('retrained') | list %}}No adversary was retrained on protected features, as a server that
knows the defence would: no verdict here is tested against that.{{% endif %}}</p>{{% endif %}}
"""

ANSWERS = """
<h3>{{ 'Cut at ' ~ shown.name if shown.name else 'Answers' }}</h3>
{{ table('Answers', '') }}
{% if shown.infers %}
{{ head(['Defence', '|#accuracy as deployed, %', '#answers unchanged, %', '|#static adversary', '#retrained adversary',
  '#most frequent value', '|static', 'retrained', '|#bytes of a query', '#plain features over it'],
  [('', 1), ('Server half', 2), ('Sensitive attribute, accuracy, %', 3), ('Equation 1', 2), ('What travels', 2)]) }}
{% else %}
{{ head(['Defence', '|#accuracy as deployed, %', '#answers unchanged, %', '|#bytes of a query', '#plain features over it']) }}
{% endif %}
<tbody>
{% for one in shown.lines %}
<tr><th scope="row">{{ who(one.defense) }}</th>
{{ change(one.server, one.defense, true) }}
{{ score(one.agreement, percentage) }}
{% if shown.infers %}
{% if one.static %}{{ change(one.static.change, one.defense, true) }}{% else %}{{ number(nothing, '', true) }}{% endif %}
{% if one.retrained %}{% set after = one.retrained.change.after %}
<td class="num"><b>{{ percentage(after.mean) ~ (after.status | dagger) }}</b>
<small>{{ within(after.low, after.high, percentage) }}{{ '; ' ~ one.doubt if one.doubt }}</small></td>
{% else %}{{ number(nothing) }}{% endif %}
{{ number(percentage((one.retrained or one.static).null if one.retrained or one.static else none)) }}
{{ equation(one.static, true) }}
{{ equation(one.retrained) }}
{% endif %}
{{ number(one.numbers.get('query-bytes') | size, '', true, value=one.numbers.get('query-bytes')) }}
{{ number(one.smaller | plain) }}
</tr>
{% endfor %}
</tbody></table></div>
{% if shown.offline %}
<p class="soft small after">The adversary that masks are made against (offline) reads {{ percent(shown.offline.mean) }} of
held-out images of the server's own.</p>
{% endif %}
{% if shown.threshold %}{% set images, null, least = shown.threshold %}
<p class="soft small after">Of {{ images }} images {{ percent(null) }} have the most frequent value.
{% if least is none %}With so few, Equation 1 cannot be satisfied, whatever an adversary reads.
{% else %}With so many, Equation 1 can be satisfied only where the adversary reads at least {{ percent(least) }} before
protection:
a smaller drop, to the most frequent value, is not 10 points with its whole interval.{% endif %}</p>
{% endif %}
"""

RECONSTRUCTIONS = """
{% if shown.lines | selectattr('after') | list %}
{{ table('Reconstructions', 'after') }}
{{ head(['Defence', 'Best reconstruction', '|#PSNR, dB', '#best null', '|#MS-SSIM', '#above 0.35, %', '|#identified']) }}
<tbody>
{% for one in shown.lines if one.after %}{% set cell, before = one.after, one.before %}
{% set was = before if one.defense else none %}{% set null = cell.best_null %}
<tr{% if cell.status | dagger %} class="doubt"{% endif %}>
<th scope="row">{{ who(one.defense) }}</th>
<td class="attack"><code>{{ cell.attack | breakable }}</code>{{ cell.status | dagger }}</td>
<td class="num edge">{% if was %}<span class="soft">{{ decibel(was.psnr.mean) }} →</span> {% endif %}{{ decibel(cell.psnr.mean) }}
<small>{{ within(cell.psnr.low, cell.psnr.high, decibel) }}</small></td>
{% set of_class = cell.scales.get('class-mean') %}
{{ number(null[1] | decibel if null else nothing, (null[0] if null else '') ~
  ('; of its class ' ~ (of_class | decibel) if of_class is not none else '')) }}
<td class="num edge">{% if was %}<span class="soft">{{ two(was.mean('ms-ssim', 'original')) }} →</span> {% endif %}
{{- two(cell.mean('ms-ssim', 'original')) }}
{% set blind = cell.null_scores.get(('ms-ssim', 'original'), {}).values() | max if cell.null_scores.get(('ms-ssim', 'original')) %}
<small>{{ 'null ' ~ two(blind) if blind is not undefined and blind is not none }}</small></td>
<td class="num">{% if was %}<span class="soft">{{ percentage(was.mean('ms-ssim-success')) }} →</span> {% endif %}
{{- percentage(cell.mean('ms-ssim-success')) }}
{% set found = cell.scores.get(('ms-ssim-success', '')) %}
<small>{{ within(found.low, found.high, percentage) if found }}</small></td>
{{ identified_of(cell, true) }}
</tr>
{% endfor %}
</tbody></table></div>
{% endif %}
<p class="soft small after">“a → b” is before and after protection, small print the 95&nbsp;% interval of b. Each client asks
about all of its test images, once. An answer is unchanged where its most likely class is the one that the whole model sees in the
clean image. The static adversary learned from unprotected features, as in the paper; the retrained one from features that the
clients' own algorithm protected, and is what a defence has to be judged by. Where the retrained one learned
nothing, or reads no more than the static one, it was trained too little to say that a defence hides anything. Its accuracy stands
beside that of always answering the most frequent value. The mean image of the true class is what an attacker that knows
the class can guess, and the server knows the class from its own answer. A reconstruction with an
MS-SSIM above 0.35 counts as a success in the paper;
small images have fewer scales than its five, and what a guess reaches that looks at nothing is the null.</p>
"""

MASKS = """
{% if view.own_pictures.inference %}
<h3>What is masked</h3>
<p class="soft small">Images of the server's own; where the server half finds its class and where the adversary finds the attribute
(red is most), the mask, and what is left of the image. The autoencoder learns to answer as if every image had been masked.</p>
{% for defense, strips in view.own_pictures.inference.items() %}
<details{{ ' open' if loop.first }}><summary>{{ who(defense) }}</summary>{{ tiles(strips) }}</details>
{% endfor %}
{% endif %}
"""

COSTS = """
<h3>What the service costs</h3>
{{ table('What the service costs', '') }}
{{ head(['Defence', '|#queries', '#bytes of an answer', '|#bytes of the client half', '#seconds of a client',
  '#seconds of the server']) }}
<tbody>
{% for one in shown.lines %}
<tr><th scope="row">{{ who(one.defense) }}</th>
{{ number(one.numbers.get('queries') | plain, '', true) }}
{{ number(one.numbers.get('answer-bytes') | size, value=one.numbers.get('answer-bytes')) }}
{{ number(one.numbers.get('client-half-bytes') | size, '', true, value=one.numbers.get('client-half-bytes')) }}
{{ number(one.numbers.get('query-seconds') | plain) }}
{{ number(one.numbers.get('answer-seconds') | plain) }}
</tr>
{% endfor %}
</tbody></table></div>
<p class="soft small after">The client half counts with what its defences have learned; a device is given both once. Seconds are
those of all queries of a client, mean over clients, and of all queries at the server.</p>
"""

ATTACKS = """
{% if shown.cells %}
<h3>What comes back out of the queries</h3>
{{ table('What comes back out of the queries', 'tall') }}
{{ head(['Defence', 'Attack', 'Status', '|#PSNR, dB', '#over null', '#SSIM', '#MS-SSIM', '|#identified']) }}
<tbody>
{% for cell in shown.cells %}
{{ attacked(cell, view.adaptive) }}
{{ status(cell.status) }}
{{ score(cell.psnr, decibel, true) }}
{{ over_null(cell) }}
{{ score(cell.scores.get(('ssim', 'original')), two) }}
{{ score(cell.scores.get(('ms-ssim', 'original')), two) }}
{{ identified_of(cell, true) }}
</tr>
{% endfor %}
</tbody></table></div>
<p class="soft small after">Every score is against the original. The server knows the client half, which it trained itself, the
defences, and what they have learned; it sees each query once.</p>
{% endif %}
"""

INFERENCE = MACROS + EXPLAINED + ANSWERS + RECONSTRUCTIONS + MASKS + ATTACKS + COSTS
