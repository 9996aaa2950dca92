"""The default audit beside its own training, and the audit of a DP claim by canaries beside jax-privacy's auditor."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time

import numpy as np
from speed import Took, Work

from attacks.dp_audit.bounds import one_run_gaussian_bound

COMMAND = (sys.executable, "-c", "from simulations.cli import app; app()", "run")
ALONE = ("-s", "attack-rounds=", "-s", "probe-attacks=", "-s", "update-attacks=")
CANARIES, DELTA, ERROR, MU = 2000, 1e-5, 0.05, 1.0


def audit(*options: str) -> Took:
    """Seconds of a whole command, its start and its page included."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        subprocess.run([*COMMAND, "--out", f"{folder}/run", *options], check=True, capture_output=True)
        return Took(time.perf_counter() - start)


def scores() -> tuple[np.ndarray, np.ndarray]:
    """Scores of canaries, N(MU, 1) for a coin of 1 and N(0, 1) for 0, and the coins."""
    random = np.random.default_rng(0)
    coins = random.random(CANARIES) < 0.5
    return random.standard_normal(CANARIES) + MU * coins, coins


def bound(_: str) -> Took:
    """The lower bound of epsilon from the same scores."""
    values, coins = scores()
    start, guesses = time.perf_counter(), CANARIES // 20
    threshold = np.sort(values)[-guesses]
    right = int(((values >= threshold) & coins).sum())
    epsilon = one_run_gaussian_bound(CANARIES, guesses, right, delta=DELTA, confidence=1 - ERROR).epsilon
    return Took(time.perf_counter() - start, f"epsilon {epsilon:.4f}")


def bound_of_package(_: str) -> Took:
    """The same by jax-privacy 2."""
    from jax_privacy import auditing

    values, coins = scores()
    start = time.perf_counter()
    explicit = auditing.Explicit(float(np.sort(values)[-CANARIES // 20]))
    auditor = auditing.CanaryScoreAuditor(values[coins], values[~coins])
    epsilon = float(auditor.epsilon_one_run_fdp(ERROR, DELTA, threshold_strategy=explicit))
    return Took(time.perf_counter() - start, f"epsilon {epsilon:.4f}")


WORKS = [
    Work("default audit", "its own training alone", 2.0, lambda _: audit(), lambda _: audit(*ALONE)),
    Work("bound of epsilon, 2,000 canaries", "jax-privacy 2", 1.0, bound, bound_of_package),
]
