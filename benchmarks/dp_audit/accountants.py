"""Epsilon of the same DP-SGD by every accountant, and the noise that a budget needs by RDP and by PRV.

python benchmarks/dp_audit/accountants.py
"""

from __future__ import annotations

import warnings

from defenses.neighbours import ADD_OR_REMOVE, REPLACE_ONE, SENSITIVITY
from defenses.training.accounting import EXACT, GDP, PRV, RDP, epsilon_by_accountant
from defenses.training.noise_search import noise_for_budget

DELTA = 1e-5
CASES = [(8.0, 1 / 7, 672), (8.0, 0.1, 100), (2.0, 0.01, 1000), (1.0, 1.0, 10)]
"""Budget by RDP, sample rate and number of steps; the first is the noise of the default audit."""


def main() -> None:
    """Print a table."""
    warnings.simplefilter("ignore")
    print("| neighbours | sample rate | steps | noise by RDP | RDP | PRV or exact | GDP, no bound | noise by PRV |")
    print("|---|---|---|---|---|---|---|---|")
    for budget, rate, steps in CASES:
        for neighbours in (REPLACE_ONE, ADD_OR_REMOVE):
            noise = noise_for_budget(budget, DELTA, rate, steps)
            less = noise_for_budget(budget, DELTA, rate, steps, PRV, neighbours)
            found = epsilon_by_accountant({"accountant": {"steps": [[noise, rate, steps]]}}, DELTA, neighbours)
            of, close = SENSITIVITY[neighbours], found.get(PRV, found.get(EXACT, float("nan")))
            print(
                f"| {neighbours} | {rate:.4g} | {steps} | {of * noise:.3f} | {found[RDP]:.2f} | {close:.2f} | {found[GDP]:.2f} | "
                f"{of * less:.3f} ({less / noise - 1:+.0%}) |",
                flush=True,
            )


if __name__ == "__main__":
    main()
