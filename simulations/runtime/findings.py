"""Findings of finished runs, as the terminal shows them."""

from collections.abc import Iterator

from simulations.console.terminal import Terminal
from simulations.report.analysis.finding import Finding
from simulations.report.analysis.run import ReadRun
from simulations.report.text import two


def print_read(console: Terminal, read: ReadRun, title: str = "") -> None:
    """Print what one run, or several read as one, found in each study, with a title above and the notes that a reader needs."""
    for summary in read.summaries:
        if names := " · ".join(filter(None, [title, *(summary.study.words if len(read.summaries) > 1 else ())])):
            console.say(f"\n{names}")
        for said in filter(None, [*summary.said, summary.recommendation]):
            console.say(f"\n{said}")
        console.say("")
        for finding in summary.findings:
            console.say(summary.name(finding))
            for said in _of(finding):
                console.say(f"  {said}")
        for said in summary.notes:
            console.say(f"\n{said}")


def _of(finding: Finding) -> Iterator[str]:
    """What is said of a defence below its name."""
    for message in finding.every_message:
        yield message.text
        if message.difference:
            yield f"    {message.difference.text}"
    yield from costs(finding)


def costs(finding: Finding) -> Iterator[str]:
    """Accuracy and epsilon under a defence, and what an app claims of them."""
    if accuracy := finding.accuracy.text or (finding.reported and finding.reported.text):
        yield f"accuracy: {accuracy}"
    if budget := finding.budget:
        number = [two(budget.spent)] if budget.spent is not None else []
        yield f"epsilon: {', '.join([*number, *budget.lines])}"
        yield from filter(None, (budget.text, budget.audit))
    yield from (claim.text for claim in finding.claims)
