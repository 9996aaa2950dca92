"""What the first screen says in plain words: what leaked from which messages, and which defence the measurements support."""

import math
from collections.abc import Iterable, Mapping, Sequence

from attacks.metrics.metric import MEMBERSHIP
from simulations.report.analysis.finding import Finding
from simulations.report.analysis.message import LEAKS, Message, Place, Verdict
from simulations.report.analysis.paired import FEWER
from simulations.report.studies.plain import OWN_CLIENTS, Plain
from simulations.report.studies.rows import grouped
from simulations.report.text import capital, points, short_names, two

NO_CHOICE = "These measurements support none of the defences"
MOST_COST = 0.1
"""Fall in accuracy up to which a defence is supported: a model that loses more is another model."""
MOST_EPSILON = 1.0
"""Epsilon up to which a bound stands for an attack that knows the defence: it multiplies the chance of any guess by at most
e^epsilon, 2.7, but for delta."""
_SAID = {
    Verdict.RECOGNISABLE: "attacks make images recognisable",
    Verdict.IDENTIFIABLE: "attacks identify images",
    Verdict.INFERRED: "attacks infer values",
    Verdict.UNKNOWN: "it is unknown what attacks find, for want of a positive control that passed,",
    Verdict.NOTHING: "attacks find no images",
}


def sentence(finding: Finding) -> str:
    """What was found under one defence, without its name: a clause for each kind and size of message.

    Never says that something is private: an attack that fails shows only that this attack fails.
    """
    if finding.messages:
        by = (f", by {message.attack}" if message.verdict in LEAKS else "" for message in finding.every_message)
        return " ".join(f"{capital(message.text)}{of}." for message, of in zip(finding.every_message, by, strict=True))
    if finding.cells:
        area = finding.membership.scores[MEMBERSHIP.decides] if finding.membership else None
        infer = "infer" if _infers_members(finding) else "are not shown to infer"
        doubts = listed(sorted({cell.card.no_verdict for cell in finding.cells} - {""}))
        infer = f"have no verdict on members ({doubts})" if doubts and infer != "infer" else f"{infer} members"
        said = f"Attacks {infer} (highest AUC: {two(area.mean)}, {area.within(two)}). " if area else ""
        return f"{said}No attack on the images has a score, so nothing is known about them."
    if finding.bounds:
        given = "; ".join(finding.bounds)
        return f"Only attacked with what no server has ({given}), which says nothing of one that can."
    apart = " and ".join(finding.study.apart)
    return f"Attacked only {apart}, which sections of their own describe." if apart else "Not attacked yet."


def in_plain_words(findings: Sequence[Finding], plain: Plain = OWN_CLIENTS) -> list[str]:
    """What attacks found, a sentence for each kind and size of message: real ones first, then the smallest request."""
    every = ((message, finding) for finding in findings for message in finding.messages)
    messages = grouped(every, lambda pair: pair[0].place)
    if not messages:
        return list(dict.fromkeys(map(sentence, findings)))
    names = short_names([finding.defense for finding in findings if finding.defense]) | {"": plain.without}
    asked = [of for of in messages.values() if not of[0][0].real]
    shown = [of for of in messages.values() if of[0][0].real] + asked[:1]
    told = [_told(of, names) for of in shown]
    named = [f"{'under ' if line.defense else ''}{names[line.defense]}" for line in findings if _infers_members(line)]
    return [*told, *([f"Attacks also infer which images were in training {listed(named)}."] if named else [])]


def _told(of: Sequence[tuple[Message, Finding]], names: Mapping[str, str]) -> str:
    words = grouped(of, lambda pair: pair[0].verdict)
    parts = []
    for verdict in sorted(words, key=list(Verdict).index):
        under = [
            ("under " if finding.defense else "")
            + names[finding.defense]
            + (f" ({' of '.join(map(str, message.found))})" if message.found and verdict in LEAKS else "")
            for message, finding in words[verdict]
        ]
        parts.append(f"{_SAID[verdict]} {listed(under)}")
    first = of[0][0]
    name = first.message or "message"
    several = name if name.endswith(("s", "data")) else f"{name}s"
    start = ["From", "real" if first.real else "", several, f"of {first.size}" if first.size else ""]
    start[-1] += "" if first.real else ", which ordinary clients do not answer"
    return f"{' '.join(filter(None, start))}, {'. '.join([parts[0], *map(capital, parts[1:])])}."


def listed(words: Sequence[str]) -> str:
    """Words in a row: ``a, b and c``."""
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1]))) if words else ""


