"""Writes benchmarks/results/paper_tables.md from the catalogue and the small files of finished runs.

python benchmarks/paper_tables/write.py
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import catalogue
import records
from entry import Claim, Entry, Quoted, Run
from verdict import CONFIRMED, NOT_RUN, NOTHING, OPEN, REFUTED, Judged, judged, verdict_on

sys.path.append(str(Path(__file__).resolve().parents[1]))
from audit_tables import table

PAGE = records.FOLDER.parent / "paper_tables.md"
PERCENT = ("test-accuracy", "attribute-accuracy", "recognition", "membership-tpr")
DIGITS = {
    "psnr": 1,
    "psnr-paper": 1,
    "ssim": 2,
    "ms-ssim": 2,
    "membership-auc": 3,
    "test-loss": 2,
    "mse-embedding": 3,
    "privacy-score": 3,
}
NAMES = {
    "psnr": "PSNR, dB",
    "psnr-paper": "PSNR in the paper's convention, dB",
    "ssim": "SSIM",
    "ms-ssim": "MS-SSIM",
    "test-accuracy": "accuracy, %",
    "attribute-accuracy": "the adversary's accuracy, %",
    "recognition": "recognised, %",
    "membership-auc": "AUC of membership",
    "test-loss": "loss on test images",
    "mse-embedding": "MSE of embeddings",
    "privacy-score": "S_pri",
    "edge-macs": "multiply-accumulates of the client half",
    "edge-training-macs": "multiply-accumulates of the client half in training",
    "edge-parameters": "parameters of the client half",
    "edge-peak-bytes": "bytes of the client half at the peak",
}
INTRODUCTION = """# Every table and figure of the four papers

Part of the [measured results](../../docs/findings.md), which name the machine.

Each table and figure of the four papers has a line here. Where something runs, the claims of the table are comparisons of numbers
of a run at a small size. A claim is **confirmed** where the 95 % interval of the compared number lies wholly on the claimed side,
**refuted** where it lies wholly on the other side, and **open** else. With two seeds or more the interval of a run is Student's
t over the seeds, paired by seed. Where all seeds test the same images (accuracies, replies to queries), it is never narrower than
the intervals of one seed allow: seeds that agree say nothing of other images. With one seed it is the widest that the intervals of
the single numbers allow. It holds for other images then, not for other weights or data. Numbers of earlier pages keep the intervals
of these pages. Where such a page has only the intervals of the two compared means, the widest difference that they allow stands
here, unpaired. A number of an earlier page decides a claim until a run has measured the same claim with as many seeds.

A claim is also open where an attack is not validated, which is to fail without a defence, too, or is under-powered, which is to
have fewer than 16 images. The claim that an attack works without a defence is that control itself, and its interval alone
decides it. A claim with a seed without a number is open. A table is refuted if any claim is, confirmed if all are, and open else.
Tables have up to 15 claims, and intervals are not corrected for their number. If 15 independent quantities lay exactly at their
bounds, one such table in three would have a claim refuted by chance.

PSNR of ATS is to the transformed image, the paper's measure; without a policy that is the original.

A picture of a table, or a figure of the same numbers, has the word of that table and is not counted again. Drawings, lists of
settings and pictures without a number have nothing to check.

A verdict is about our small networks and data, not about the paper's own numbers. "Confirmed" of a weak attack is no protection:
where a stronger attack breaks the defence, the line links the result. The comments of a configuration in `simulations/configs`
say what differs from the paper: mostly digits, garments and tiles of photographs for faces, CIFAR and ImageNet, and short training.

