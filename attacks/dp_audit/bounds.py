"""Lower bounds of epsilon from guesses about canaries, for a defence, an app or a library.

A canary is a record with a fair coin, which decides whether the training has the record, or which of two values the record has.
The auditor guesses coins from what the mechanism publishes. Under a true claim only few guesses can be right. So many right guesses
refute the claim. A bound holds with its confidence over the coins and the mechanism's own draws.

``one_run_gaussian_bound`` and ``guesses_bound`` are for a mechanism that is mu-GDP: a record's presence is as hard to detect as a
shift of N(0, 1) to N(mu, 1), at every false positive rate. They refute mu. DP-SGD on full batches is exactly mu-GDP, with
mu = sensitivity sqrt(steps) / noise. Poisson samples make it so approximately, after many steps. Source: Dong, Roth, Su, "Gaussian
Differential Privacy", 2019; corollary 2.13 for the epsilon of mu.

Fix the number of guesses before the scores are seen. To try several numbers, take the ``strongest`` of their bounds.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from defenses.smashed.gaussian_mechanism import gaussian_epsilon

LITTLE = 1.0
"""Epsilon: a bound that could not have exceeded this proves nothing by being small."""
MOST_EPSILON = 500.0
"""Where a search for a bound ends: no number of canaries that fits a memory gives more."""


GAUSSIAN = "the mechanism hides a record as Gaussian noise does"
LEAST_DELTA = 1e-300
MOST_MU = 60.0
"""Where a search for mu ends: its epsilon is far above any claim."""


@dataclass(frozen=True)
class EpsilonBound:
    """A lower bound of epsilon.

    Attributes:
        epsilon: The mechanism is not (e, delta)-differentially private for any e below this; 0: nothing was shown.
        confidence: Probability with which such a statement is true; in (0, 1).
        delta: In [0, 1).
        canaries: Number of canaries.
        guesses: Number of guessed coins, at most ``canaries``.
        correct: Number of right guesses.
        largest: The bound if all guesses had been right: these canaries could not have shown more.
        source: The paper.
        assumption: What the bound assumes of the mechanism; "" for nothing.
        compared: Number of bounds of which this one is the largest. ``confidence`` and ``largest`` account for the choice.
    """

    epsilon: float
    confidence: float
    delta: float
    canaries: int
    guesses: int
    correct: int
    largest: float
    source: str
    assumption: str = ""
    compared: int = 1

    @property
    def powerless(self) -> bool:
        """Whether no result could have shown an epsilon of 1, so that a small bound is no evidence of privacy."""
        return self.largest < LITTLE

    def __str__(self) -> str:
        """The bound in one sentence, with its confidence, assumption and power."""
        facts = [
            f"{self.confidence * 100:.4g} % confidence",
            f"{self.correct} of {self.guesses} guesses right, {self.canaries} canaries",
        ]
        if self.assumption:
            facts.append(f"assumes that {self.assumption}")
        if self.powerless:
            facts.append(f"too few canaries: they could not have shown more than {self.largest:.2f}")
        return f"epsilon is at least {self.epsilon:.2f} at delta {self.delta:g} ({'; '.join(facts)})"


def one_run_p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """Bound on the probability of ``correct`` or more right guesses under (epsilon, delta)-differential privacy; in [0, 1].

        P[W >= v] + 2 m delta max_i P[v > W >= v - i] / i,    W ~ Binomial(k, 1 / (1 + exp(-epsilon))),

    with m canaries, k guesses, v right ones, and i from 1 to v.

    ``ValueError`` unless 0 <= correct <= guesses <= canaries, canaries >= 1, epsilon >= 0 and 0 <= delta < 1.

    Source: Steinke, Nasr, Jagielski, "Privacy Auditing with One (1) Training Run", NeurIPS 2023, Theorem 5.2.
    """
    from scipy import special  # slow to import, as in attacks.scoring.roc

    check_counts(canaries, guesses, correct)
    if not (epsilon >= 0 and 0 <= delta < 1):
        raise ValueError(f"epsilon is {epsilon!r} and delta is {delta!r}; allowed: epsilon from 0, delta in [0, 1)")
    if not correct:
        return 1.0
    right = special.expit(epsilon)
    enough = float(special.bdtrc(correct - 1, guesses, right))
    if not delta:
        return enough
    widths = np.arange(1, correct + 1)
    fewer = correct - widths - 1  # P[W <= v - i - 1], 0 where that is negative
    below = np.where(fewer < 0, 0.0, special.bdtr(np.maximum(fewer, 0), guesses, right))
    between = special.bdtr(correct - 1, guesses, right) - below
    return min(1.0, enough + 2 * canaries * delta * float((between / widths).max()))


def one_run_bound(canaries: int, guesses: int, correct: int, *, delta: float, confidence: float = 0.95) -> EpsilonBound:
    """Bound epsilon by the guesses about canaries of one training run, or of several; nothing is assumed of the mechanism.

    Coins of canaries must be independent. What the mechanism makes of canaries may depend on the other canaries. Several runs
    count as one mechanism if each canary enters one of them.

    There are k ``guesses`` about m ``canaries``, fixed before the scores were seen, and v ``correct`` ones, 0 <= v <= k <= m; delta
    is in [0, 1), and confidence in (0, 1). ``ValueError`` for other numbers. Source: as ``one_run_p_value``.
    """
    check_counts(canaries, guesses, correct)
    check_levels(delta, confidence, least=0)

    def bound(right: int) -> float:
        return largest_refuted(
            lambda epsilon: 1 - confidence - one_run_p_value(canaries, guesses, right, epsilon, delta)
        )

    source = "Steinke, Nasr, Jagielski 2023, Theorem 5.2"
    return EpsilonBound(bound(correct), confidence, delta, canaries, guesses, correct, bound(guesses), source)


def strongest(bounds: Sequence[EpsilonBound], confidence: float) -> EpsilonBound:
    """The largest of several bounds, as one bound with the ``confidence`` that a union bound over all of them gives.

    ``ValueError`` without bounds, when their deltas differ, or when their errors (1 - confidence) sum to more than allowed.
    """
    if not bounds or len({bound.delta for bound in bounds}) > 1:
        raise ValueError(f"{len(bounds)} bounds; expected one or more, all at the same delta")
    errors = math.fsum(1 - bound.confidence for bound in bounds)
    if errors > (1 - confidence) * (1 + 1e-9):
        raise ValueError(f"the bounds are wrong with probability {errors:.4g} together; allowed: {1 - confidence:.4g}")
    best = max(bounds, key=lambda bound: bound.epsilon)
    compared = sum(bound.compared for bound in bounds)
    return replace(best, confidence=confidence, compared=compared, largest=max(bound.largest for bound in bounds))


def largest_refuted(margin: Callable[[float], float], most: float = MOST_EPSILON) -> float:
    """The smallest root of a falling function that is above 0 where a claim is refuted; 0 if not even a claim of 0 is."""
    from scipy import optimize

    if margin(0.0) <= 0:
        return 0.0
    low, high = 0.0, 1.0
    while margin(high) > 0:
        if high >= most:
            return most
        low, high = high, min(2 * high, most)
    return float(optimize.brentq(margin, low, high, xtol=1e-10))


def check_counts(canaries: int, guesses: int, correct: int) -> None:
    """Raise ``ValueError`` unless 0 <= correct <= guesses <= canaries and canaries >= 1."""
    if not 0 <= correct <= guesses <= canaries or canaries < 1:
        raise ValueError(
            f"{correct} right of {guesses} guesses about {canaries} canaries; allowed: each at most the next"
        )


def check_levels(delta: float, confidence: float, *, least: float) -> None:
    """Raise ``ValueError`` unless delta is in [0, 1), above 0 where ``least`` is positive, and confidence in (0, 1)."""
    if not (least <= delta < 1 and 0 < confidence < 1):
        raise ValueError(
            f"delta is {delta!r} and confidence is {confidence!r}; allowed: delta from {least:g}, both below 1"
        )


INDEPENDENT = f"{GAUSSIAN} and that the scores of canaries are independent"


def one_run_gaussian_bound(
    canaries: int, guesses: int, correct: int, *, delta: float, confidence: float = 0.95
) -> EpsilonBound:
    """Bound epsilon by the guesses about canaries of one run, for a mechanism that is mu-GDP with an unknown mu.

    Tighter than ``one_run_bound``, for an assumption more. Coins of canaries must be independent; scores need not be.

    Suppose that v or more of k guesses about m canaries are right with probability t. Let p_i be the probability of exactly i right
    ones. Flip the coin of a random canary: "i right, this one among them" becomes "i - 1 right, this one wrong". So, for each j,

        r_j = sum_{i >= j} p_i i / m <= F(h_{j-1}),    h_{j-1} = sum_{i >= j-1} p_i (k - i) / m,    F(x) = Phi(Phi^-1(x) + mu),

    because F is concave. From r_v = t v / m and h_v = t (k - v) / m, the smallest r_0 + h_0 follows step by step. It is k / m in
    truth, so that a larger value refutes mu and t.

    Arguments are those of ``one_run_bound``; delta is of the epsilon of mu, above 0, and confidence is 1 - t.

    Source: Mahloujifar, Melis, Chaudhuri, "Auditing f-Differential Privacy in One Run", 2024, arXiv 2410.22235.
    """
    check_counts(canaries, guesses, correct)
    check_levels(delta, confidence, least=LEAST_DELTA)

    def bound(right: int) -> float:
        return largest_refuted(lambda mu: _excess(canaries, guesses, right, mu, 1 - confidence), MOST_MU)

    source = "Mahloujifar, Melis, Chaudhuri 2024"
    epsilon, largest = (gaussian_epsilon(bound(right), delta) for right in (correct, guesses))
    return EpsilonBound(epsilon, confidence, delta, canaries, guesses, correct, largest, source, GAUSSIAN)


def guesses_bound(canaries: int, correct: int, *, delta: float, confidence: float = 0.95) -> EpsilonBound:
    """Bound epsilon by one guess about each canary, with a rule that was fixed before the scores were seen.

    A guess about a fair coin is right with probability (TPR + 1 - FPR) / 2, which is at most Phi(mu / 2) for a mu-GDP mechanism, so

        mu >= 2 Phi^-1(p),

    with the one-sided bound p of Clopper and Pearson of the share of right guesses. One bound in place of two, of both rates (Nasr
    et al. 2023), makes this tighter where the rule errs alike for both coins.

    All canaries are guessed, and guesses must be independent; other arguments are those of ``one_run_gaussian_bound``.

    Source: Dong, Roth, Su 2019 for the trade-off function; Nasr et al. 2023 for the use of Gaussian trade-offs in audits.
    """
    from scipy import special

    check_counts(canaries, canaries, correct)
    check_levels(delta, confidence, least=LEAST_DELTA)

    def bound(right: int) -> float:
        lowest = float(special.betaincinv(right, canaries - right + 1, 1 - confidence)) if right else 0.0
        return gaussian_epsilon(2 * float(special.ndtri(lowest)) if lowest > 0.5 else 0.0, delta)

    source = "Clopper-Pearson of right guesses"
    return EpsilonBound(
        bound(correct), confidence, delta, canaries, canaries, correct, bound(canaries), source, INDEPENDENT
    )


def _excess(canaries: int, guesses: int, correct: int, mu: float, error: float) -> float:
    """By how much the smallest r_0 + h_0 exceeds k / m; see ``one_run_gaussian_bound``."""
    from scipy import special

    right, wrong = error * correct / canaries, error * (guesses - correct) / canaries
    for count in range(correct - 1, -1, -1):
        # F^-1(r) = Phi(Phi^-1(r) - mu). Where it asks for no more wrong guesses, it never does again.
        needed = float(special.ndtr(special.ndtri(min(right, 1.0)) - mu))
        if needed <= wrong:
            break
        right += count / (guesses - count) * (needed - wrong)
        wrong = needed
    return right + wrong - guesses / canaries
