"""How large a bound and how likely a refutation are, over the number of canaries: simulated scores of a known mechanism.

    PYTHONPATH=. python benchmarks/dp_audit/power.py --seeds 40

Scores are N(mu / 2, 1) for a coin of 1 and N(-mu / 2, 1) for a coin of 0, independent: those of gradient canaries under DP-SGD on
full batches without other examples. mu is that of the noise by which fedveil's accountant keeps a claim of epsilon 2 at delta 1e-5
over 4 steps, times a factor of 1 (correct), 1.155 (the account misses one step of four), 2 (half of the noise). The error is that
of all canaries pooled in a run: half of 5 %. Cells have the mean bound, and the share of refuted claims.
"""

from __future__ import annotations

import argparse
import math

import torch

from attacks.dp_audit.verdict import ALL, CanaryPart, audited
from defenses.smashed.gaussian_mechanism import gaussian_epsilon
from defenses.training.noise_search import noise_for_budget

CLAIM, DELTA, STEPS = 2.0, 1e-5, 4
FACTORS = {"correct": 1.0, "one step of four not counted": math.sqrt(STEPS / (STEPS - 1)), "half of the noise": 2.0}
CANARIES = (100, 300, 1_000, 3_000, 10_000, 30_000)
CONFIDENCE = 0.975


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=40, help="draws for each cell")
    seeds = range(parser.parse_args().seeds)
    mu = math.sqrt(STEPS) / noise_for_budget(CLAIM, DELTA, 1.0, STEPS)
    print(f"| canaries | {' | '.join(f'{name}: shown, Gaussian | shown | refuted' for name in FACTORS)} |")
    print(f"|{'---|' * (1 + 3 * len(FACTORS))}")
    for count in CANARIES:
        cells = []
        for factor in FACTORS.values():
            found = [audited({ALL: drawn(mu * factor, count, seed)}, CLAIM, DELTA, CONFIDENCE) for seed in seeds]
            plain, gaussian = ([getattr(one, name).epsilon for one in found] for name in ("shown", "shown_gaussian"))
            refuted = sum(one.refuted for one in found)
            cells += [f"{sum(of) / len(of):.2f}" for of in (gaussian, plain)] + [f"{refuted} of {len(found)}"]
        print(f"| {count} | {' | '.join(cells)} |", flush=True)
    truths = ", ".join(f"{name} {gaussian_epsilon(mu * factor, DELTA):.2f}" for name, factor in FACTORS.items())
    print(f"\nExact epsilon of the mechanisms: {truths}. Claimed: {CLAIM:g}.")


def drawn(mu: float, count: int, seed: int) -> CanaryPart:
    """Scores of canaries."""
    generator = torch.Generator().manual_seed(seed)
    coins = torch.rand(count, generator=generator) < 0.5
    scores = torch.randn(count, generator=generator, dtype=torch.float64) + mu * (coins.double() - 0.5)
    return CanaryPart(scores, coins, centred=True)


if __name__ == "__main__":
    main()
