"""Lower bounds of mu, and of the epsilon that follows, for mechanisms that hide a record as Gaussian noise does.

A mechanism is mu-GDP if a record's presence is as hard to detect as a shift of N(0, 1) to N(mu, 1), at every false positive rate.
The bounds refute mu. DP-SGD on full batches is exactly mu-GDP, with mu = sensitivity sqrt(steps) / noise. Poisson samples make it
so approximately, after many steps.

Source: Dong, Roth, Su, "Gaussian Differential Privacy", 2019; corollary 2.13 for the epsilon of mu.
"""

from __future__ import annotations

from attacks.dp_audit.bounds import EpsilonBound, check_counts, check_levels, largest_refuted
from defenses.smashed.gaussian_mechanism import gaussian_epsilon

GAUSSIAN = "the mechanism hides a record as Gaussian noise does"
INDEPENDENT = f"{GAUSSIAN} and that the scores of canaries are independent"
LEAST_DELTA = 1e-300
MOST_MU = 60.0
"""Where a search for mu ends: its epsilon is far above any claim."""


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

    Args:
        canaries: m, at least 1.
        guesses: k, fixed before the scores were seen; 0 <= k <= m.
        correct: v; 0 <= v <= k.
        delta: Of the epsilon of mu, in (0, 1).
        confidence: 1 - t, in (0, 1).

    Raises:
        ValueError: When a value is outside its range.

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

    Args:
        canaries: Number of canaries with independent fair coins, at least 1; all are guessed.
        correct: Number of right guesses; they must be independent.
        delta: Of the epsilon of mu, in (0, 1).
        confidence: In (0, 1).

    Raises:
        ValueError: When a value is outside its range.

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
