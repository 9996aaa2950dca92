"""The section on an audited app, as Jinja text."""

from __future__ import annotations

AUDITED = """
{% if view.sections.audited %}{% set audited = view.sections.audited %}
<section id="audited{{ s }}">
<header><h2>The app</h2><p>Somebody's own Flower app, whose clients answer probes and score guesses; it trains by code of its own.</p></header>
<h3>What could not be known</h3>
<ul>
{% for text in audited.assumed %}
<li>{{ text }}</li>
{% endfor %}
</ul>
</section>
{% endif %}
"""
