"""How often the audit of DP-SGD by canary gradients refutes a correct DP-SGD, and each one with a planted bug.

    python benchmarks/dp_audit/planted_bugs.py --seeds 20

One line a claim, defence and number of runs: bounds of 95 % confidence for both together (mean, and smallest to largest over seeds)
and the share of audits whose bound exceeds the claim. For the correct one that is the rate of false alarms.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any

import torch
from broken import BROKEN, PrivateDivisor

from attacks.dp_audit.gradient_canaries import audit_dp_sgd
from defenses.neighbours import ADD_OR_REMOVE, REPLACE_ONE
from defenses.training.dp_sgd import DPSGD

CLAIMS: Sequence[tuple[dict[str, Any], int, Sequence[int]]] = (
    ({"target_epsilon": 1.0}, 1, (16,)),
    ({"target_epsilon": 2.0}, 1, (4, 16)),
    ({"target_epsilon": 8.0}, 1, (16,)),
    ({"target_epsilon": 2.0}, 2, (16,)),
    ({"target_epsilon": 2.0, "neighbours": ADD_OR_REMOVE, "sample_rate": 0.5}, 2, (16,)),
)
"""Settings of DP-SGD, steps of a round, and numbers of runs."""

Found = tuple[float, float, bool]


def audited(kind: type[DPSGD], settings: dict[str, Any], steps: int, runs: int, seed: int) -> Found:
    """Both bounds of one audit, and whether the claim is refuted."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    found = audit_dp_sgd(kind(**settings), steps=steps, runs=runs, seed=seed)
    return found.shown.epsilon, found.shown_gaussian.epsilon, found.refuted


def lines(seeds: int, correct: int, workers: int) -> Iterator[str]:
    """The table, a line as soon as it is known."""
    yield "| claimed epsilon | neighbours | sample rate | defence | runs | audits | shown | shown, Gaussian | refuted |"
    yield f"|{'---|' * 9}"
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        for settings, steps, budgets in CLAIMS:
            hidden = settings.get("neighbours") == ADD_OR_REMOVE
            for runs in budgets:
                for kind in (DPSGD, *BROKEN):
                    if kind is PrivateDivisor and not hidden:
                        continue  # n is public
                    drawn = range(correct if kind is DPSGD and not hidden else seeds)
                    found = list(pool.map(partial(audited, kind, settings, steps, runs), drawn))
                    plain, gaussian, refuted = zip(*found, strict=True)
                    cells = (
                        f"{settings['target_epsilon']:g}", settings.get("neighbours", REPLACE_ONE), f"{1 / steps:g}",
                        kind.__name__, str(runs), str(len(found)), spread(plain), spread(gaussian), str(sum(refuted)),
                    )  # fmt: skip
                    yield f"| {' | '.join(cells)} |"


def spread(values: Sequence[float]) -> str:
    """Mean, and smallest to largest."""
    return f"{sum(values) / len(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def main() -> None:
    """Print the table and the time."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=20, help="audits of each planted bug")
    parser.add_argument("--correct", type=int, default=40, help="audits of the correct DP-SGD under replace-one")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    chosen = parser.parse_args()
    started = time.perf_counter()
    for line in lines(chosen.seeds, chosen.correct, chosen.workers):
        print(line, flush=True)
    print(f"\n{time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
