"""The section on split learning, as Jinja text: what it costs the client, and what the smashed data give away."""

from __future__ import annotations

COSTS = """
{{ table('Costs', '') }}
<thead>
<tr class="group"><td></td>
<th class="edge" colspan="3">As deployed</th>
<th class="edge" colspan="3">Client half</th>
<th class="edge" colspan="3">Traffic</th>
<th class="edge" colspan="2">Shuffles</th></tr>
<tr><th scope="col">Defence</th>
<th scope="col" class="num edge">accuracy, %</th>
<th scope="col" class="num">MCC micro</th>
<th scope="col" class="num">MCC macro</th>
<th scope="col" class="num edge">parameters</th>
<th scope="col" class="num">MACs per image</th>
<th scope="col" class="num">peak memory</th>
<th scope="col" class="num edge">sent per image</th>
<th scope="col" class="num">images per second</th>
<th scope="col" class="num">batches lost</th>
<th scope="col" class="num edge">orders left open</th>
<th scope="col" class="num">share with the target</th></tr>
</thead>
<tbody>
{% for one in view.sections.split.costs %}
<tr><th scope="row">{{ who(one.line.defense) }}
  {% if one.line.round is not none %}<small>after round {{ one.line.round }}</small>{% endif %}</th>
{{ score(one.line.deployed, percentage, true) }}
{{ score(one.mcc_micro, two) }}
{{ score(one.mcc_macro, two) }}
{{ number(one.parameters | amount, '', true, one.parameters) }}
{{ number(one.macs | amount, 'training ' ~ (one.training_macs | amount) if one.training_macs != one.macs else '', value=one.macs) }}
{{ number(one.peak_bytes | size, count(one.images, 'image') if one.images > 1 else '', value=one.peak_bytes) }}
{{ number(one.bytes_per_sample | size, '', true, one.bytes_per_sample) }}
{{ number(one.samples_per_second | plain) }}
{{ number(one.lost | plain, 'of ' ~ one.expected if one.expected else '') }}
<td class="num edge">{% for orders, _ in one.orders %}{{ orders | power_of_ten }}{{ ', ' if not loop.last }}
{%- else %}{{ nothing }}{% endfor %}</td>
<td class="num">{% for _, share in one.orders %}{{ share | power_of_ten }}{{ ', ' if not loop.last }}
{%- else %}{{ nothing }}{% endfor %}</td>
</tr>
{% endfor %}
</tbody></table></div>
<p class="soft small after">MCC is Matthews' correlation of the classes: 0 is guessing, 1 is perfect. MACs
(multiply-accumulates) and memory (parameters, activations and gradients of one image, or of as many as the small print says)
are counted, not timed; images per second are wall-clock time, and depend on whatever else this machine did.
{% if view.sections.split.costs | map(attribute='orders') | select | list %}
Orders left open count the sequences in which one shuffled batch could have been sent, and the share of them in which an image keeps
its own tokens in one given order. They count what a shuffle hides, and no more: the multiset of tokens stays visible, so they bound
no attack{{ '; how far attacks get that solve the puzzle is in the next table' if view.sections.split.cells }}.
{% endif %}</p>
"""

