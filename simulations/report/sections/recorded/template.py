"""The section on a recording, as Jinja text."""

from __future__ import annotations

RECORDING = """
{% if view.sections.recorded %}{% set recorded = view.sections.recorded %}
<section id="recorded{{ s }}">
<header><h2>The recording</h2><p>Replies of clients of somebody's own Flower app, as they reached the server. Nobody asked the
clients for anything, and none of them scored a guess.</p></header>
<p><b>{{ recorded.verdict }}</b></p>
{{ table('What the recording holds', '') }}
<thead><tr><th scope="col">Round</th>
<th scope="col" class="num edge">replies attacked</th>
<th scope="col" class="num">examples behind a reply</th>
<th scope="col" class="num">local steps</th>
<th scope="col" class="edge">not attacked</th></tr></thead>
<tbody>
{% for one in recorded.rounds %}
<tr><th scope="row">{{ one.round }}</th>
{{ number(one.attacked, '', true) }}
{{ number(one.examples | unique | join(' to ')) }}
{{ number(one.local_steps | unique | join(' to ')) }}
<td class="edge wide">{{ one.unusable | join('; ') or nothing }}</td></tr>
{% endfor %}
</tbody></table></div>
<h3>What could not be known</h3>
<ul>
{% for text in recorded.assumed %}
<li>{{ text }}</li>
{% endfor %}
</ul>
<p class="soft small after">{% for number, node in recorded.clients %}Client {{ number }} is node {{ node }}.
{% endfor %}</p>
</section>
{% endif %}
"""
