"""The attacks of the setting "auto": those that may have a place on a network and its updates, in the order of their turns.

What applies is found by running: an exact attack without a place says so at once.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from attacks.base import AnyAttack
from attacks.exact.head_inversion import HeadInversion
from attacks.exact.patch_embedding_inversion import PatchEmbeddingInversion
from attacks.exact.spear_plus_plus import SpearPlusPlus
from attacks.gradient.labels import LabelInference
from attacks.gradient.noise_models import NoiseModelInversion
from attacks.gradient.presets import InvertingGradients
from attacks.gradient.surrogate import SurrogateMatching
from attacks.guesses import found_nothing
from attacks.membership.loss_threshold import LossThreshold
from attacks.observations import NOT_NEEDED, Untried
from attacks.spec import stages_of

EXACT: tuple[AnyAttack, ...] = (
    SpearPlusPlus(max_starts=3),  # a first linear layer with a ReLU, whole rounds too
    HeadInversion(),  # a linear layer behind convolutions, one step
    PatchEmbeddingInversion(),  # vision transformers, one image
)
ON_PROBES: tuple[AnyAttack, ...] = (
    *EXACT,
    InvertingGradients(iterations=150, max_images=16),  # what the exact ones leave
    NoiseModelInversion(iterations=60, max_images=16, adam_iterations=60),  # the same under noise whose law it knows
    LabelInference(),
)
ON_UPDATES: tuple[AnyAttack, ...] = (
    *EXACT,
    SurrogateMatching(iterations=50, total_variation=0.1, max_images=16),  # the cost does not depend on the steps
    LabelInference(),
    LossThreshold(),  # membership
)
SOLVED = 2e-4
"""Largest ``gradient_distance`` of a guess that explains the whole update."""
AGREES = 0.97
"""Least ``sparsity_match`` that stands in for it after several steps, whose sum is no gradient."""


class Needless(StrEnum):
    """What becomes of attacks of one message when an exact attack before them has recovered every image."""

    RUN = "run"
    SKIP = "skip"
    SAMPLE = "sample"
    """They run on as few messages as their positive control takes: a defended run needs it."""


class Turns:
    """Attacks of one message in turn: what those before have found decides which of those behind are needed."""

    def __init__(self) -> None:
        self._found: dict[str, bool] = {}
        self._solver = ""

    def needless(self, attack: AnyAttack) -> str | None:
        """Why an attack is not needed; "" for a refinement of nothing, which is not worth a word, and None where it is needed."""
        first, *refinements = stages_of(attack)
        if refinements:
            return None if self._found.get(repr(first)) else ""
        if self._solver and first.profile.begins_chains:
            return Untried(f"not needed: {self._solver} has recovered every image", NOT_NEEDED)
        return None

    def note(self, attack: AnyAttack, guesses: Sequence[Any]) -> None:
        """Take up the guesses of an attack, none where it ended with an error."""
        self._found[repr(attack)] = not all(map(found_nothing, guesses))
        if attack.profile.begins_chains and guesses and all(map(is_solved, guesses)):
            self._solver = self._solver or repr(attack)


def is_solved(guess: Any) -> bool:
    """Whether a guess has all images of an update by the attack's own residual; the truth is never consulted."""
    numbers = guess.diagnostics
    # Of images that were solved for, not searched, signs of all neurons agree; features alone do not show that images are right.
    agrees = "outside_share" in numbers and numbers.get("sparsity_match", 0.0) > AGREES
    return not guess.failure and (agrees or numbers.get("gradient_distance", 1.0) < SOLVED)
