"""The section on an audited app, as Jinja text."""

from __future__ import annotations

AUDITED = """
{% if view.sections.audited %}{% set audited = view.sections.audited %}
<section id="audited{{ s }}">
<header><h2>The app</h2><p>Somebody's own Flower app, whose clients answer probes and score guesses; it trains by code of
its own.</p></header>
{% if audited.differences %}
{{ table('How far replies are from one step of SGD on the images of data', '') }}
<thead><tr><th scope="col">Round</th><th scope="col">client</th>
<th scope="col" class="num">distance, % of the step</th><th scope="col" class="edge">so its training</th></tr></thead>
<tbody>
{% for one in audited.differences %}
<tr><th scope="row">{{ one.round }}</th><td>{{ one.client }}</td>
{{ number('%.3g' | format(100 * one.share)) }}
<td class="edge">{{ 'is as assumed' if one.as_assumed else 'is not as assumed: probes and attacks are about another' }}</td></tr>
{% endfor %}
</tbody></table></div>
<p class="soft small">Each client compared the reply that it sent, and told this number alone.</p>
{% endif %}
<h3>What could not be known</h3>
<ul>
{% for text in audited.assumed %}
<li>{{ text }}</li>
{% endfor %}
</ul>
</section>
{% endif %}
"""
