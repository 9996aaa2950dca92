"""How often the audit by canary clients refutes a correct client-level defence, and each one with a planted bug.

    PYTHONPATH=. python benchmarks/dp_audit/client_bugs.py --seeds 20 --correct 40

One line a defence: both bounds, with 95 % confidence together (mean, and smallest to largest over seeds), the number of audits with
a bound above the claim and its exact 95 % interval, and the views that refuted most often. Of the correct defence these are false
alarms.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

import torch
from audit_cells import spread
from broken_clients import BROKEN_CLIENTS

from attacks.dp_audit.canary_clients import audit_client_dp
from attacks.dp_audit.verdict import Audit
from attacks.scoring.roc import binomial_interval
from defenses.updates.client_dp import ClientDP


def audited(kind: type[ClientDP], epsilon: float, rounds: int, clients: int, seed: int) -> Audit:
    """One audit."""
    torch.set_num_threads(1)
    return audit_client_dp(kind(target_epsilon=epsilon, rounds=rounds), clients=clients, rounds=rounds, seed=seed)


def lines(chosen: argparse.Namespace) -> Iterator[str]:
    """The table, a line as soon as it is known."""
    yield (
        "| claimed | rounds | canary clients | defence | audits | shown, no assumption | shown, Gaussian | refuted | 95 % interval "
        "| by |"
    )
    yield f"|{'---|' * 10}"
    with ProcessPoolExecutor(chosen.workers, get_context("spawn")) as pool:
        for kind in (ClientDP, *BROKEN_CLIENTS):
            if chosen.only and kind.__name__ not in chosen.only:
                continue
            one = partial(audited, kind, chosen.epsilon, chosen.rounds, chosen.clients)
            found = list(pool.map(one, range(chosen.correct if kind is ClientDP else chosen.seeds)))
            refuted = sum(audit.refuted for audit in found)
            _, low, high = binomial_interval(refuted, len(found))
            by = Counter(part for audit in found for part in audit.refuted_by)
            cells = (
                *(f"{found[0].claimed:.2f}", str(chosen.rounds), str(chosen.clients), kind.__name__, str(len(found))),
                spread([audit.shown.epsilon for audit in found]),
                spread([audit.shown_gaussian.epsilon for audit in found]),
                *(str(refuted), f"{100 * low:.0f} to {100 * high:.0f} %"),
                ", ".join(f"{part} ({count})" for part, count in by.most_common(3)) or "none",
            )
            yield f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the table and the time."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=20, help="audits of each planted bug")
    parser.add_argument("--correct", type=int, default=40, help="audits of the correct defence")
    parser.add_argument("--epsilon", type=float, default=2.0, help="claimed")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--clients", type=int, default=600, help="canary clients of an audit")
    parser.add_argument("--only", nargs="*", help="names of defences; all without it")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    chosen = parser.parse_args()
    started = time.perf_counter()
    for line in lines(chosen):
        print(line, flush=True)
    print(f"\n{time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
