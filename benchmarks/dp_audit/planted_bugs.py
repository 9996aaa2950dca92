"""How often the audit of DP-SGD by canary gradients refutes a correct DP-SGD, and each one with a planted bug.

    python benchmarks/dp_audit/planted_bugs.py --seeds 20

One line a claim, defence and budget: both bounds, with 95 % confidence together (mean, and smallest to largest over seeds), and the
number of audits with a bound above the claim. For the correct DP-SGD these are false alarms.
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
from audit_cells import spread
from broken import BareLayer, HalfNoise, PrivateDivisor, SkippedClip

from attacks.dp_audit.gradient_canaries import audit_dp_sgd
from defenses.neighbours import ADD_OR_REMOVE, REPLACE_ONE
from defenses.training.dp_sgd import DPSGD

HIDDEN = {"neighbours": ADD_OR_REMOVE, "sample_rate": 1.0}
CLAIMS: Sequence[tuple[dict[str, Any], dict[str, int]]] = (
    ({"target_epsilon": 1.0}, {"runs": 16}),
    ({"target_epsilon": 2.0}, {"runs": 4}),
    ({"target_epsilon": 2.0}, {"runs": 16}),
    ({"target_epsilon": 8.0}, {"runs": 16}),
    ({"target_epsilon": 2.0}, {"runs": 16, "steps": 2}),
    ({"target_epsilon": 1.0, **HIDDEN}, {"runs": 4, "rounds": 1, "counted": 200}),
    ({"target_epsilon": 1.0, **HIDDEN}, {"runs": 16, "rounds": 1, "counted": 200}),
)
"""Settings of DP-SGD, and the arguments of an audit."""

Found = tuple[float, float, bool]


def audited(kind: type[DPSGD], settings: dict[str, Any], budget: dict[str, int], seed: int) -> Found:
    """Both bounds of one audit, and whether the claim is refuted."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    found = audit_dp_sgd(kind(**settings), seed=seed, **budget)
    return found.shown.epsilon, found.shown_gaussian.epsilon, found.refuted


def lines(claims: Sequence[int], seeds: int, correct: int, workers: int) -> Iterator[str]:
    """The table, a line as soon as it is known."""
    yield "| claimed epsilon | neighbours | budget | defence | audits | shown | shown, Gaussian | refuted |"
    yield f"|{'---|' * 8}"
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        for settings, budget in (CLAIMS[number] for number in claims):
            hidden = "sample_rate" in settings
            words = ", ".join(f"{name} {count}" for name, count in budget.items())
            for kind in (DPSGD, HalfNoise, BareLayer, SkippedClip, PrivateDivisor):
                if kind is PrivateDivisor and not hidden:
                    continue  # n is public
                drawn = range(correct if kind is DPSGD else seeds)
                found = list(pool.map(partial(audited, kind, settings, budget), drawn))
                plain, gaussian, refuted = zip(*found, strict=True)
                facts = (
                    f"{settings['target_epsilon']:g}",
                    settings.get("neighbours", REPLACE_ONE),
                    words,
                    kind.__name__,
                )
                yield f"| {' | '.join((*facts, str(len(found)), spread(plain), spread(gaussian), str(sum(refuted))))} |"


def main() -> None:
    """Print the table and the time."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=20, help="audits of each planted bug")
    parser.add_argument("--correct", type=int, default=40, help="audits of the correct DP-SGD for each claim")
    parser.add_argument("--claims", type=int, nargs="+", default=range(len(CLAIMS)), help="lines of CLAIMS, from 0")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    chosen = parser.parse_args()
    started = time.perf_counter()
    for line in lines(chosen.claims, chosen.seeds, chosen.correct, chosen.workers):
        print(line, flush=True)
    print(f"\n{time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