def recommendation(findings: Sequence[Finding]) -> str:
    """Which defence the measurements support, or that they support none.

    The rule: attacks find images without a defence. Under the defence, attacks find nothing in any message; where they found
    images without it, the difference is beyond chance; an attack that knows the defence was tried, or epsilon, of probes with what
    they cost, is at most ``MOST_EPSILON``; and accuracy falls by at most ``MOST_COST``, by the whole interval. Of several such
    defences it is the one that costs least, of those first under which nothing else is inferred (``_inferred``).
    """
    plain = next((finding for finding in findings if not finding.defense), None)
    tested = [finding for finding in findings if finding.defense]
    if plain is None or not tested:
        return ""
    if not plain.messages:
        return f"{NO_CHOICE}: no attack on images has a score without one."
    leaking = [message.place for message in plain.messages if message.verdict in LEAKS]
    if not leaking:
        nothing = all(message.verdict is Verdict.NOTHING for message in plain.messages)
        return f"{NO_CHOICE}: {'attacks find no images' if nothing else 'it is unknown what attacks find'} without one, either."
    lacks = grouped(tested, lambda finding: _lacks(finding, leaking))
    if "" in lacks:
        return _supported(lacks[""])
    names = short_names([finding.defense for finding in tested])
    said = [f"{reason} under {listed([names[finding.defense] for finding in of])}" for reason, of in lacks.items()]
    return f"{NO_CHOICE}: {'; '.join(said)}."


def _supported(lacking_nothing: Sequence[Finding]) -> str:
    """The one that costs least among defences that lack nothing."""
    able = [finding for finding in lacking_nothing if not _inferred(finding)] or lacking_nothing
    costs = {finding.defense: finding.accuracy.change for finding in able if finding.accuracy.change}
    name, change = max(costs.items(), key=lambda item: item[1].mean or 0.0)
    cost = f"accuracy changes by {points(change.mean)} points ({change.within(points)})"
    others = f", the least of the {len(able)} defences under which that holds" if len(able) > 1 else ""
    said = f"These measurements support {name}: attacks find no images under it, and {cost}{others}."
    best = next(finding for finding in able if finding.defense == name)
    if inferred := _inferred(best):
        return f"{said} This rests on images alone: attacks infer {inferred} under it."
    known = any(cell.mean(*MEMBERSHIP.decides) is not None for cell in best.cells)
    return f"{said} {'Nor do attacks infer members.' if known else 'This rests on images alone: membership was not tested.'}"


def _inferred(finding: Finding) -> str:
    """What attacks infer under a defence besides images; "" for nothing."""
    attributes = [message for message in finding.every_message if message.verdict is Verdict.INFERRED]
    return listed([*(["members"] if _infers_members(finding) else []), *(["an attribute"] if attributes else [])])


def _infers_members(finding: Finding) -> bool:
    return any(cell.tells_members for cell in finding.cells)


def _lacks(finding: Finding, leaking: Iterable[Place]) -> str:
    """What a defence lacks for a recommendation, behind which its name stands; "" where it lacks nothing."""
    verdicts = {message.verdict for message in finding.messages}
    if verdicts.intersection(LEAKS):
        return "attacks still find images"
    if not verdicts or Verdict.UNKNOWN in verdicts:
        return "it is unknown what attacks find"
    messages = [finding.message(place) for place in leaking]
    if not all(sent and sent.difference and sent.difference.word == FEWER for sent in messages):
        return "too few images or messages were attacked to tell the difference to no defence"
    change = finding.accuracy.change
    if change is None or change.low is None:
        return "the cost in accuracy was not measured"
    if change.low < -MOST_COST:
        falls = "falls" if change.high is not None and change.high < -MOST_COST else "may fall"
        return f"accuracy {falls} by more than {100 * MOST_COST:.0f} points"
    budget, real = finding.budget, all(sent and sent.real for sent in messages)
    epsilon = None if budget is None else budget.spent if real or budget.with_probes is None else budget.with_probes
    if not (epsilon is not None and epsilon <= MOST_EPSILON) and not all(sent and sent.adaptive for sent in messages):
        above = epsilon is not None and math.isfinite(epsilon)
        weak = f", and an epsilon above {MOST_EPSILON:g} bounds little" if above else ""
        return f"no attack that knows the defence was tried{weak}"
    return ""


def notes(findings: Sequence[Finding], plain: str) -> list[str]:
    """Caveats behind the defences that have them, and behind the messages: those of several are said once."""
    named = grouped(
        (((where, caveat), line.defense or plain) for line in findings for where, caveat in line.placed_caveats),
        lambda pair: pair[0],
    )
    return [
        f"{listed([name for _, name in of])}{f' ({where})' if where else ''}: {caveat}"
        for (where, caveat), of in named.items()
    ]
