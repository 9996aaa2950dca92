"""How often a federated run with canaries refutes a correct DP-SGD, and each one with a planted bug.

    PYTHONPATH=. python benchmarks/dp_audit/wire_bugs.py --seeds 20

Each line is of runs of ``simulations.audit`` with one seed each: mnist-5k, an MLP of 6,442 weights in six tensors, one thread. The
defences of a setting share the seeds. Bounds hold with 95 % confidence together; cells have the mean over seeds, and the smallest
and the largest. "refuted" counts runs with a bound above the claim, with its exact 95 % interval; of a correct DP-SGD these are
false alarms. "by" names the views that refuted most often.

    PYTHONPATH=. python benchmarks/dp_audit/wire_bugs.py --power --seeds 10

prints bounds and detection over the number of canaries.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from audit_cells import spread
from broken import register

import simulations
from attacks.scoring.roc import binomial_interval
from strategies.federated.shown_epsilon import AUDIT, ShownEpsilon

RUN: dict[str, Any] = {
    "dataset": "mnist-5k", "model": "mlp", "width": 8, "test_limit": 100, "rounds": 4, "num_clients": 24, "local_epochs": 1,
    "batch_size": 512, "learning_rate": 0.1, "momentum": 0.0, "learning_rate_milestones": "", "dp_canaries": 320,
    "probe_attacks": "", "update_attacks": "", "attack_rounds": "", "attack_workers": 0, "adaptive": False,
}  # fmt: skip
LARGE = {"train_limit": 1000, "batch_size": 111, "num_clients": 4, "dp_canaries": 1750}
MANY = {"num_clients": 80, "dp_canaries": 16}
HIDDEN = "noise_multiplier=20.0, neighbours='add-or-remove', sample_rate=1.0"
SETTINGS: dict[str, tuple[Sequence[str], str, dict[str, Any]]] = {
    "4 rounds, full batches": (
        ("DPSGD", "HalfNoise", "BareLayer", "SkippedClip", "ReusedNoise", "ShortAccount"), "target_epsilon=2.0", {},
    ),
    "2 rounds, full batches": (("DPSGD", "ShortAccount"), "target_epsilon=2.0", {"rounds": 2}),
    "96 rounds, one step on an 18th": (
        ("DPSGD", "SameBatch"), "target_epsilon=2.0", {"rounds": 96, "local_steps": 1, **LARGE},
    ),
    "1 round, number hidden": (
        ("DPSGD", "PrivateDivisor", "ClearNumber"), HIDDEN, {"rounds": 1, **MANY},
    ),
    "96 rounds, one step on an 18th, shuffled": (
        ("ShuffledBatches",), "target_epsilon=2.0", {"rounds": 96, "local_steps": 1, **LARGE},
    ),
    "1 round, many clients": (("DPSGD", "ClearStatistics"), "target_epsilon=1.0", {"rounds": 1, **MANY}),
}  # fmt: skip
"""Name -> defences, their arguments, and what differs from ``RUN``."""
POWER = (5, 20, 80, 320)
"""Canaries per client."""
POWER_OF = ("DPSGD", "HalfNoise", "BareLayer")


def audited(
    name: str, kinds: Sequence[str], arguments: str, changes: dict[str, Any], kept: Path | None, seed: int
) -> dict[str, ShownEpsilon]:
    """Name of a defence -> its audit in a run of one seed, which ``kept`` may hold already."""
    for line in kept.read_text(encoding="utf-8").splitlines() if kept and kept.exists() else ():
        if (found := json.loads(line))["name"] == name and found["seed"] == seed:
            return shown_of(found["audits"])
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    register()
    defenses = "; ".join(f"{kind}({arguments})" for kind in kinds)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(None):
        run = simulations.audit(out=Path(folder) / "run", seed=seed, defenses=defenses, **RUN | changes)
        rows = [row for row in run.rows if row.metric == "epsilon-shown"]
    audits = {row.defense.partition("(")[0]: row.extra.get(AUDIT) for row in rows}
    if kept:
        with kept.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"name": name, "seed": seed, "audits": audits}) + "\n")
    return shown_of(audits)


def shown_of(audits: Mapping[str, Any]) -> dict[str, ShownEpsilon]:
    """Audits as objects."""
    found = {kind: ShownEpsilon.from_json(one) for kind, one in audits.items()}
    return {kind: one for kind, one in found.items() if one is not None}


def lines(
    pool: ProcessPoolExecutor,
    named: Mapping[str, tuple[Sequence[str], str, dict[str, Any]]],
    kept: Path | None,
    seeds: int,
) -> Iterator[str]:
    """The table, a setting as soon as it is known."""
    yield "| setting | defence | runs | claimed | shown, no assumption | shown, Gaussian | refuted | 95 % interval | by |"
    yield f"|{'---|' * 9}"
    for name, (kinds, arguments, changes) in named.items():
        runs = list(pool.map(partial(audited, name, kinds, arguments, changes, kept), range(seeds)))
        for kind in kinds:
            found = [run[kind] for run in runs if kind in run]
            refuted = sum(one.refuted for one in found)
            _, low, high = binomial_interval(refuted, len(found))
            by = Counter(part for one in found for part in one.refuted_by)
            cells = (
                *(name, kind, str(len(found)), f"{found[0].claimed:.2f}"),
                *(spread([one.plain for one in found]), spread([one.gaussian for one in found])),
                *(str(refuted), f"{100 * low:.0f} to {100 * high:.0f} %"),
                ", ".join(f"{part} ({count})" for part, count in by.most_common(3)),
            )
            yield f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the table and the time."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=20, help="runs of each setting")
    parser.add_argument("--settings", type=int, nargs="+", default=range(len(SETTINGS)), help="which, from 0")
    parser.add_argument("--power", action="store_true", help="the number of canaries in place of the settings")
    parser.add_argument("--kept", type=Path, help="file of finished runs, which are not repeated")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    chosen = parser.parse_args()
    named = {name: SETTINGS[name] for at, name in enumerate(SETTINGS) if at in chosen.settings}
    if chosen.power:
        named = {
            f"{RUN['num_clients'] * one} canaries": (POWER_OF, "target_epsilon=2.0", {"dp_canaries": one})
            for one in POWER
        }
    started = time.perf_counter()
    with ProcessPoolExecutor(chosen.workers, get_context("spawn")) as pool:
        for line in lines(pool, named, chosen.kept, chosen.seeds):
            print(line, flush=True)
    print(f"\n{time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
