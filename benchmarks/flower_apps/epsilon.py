"""Claimed and shown epsilon of Flower's example of Opacus, and of variants of it with planted bugs, over several seeds.

The apps are those of the matrix (``private.py``), with nodes in one process in place of Ray. Each seed draws the noise, the
batches, the first weights, and the places and coins of the canaries anew. Nothing is fetched.

    python benchmarks/flower_apps/epsilon.py CHECKOUT --out FOLDER --seeds 3
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from edits import Replace
from matrix import audited_epsilon
from private import CLIENT, PRIVATE
from running import HERE, QUIET, prepared

from simulations.runtime.launch import ROOT
from strategies.federated.shown_epsilon import ShownEpsilon

HEAD = (
    "app", "special", "runs", "epsilon claimed of a round", "shown, no assumption", "shown, Gaussian", "canaries", "refuted",
    "by (runs)",
)  # fmt: skip
ROUNDS = 3


def run(name: str, checkout: Path, scratch: Path, seed: int) -> ShownEpsilon:
    """The audited epsilon of one app and seed; ``RuntimeError`` where the app fails."""
    app = PRIVATE[name]
    seeded = Replace(
        CLIENT, "with_canaries(train_loader, context)", f"with_canaries(train_loader, context, seed={seed})"
    )
    copy, _ = prepared(replace(app, audit=(*app.audit, seeded)), checkout, scratch)
    command = [
        sys.executable,
        str(HERE / "in_process.py"),
        str(copy),
        app.package,
        "--seed",
        str(seed),
        "--rounds",
        str(ROUNDS),
    ]
    done = subprocess.run(
        command, env={**os.environ, **QUIET, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    (scratch / "log.txt").write_text(done.stdout + done.stderr, encoding="utf-8")
    found = audited_epsilon(scratch / "audit") if (scratch / "audit" / "rows.jsonl").is_file() else None
    if found is None:
        raise RuntimeError(f"{name}, seed {seed}: no epsilon was audited; see {scratch / 'log.txt'}")
    return found


def cells(name: str, found: Sequence[ShownEpsilon]) -> list[str]:
    """The line of an app: means over seeds, with the smallest and the largest."""
    refuted = [one for one in found if one.refuted_by]
    views = sorted({view for one in refuted for view in one.refuted_by}, key=lambda view: -_times(view, refuted))
    by = ", ".join(f"{view} ({_times(view, refuted)})" for view in views[:2]) or "none"
    spread = (_spread([getattr(one, of) for one in found]) for of in ("claimed", "plain", "gaussian"))
    pooled = "/".join(sorted({str(max(part.canaries for part in one.parts)) for one in found}))
    return [name, PRIVATE[name].kind, str(len(found)), *spread, pooled, f"{len(refuted)} of {len(found)}", by]


def _times(view: str, refuted: Sequence[ShownEpsilon]) -> int:
    return sum(view in one.refuted_by for one in refuted)


def _spread(values: Sequence[float]) -> str:
    return f"{sum(values) / len(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="a checkout of github.com/adap/flower")
    parser.add_argument("--out", type=Path, required=True, help="a new folder: epsilon.md, and each app with its audit")
    parser.add_argument("--apps", default=",".join(PRIVATE), help="names, separated by commas")
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    names = given.apps.split(",")
    if unknown := [name for name in names if name not in PRIVATE]:
        sys.exit(f"--apps names {', '.join(unknown)}; allowed: {', '.join(PRIVATE)}")
    if given.out.exists():
        sys.exit(f"--out is {given.out}, which exists; name a new folder")
    out, found = given.out.resolve(), dict[str, list[ShownEpsilon]]()
    for seed in range(given.seeds):
        for name in names:
            scratch = out / name / f"seed-{seed}"
            scratch.mkdir(parents=True)
            found.setdefault(name, []).append(run(name, given.checkout.resolve(), scratch, seed))
            rows = [HEAD, ["---"] * len(HEAD), *(cells(one, of) for one, of in found.items())]
            (out / "epsilon.md").write_text("".join(f"| {' | '.join(row)} |\n" for row in rows), encoding="utf-8")
            print(" | ".join(cells(name, found[name])), flush=True)


if __name__ == "__main__":
    main()
