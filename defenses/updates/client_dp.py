"""Client-level local differential privacy: clip a client's whole update, add Gaussian noise, and account for every release."""

import functools
import math
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import torch

from defenses.base import UpdateDefense
from defenses.checks import (
    LARGEST_NOISE,
    LEAST_MULTIPLIER,
    Limit,
    Multiplier,
    Probability,
    Scale,
    Steps,
    algorithm,
    require,
)
from defenses.functional import gaussian_like, map_update, widened
from defenses.neighbours import REPLACE_CLIENT, SENSITIVITY
from defenses.smashed.gaussian_mechanism import gaussian_epsilon, gaussian_ratio
from defenses.tensors import Numbers, Update
from defenses.training.accounting import budget_terms, record_step, recorded_steps

USUAL_MULTIPLIER = 4.0
"""z when neither it nor a target is given: one update then spends an epsilon of 1.99 at delta 1e-5."""


@functools.lru_cache(maxsize=64)
def multiplier_for(epsilon: float, delta: float, rounds: int) -> float:
    """The least noise multiplier with which ``rounds`` updates spend at most ``epsilon`` at ``delta``."""
    return SENSITIVITY[REPLACE_CLIENT] * math.sqrt(rounds) / gaussian_ratio(epsilon, delta)


@algorithm
class ClientDP(UpdateDefense):
    """Clip the client's whole update to L2 norm C and add N(0, (z C)^2 I): client-level local differential privacy.

        u~ = u min(1, C / ||u||_2) + N(0, (z C)^2 I),    u: all tensors of the update, buffers included

    C is ``max_norm``, z the noise multiplier. Frozen parameters are left out of u, and the client sends 0 for them. The client does
    this alone, so that its bound holds against the server, and not only for the published model.

    Neighbours ("replace-client"): the client's whole training set, replaced by any other of as many examples. Two clipped updates
    lie up to 2 C apart. The number of examples, and the number of steps that follows from it, is public. The client does not report
    its training loss. The bound covers no test examples, and not the time that a reply takes.

    Accounting: T releases with independent noise are exactly mu-GDP with mu = 2 sqrt(T) / z. Epsilon follows from mu without a
    gap (``gaussian_epsilon``). A round of training is one release, and so is each of the audit's probes.

    Local noise costs accuracy: the mean of N clients' updates of D weights holds noise of length z C sqrt(D / N).

    An entry that is not finite counts as 0. The noise is pseudo-random but not cryptographic (see ``generator_for``). Noise and
    clipped norm are not exact in floating point. The bound holds up to these limits.

    Args:
        max_norm: C, in the unit of the update.
        noise_multiplier: z; 0 only clips and has no finite epsilon. 4 when neither this nor ``target_epsilon`` is given.
        target_epsilon: What ``rounds`` updates together may spend; the noise multiplier follows from it.
        rounds: Updates that ``target_epsilon`` is for. A run of more rounds is refused.
        target_delta: Of all epsilons, in (0, 1).
    """

    max_norm: Scale = 1.0
    noise_multiplier: Multiplier | None = None
    target_epsilon: Annotated[float, Limit(0, 1e6, above=True)] | None = None
    rounds: Steps | None = None
    target_delta: Probability = 1e-5

    neighbours = REPLACE_CLIENT
    bounds_client = True
    always_shown = ("max_norm",)
    adaptive_attacks = ("NoiseModelInversion",)
    source = (
        "McMahan et al., Learning Differentially Private Recurrent Language Models, ICLR 2018, Alg. 1 (clipping), with noise at "
        "the client; Dong, Roth, Su, Gaussian Differential Privacy, 2019, Cor. 3.3 for the composition"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.noise_multiplier is None and self.target_epsilon is None and self.rounds is None:
            object.__setattr__(self, "noise_multiplier", USUAL_MULTIPLIER)
        epsilon, rounds = self.target_epsilon, self.rounds
        exclusive = self.noise_multiplier is None or epsilon is None
        require(exclusive, self, "target_epsilon", "None when noise_multiplier is given")
        require(rounds is None or epsilon is not None, self, "rounds", "None without a target_epsilon")
        counted = epsilon is None or rounds is not None
        require(counted, self, "target_epsilon", "a number beside rounds, the rounds of the run")
        reachable = epsilon is None or LEAST_MULTIPLIER <= self.noise <= LARGEST_NOISE
        known = f"what a noise multiplier from {LEAST_MULTIPLIER:g} to {LARGEST_NOISE:g} gives"
        require(reachable, self, "target_epsilon", known)

    @property
    def noise(self) -> float:
        """The noise multiplier z, given or computed from the target."""
        if self.noise_multiplier is not None:
            return float(self.noise_multiplier)
        assert self.target_epsilon is not None  # __post_init__ requires both
        assert self.rounds is not None
        return multiplier_for(float(self.target_epsilon), float(self.target_delta), self.rounds)

    @property
    def std(self) -> float:
        """Standard deviation of the noise, in the unit of the update."""
        return self.noise * self.max_norm

    def protect_update(self, update: Update, generator: torch.Generator) -> Update:
        """Clip the update as one vector, with its norm accumulated in float64, and add the noise."""
        given = finite(update)
        norm = length(given)
        factor = 1.0 if norm <= self.max_norm else self.max_norm / norm
        # In float64: in float32 a factor below 1e-38 would be rounded to few digits.
        noised = map_update(
            lambda tensor: (tensor.double() * factor).to(tensor.dtype) + gaussian_like(tensor, self.std, generator),
            given,
        )
        return {name: tensor.to(update[name].dtype) for name, tensor in noised.items()}

    def recorded(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """The state with one more release; see ``with_release``."""
        return with_release(state, self.noise / SENSITIVITY[REPLACE_CLIENT])

    def privacy(self, *states: Mapping[str, Any]) -> Numbers:
        """The exact epsilon at ``target_delta`` of all releases recorded in the states, with its terms; ``inf`` without noise."""
        terms = budget_terms(states, self.neighbours, self.max_norm)
        return {"epsilon": epsilon_of_releases(states, self.target_delta), "delta": self.target_delta} | terms


def finite(update: Update) -> Update:
    """A copy in which entries that are not finite are 0; 16-bit tensors are widened."""
    return map_update(lambda tensor: widened(tensor.detach()).nan_to_num(0.0, 0.0, 0.0), update)


def length(update: Update) -> float:
    """L2 norm of an update as one vector, accumulated in float64 in the order of the tensors' names."""
    return math.sqrt(sum(update[name].double().square().sum().item() for name in sorted(update)))


def with_release(state: Mapping[str, Any], ratio: float) -> dict[str, Any]:
    """A training state with one more release of Gaussian noise, in the form of ``recorded_steps``: ``ratio``, rate 1, number.

    ``ratio`` is the standard deviation of the noise over the largest distance of two clipped updates, 0 or more.
    """
    extended = {**state, "accountant": {"steps": [list(entry) for entry in recorded_steps(state)]}}
    record_step(extended, ratio, 1.0)
    return extended


def epsilon_of_releases(states: Iterable[Mapping[str, Any]], delta: float) -> float:
    """The exact epsilon at ``delta`` of all releases in training states together; ``inf`` where one has next to no noise."""
    entries = [entry for state in states for entry in recorded_steps(state) if entry[2]]
    if any(ratio < LEAST_MULTIPLIER / SENSITIVITY[REPLACE_CLIENT] for ratio, _, _ in entries):
        return math.inf
    return gaussian_epsilon(math.sqrt(math.fsum(count / ratio**2 for ratio, _, count in entries)), delta)
