"""Audits apps of Flower's repository, and checks each claim of their pages against the images that clients really held.

Each app is copied from a checkout of Flower and gets other data, as nothing is fetched, and at most ten lines for the audit
(``apps.py``). It runs in a Flower runtime of its own; with ``--in-process`` without Ray, so that a seed repeats its randomness.
Counts, scores, originals, verdict and caveats of its page are then compared with the data that it was given (``claims.py``). Of
apps with canaries the claimed and the shown epsilon are printed. ``quickstart/inverted`` is that of docs/how_to.

    python benchmarks/flower_apps/audit_apps.py CHECKOUT --out FOLDER --apps quickstart-pytorch,opacus
    python benchmarks/flower_apps/audit_apps.py CHECKOUT --out FOLDER --apps opacus/full,opacus/layer --in-process --seeds 3
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import time
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from apps import APPS, App, EditError, apply_all
from claims import Holding, Pictures, read_claims
from datasets import Dataset
from flwr.app import Context, RecordDict
from flwr_datasets.partitioner import IidPartitioner
from offline_data import SEED, arrays

from simulations.runtime.launch import PACKAGES, ROOT, LocalRuntime, Resources
from simulations.runtime.local_grid import LocalGrid
from strategies.federated.shown_epsilon import AUDIT, ShownEpsilon

HEAD = (
    "app",
    "special",
    "seed",
    "lines added",
    "seconds",
    "ended",
    "attacks",
    "found",
    "verdict",
    "epsilon",
    "false claims",
)
QUIET = {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
"""Environment of the apps: they look for nothing in a network."""


def holdings(clients: int) -> dict[int, Holding]:
    """Client -> its images, computed without app and audit: four fifths of an IID share are for training."""
    images, classes = arrays("train")
    found = {}
    for client in range(clients):
        partitioner = IidPartitioner(num_partitions=clients)
        partitioner.dataset = Dataset.from_dict({"at": list(range(len(images)))})
        parts = partitioner.load_partition(client).train_test_split(test_size=0.2, seed=SEED)
        own = [parts[name]["at"][:] for name in ("train", "test")]
        found[client] = Holding(*(of for at in own for of in (images[at] / 255.0, classes[at])))
    return found


def prepare(app: App, checkout: Path, scratch: Path, seed: int) -> int:
    """Write the edited copy of an app, and a copy of fedveil beside which apps write their files; the lines of the audit."""
    copy = scratch / "app"
    shutil.copytree(checkout / app.folder, copy, ignore=shutil.ignore_patterns("_static", "__pycache__"))
    shutil.copy(Path(__file__).with_name("offline_data.py"), copy / app.package)
    for package in PACKAGES:
        shutil.copytree(ROOT / package, scratch / "fedveil" / package, ignore=shutil.ignore_patterns("__pycache__"))
    apply_all(copy, app.variant, "")
    added = apply_all(copy, app.audit, str(scratch / "audit"))
    for path in copy.rglob("*.py"):
        text = path.read_text(encoding="utf-8").replace("@SEED@", str(seed))
        for source, name in (("flwr_datasets", "FederatedDataset"), ("datasets", "load_dataset")):
            text = text.replace(f"from {source} import {name}\n", f"from {app.package}.offline_data import {name}\n")
        path.write_text(text, encoding="utf-8")
    return added


def run(app: App, scratch: Path, seed: int, limit: float, *, in_process: bool) -> str:
    """Run a prepared app for ``limit`` seconds at most; how it ended."""
    config, log = {"num-server-rounds": 1, **app.config}, scratch / "log.txt"
    paths = os.pathsep.join([str(scratch / "fedveil"), os.environ.get("PYTHONPATH", "")])
    if in_process:
        chosen = [str(scratch / "app"), app.package, str(app.clients), str(seed), json.dumps(config)]
        with log.open("w") as file:
            done = subprocess.run(
                [sys.executable, __file__, "--inside", *chosen], env={**os.environ, **QUIET, "PYTHONPATH": paths}, stdout=file,
                stderr=file, timeout=limit, check=False,
            )  # fmt: skip
        return "completed" if done.returncode == 0 else f"code {done.returncode}, see {log}"
    os.environ.update(QUIET, PYTHONPATH=paths)
    with LocalRuntime(log) as runtime:
        process = runtime.start(config, Resources(app.clients), scratch / "app")
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            process.kill()
            return f"stopped after {limit:g} s"
        status = runtime.status()
        return "completed" if status == "finished:completed" else f"{status}, see {log}"


def inside(folder: str, package: str, clients: str, seed: str, config: str) -> None:
    """Run an app in this process; an app's modules can be imported only once."""
    os.chdir(folder)
    sys.path.insert(0, folder)
    random.seed(int(seed))
    np.random.seed(int(seed))
    torch.manual_seed(int(seed))
    own = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["tool"]["flwr"]["app"]["config"]
    chosen = {**own, **json.loads(config)}
    grid = LocalGrid(int(clients), app=import_module(f"{package}.client_app").app, run_config=chosen)
    import_module(f"{package}.server_app").app(grid, Context(1, 1, {}, RecordDict(), chosen))


