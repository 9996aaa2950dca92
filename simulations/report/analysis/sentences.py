"""What the first screen says in plain words: what leaked from which messages, and which defence the measurements support."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from attacks.metrics.metric import MEMBERSHIP
from simulations.report.analysis.line import Line
from simulations.report.analysis.paired import FEWER
from simulations.report.analysis.verdict import LEAKS, Judged, Verdict, judge
from simulations.report.studies.plain import OWN_CLIENTS, Plain
from simulations.report.studies.rows import grouped
from simulations.report.text import capital, points, short_names, within

NO_CHOICE = "These measurements support no choice of a defence"
MOST_COST = 0.1
"""Fall in accuracy up to which a defence is supported: a model that loses more is another model."""
MOST_EPSILON = 10.0
"""Epsilon up to which a bound stands for an attack that knows the defence: above it a guarantee is weak (Ponomareva et al., "How to
DP-fy ML", 2023)."""
_SAID = {
    Verdict.RECOGNISABLE: "attacks make images recognisable",
    Verdict.IDENTIFIABLE: "attacks identify images",
    Verdict.INFERRED: "attacks infer values",
    Verdict.UNKNOWN: "it is unknown what attacks find, for want of a positive control that passed,",
    Verdict.NOTHING: "attacks find no images",
}


def sentence(line: Line) -> str:
    """What was found under one defence, without its name: a clause for each kind and size of message.

    Never says that something is private: an attack that fails shows only that this attack fails.
    """
    if not line.judged:
        if line.cells:
            return "No attack on the images has a score, so nothing is known about them."
        if line.bounds:
            return (
                f"Only attacked with what no server has ({'; '.join(line.bounds)}), which says nothing of one that can."
            )
        apart = " and ".join(line.apart)
        return f"Attacked only {apart}, which sections of their own describe." if apart else "Not attacked yet."
    return " ".join(f"{capital(': '.join(filter(None, (one.title, _found(one)))))}." for one in line.judged)


def _found(one: Judged) -> str:
    found = one.found
    by = f", by {one.cell.attack}" if one.cell and one.verdict in LEAKS else ""
    return one.verdict + (f", {found[0]} of {found[1]} images" if found else "") + by


def in_plain_words(lines: Sequence[Line], plain: Plain = OWN_CLIENTS) -> list[str]:
    """What attacks found, a sentence for each kind and size of message: real ones first, then the smallest request."""
    names = short_names([line.defense for line in lines if line.defense])
    titles = grouped(
        ((one, line) for line in lines for one in line.judged),
        lambda pair: (pair[0].real, pair[0].message, pair[0].title),
    )
    if not titles:
        return list(dict.fromkeys(sentence(line) for line in lines))
    asked = [of for (real, _, _), of in titles.items() if not real]
    shown = [of for (real, _, _), of in titles.items() if real] + asked[:1]
    return [_told(of, names, plain) for of in shown]


def _told(of: Sequence[tuple[Judged, Line]], names: dict[str, str], plain: Plain) -> str:
    words = grouped(of, lambda pair: pair[0].verdict)
    parts = []
    for verdict in sorted(words, key=list(Verdict).index):
        under = [
            (f"under {names[line.defense]}" if line.defense else plain.without)
            + (f" ({one.found[0]} of {one.found[1]})" if one.found and verdict in LEAKS else "")
            for one, line in words[verdict]
        ]
        parts.append(f"{_SAID[verdict]} {listed(under)}")
    first = of[0][0]
    start = " ".join(
        filter(
            None,
            (
                "from",
                "real" if first.real else "",
                _several(first.message or "message"),
                f"of {first.size}" if first.size else "",
            ),
        )
    )
    return f"{capital(start)}, {'; '.join(parts)}."


def _several(name: str) -> str:
    return name if name.endswith(("s", "data")) else f"{name}s"


def listed(words: Sequence[str]) -> str:
    """Words in a row: ``a, b and c``."""
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1]))) if words else ""


