"""Writes benchmarks/results/paper_tables.md from the claims and the small files of finished runs.

python benchmarks/paper_tables/write.py
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import catalogue
import records
from catalogue import Paper, Table
from verdict import CONFIRMED, NOT_YET, OPEN, REFUTED, Judged, favoured, judged, overall

PAGE = records.FOLDER.parent / "paper_tables.md"
RUN = "python benchmarks/paper_tables/run.py"
STAR = "*"
"""Marks a claim whose number another command repeats."""
HEAD = """# Claims of four papers

Part of the [measured results](../../docs/findings.md), which name the machine. `python benchmarks/paper_tables/write.py` writes
this page from the claims (`benchmarks/paper_tables/claims`) and the rows of finished runs (`benchmarks/results/paper_tables`)."""
RULE = """## The rule

A claim is **confirmed** if the 95 % interval of the compared number lies wholly on the claimed side, **refuted** if it lies wholly
on the other side, and **open** otherwise. An open claim without a reason in brackets has its bound inside the interval. Verdicts
are about the networks and data named here. A confirmed claim about a weak attack is no protection.

- **Seeds.** Fewer than three seeds decide nothing. In brackets stands what the interval alone would say.
- **Convergence.** A claim about accuracy after training is decided only if no accuracy in it changed by more than one point over
  the last quarter of the rounds, in the mean over seeds. Earlier numbers do not show that.
- **Every network** that was measured is in a mean.
- **Size.** A bound that the paper gives for images of another size decides nothing.
- **Interval.** Over several seeds it is Student's t, paired by seed. All seeds have the same test images: an accuracy's interval is
  never narrower than that of one seed's images. With one seed it is the widest that the intervals of the single numbers allow.
  Intervals are not corrected for the number of claims.
- **Earlier numbers** of pages of results stand until the runner has measured the claim with as many seeds.
- **Not-validated** is an attack that fails without a defence, too.
- **Tables and promises.** A table is refuted if any claim is, confirmed if all are, and open otherwise; a promise likewise, by the
  claims with its letter. Controls (the attack works without a defence), configurations beside the paper's method and comparisons of
  ours refute nothing. An unconfirmed control leaves a promise open.
- **Bounds.** Where the paper has words ("hardly", "keeps accuracy"), the bound is ours: 3 points of accuracy, 1 dB, 0.1 of a loss,
  60 % of two classes, 20 % of generated images. "A < B" alone compares the attack's images behind A and behind B, by PSNR or SSIM.
- **Repeating.** Above the claims stand n, seeds and the command, in rows what differs (\\* another command). The runner
  repeats seeds 0 to 2 and rewrites the small files; without names it runs what is left. The comments of `simulations/configs` say
  what differs from the paper."""


def page(found: records.Records) -> str:
    """The whole page."""
    papers = catalogue.papers()
    results = {(paper.name, table.name): judged(table, found) for paper in papers for table in paper.tables}
    parts = [HEAD, counted(papers, results), RULE]
    for paper in papers:
        parts += _paper(paper, {table.name: results[paper.name, table.name] for table in paper.tables})
    return "\n\n".join(parts) + "\n"


def counted(papers: Sequence[Paper], results: Mapping[tuple[str, str], Sequence[Judged]]) -> str:
    """The totals, in which each claim's evidence counts once."""
    own = [of for (_, name), of in results.items() if name.startswith(("Table", "Figure"))]
    words = Counter(overall(of) for of in own)
    better = sum(overall(of) == REFUTED and bool(favoured(of)) for of in own)
    repeats, nothing, absent = (
        sum(len(getattr(one, name)) for one in papers) for name in ("repeats", "nothing", "absent")
    )
    return (
        f"{len(own) + repeats + nothing + absent} tables and figures. {len(own)} have claims of their own: "
        f"{words[CONFIRMED]} confirmed, {words[REFUTED]} refuted"
        f"{f' ({better} of them only in favour of the defence)' if better else ''}, {words[OPEN]} open. "
        f"{repeats} repeat claims of another table or figure. {nothing} have nothing to check, and {absent} cannot be run here."
    )


