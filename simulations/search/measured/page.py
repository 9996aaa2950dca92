"""The page of a measured search: its front, its verdict on held-out images, and all hybrids that were judged."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from simulations.report import write_page
from simulations.report.drawing.canvas import Canvas, Mark, style
from simulations.report.drawing.domains import bounds
from simulations.report.page.page import render
from simulations.report.studies.recovery import DEFINITION
from simulations.report.text import count, plain
from simulations.search.measured.proposals import CONTROL, NONE, PAPER, RANDOM, SCORED
from simulations.search.measured.results import TAIL, HybridResult, MeanInterval
from simulations.search.measured.search import Found
from simulations.search.measured.settings import Measured
from simulations.search.measured.trials import front
from simulations.search.measured.verdict import Comparison, keeps, level_of, needed_controls

WIDTH, HEIGHT = 1040.0, 420.0
LOOKS = {
    NONE: ("circle", "var(--none)", False),
    PAPER: ("square", "var(--d3)", False),
    CONTROL: ("circle", "var(--d1)", True),
    RANDOM: ("circle", "var(--d1)", False),
    SCORED: ("diamond", "var(--d2)", False),
}
"""Origin -> shape, colour, whether hollow."""
NAMES = {
    NONE: "no defence",
    PAPER: "a paper's",
    CONTROL: "control",
    RANDOM: "random",
    SCORED: "of policies with low S_pri",
}
"""Origin -> its word in the legend."""


def write_measured_page(folder: Path, found: Found) -> Path:
    """Write ``search.html``."""
    on_front = {one.hybrid for one in front(found.chosen_among)}
    context = {
        "search": found.search,
        "found": found,
        "headline": headline(found),
        "sentences": verdict(found),
        "definition": DEFINITION,
        "held_out": plane([(one.hybrid, one.origin, one.accuracy.mean, one.share.mean) for one in found.held_out]),
        "chosen": plane([
            (one.hybrid, one.origin, one.last.accuracy, one.last.share) for one in found.chosen_among if one.complete
        ]),
        "on_front": on_front,
        "budgets": budgets(found.search),
        "as_percent": percent,
        "spanned": span,
        "lost_points": points,
        "random": any(one.origin == CONTROL for one in found.held_out),
        "origin_of": lambda one: f"{one.origin}, chosen" if one.hybrid in found.confirmed else one.origin,
    }  # fmt: skip
    write_page(folder / "search.html", render(BODY, {"title": f"Measured search on {found.search.dataset}"} | context))
    return folder / "search.html"


def headline(found: Found) -> str:
    """The recommended hybrid, or that there is none."""
    return found.recommended[0].outcome.hybrid if found.recommended else "No hybrid is recommended"


def verdict(found: Found) -> list[str]:
    """Sentences on each confirmed hybrid, with numbers of held-out images."""
    search, lines = found.search, []
    if found.held_out and not found.validated:
        lines.append(
            "The attack recovers fewer than half of the images without a defence: its failures say nothing of hybrids."
        )
    lines += [_verdict_on(found, one) for one in found.comparisons]
    compared = {one.outcome.hybrid for one in found.comparisons}
    lines += [_uncompared(found, hybrid) for hybrid in found.confirmed if hybrid not in compared]
    if not found.confirmed:
        lines.append("No hybrid was confirmed on held-out images (confirmed).")
    elif not found.comparisons and not found.skipped:
        lines.append("No hybrid was compared with random ones on held-out images.")
    if found.skipped:
        lines.append(
            f"{found.skipped} of {search.controls} random hybrids were not judged, because no recommendation was possible any more "
            "(curtail)."
        )
    if found.failed:
        lines.append(f"{len(found.failed)} trainings on held-out images failed; the page lists them.")
    return lines


def _verdict_on(found: Found, one: Comparison) -> str:
    outcome = one.outcome
    word = "is" if one in found.recommended else "is not"
    sentences = [f"{outcome.hybrid} {word} recommended."]
    if outcome.failed:
        sentences.append(
            f"Training or attack failed for it, or for no defence, on {seeds_of(outcome.failed)}: a hybrid is only recommended "
            "if all its seeds were judged."
        )
    sentences.append(_costs(found, outcome))
    # Of random hybrids that were judged until one of them was good the mean is biased, so that it is not given.
    sentences += [_recovers(outcome), *_stopped(found, one)] if found.skipped else _beside_random(found, one)
    return " ".join([*sentences, _held_out(outcome)])


def _beside_random(found: Found, one: Comparison) -> list[str]:
    """The strongest attack under the hybrid and under all random ones."""
    confidence = f"{100 * (1 - one.level):.3g} %"
    ends = f" ({100 * one.low:.1f} to {100 * one.high:.1f} at {confidence})" if math.isfinite(one.high) else ""
    return [
        f"{_recovers(one.outcome)[:-1]}, and {percent(one.outcome.share.mean + one.fewer)} in the mean of {one.random} random "
        f"hybrids: a difference of {100 * one.fewer:.1f} points{ends}.",
        f"{_as_good(found, one)} (by rank, a random hybrid is that good in {100 * one.chance:.1f} % of cases; at most "
        f"{100 * one.level:.1f} % are allowed).",
        _on_chance(one),
    ]


def _stopped(found: Found, one: Comparison) -> list[str]:
    """What the random hybrids say that were judged before the confirmation ended."""
    return [f"{_as_good(found, one)}: their mean would be biased, because they were judged until that was seen."]


def _as_good(found: Found, one: Comparison) -> str:
    return (
        f"{one.as_good} of {one.random} random hybrids lose at most {100 * found.search.tolerated:g} points in the mean and let no "
        "larger share be recovered"
    )


def _uncompared(found: Found, hybrid: str) -> str:
    """The sentences on a hybrid that was to be confirmed and has no comparison."""
    seeds = sorted({one.seed for one in found.failed if one.hybrid in (hybrid, "")})
    why = f": training or attack failed for it, or for no defence, on {seeds_of(seeds)}" if seeds else ""
    sentences = [f"{hybrid} is not recommended{why}."]
    for outcome in (one for one in found.held_out if one.hybrid == hybrid):
        sentences += [_costs(found, outcome), _recovers(outcome), _held_out(outcome)]
    level = level_of(found.confirmed)
    if found.search.controls < needed_controls(level):
        sentences.append(_too_few(found.search.controls, level))
    return " ".join(sentences)


def _costs(found: Found, outcome: HybridResult) -> str:
    search, level = found.search, level_of(found.confirmed)
    most = f"{100 * search.tolerated:g} points"
    if keeps(search, outcome, level):
        return f"It costs {points(outcome.lost)} points of accuracy: shown to lose at most {most}."
    high = outcome.loss(min(TAIL, level / 2)).high
    reaches = f"reaches {100 * high:.1f}" if math.isfinite(high) else "has no end"
    return f"It costs {points(outcome.lost)} points of accuracy: not shown to lose at most {most}, because the interval {reaches}."


def _recovers(outcome: HybridResult) -> str:
    return f"The strongest attack recovers {outcome.recovered} of {outcome.attacked} images, {percent(outcome.share.mean)}."


def _held_out(outcome: HybridResult) -> str:
    return f"All of this is on held-out images, with {outcome.accuracy.n} held-out seeds."


def _on_chance(one: Comparison) -> str:
    """Whether chance explains that fewer images are recovered than under random hybrids."""
    if one.high < 0:
        return "Attacks recover more images than under random hybrids."
    if one.low <= 0:
        return "Chance explains the difference."
    if one.random < one.needed:
        return _too_few(one.random, one.level)
    return "Interval and rank are beyond chance." if one.ranks else "By its rank, chance explains the result."


def _too_few(controls: int, level: float) -> str:
    needed = needed_controls(level)
    return f"{controls} random hybrids can never show that it is better beyond chance: {needed} are needed (controls)."


def seeds_of(seeds: Sequence[int]) -> str:
    """Seeds as text."""
    return f"seed{'' if len(seeds) == 1 else 's'} {', '.join(map(str, seeds))}"


def percent(value: float) -> str:
    """A share as text."""
    return f"{100 * value:.1f} %"


def span(value: MeanInterval) -> str:
    """A share with its interval."""
    if not math.isfinite(value.high):
        return percent(value.mean)
    return f"{percent(value.mean)} ({100 * max(value.low, 0):.1f} to {100 * min(value.high, 1):.1f})"


def points(value: MeanInterval | None) -> str:
    """A difference of accuracies with its interval, in points."""
    if value is None:
        return ""
    ends = f" ({100 * value.low:.1f} to {100 * value.high:.1f})" if math.isfinite(value.high) else ""
    return f"{100 * value.mean:.1f}{ends}"


def budgets(search: Measured) -> list[str]:
    """What each rung spends, as a sentence."""
    found = []
    for number in range(search.rungs):
        rung = search.rung(number)
        trained = ", LearnedRestorer among the adaptive attacks" if rung.restorer else ""
        passes = f"{search.local_epochs} pass{'' if search.local_epochs == 1 else 'es'}"
        found.append(
            f"Rung {number + 1}: {count(rung.rounds, 'round')} of {passes}, "
            f"{rung.images * search.num_clients} attacked images{trained}."
        )
    return found


def plane(shown: Sequence[tuple[str, str, float, float]]) -> Markup | str:
    """Accuracy against the share of recovered images; (hybrid, origin, accuracy, share) of each."""
    if not shown:
        return ""
    with style():
        canvas = Canvas(WIDTH, HEIGHT)
        across, up = bounds([one[2] for one in shown], least=0.05), (-0.05, 1.05)
        canvas.axes.set(xlim=across, ylim=up)
        canvas.titles("accuracy on clean images", "share of recovered images")
        canvas.ticks(8, 6, plain, plain)
        for origin, (shape, colour, hollow) in LOOKS.items():
            canvas.marks([
                Mark(x, y, shape, colour, f"{hybrid or 'none'} ({of}): {percent(x)}, {percent(y)} recovered", hollow, 9.0)
                for hybrid, of, x, y in shown
                if of == origin
            ])  # fmt: skip
        known = {of for _, of, _, _ in shown}
        canvas.legend([
            (NAMES[origin], Mark(0, 0, *LOOKS[origin][:2], "", LOOKS[origin][2], 9.0)) for origin in LOOKS if origin in known
        ])  # fmt: skip
        return canvas.svg("Accuracy and share of recovered images")


BODY = """
<p class="kicker">fedveil search --objective measured</p>
<h1>{{ headline }}</h1>
<p class="facts">ATS on {{ search.dataset }} with {{ search.model }}, seed {{ search.seed }}.
{% for line in sentences %}{{ line }} {% endfor %}</p>
<section id="held-out"><header><h2>On held-out images</h2><p>{{ definition }} Each hybrid was trained with and attacked on images
and seeds that the search did not use. Intervals are 95 %. Those of accuracies are over seeds (Student's t), and never narrower than
one seed's test images allow, because all seeds share them. Those of shares are over images (Clopper-Pearson) or over seeds
(Student's t); each end is that of the wider one. Images of one seed share its model.
{% if random %}Controls are random hybrids, and none of them was chosen. The difference from them has the wider of two intervals
likewise: over images and random hybrids, and over seeds.{% endif %}</p></header>{{ held_out }}
{{ table('Held out') }}
{{ head(['Policies', 'Origin', '#Accuracy', '#Points lost', '#Recovered', '#Share', '#Gain, dB']) }}
<tbody>
{% for one in found.held_out %}
<tr><td>{{ one.hybrid or "none" }}</td><td>{{ origin_of(one) }}</td>{{ number(spanned(one.accuracy)) }}
{{ number(lost_points(one.lost)) }}
{{ number(one.recovered ~ " of " ~ one.attacked) }}{{ number(spanned(one.share)) }}{{ number("%.1f"|format(one.gain.mean)) }}</tr>
{% endfor %}
</tbody></table></div>
{% for one in found.failed %}<p>{{ one.hybrid or "none" }}, seed {{ one.seed }}, failed: {{ one.failure }}</p>{% endfor %}
</section>
<section id="front"><header><h2>The front of the search</h2><p>Hybrids that reached the last rung, on the images of the search. A
hybrid is on the front if no other is at least as good in accuracy, share of recovered images and gain over the null baselines, and
better in one of them. The chosen one has the lowest share of recovered images, plus the accuracy lost beyond
{{ "%g"|format(100 * search.tolerated) }} points over {{ "%g"|format(100 * search.exchange) }} points.
The best of many looks better here than it is: the table above corrects that.</p></header>{{ chosen }}
{{ table('All hybrids') }}
{{ head(['Policies', 'Origin', 'Front', '#Rungs', '#Accuracy', '#Recovered', '#Gain, dB', 'Strongest attack']) }}
<tbody>
{% for one in found.chosen_among %}
<tr><td>{{ one.hybrid or "none" }}</td><td>{{ origin_of(one) }}</td>
<td>{{ "yes" if one.hybrid in on_front and one.complete else "" }}</td>
{{ number(one.rungs|length) }}
{% if one.failure or not one.rungs %}<td colspan="4">failed: {{ one.failure }}</td>
{% else %}{{ number(as_percent(one.last.accuracy)) }}{{ number(one.last.recovered ~ " of " ~ one.last.attacked) }}
{{ number("%.1f"|format(one.last.gain)) }}<td>{{ one.last.strongest }}</td>{% endif %}</tr>
{% endfor %}
</tbody></table></div></section>
<section id="budgets"><header><h2>Budgets</h2><p>{% for line in budgets %}{{ line }} {% endfor %}A hybrid
goes on to the next rung if it is among the best one in {{ search.reduction }} of those that have ended this one so far. So more of
the first ones go on. Their order is random. With several processes it also depends on their speed. A hybrid
that went on to no later rung is not on the front, although a longer training might have put it there.</p></header></section>
<section id="settings"><header><h2>Settings</h2><p>The search judged for {{ "%.0f"|format(found.seconds) }} s: the sum of all
judgements, of which several run at once.</p></header>
{{ pairs(search.to_mapping(), 'Settings') }}</section>
"""
