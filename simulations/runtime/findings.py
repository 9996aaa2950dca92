"""Findings of finished runs, as the terminal shows them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from simulations.console.terminal import Terminal
from simulations.report.analysis.outcome import Finding, outcomes
from simulations.report.analysis.run import ReadRun, read_run
from simulations.report.analysis.sentences import in_plain_words, notes, recommendation
from simulations.report.studies.plain import plain_words_of
from simulations.report.text import percent, percentage, two, within


def print_findings(console: Terminal, directory: Path) -> None:
    """Print what was found in each study of a run, and below it the notes that a reader needs."""
    print_read(console, read_run(directory))


def print_read(console: Terminal, read: ReadRun, title: str = "") -> None:
    """Print one run, or several read as one, with a title over each study."""
    for study in read.studies:
        lines, plain = list(read.lines(study)), plain_words_of(study.rows)
        if names := " · ".join(filter(None, [title, *(study.words if len(read.studies) > 1 else ())])):
            console.say(f"\n{names}")
        for said in filter(None, [*in_plain_words(lines, plain), recommendation(lines)]):
            console.say(f"\n{said}")
        console.say("")
        for one in outcomes(lines):
            console.say(one.defense or plain.name.lower())
            for said in _of(one):
                console.say(f"  {said}")
        for said in notes(lines, plain.name.lower()):
            console.say(f"\n{said}")


def _of(one: Finding) -> Iterator[str]:
    """What is said of a defence below its name."""
    for message in one.messages:
        yield ": ".join(filter(None, (message.title, message.text)))
        if message.difference:
            yield f"    {message.difference.text}"
    if one.accuracy:
        ends = within(one.accuracy.low, one.accuracy.high, percentage)
        change = ", ".join(filter(None, (one.accuracy.change_text, one.accuracy.note)))
        yield (
            f"accuracy: {percent(one.accuracy.mean)}"
            + (f" ({ends} %)" if ends else "")
            + (f", {change}" if change else "")
        )
    elif one.reported:
        yield f"accuracy: {one.reported.text}"
    if one.epsilon:
        number = [two(one.epsilon.spent)] if one.epsilon.spent is not None else []
        yield f"epsilon: {', '.join([*number, *one.epsilon.lines])}"
        yield from filter(None, (one.epsilon.text, one.epsilon.audit))
    yield from (claim.text for claim in one.claims)
