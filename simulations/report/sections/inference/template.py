"""The section on edge-cloud inference, as Jinja text."""

from __future__ import annotations

ANSWERS = """
<div class="scroll"><table>
<thead><tr><th scope="col">Defence</th>
<th scope="col" class="num edge">accuracy as deployed, %</th>
<th scope="col" class="num">answers unchanged, %</th>
<th scope="col" class="num edge">queries</th>
<th scope="col" class="num">bytes of a query</th>
<th scope="col" class="num">plain features over it</th>
<th scope="col" class="num">bytes of an answer</th>
<th scope="col" class="num edge">bytes of the client half</th>
<th scope="col" class="num">seconds of a client</th></tr></thead>
<tbody>
{% for one in view.sections.inference.answered %}
<tr><th scope="row">{{ who(one.line.defense) }}</th>
{{ score(one.line.deployed, percentage, true) }}
{{ score(one.agreement, percentage) }}
{{ number(one.queries | plain, '', true) }}
{{ number(one.query_bytes | size) }}
{{ number(one.smaller | plain) }}
{{ number(one.answer_bytes | size) }}
{{ number(one.client_half_bytes | size, '', true) }}
{{ number(one.query_seconds | plain) }}
</tr>
{% endfor %}
</tbody></table></div>
<p class="soft small after">Each client asks about all of its test images, once. An answer is unchanged where its most likely class
is the one that the whole model sees in the clean image. The client half counts with what its defences have learned; a device is
given both once.</p>
"""

ATTACKS = """
<h3>What comes back out of the queries</h3>
<div class="scroll tall"><table>
<thead><tr><th scope="col">Defence</th>
<th scope="col">Attack</th>
<th scope="col">Status</th>
<th scope="col" class="num edge">PSNR, dB</th>
<th scope="col" class="num">over null</th>
<th scope="col" class="num">SSIM</th>
<th scope="col" class="num edge">picked out</th></tr></thead>
<tbody>
{% for cell in view.sections.inference.cells %}{% set null = cell.best_null %}
<tr{% if cell.status | dagger %} class="doubt"{% endif %}>
<td class="tight">{{ who(cell.defense) }}</td>
<td class="attack">{{ named(cell, view.adaptive) }}<small>cut at {{ cell.fact('cut') or nothing }}</small></td>
{{ status(cell.status) }}
{{ score(cell.psnr, decibel, true) }}
{{ number(cell.gap | signed, (null[0] | null_name) ~ ' ' ~ (null[1] | decibel) if null else '') }}
{{ score(cell.scores.get(('ssim', 'original')), two) }}
{{ picked_out(cell, true) }}
</tr>
{% endfor %}
</tbody></table></div>
<p class="soft small after">Every score is against the original. The server knows the client half, which it trained itself, the
defences, and what they have learned; it sees each query once.</p>
"""

INFERENCE = f"""
{{% if view.sections.inference %}}
<section id="inference{{{{ s }}}}">
<header><h2>Edge-cloud inference</h2><p>A cloud trains a classifier on images of its own. Clients hold the lower half, send the
features of their private images, and the cloud answers.</p></header>
{ANSWERS}
{{% if view.sections.inference.cells %}}
{ATTACKS}
{{% endif %}}
</section>
{{% endif %}}
"""