def _paper(paper: Paper, results: Mapping[str, Sequence[Judged]]) -> Iterator[str]:
    yield f"## {paper.name}"
    yield paper.about
    yield "\n".join(f"- **{key}** {verdict}: {paper.promises[key]}" for key, verdict in promised(paper, results))
    other = {name: f"as {of}" for name, of in paper.repeats.items()} | dict(paper.nothing) | dict(paper.absent)
    rest = [
        f"{', '.join(name for name in other if other[name] == why)} ({why})" for why in dict.fromkeys(other.values())
    ]
    yield f"Without claims of their own: {'; '.join(rest)}."
    for table in paper.tables:
        yield from _table(table, results[table.name], paper)


def promised(paper: Paper, results: Mapping[str, Sequence[Judged]]) -> list[tuple[str, str]]:
    """The paper's promises with their verdicts, by the claims that name them."""
    every = [one for of in results.values() for one in of]
    return [(key, overall([one for one in every if one.claim.promise == key])) for key in paper.promises]


def _table(table: Table, of: Sequence[Judged], paper: Paper) -> Iterator[str]:
    verdict = overall(of)
    better = favoured(of) if verdict == REFUTED else ""
    yield f"### {table.name}: {verdict}{f' (in favour of {better})' if better else ''}"
    ((usual, _),) = Counter(_sample(one) for one in of if one.value is not None).most_common(1) or [((), 0)]
    yield table.says
    repeat = table.command or f"`{' '.join([RUN, *table.runs])}`"
    missing = [paper.runs[run] for run in table.runs if any(one.note == NOT_YET for one in of)]
    cost = f" (about {math.ceil(sum(run.seconds for run in missing) / 60)} minutes a seed)" if missing else ""
    others = dict.fromkeys(one.claim.command for one in of if one.claim.command)
    yield f"{', '.join(usual)}{': ' if usual else ''}{repeat}{cost}{''.join(f'; {STAR} {other}' for other in others)}."
    lines = [_line(one, usual) for one in of]
    widths = [max(len(line[at]) for line in lines) for at in range(2)]
    yield "\n".join(["```text", *(f"{a:{widths[0]}}  {b:{widths[1]}}  {c}" for a, b, c in lines), "```"])


def _line(one: Judged, usual: Sequence[str]) -> tuple[str, str, str]:
    claim = one.claim
    marks = (STAR if claim.command else "") + (f" ({claim.promise})" if claim.promise else "")
    return claim.says + marks, measured(one, usual), word(one)


def measured(one: Judged, usual: Sequence[str] = ()) -> str:
    """The compared number with unit and interval, and with n and seeds that are not the usual ones; "-" for none."""
    if one.value is None:
        return "-"
    unit = f" {one.claim.unit}" if one.claim.unit else ""
    between = "" if one.low is None or one.high is None else f" [{plain(one.low)}, {plain(one.high)}]"
    other = "".join(f"; {part}" for part in _sample(one) if part not in usual)
    return f"{plain(one.value)}{unit}{between}{other}"


def _sample(one: Judged) -> tuple[str, str]:
    seeds = ", ".join(map(str, one.seeds))
    return f"n = {one.n}", "no seeds" if seeds == "-" else f"seed{'s' if len(one.seeds) > 1 else ''} {seeds}"


def word(one: Judged) -> str:
    """The verdict, why it is open, whom a refutation favours, and whether the claim counts."""
    claim = one.claim
    remarks = [
        one.note,
        f"in favour of {claim.favours}" if one.verdict == REFUTED and claim.favours else "",
        "a control" if claim.control else "",
        "beside the paper's method" if claim.variant else "",
        claim.ours,
    ]
    found = "; ".join(filter(None, remarks))
    return one.verdict + (f" ({found})" if found else "")


def plain(value: float) -> str:
    """Three digits or so; no negative zero."""
    value += 0.0
    size = abs(value)
    if size >= 10 or not math.isfinite(value):
        return f"{value:,.0f}" if size >= 1000 else f"{value:.1f}"
    return f"{value:.2f}" if size >= 0.1 else f"{value:.4f}".rstrip("0").rstrip(".")


def main() -> None:
    """Writes the page."""
    PAGE.write_text(page(records.read()), encoding="utf-8")


if __name__ == "__main__":
    main()