def epsilon_in(rows: list[dict[str, Any]]) -> str:
    """Claimed and shown epsilon of a run with canaries, and the views that refute the claim."""
    shown = next((found for row in rows if (found := ShownEpsilon.from_json(row.get(AUDIT))) is not None), None)
    if shown is None:
        return "-"
    pooled = max(one.canaries for one in shown.parts)
    refuted = ", ".join(shown.refuted_by) or "nothing"
    return (
        f"claimed of a round {shown.claimed:.2f}, shown {shown.plain:.2f}, if Gaussian {shown.gaussian:.2f}, {pooled} canaries; "
        f"refuted by {refuted}"
    )


def audit(name: str, checkout: Path, scratch: Path, seed: int, limit: float, *, in_process: bool) -> list[str]:
    """The cells of an app; the last is "none" if each claim of its page holds."""
    app = APPS[name]
    scratch.mkdir(parents=True)
    try:
        added = prepare(app, checkout, scratch, seed)
    except EditError as error:
        return [name, app.special, str(seed), "-", "-", f"the edits do not fit: {error}", "-", "-", "-", "-", "no page"]
    start = time.monotonic()
    ended = run(app, scratch, seed, limit, in_process=in_process)
    cells, folder = (
        [name, app.special, str(seed), str(added), f"{time.monotonic() - start:.0f}", ended],
        scratch / "audit",
    )
    if not (folder / "report.html").is_file():
        return [*cells, "-", "-", "-", "-", "no page"]
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text(encoding="utf-8").splitlines()]
    scored = [row for row in rows if row["role"] == "attack" and row["metric"] in ("psnr", "label-accuracy")]
    attacks = dict.fromkeys(f"{row['attack'].split('(')[0]} on {row['card']['observation']}" for row in scored)
    claims = read_claims(folder / "report.html")
    # A page without a score makes no assumption that it must state.
    wrong = Pictures(folder, holdings(app.clients)).false_claims(claims, app.mentions if attacks else ())
    count = f"{claims.found} of {claims.attacked} {claims.of}" if claims.of else "-"
    return [
        *cells,
        "; ".join(attacks) or "-",
        count,
        claims.verdict or "-",
        epsilon_in(rows),
        "; ".join(wrong) or "none",
    ]


def main() -> None:
    """Audit the chosen apps one after the other, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="a checkout of github.com/adap/flower")
    parser.add_argument("--out", type=Path, required=True, help="a new folder: table.md, and each app with its audit")
    parser.add_argument("--apps", default=",".join(APPS), help="names, separated by commas")
    parser.add_argument("--limit", type=float, default=3600.0, help="seconds after which an app is stopped")
    parser.add_argument("--in-process", action="store_true", help="without Ray")
    parser.add_argument("--seeds", type=int, default=1)
    given = parser.parse_args()
    names = given.apps.split(",")
    if unknown := [name for name in names if name not in APPS]:
        parser.error(f"--apps names {', '.join(unknown)}; allowed: {', '.join(APPS)}")
    if not (given.checkout / "examples").is_dir():
        parser.error(
            f"CHECKOUT is {given.checkout}, which has no folder examples; expected a checkout of Flower's repository"
        )
    given.out.mkdir(parents=True)
    rows, out, checkout = [list(HEAD), ["---"] * len(HEAD)], given.out.resolve(), given.checkout.resolve()
    for name in names:
        for seed in range(given.seeds):
            rows.append(audit(name, checkout, out / name / str(seed), seed, given.limit, in_process=given.in_process))
            print(" | ".join(rows[-1]), flush=True)
            text = "".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |\n" for row in rows)
            (out / "table.md").write_text(text, encoding="utf-8")
    sys.exit(any(row[-1] != "none" for row in rows[2:]))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--inside"]:
        inside(*sys.argv[2:])
    else:
        main()