SMASHED = """
<h3>Attacks on smashed data</h3>
{{ table('Attacks on smashed data', 'tall') }}
<thead>
<tr class="group"><td colspan="3"></td>
<th class="edge" colspan="3">Against the original</th>
<th class="edge" colspan="3">Paper's convention</th>
<th class="edge" colspan="3">Oracle</th>
<th class="edge" colspan="{{ view.sections.split.facts | length + 1 }}">Threat</th></tr>
<tr><th scope="col">Defence</th>
<th scope="col">Attack</th>
<th scope="col">Status</th>
<th scope="col" class="num edge">PSNR, dB</th>
<th scope="col" class="num">over null</th>
<th scope="col" class="num">SSIM</th>
<th scope="col" class="num edge">paper PSNR, dB</th>
<th scope="col" class="num">paper SSIM</th>
<th scope="col" class="num">paper MSE</th>
<th scope="col" class="num edge">identified</th>
<th scope="col" class="num">recognised</th>
<th scope="col" class="num">feature similarity</th>
{% for key in view.sections.split.facts %}
<th scope="col"{% if loop.first %} class="edge"{% endif %}>{{ key | replace('_', ' ') }}</th>
{% endfor %}
<th scope="col" class="num{{ ' edge' if not view.sections.split.facts }}">card</th></tr>
</thead>
<tbody>
{% for cell in view.sections.split.cells %}{% set null = cell.best_null %}
<tr{% if cell.status | dagger %} class="doubt"{% endif %}>
<td class="tight">{{ who(cell.defense) }}</td>
<td class="attack">{{ named(cell, view.adaptive) }}<small>{{ round_name(cell.round, cell.final) }}</small></td>
{{ status(cell.status) }}
{{ score(cell.psnr, decibel, true) }}
{{ number(cell.gap | signed, null[0] ~ ' ' ~ (null[1] | decibel) if null else '') }}
{{ score(cell.scores.get(('ssim', 'original')), two) }}
{{ score(cell.scores.get(('psnr-paper', '')), decibel, true) }}
{{ score(cell.scores.get(('ssim-paper', '')), two) }}
{{ number(cell.mean('mse-paper') | brief) }}
{{ share(cell.scores.get(('identification', '')), cell.chance_of_identification, none, true) }}
{{ recognised(cell) }}
{{ score(cell.scores.get(('feature-similarity', '')), two) }}
{% for key in view.sections.split.facts %}
<td{% if loop.first %} class="edge"{% endif %}>{{ cell.fact(key) or nothing }}</td>
{% endfor %}
{{ number(view.cards.numbers.get(cell.card, nothing), '', not view.sections.split.facts) }}
</tr>
{% endfor %}
</tbody></table></div>
<p class="soft small after">The paper's convention (Yao et al., ICDM 2022: images as they enter the network, a peak of 1
{%- for scale in view.sections.split.scales %}; here {{ scale }}{% endfor %}) is for comparison with its tables only.
 The oracle is a classifier trained on clean data. Identified is the
share of reconstructions whose nearest true image of those attacked together, to the oracle, is their own; feature similarity
is the cosine to it there. Attacks that guess labels alone are with <a href="#attacks{{ s }}">all attacks</a>.</p>
"""

TABLES = """
<h3>Attacks on rows of a table</h3>
{{ table('Attacks on rows of a table', '') }}
<thead>
<tr><th scope="col">Defence</th>
<th scope="col">Attack</th>
<th scope="col">Status</th>
<th scope="col" class="num edge">cells right, %</th>
<th scope="col" class="num">most frequent, %</th>
<th scope="col" class="num edge">MSE of embeddings</th>
<th scope="col" class="num">mean embedding's</th>
<th scope="col" class="num edge">AUC</th>
<th scope="col" class="num">log-loss</th>
<th scope="col" class="num edge">card</th></tr>
</thead>
<tbody>
{% for one in view.sections.split.tables %}
<tr{% if one.cell.status | dagger %} class="doubt"{% endif %}>
<td class="tight">{{ who(one.cell.defense) }}</td>
<td class="attack">{{ named(one.cell, view.adaptive) }}<small>{{ round_name(one.cell.round, one.cell.final) }}</small></td>
{{ status(one.cell.status) }}
{{ score(one.right, percentage, true) }}
{{ number(one.null | percentage if one.null is not none else nothing) }}
{{ score(one.error, two, true) }}
{{ number(one.null_error | two if one.null_error is not none else nothing) }}
{% set cost = view.sections.split.costs | selectattr('line.defense', 'equalto', one.cell.defense) | first %}
{{ score(cost.auc, two, true) }}
{{ score(cost.log_loss, two) }}
{{ number(view.cards.numbers.get(one.cell.card, nothing), '', true) }}
</tr>
{% endfor %}
</tbody></table></div>
{% for one in view.sections.split.tables %}
<details><summary>{{ who(one.cell.defense) }}: columns as {{ one.cell.attack | breakable }} read them,
{{ round_name(one.cell.round, one.cell.final) }}</summary>
{{ table('Columns as they were read', '') }}
<thead><tr><th scope="col">Column</th><th scope="col" class="num">share right, %</th>
<th scope="col" class="num">most frequent category, %</th></tr></thead>
<tbody>
{% for name, right, null in one.columns %}
<tr><th scope="row">{{ name }}</th>{{ score(right, percentage) }}
{{ number(null | percentage if null is not none else nothing) }}</tr>
{% endfor %}
</tbody></table></div></details>
{% endfor %}
<p class="soft small after">A cell is right when its category is named for its own column. The baseline names every column's most
frequent category among the client's own training rows. AUC is the area under the ROC curve, of pairs within a client; log-loss is
in nats, and both are of the model as deployed.</p>
"""

SPLIT = f"""
{{% if view.sections.split %}}
<section id="split{{{{ s }}}}">
<header><h2>Split learning</h2><p>Clients hold the first part of the model and send the tokens of every image, the smashed data;
the server trains the rest on them.</p></header>
{COSTS}
{{% if view.sections.split.cells %}}
{SMASHED}
{{% endif %}}
{{% if view.sections.split.tables %}}
{TABLES}
{{% endif %}}
</section>
{{% endif %}}
"""
