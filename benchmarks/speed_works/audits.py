"""The default audit beside its own training, and the audit of a DP claim by canaries beside jax-privacy's auditor."""

from __future__ import annotations

import itertools
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from speed import Took, Work

from attacks.dp_audit.bounds import one_run_bound, one_run_gaussian_bound

COMMAND = (sys.executable, "-c", "from simulations.cli import app; app()", "run")
ALONE = ("-s", "attack-rounds=", "-s", "probe-attacks=", "-s", "update-attacks=")
ERROR = 0.05
CASES = (
    *itertools.product((0.0, 0.5, 1.0, 3.0), (200, 2000), (0.05, 0.5), (1e-5,)),
    *itertools.product((1.0, 3.0), (200,), (0.05, 0.5), (1e-3,)),
)
"""mu, canaries, share that is guessed, delta."""


def audit(*options: str) -> Took:
    """Seconds of a whole command, its start and its page included."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        subprocess.run([*COMMAND, "--out", f"{folder}/run", *options], check=True, capture_output=True)
        return Took(time.perf_counter() - start)


def drawn(mu: float, canaries: int, share: float, seed: int) -> tuple[Any, Any, float]:
    """Scores of canaries, N(mu, 1) for a coin of 1 and N(0, 1) for 0, the coins, and the score from which a coin is guessed."""
    random = np.random.default_rng(seed)
    coins = random.random(canaries) < 0.5
    values = random.standard_normal(canaries) + mu * coins
    return values, coins, float(np.sort(values)[-round(share * canaries)])


def bounds(of: Callable[[Any, Any, float, float], tuple[float, float]]) -> Took:
    """Seconds for all cases, and the sum of their lower bounds, of one run and of one run with Gaussian noise."""
    seconds, sums = 0.0, np.zeros(2)
    for seed, (mu, canaries, share, delta) in enumerate(CASES):
        given = drawn(mu, canaries, share, seed)
        start = time.perf_counter()
        sums += of(*given, delta)
        seconds += time.perf_counter() - start
    return Took(seconds, "sums {:.4f} and {:.4f}".format(*sums))


def ours(values: Any, coins: Any, least: float, delta: float) -> tuple[float, float]:
    """By counts of right guesses."""
    guessed = values >= least
    counts = len(values), int(guessed.sum()), int((guessed & coins).sum())
    one, gaussian = (of(*counts, delta=delta, confidence=1 - ERROR) for of in (one_run_bound, one_run_gaussian_bound))
    return one.epsilon, gaussian.epsilon


def of_package(values: Any, coins: Any, least: float, delta: float) -> tuple[float, float]:
    """By jax-privacy 2."""
    from jax_privacy import auditing

    auditor = auditing.CanaryScoreAuditor(values[coins], values[~coins])
    one, gaussian = (
        of(ERROR, delta, threshold_strategy=auditing.Explicit(least))
        for of in (auditor.epsilon_one_run, auditor.epsilon_one_run_fdp)
    )
    return float(one), float(gaussian)


def of_package_imported(_: str) -> Took:
    """The same, without the import."""
    from jax_privacy import auditing

    del auditing
    return bounds(of_package)


WORKS = [
    Work("default audit", "its own training alone", 2.0, lambda _: audit(), lambda _: audit(*ALONE)),
    Work(
        f"bounds of epsilon of {len(CASES)} audits", "jax-privacy 2", 1.0, lambda _: bounds(ours), of_package_imported
    ),
]
