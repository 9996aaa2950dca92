"""The matrix as Markdown: a line for each app, and a list of what failed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

HEAD = (
    "app", "whose", "special", "lines added", "seconds to the page", "attacked", "images attacked", "recovered", "verdict",
    "caveats beside the verdict", "claims true",
)  # fmt: skip

EPSILON = (
    "app", "special", "epsilon claimed of a round", "shown, no assumption", "shown, Gaussian", "canaries", "strongest view",
    "above the claim",
)  # fmt: skip


@dataclass(frozen=True)
class Line:
    """One app.

    Attributes:
        name: Of the app.
        whose: Flower's, or ours.
        special: What is special about it.
        lines: Lines that the audit added.
        seconds: Until the page was there; None without one.
        attacks: Attacks that were scored, and on what.
        attacked: Images, of which ``recovered`` were recovered; None without a count.
        verdict: Of the page.
        caveats: Beside it.
        wrong: Claims of the page that do not hold; None where no page was checked.
        failure: Why there is no page, or what else went wrong.
        epsilon: The cells of ``EPSILON`` from the claim on, where an epsilon was audited.
    """

    name: str
    whose: str
    special: str
    lines: int
    seconds: float | None = None
    attacks: Sequence[str] = ()
    attacked: int | None = None
    recovered: int | None = None
    verdict: str = ""
    caveats: str = ""
    wrong: Sequence[str] | None = None
    failure: str = ""
    epsilon: Sequence[str] = ()

    def cells(self) -> list[str]:
        """As texts."""
        truth = "no page" if self.wrong is None else ("no" if self.wrong else "yes")
        seconds = "no page" if self.seconds is None else f"{self.seconds:.0f}"
        counts = ["none" if one is None else str(one) for one in (self.attacked, self.recovered)]
        texts = [self.name, self.whose, self.special, str(self.lines), seconds, "; ".join(self.attacks) or "nothing"]
        return [*texts, *counts, self.verdict or "none", self.caveats or "none", truth]


def rendered(lines: Sequence[Line], refused: Sequence[tuple[str, str]] = ()) -> str:
    """The table, what failed, and the apps that cannot be audited, each with its reason."""
    rows = [list(HEAD), ["---"] * len(HEAD), *(line.cells() for line in lines)]
    parts = ["\n".join("| " + " | ".join(_cell(one) for one in row) + " |" for row in rows)]
    if audited := [[one.name, one.special, *one.epsilon] for one in lines if one.epsilon]:
        parts.append(
            "\n".join("| " + " | ".join(map(_cell, row)) + " |" for row in (EPSILON, ["---"] * len(EPSILON), *audited))
        )
    if failures := [f"- {one.name}: {text}" for one in lines for text in (*(one.wrong or ()), one.failure) if text]:
        parts.append("Failures and false claims:\n\n" + "\n".join(failures))
    if refused:
        head = "| not audited | reason |\n| --- | --- |\n"
        parts.append(head + "\n".join(f"| {name} | {_cell(why)} |" for name, why in refused))
    return "\n\n".join(parts) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