def recommendation(lines: Sequence[Line]) -> str:
    """Which defence the measurements support, or that they support none.

    The rule: attacks find images without a defence. Under the defence, attacks find nothing in any message; where they found
    images without it, the difference is beyond chance; an attack that knows the defence was tried, or an epsilon of at most
    ``MOST_EPSILON`` bounds all attacks; and accuracy falls by at most ``MOST_COST``, by the whole interval. Of several such
    defences it is the one that costs least, of those first under which nothing else is inferred (``_inferred``).
    """
    plain = next((line for line in lines if not line.defense), None)
    tested = [line for line in lines if line.defense]
    if plain is None or not tested:
        return ""
    if not plain.judged:
        return f"{NO_CHOICE}: no attack on images has a score without one."
    leaking = [one.title for one in plain.judged if one.verdict in LEAKS]
    if not leaking:
        nothing = all(one.verdict is Verdict.NOTHING for one in plain.judged)
        return f"{NO_CHOICE}: {'attacks find no images' if nothing else 'it is unknown what attacks find'} without one, either."
    able = [line for line in tested if not _lacks(line, leaking)]
    if not able:
        names = short_names([line.defense for line in tested])
        reasons = grouped(((_lacks(line, leaking), names[line.defense]) for line in tested), lambda pair: pair[0])
        said = "; ".join(f"{reason} under {listed([name for _, name in of])}" for reason, of in reasons.items())
        return f"{NO_CHOICE}: {said}."
    able = [line for line in able if not _inferred(line)] or able
    best = max(able, key=lambda line: line.change.mean or 0.0 if line.change else 0.0)
    ends = within(best.change.low, best.change.high, points) if best.change else ""
    cost = f"accuracy changes by {points(best.change.mean)} points ({ends})" if best.change else ""
    others = f", the least of the {len(able)} defences under which that holds" if len(able) > 1 else ""
    found = f"These measurements support {best.defense}: attacks find no images under it, and {cost}{others}."
    if inferred := _inferred(best):
        return f"{found} This rests on images alone: attacks infer {inferred} under it."
    known = any(cell.mean(*MEMBERSHIP.decides) is not None for cell in best.cells)
    return f"{found} {'Nor do attacks infer members.' if known else 'This rests on images alone: membership was not tested.'}"


def _inferred(line: Line) -> str:
    """What attacks infer under a defence besides images; "" for nothing."""
    attribute = line.attributes is not None and judge([line.attributes])[0].verdict is Verdict.INFERRED
    members = any(cell.tells_members for cell in line.cells)
    return listed([*(["members"] if members else []), *(["an attribute"] if attribute else [])])


def _lacks(line: Line, leaking: Iterable[str]) -> str:
    """What a defence lacks for a recommendation, behind which its name stands; "" where it lacks nothing."""
    if any(one.verdict in LEAKS for one in line.judged):
        return "attacks still find images"
    if not line.judged or any(one.verdict is Verdict.UNKNOWN for one in line.judged):
        return "it is unknown what attacks find"
    by_title = line.differences
    if any(title not in by_title or by_title[title].word != FEWER for title in leaking):
        return "too few images or messages were attacked to tell the difference to no defence"
    bounded = line.epsilon is not None and line.epsilon <= MOST_EPSILON
    if not bounded and not all(one.title in line.adaptive for one in line.judged if one.title in leaking):
        above = line.epsilon is not None and math.isfinite(line.epsilon)
        weak = f", and an epsilon above {MOST_EPSILON:g} bounds little" if above else ""
        return f"no attack that knows the defence was tried{weak}"
    if line.change is None or line.change.low is None:
        return "the cost in accuracy was not measured"
    return f"accuracy may fall by more than {100 * MOST_COST:.0f} points" if line.change.low < -MOST_COST else ""


def notes(lines: Sequence[Line], plain: str) -> list[str]:
    """Caveats behind the defences that have them: those of several are said once."""
    named = [(caveat, line.defense or plain) for line in lines for caveat in line.all_caveats]
    return [
        f"{listed([name for _, name in of])}: {caveat}" for caveat, of in grouped(named, lambda pair: pair[0]).items()
    ]
