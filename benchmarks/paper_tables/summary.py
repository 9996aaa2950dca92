"""The page's summary: totals, the papers' main claims, and a line for every table and figure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

import catalogue
from entry import Claim, Entry, Run
from records import Records
from shown import by_seeds, compared, ends, seeds_of, single, units_of, word
from verdict import (
    CONFIRMED,
    NOT_RUN,
    NOT_YET,
    NOTHING,
    OPEN,
    REFUTED,
    Judged,
    counting,
    favoured,
    overall,
    verdict_on,
)

WORST_FIRST = (REFUTED, OPEN, CONFIRMED)
Results = Mapping[str, Sequence[Judged]]
"""Title of an entry -> its judged claims."""


def counted(results: Results) -> str:
    """The totals, in which each claim's evidence counts once."""
    own = [entry for entry in catalogue.ENTRIES if not entry.repeats]
    words = Counter(verdict_on(entry, results[entry.title]) for entry in own)
    judged_here = [words[word] for word in (CONFIRMED, REFUTED, OPEN)]
    better = sum(_word(entry, results[entry.title]).startswith(f"{REFUTED} (") for entry in own)
    return (
        f"{len(catalogue.ENTRIES)} tables and figures. {sum(judged_here)} have claims of their own: {judged_here[0]} confirmed, "
        f"{judged_here[1]} refuted{f' ({better} of them only in favour of the defence)' if better else ''}, "
        f"{judged_here[2]} open. "
        f"{len(catalogue.ENTRIES) - len(own)} repeat claims of another table or figure. "
        f"{words[NOTHING]} have {NOTHING}, and {words[NOT_RUN]} {NOT_RUN}."
    )


def example(of: Sequence[Judged]) -> Judged:
    """A claim with the verdict of its table: the first refuted one, else the first open one with a number, else the first."""
    order = {REFUTED: 0, OPEN: 1, CONFIRMED: 3}
    return min(counting(of), key=lambda one: order[one.verdict] + (one.verdict == OPEN and one.value is None))


def main_claims(results: Results) -> tuple[list[str], list[list[str]]]:
    """What each paper promises, with the claims that decide it; refuted promises first, confirmed ones last."""
    lines = []
    for entry, promise in catalogue.MAIN:
        of = results[entry.title]
        by_name = {one.claim.says: one for one in of}
        decide, beside = ([by_name[says] for says in named] for named in (promise.deciding, promise.beside))
        numbers = (_number(one, entry) for one in [*decide, *beside])
        reason = " ".join([*numbers, f"Size: {promise.size}.", promise.known]).strip()
        where = f" ({promise.where})" if promise.where else ""
        # A control that is not confirmed leaves the promise open: where the attack fails anyway, nothing is shown.
        verdict = overall([*decide, *beside])
        lines.append([f"{entry.paper}: {promise.says}{where}", verdict, reason, tally(of), _link(entry)])
    lines.sort(key=lambda line: WORST_FIRST.index(line[1]))
    return ["what the paper promises", "verdict", "claims that decide it", "all claims of the table", "section"], lines


def tally(of: Sequence[Judged]) -> str:
    """How many of the claims that count have which verdict."""
    own = counting(of)
    words = Counter(one.verdict for one in own)
    return f"{words[REFUTED]} of {len(own)} refuted, {words[CONFIRMED]} confirmed, {words[OPEN]} open"


def _number(one: Judged, entry: Entry) -> str:
    judged_as = f"{word(one)[:1].upper()}{word(one)[1:]}: {one.claim.says}"
    if one.value is None:
        return judged_as
    inner = "; ".join(filter(None, [ends(one), single(one)]))
    between = f" ({inner})" if inner else ""
    return (
        f"{judged_as} Measured: {compared(one)}{between}; n = {units_of(one, entry)}; {by_seeds(seeds_of(one, entry))}."
    )