`python benchmarks/paper_tables/run.py --out FOLDER --hours 4` runs what is left. `python benchmarks/paper_tables/write.py` writes
this page."""


def page(found: records.Records) -> str:
    """The whole page."""
    results = {entry.title: judged(entry, found) for entry in (*catalogue.ENTRIES, *catalogue.BEYOND)}
    counted = _counted(results)
    parts = [INTRODUCTION, "## Summary", counted, table(*_summary(results, found))]
    for entry in (*catalogue.ENTRIES, *catalogue.BEYOND):
        parts += _detail(entry, results[entry.title], found)
    return "\n\n".join(parts) + "\n"


def _counted(results: dict[str, list[Judged]]) -> str:
    """The totals, in which each claim's evidence counts once."""
    own = [entry for entry in catalogue.ENTRIES if not entry.repeats]
    words = Counter(verdict_on(entry, results[entry.title]) for entry in own)
    judged_here = [words[word] for word in (CONFIRMED, REFUTED, OPEN)]
    return (
        f"{len(catalogue.ENTRIES)} tables and figures. {sum(judged_here)} have claims of their own: {judged_here[0]} confirmed, "
        f"{judged_here[1]} refuted, {judged_here[2]} open. {len(catalogue.ENTRIES) - len(own)} repeat claims of another table or "
        f"figure. {words[NOTHING]} have {NOTHING}, and {words[NOT_RUN]} {NOT_RUN}."
    )


def _word(entry: Entry, found: Sequence[Judged]) -> str:
    word = verdict_on(entry, found)
    return f"as {entry.repeats} ({word} here)" if entry.repeats else word


def _summary(results: dict[str, list[Judged]], found: records.Records) -> tuple[list[str], list[list[str]]]:
    lines = []
    for entry in (*catalogue.ENTRIES, *catalogue.BEYOND):
        of = results[entry.title]
        name = f"[{entry.name}](#{_anchor(entry)})" if of else entry.name
        lines.append(
            [entry.paper, name, entry.says, _measured(entry, of, found), _word(entry, of), _sentence(entry, of)]
        )
    return ["paper", "table", "claim", "run", "verdict", "why"], lines


def _anchor(entry: Entry) -> str:
    kept = "".join(one for one in entry.title.lower() if one.isalnum() or one in " -")
    return kept.replace(" ", "-")


def _measured(entry: Entry, of: Sequence[Judged], found: records.Records) -> str:
    ran = [one for one in of if one.seeds]
    quoted = [one.claim for one in of if isinstance(one.claim, Quoted)]
    names = [
        ", ".join(f"`{run.name}`" for run in entry.runs if (run.name in found) is there) for there in (True, False)
    ]
    if ran:
        seeds = sorted({seed for one in ran for seed in one.seeds})
        least, most = min(one.n for one in ran), max(one.n for one in ran)
        n = f"{least:,}" if least == most else f"{least:,} to {most:,}"
        left = f"; left to run: {names[1]}" if names[1] else ""
        beside = f"; [earlier results]({entry.page})" if quoted else ""
        return f"{names[0]}; n = {n}; seeds {', '.join(map(str, seeds))}{beside}{left}"
    if quoted:
        n = " and ".join(dict.fromkeys(claim.n or entry.page_n for claim in quoted))
        by = " and ".join(dict.fromkeys(claim.seeds or entry.page_seeds for claim in quoted))
        return f"[results]({entry.page}); n = {n}; seeds: {by}"
    return f"left to run: {', '.join(filter(None, names))}" if entry.runs else "none"


def _sentence(entry: Entry, of: Sequence[Judged]) -> str:
    if entry.why:
        return entry.why
    counts = Counter(one.verdict for one in of)
    are = "is" if counts[REFUTED] == 1 else "are"
    parts = [f"{counts[REFUTED]} of {len(of)} claims {are} refuted, {counts[OPEN]} open."] if len(of) > 1 else []
    for one in [one for one in of if one.verdict == REFUTED][:2]:
        parts.append(f"Refuted: {one.claim.says}")
    if not counts[REFUTED] and (first := next((one for one in of if one.verdict == OPEN), None)):
        parts.append(f"Open{f' ({first.note})' if first.note else ''}: {first.claim.says}")
    if counts[CONFIRMED] == len(of) == 1:
        parts.append(f"Confirmed: {of[0].claim.says}")
    return " ".join([*parts, entry.beyond]).strip()


