"""Lower bounds of epsilon beside those of jax-privacy 2 (``CanaryScoreAuditor``), of the same scores.

    uv pip install --target /tmp/jax-privacy jax-privacy
    PYTHONPATH=.:/tmp/jax-privacy python benchmarks/dp_audit/beside_jax_privacy.py

Scores of canaries are N(mu, 1) for a coin of 1 and N(0, 1) for a coin of 0. Both sides guess a coin of 1 for the k highest scores
and nothing about the others. ``epsilon_from_gdp`` tries every threshold and divides the error by their number. It gets scores
reduced to "among the k highest", and its error times the number of thresholds that are left.

Where the bounds of both rates together exceed 1, the package takes the absolute value of a negative mu. fedveil takes 0 there. Such
cells are marked "sign". The last line has the share of draws at mu = 0 in which the package shows an epsilon above 0.

Exits with 1 where another difference exceeds 1e-6. Without the package it says so and exits with 0.
"""

from __future__ import annotations

import itertools
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from attacks.dp_audit.bounds import EpsilonBound, one_run_bound
from attacks.dp_audit.gaussian_bounds import gaussian_bound, one_run_gaussian_bound

TOLERANCE, ERROR = 1e-6, 0.05
CASES = (
    *itertools.product((0.0, 0.5, 1.0, 3.0), (200, 2000), (0.05, 0.5), (1e-5,)),
    *itertools.product((1.0, 3.0), (200,), (0.05, 0.5), (1e-3,)),
)
"""mu, canaries, share that is guessed, delta."""
DRAWS = 1000
"""At mu = 0, of 200 canaries."""

Scores = tuple[NDArray[np.float64], NDArray[np.bool_]]


def draw(mu: float, canaries: int, seed: int) -> Scores:
    """Scores and coins of canaries."""
    random = np.random.default_rng(seed)
    coins = random.random(canaries) < 0.5
    return random.standard_normal(canaries) + mu * coins, coins


def signed_mu(true: int, positives: int, false: int, negatives: int) -> float:
    """The bound of mu without the floor at 0."""
    lowest = special.betaincinv(true, positives - true + 1, ERROR / 2) if true else 0.0
    highest = special.betaincinv(false + 1, negatives - false, 1 - ERROR / 2)
    return float(special.ndtri(lowest) - special.ndtri(highest))


def main() -> int:
    """Print the table and return the exit status."""
    try:
        from jax_privacy import auditing
    except ImportError as error:
        print(f"skipped: jax-privacy is not installed ({error}); the first lines of this script say how to install it")
        return 0
    columns = (
        "mu",
        "canaries",
        "guesses",
        "right",
        "delta",
        "one run",
        "differs by",
        "one run, Gaussian",
        "differs by",
    )
    print(f"| {' | '.join((*columns, 'mu of TPR and FPR', 'differs by'))} |\n|{'---|' * (len(columns) + 2)}")
    worst = 0.0
    for seed, (mu, canaries, share, delta) in enumerate(CASES):
        facts, cells = row(auditing, draw(mu, canaries, seed), round(share * canaries), delta)
        worst = max(worst, *(abs(ours - theirs) for ours, theirs, comparable in cells if comparable))
        shown = [
            text
            for ours, theirs, comparable in cells
            for text in (f"{ours:.6f}", f"{abs(ours - theirs):.0e}" if comparable else f"sign: {theirs:.2f}")
        ]
        print(f"| {mu:g} | {canaries} | {' | '.join(facts)} | {delta:g} | {' | '.join(shown)} |")
    print(f"\nLargest difference, without sign: {worst:.1e}.")
    found = [auditor(auditing, draw(0.0, 200, seed)).epsilon_from_gdp(ERROR, 1e-5) for seed in range(DRAWS)]
    print(f"jax-privacy's epsilon_from_gdp at mu = 0: above 0 in {np.mean(np.array(found) > 0):.1%} of {DRAWS} draws.")
    return int(worst > TOLERANCE)


def auditor(auditing: Any, scores: Scores) -> Any:
    """The package's auditor."""
    values, coins = scores
    return auditing.CanaryScoreAuditor(values[coins], values[~coins])


def row(auditing: Any, drawn: Scores, guesses: int, delta: float) -> tuple[list[str], list[tuple[float, float, bool]]]:
    """Guesses and right ones as text; per method, our bound, the package's, and whether they must agree."""
    scores, coins = drawn
    threshold = float(np.sort(scores)[-guesses])
    above = scores >= threshold
    right, positives = int((above & coins).sum()), int(coins.sum())
    counts = (len(coins), guesses, right)
    explicit = {"threshold_strategy": auditing.Explicit(threshold)}
    rates = (right, positives, guesses - right, len(coins) - positives)
    binary = auditor(auditing, (above.astype(float), coins))
    error = ERROR * len(binary._tn_counts)

    def ours(method: Any, *values: int) -> float:
        bound: EpsilonBound = method(*values, delta=delta, confidence=1 - ERROR)
        return bound.epsilon

    package = auditor(auditing, drawn)
    return [str(guesses), str(right)], [
        (ours(one_run_bound, *counts), float(package.epsilon_one_run(ERROR, delta, **explicit)), True),
        (ours(one_run_gaussian_bound, *counts), float(package.epsilon_one_run_fdp(ERROR, delta, **explicit)), True),
        (ours(gaussian_bound, *rates), float(binary.epsilon_from_gdp(error, delta, 1e-10)), signed_mu(*rates) >= 0),
    ]


if __name__ == "__main__":
    sys.exit(main())
