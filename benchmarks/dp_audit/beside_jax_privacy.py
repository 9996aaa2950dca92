"""Lower bounds of epsilon beside those of jax-privacy 2 (``CanaryScoreAuditor``), of the same scores.

    uv pip install --target /tmp/jax-privacy jax-privacy
    PYTHONPATH=.:/tmp/jax-privacy python benchmarks/dp_audit/beside_jax_privacy.py

Scores of canaries are N(mu, 1) for a coin of 1 and N(0, 1) for a coin of 0. Both sides guess a coin of 1 for the k highest scores
and nothing about the others. The last line is of the package's ``epsilon_from_gdp``, which takes the absolute value of
a negative mu: the line has the share of draws at mu = 0 in which it shows an epsilon above 0.

Exits with 1 where a difference exceeds 1e-6. Without the package it says so and exits with 0.
"""

from __future__ import annotations

import itertools
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attacks.dp_audit.bounds import EpsilonBound, one_run_bound, one_run_gaussian_bound

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


def main() -> int:
    """Print the table and return the exit status."""
    try:
        from jax_privacy import auditing
    except ImportError as error:
        print(f"skipped: jax-privacy is not installed ({error}); the first lines of this script say how to install it")
        return 0
    print("| mu | canaries | guesses | right | delta | one run | differs by | one run, Gaussian | differs by |")
    print(f"|{'---|' * 9}")
    worst = 0.0
    for seed, (mu, canaries, share, delta) in enumerate(CASES):
        facts, cells = row(auditing, draw(mu, canaries, seed), round(share * canaries), delta)
        worst = max(worst, *(abs(ours - theirs) for ours, theirs in cells))
        shown = [text for ours, theirs in cells for text in (f"{ours:.6f}", f"{abs(ours - theirs):.0e}")]
        print(f"| {mu:g} | {canaries} | {' | '.join(facts)} | {delta:g} | {' | '.join(shown)} |")
    print(f"\nLargest difference: {worst:.1e}.")
    found = [auditor(auditing, draw(0.0, 200, seed)).epsilon_from_gdp(ERROR, 1e-5) for seed in range(DRAWS)]
    print(f"jax-privacy's epsilon_from_gdp at mu = 0: above 0 in {np.mean(np.array(found) > 0):.1%} of {DRAWS} draws.")
    return int(worst > TOLERANCE)


def auditor(auditing: Any, scores: Scores) -> Any:
    """The package's auditor."""
    values, coins = scores
    return auditing.CanaryScoreAuditor(values[coins], values[~coins])


def row(auditing: Any, drawn: Scores, guesses: int, delta: float) -> tuple[list[str], list[tuple[float, float]]]:
    """Guesses and right ones as text; per method, our bound and the package's."""
    scores, coins = drawn
    threshold = float(np.sort(scores)[-guesses])
    right = int(((scores >= threshold) & coins).sum())
    counts = (len(coins), guesses, right)
    explicit = {"threshold_strategy": auditing.Explicit(threshold)}

    def ours(method: Any) -> float:
        bound: EpsilonBound = method(*counts, delta=delta, confidence=1 - ERROR)
        return bound.epsilon

    package = auditor(auditing, drawn)
    return [str(guesses), str(right)], [
        (ours(one_run_bound), float(package.epsilon_one_run(ERROR, delta, **explicit))),
        (ours(one_run_gaussian_bound), float(package.epsilon_one_run_fdp(ERROR, delta, **explicit))),
    ]


if __name__ == "__main__":
    sys.exit(main())