def _detail(entry: Entry, of: Sequence[Judged], found: records.Records) -> Iterator[str]:
    if not of:
        return
    yield f"## {entry.title}"
    yield entry.says + (f" {entry.beyond}" if entry.beyond else "")
    if entry.runs:
        yield f"Runs: {'; '.join(map(_command, entry.runs))}."
    if entry.repeats:
        yield f"The claims are those of {entry.repeats}, and are counted there."
    if entry.page:
        yield f"Earlier results: [{entry.page.partition('#')[0].rpartition('/')[2]}]({entry.page})."
    yield table(
        ["claim", "compared", "95 % interval", "confirmed if", "n", "seeds", "verdict"],
        [_line(one, entry) for one in of],
    )
    if cells := list(_cells(entry, found)):
        yield table(["number", "defence", "attack", "paper", "ours", "n", "seeds"], cells)


def _command(run: Run) -> str:
    if run.script:
        return f"`python benchmarks/paper_tables/{run.script} --seed N`"
    return " ".join([f"`{run.config}.toml`", *(f"`-s {text}`" for text in run.settings)])


def _line(one: Judged, entry: Entry) -> list[str]:
    claim = one.claim
    scale = claim.scale if isinstance(claim, Claim) else 1.0
    unit = f" {claim.unit}" if claim.unit else ""
    quoted = isinstance(claim, Quoted)
    seeds = claim.seeds or entry.page_seeds if quoted else ", ".join(map(str, one.seeds))
    n = claim.n or entry.page_n if quoted else f"{one.n:,}"
    ends = "-" if one.low is None or one.high is None else f"{_plain(one.low * scale)} to {_plain(one.high * scale)}"
    return [
        claim.says,
        "-" if one.value is None else f"{_plain(one.value * scale)}{unit}",
        ends,
        f"{claim.side} {_plain(claim.bound * scale)}",
        n if one.value is not None else "-",
        seeds or "-",
        one.verdict + (f" ({one.note})" if one.note else ""),
    ]


def _plain(value: float) -> str:
    """Three digits or so; no negative zero."""
    value += 0.0
    if not math.isfinite(value):
        return str(value)
    size = abs(value)
    return (
        f"{value:,.0f}"
        if size >= 1000
        else f"{value:.1f}"
        if size >= 10
        else f"{value:.2f}"
        if size >= 0.1
        else f"{value:.4f}".rstrip("0").rstrip(".")
    )


def _cells(entry: Entry, found: records.Records) -> Iterator[list[str]]:
    cells = dict.fromkeys(cell for claim in entry.claims for _, cell in claim.terms)
    for cell in cells:
        run = cell.run or entry.runs[0].name
        by_seed = found.get(run, {})
        score = records.score([row for rows in by_seed.values() for row in records.chosen(rows, cell)], cell)
        if score is None or score.mean is None:
            continue
        scale = 100 if cell.metric in PERCENT else 1
        digits = 1 if cell.metric in PERCENT else DIGITS.get(cell.metric, 0)
        ends = (
            ""
            if score.low is None or score.high is None
            else f" ({scale * score.low:,.{digits}f} to {scale * score.high:,.{digits}f})"
        )
        status = "" if score.status == "ok" else f", {score.status}"
        where = [
            f"round {cell.at}" if isinstance(cell.at, int) else f"{cell.at} round" if cell.at == "first" else "",
            cell.cut,
            "" if run == entry.runs[0].name else f"run `{run}`",
        ]
        name = ", ".join([NAMES.get(cell.metric, cell.metric), *filter(None, where)])
        yield [
            name,
            f"`{cell.defense}`" if cell.defense else "none",
            f"`{cell.attack}`" if cell.attack else "-",
            cell.paper or "-",
            f"{scale * score.mean:,.{digits}f}{ends}{status}",
            f"{score.n:,}",
            ", ".join(map(str, score.by_seed)),
        ]


def main() -> None:
    """Writes the page."""
    PAGE.write_text(page(records.read()), encoding="utf-8")


if __name__ == "__main__":
    main()
