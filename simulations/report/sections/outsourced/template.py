"""The section on outsourced training, as Jinja text."""

from __future__ import annotations

UPLOADS = """
{{ table('Costs', '') }}
<thead><tr><th scope="col">Defence</th>
<th scope="col" class="num edge">accuracy as deployed, %</th>
<th scope="col" class="num edge">images uploaded</th>
<th scope="col" class="num">bytes of a client</th>
<th scope="col" class="num">seconds of a client</th>
<th scope="col" class="num">seconds of the server, a round</th></tr></thead>
<tbody>
{% for one in view.sections.outsourced.uploads %}
<tr><th scope="row">{{ who(one.line.defense) }}
  {% if one.line.round is not none %}<small>after round {{ one.line.round }}</small>{% endif %}</th>
{{ score(one.line.deployed, percentage, true) }}
{{ number(one.images | plain, '', true) }}
{{ number(one.bytes_of_client | size, value=one.bytes_of_client) }}
{{ number(one.seconds_of_client | plain) }}
{{ number(one.seconds_of_server | plain) }}
</tr>
{% endfor %}
</tbody></table></div>
"""

READS = """
<h3>What comes back out of the uploads</h3>
{{ table('What comes back out of the uploads', 'tall') }}
<thead><tr><th scope="col">Defence</th>
<th scope="col">Attack</th>
<th scope="col">Status</th>
<th scope="col" class="num edge">PSNR, dB</th>
<th scope="col" class="num">over null</th>
<th scope="col" class="num">over the upload</th>
<th scope="col" class="num">SSIM</th>
<th scope="col" class="num edge">identified</th></tr></thead>
<tbody>
{% for one in view.sections.outsourced.reads %}{% set cell = one.cell %}{% set null = cell.best_null %}
<tr{% if cell.status | dagger %} class="doubt"{% endif %}>
<td class="tight">{{ who(cell.defense) }}</td>
<td class="attack">{{ named(cell, view.adaptive) }}<small>{{ round_name(cell.round, cell.final) }}</small></td>
{{ status(cell.status) }}
{{ score(cell.psnr, decibel, true) }}
{{ number(cell.gap | signed, null[0] ~ ' ' ~ (null[1] | decibel) if null else '') }}
{{ number(one.gain | signed) }}
{{ score(cell.scores.get(('ssim', 'original')), two) }}
{{ picked_out(cell, true) }}
</tr>
{% endfor %}
</tbody></table></div>
<p class="soft small after">Every score is against the original. No attack here needs an inversion: the server holds the protected
images. AsUploaded takes them as they came, and what stands under “over the upload” is what an attack adds to looking at them,
where it beats the null baselines. As the undefended uploads are the originals, they say nothing of an attack that undoes a defence:
it counts if it adds to looking under one of the defences here. Attacks on uploaded images read every image alone, though the server
holds all uploads; those on all uploads of a client, where there are any, do not. What the trained model gives away beyond that, to
whoever gets it, is with the attacks on members and classes.</p>
"""

OUTSOURCED = f"""
{{% if view.sections.outsourced %}}
<section id="outsourced{{{{ s }}}}">
<header><h2>Outsourced training</h2><p>Clients upload their training images, protected, with their labels; the server trains on
the uploads.</p></header>
{UPLOADS}
{{% if view.sections.outsourced.reads %}}
{READS}
{{% endif %}}
</section>
{{% endif %}}
"""
