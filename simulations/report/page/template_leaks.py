"""Sections on membership and on class representatives, which reconstruct no single image, as Jinja text."""

from __future__ import annotations

MEMBERSHIP = """
{% macro member_table(caption, cells) %}
{{ table(caption, 'tall') }}
{{ head(['Defence', 'Attack', '#Round', 'Status', '#AUC', '#TPR at 1 % FPR',
  view.low_rates and '#TPR at 0.1 % FPR', '#Records', '#Failures', '#Time', '#Card']) }}
<tbody>
{% for cell in cells %}{% set auc = cell.scores[('membership-auc', '')] %}
{{ attacked(cell, view.adaptive) }}
{{ number(round_mark(cell.round, cell.final)) }}
{{ status(cell.status) }}
{{ marked(auc, two, two) }}
{{ marked(cell.scores.get(('membership-tpr', '')), percent, percentage) }}
{% if view.low_rates %}{{ marked(cell.scores.get(('membership-low-tpr', '')), percent, percentage) }}{% endif %}
{{ number(auc.n, count(cell.members, 'member') if cell.members is not none else '') }}
{{ number(auc.failures) }}
{{ number(cell.mean('attack-seconds') | seconds, value=cell.mean('attack-seconds')) }}
{{ number(view.cards.numbers.get(cell.card, nothing)) }}
</tr>
{% endfor %}
</tbody></table></div>
{% endmacro %}
{% if view.membership %}
<section id="membership{{ s }}">
<header><h2>Membership</h2><p>Was a record part of a client's training data? An AUC of 0.5, the dotted
diagonal, is chance. The true positive rate (TPR) at 1&nbsp;% false positives (FPR), where chance is 1&nbsp;%, shows how many
members can be named almost without error. Charts have logarithmic axes and show the last attacked round; marks stand at
1&nbsp;% and 0.1&nbsp;% false positives. † and hollow marks: the attack did not break the undefended run (not validated), or it was
tested on too few records (under-powered). A test is under-powered if its interval includes both chance and the undefended AUC,
or if it has fewer than 100 non-members. An attack infers members if the interval of its AUC lies above chance, or if
chance gives as high a rate in at most 2.5&nbsp;% of runs. The other tests are folded.</p></header>
{% set found = view.membership | selectattr('tells_members') | list %}
{% set chance = view.membership | rejectattr('tells_members') | list %}
{% set doubted = chance | map(attribute='status') | map('dagger') | select | list | length %}
{% if found %}{{ member_table('Membership', found) }}{% endif %}
<details><summary>{% if not found %}Not shown to infer members: {% endif %}
{%- if chance %}{{ count(chance | length, 'test') }}{{ ' not shown to infer members' if found }}
{%- if doubted %} ({{ doubted }} of them not validated or under-powered){% endif %}{{ ', and ' if found else ' and ' }}{% endif %}
{{- count(view.roc | length, 'chart') }} of {{ 'its' if view.roc | length == 1 else 'their' }} curves</summary>
{% if chance %}{{ member_table('Membership not shown', chance) }}{% endif %}
{{ panels(view.roc) }}
</details>
</section>
{% endif %}
"""

REPRESENTATIVES = """
{% if view.representatives %}
<section id="representatives{{ s }}">
<header><h2>Class representatives</h2><p>GAN attacks draw what the classes of a client look like. None of these images is a guess of
one person's image, so they have no PSNR of their own and no place in the headline. Recognition is the share in which the
oracle, a classifier trained on clean data, sees the intended class; below it are chance and how often the oracle is right on real
images. The last scores compare with the mean image of that class: high means close. Pictures run through the classes in
order.</p></header>
{{ table('Class representatives', 'tall') }}
{{ head(['Defence', 'Attack', '#Round', 'Status', '#Recognised', '#Class-mean PSNR, dB', '#Class-mean SSIM', '#Failures',
  '#Card']) }}
<tbody>
{% for cell in view.representatives %}
{{ attacked(cell, view.adaptive) }}
{{ number(round_mark(cell.round, cell.final)) }}
{{ status(cell.status) }}
{{ recognised(cell) }}
{{ score(cell.scores.get(('class-mean-psnr', '')), decibel) }}
{{ score(cell.scores.get(('class-mean-ssim', '')), two) }}
{{ number(cell.leading.failures) }}
{{ number(view.cards.numbers.get(cell.card, nothing)) }}
</tr>
{% endfor %}
</tbody></table></div>
{% for defense, strips in view.drawn.items() %}
<h3>{{ who(defense) }}</h3>{{ tiles(strips) }}
{% endfor %}
</section>
{% endif %}
"""

LEAKS = MEMBERSHIP + REPRESENTATIVES