def every_table(results: Results, found: Records) -> tuple[list[str], list[list[str]]]:
    """A line for each table and figure, those without a claim too."""
    lines = []
    for entry in (*catalogue.ENTRIES, *catalogue.BEYOND):
        of = results[entry.title]
        found_here = _word(entry, of)
        verdict = f"as {entry.repeats} ({verdict_on(entry, of)} here)" if entry.repeats else found_here
        lines.append([entry.paper, _link(entry), entry.says, _measured(entry, of), verdict, _why(entry, of, found)])
    return ["paper", "table", "claim", "measured", "verdict", "why"], lines


def _word(entry: Entry, of: Sequence[Judged]) -> str:
    """The verdict on an entry, with the defence that all of its refutations favour."""
    verdict = verdict_on(entry, of)
    return f"{verdict} (in favour of {better})" if verdict == REFUTED and (better := favoured(of)) else verdict


def _link(entry: Entry) -> str:
    kept = "".join(one for one in entry.title.lower() if one.isalnum() or one in " -").replace(" ", "-")
    return entry.name if entry.why else f"[{entry.name}](#{kept})"


def _measured(entry: Entry, of: Sequence[Judged]) -> str:
    """Least and most units behind the claims of an entry, and all of their seeds; seeds in words where none has a number."""
    measured = [one for one in of if one.value is not None]
    if not measured:
        return "-"
    sizes = {int(size.replace(",", "")) for one in measured for size in re.findall(r"^[\d,]+", units_of(one, entry))}
    size = (
        " to ".join(f"{end:,}" for end in sorted({min(sizes), max(sizes)})) if sizes else units_of(measured[0], entry)
    )
    seeds = sorted({seed for one in measured for seed in seeds_of(one, entry).split(", ")})
    numbers = [seed for seed in seeds if seed.isdigit()]
    return f"n = {size}; {by_seeds(', '.join(numbers or seeds))}"


def _why(entry: Entry, of: Sequence[Judged], found: Records) -> str:
    """One sentence, and a link to a stronger attack where one breaks the defence."""
    if entry.why:
        return entry.why
    if entry.repeats:
        return f"It repeats claims of {entry.repeats}."
    one = example(of)
    stronger = next((link for words, link in catalogue.STRONGER if words in entry.beyond), "")
    return _reason(one, entry, of, found) + (f" Stronger attack: {stronger}." if stronger else "")


def _reason(one: Judged, entry: Entry, of: Sequence[Judged], found: Records) -> str:
    first, own = one.claim.says.rstrip("."), counting(of)
    missing = left_to_run(entry, own, found)
    if verdict_on(entry, of) == CONFIRMED:
        return f"{f'All {len(own)} claims are' if len(own) > 1 else 'Its claim is'} confirmed."
    if one.value is None and missing:
        waiting = sum(each.note == NOT_YET for each in own)
        return f"{waiting} of {len(own)} not run yet ({minutes(missing)} a seed): {first}."
    of_one = sum(each.verdict == one.verdict for each in own) == 1
    shares = tally(of) if len(own) > 1 else one.verdict.capitalize()
    example_of = "" if len(own) == 1 else f" {one.verdict.capitalize()}{'' if of_one else ', for example'}:"
    note = f"; {one.note}" if one.note else ""
    return f"{shares}{'.' if example_of else ':'}{example_of} {first} ({compared(one)}{note})."


def left_to_run(entry: Entry, of: Sequence[Judged], found: Records) -> list[Run]:
    """The runs that claims without a number still need."""
    needed = {
        cell.run or entry.runs[0].name
        for one in of
        if one.note == NOT_YET and isinstance(one.claim, Claim)
        for _, cell in one.claim.terms
    }
    return [run for run in entry.runs if run.name in needed and run.name not in found]


def minutes(runs: Sequence[Run]) -> str:
    """About how long one seed of these runs takes."""
    found = max(1, round(sum(run.seconds for run in runs) / 60))
    return f"about {found} minute{'s' if found > 1 else ''}"
