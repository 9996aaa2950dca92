"""Writes benchmarks/results/paper_tables.md from the catalogue and the small files of finished runs.

python benchmarks/paper_tables/write.py
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import catalogue
import records
from entry import Claim, Entry, Quoted, Run
from introduction import AFTER_MAIN, HEAD, RULE, abbreviations
from shown import compared, ends, plain, seeds_of, single, units_of, word
from summary import counted, every_table, left_to_run, main_claims, minutes
from verdict import Judged, judged, range_of, within

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


def page(found: records.Records) -> str:
    """The whole page."""
    results = {entry.title: judged(entry, found) for entry in (*catalogue.ENTRIES, *catalogue.BEYOND)}
    parts = [HEAD, "## Summary", counted(results), table(*main_claims(results)), AFTER_MAIN]
    parts += ["## Abbreviations", abbreviations(), "## The rule", RULE]
    parts += ["## All tables and figures", table(*every_table(results, found))]
    for entry in (*catalogue.ENTRIES, *catalogue.BEYOND):
        parts += _detail(entry, results[entry.title], found)
    return "\n\n".join(parts) + "\n"


def _detail(entry: Entry, of: Sequence[Judged], found: records.Records) -> Iterator[str]:
    if not of:
        return
    yield f"## {entry.title}"
    yield entry.says + (f" {entry.beyond}" if entry.beyond else "")
    if entry.runs:
        yield f"Runs: {'; '.join(map(_command, entry.runs))}."
    if entry.repeats:
        yield f"The claims are those of {entry.repeats}, and are counted there."
    if missing := left_to_run(entry, of, found):
        yield _left(missing)
    pages = [one.claim.page for one in of if isinstance(one.claim, Quoted)]
    if shown := [page for page in dict.fromkeys([entry.page, *pages]) if page]:
        links = (f"[{page.partition('#')[0].rpartition('/')[2]}]({page})" for page in shown)
        yield f"Earlier results: {', '.join(links)}."
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


def _left(missing: Sequence[Run]) -> str:
    """How to run what claims of a section still need, and about how long that takes."""
    seeds = min(3, *(run.most_seeds for run in missing))
    names = " ".join(run.name for run in missing)
    hours = math.ceil(seeds * sum(run.seconds for run in missing) / 3600)
    numbers = " ".join(map(str, range(seeds)))
    return (
        f"Not run yet: `python benchmarks/paper_tables/run.py --out FOLDER --hours {hours} --only {names} --seeds {numbers}` "
        f"({minutes(missing)} a seed on two cores), then `python benchmarks/paper_tables/write.py`."
    )


def _line(one: Judged, entry: Entry) -> list[str]:
    claim = one.claim
    return [
        claim.says,
        compared(one) + (f" ({by})" if (by := single(one)) else ""),
        ends(one) or "-",
        f"{claim.side} {plain(claim.bound * (claim.scale if isinstance(claim, Claim) else 1.0))}",
        units_of(one, entry) if one.value is not None else "-",
        seeds_of(one, entry) or "-",
        word(one),
    ]


def _cells(entry: Entry, found: records.Records) -> Iterator[list[str]]:
    named = [cell for claim in entry.claims for _, cell in claim.terms]
    # Two claims may read one number, of which only one names the paper's.
    for cell in {replace(cell, paper=""): cell for cell in sorted(named, key=lambda one: bool(one.paper))}.values():
        run = cell.run or entry.runs[0].name
        by_seed = found.get(run, {})
        score = records.score([row for rows in by_seed.values() for row in records.chosen(rows, cell)], cell)
        if score is None or score.mean is None:
            continue
        scale = 100 if cell.metric in PERCENT else 1
        digits = 1 if cell.metric in PERCENT else DIGITS.get(cell.metric, 0)
        low, high = within(score.low, score.high, range_of(cell.metric))
        between = "" if low is None or high is None else f" ({scale * low:,.{digits}f} to {scale * high:,.{digits}f})"
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
            f"{scale * score.mean:,.{digits}f}{between}{status}",
            f"{score.n:,}",
            ", ".join(map(str, score.by_seed)),
        ]


def main() -> None:
    """Writes the page."""
    PAGE.write_text(page(records.read()), encoding="utf-8")


if __name__ == "__main__":
    main()
