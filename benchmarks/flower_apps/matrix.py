"""Audits apps of Flower's own repository, and checks what each page claims against what the clients really held.

Each app is copied from a checkout of Flower and gets other data, as there is no network, and at most ten lines for the audit
(``apps.py``). It runs for one round with two clients in a Flower runtime of its own. A page's counts, scores, originals, verdict
and caveats are then compared with the data that the app was given (``claims.py``). Nothing is fetched.

    python benchmarks/flower_apps/matrix.py CHECKOUT --out FOLDER [--apps quickstart-pytorch,opacus]

The apps' own packages (monai, fastai, wandb, tensorboard) are looked for where Python finds modules.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from apps import APPS, NOT_AUDITED, App
from claims import false_claims, glance_caveats, read_claims
from edits import EditError
from holdings import holdings
from running import CLIENTS, Outcome, run
from table import Line, rendered

from strategies.federated.shown_epsilon import AUDIT, ShownEpsilon

LIMIT = 600.0
"""Seconds after which an app is stopped, unless --limit says otherwise."""


def line_of(name: str, app: App, outcome: Outcome, clients: int = CLIENTS) -> Line:
    """The line of an app that ran, with its page's claims checked."""
    failure = "" if outcome.status == "finished:completed" and outcome.seconds is not None else outcome.status
    failure = "; ".join(dict.fromkeys([*([failure] if failure else []), *outcome.said]))
    known = Line(name, app.origin, app.kind, outcome.lines, outcome.seconds, failure=failure)
    page = outcome.audit / "report.html"
    if not page.is_file():
        return known
    claims, attacks = read_claims(page), attacks_in(outcome.audit)
    # A page without a score assumes nothing.
    wrong = false_claims(outcome.audit, claims, holdings(app, clients), app.mentions if attacks else ())
    return Line(
        name, app.origin, app.kind, outcome.lines, outcome.seconds, attacks, claims.attacked,
        claims.recovered, claims.verdict, glance_caveats(page), wrong, failure, epsilon_in(outcome.audit),
    )  # fmt: skip


def attacks_in(folder: Path) -> list[str]:
    """The attacks that were scored, each with the kind of message."""
    found: dict[str, None] = {}
    for text in (folder / "rows.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(text)
        if row["role"] == "attack" and row["metric"] in ("psnr", "label-accuracy") and row["value"] is not None:
            found[f"{row['attack'].split('(')[0]} on {row['card']['observation']}"] = None
    return list(found)


def audited_epsilon(folder: Path) -> ShownEpsilon | None:
    """The audited epsilon in the rows of a folder; None where none was audited."""
    rows = map(json.loads, (folder / "rows.jsonl").read_text(encoding="utf-8").splitlines())
    return next((found for row in rows if (found := ShownEpsilon.from_json(row.get(AUDIT))) is not None), None)


def epsilon_in(folder: Path) -> list[str]:
    """The audited epsilon: claim, both bounds, canaries, the strongest view, and the views that refute the claim."""
    shown = audited_epsilon(folder)
    if shown is None:
        return []
    claimed, plain, gaussian = (f"{one:.2f}" for one in (shown.claimed, shown.plain, shown.gaussian))
    pooled = str(max(one.canaries for one in shown.parts))
    return [claimed, plain, gaussian, pooled, shown.part, ", ".join(shown.refuted_by) or "none"]


def refusals(checkout: Path) -> list[tuple[str, str]]:
    """The apps that cannot be audited, with the reason; the reason is checked against their code."""
    found = []
    for folder, (pattern, why) in NOT_AUDITED.items():
        code = "\n".join(path.read_text(errors="replace") for path in sorted((checkout / folder).rglob("*.py")))
        found.append((folder, why if re.search(pattern, code) else f"{why} (its code no longer says so)"))
    return found


def audit_all(checkout: Path, out: Path, names: Sequence[str], limit: float) -> list[Line]:
    """Run the named apps one after the other."""
    lines = []
    for name in names:
        scratch = out / "apps" / name
        scratch.mkdir(parents=True)
        try:
            line = line_of(name, APPS[name], run(APPS[name], checkout, out, scratch, limit))
        except EditError as error:
            line = Line(name, APPS[name].origin, APPS[name].kind, 0, failure=f"the edits do not fit: {error}")
        print(" | ".join(line.cells()), line.failure, *(line.wrong or ()), flush=True)
        lines.append(line)
        (out / "matrix.md").write_text(rendered(lines, refusals(checkout)), encoding="utf-8")
    return lines


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="a checkout of github.com/adap/flower")
    parser.add_argument("--out", type=Path, required=True, help="a new folder: matrix.md, and each app with its audit")
    parser.add_argument("--apps", default=",".join(APPS), help="names, separated by commas")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds after which an app is stopped")
    given = parser.parse_args()
    names = given.apps.split(",")
    if unknown := [name for name in names if name not in APPS]:
        sys.exit(f"--apps names {', '.join(unknown)}; allowed: {', '.join(APPS)}")
    if not (given.checkout / "examples").is_dir():
        sys.exit(
            f"CHECKOUT is {given.checkout}, which has no folder examples; expected a checkout of Flower's repository"
        )
    if given.out.exists():
        sys.exit(f"--out is {given.out}, which exists; name a new folder")
    lines = audit_all(given.checkout.resolve(), given.out.resolve(), names, given.limit)
    print("\n" + rendered(lines, refusals(given.checkout)))
    sys.exit(any(line.wrong for line in lines))


if __name__ == "__main__":
    main()
