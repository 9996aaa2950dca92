"""SPEAR++: batches beyond the reach of SPEAR's sampling, noisy updates and updates of several steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from attacks.exact.base import SolvingAttack, recovered
from attacks.exact.dictionary.sparse_dictionary import SparseDictionary
from attacks.exact.linear_layer import Read, low_rank
from attacks.exact.missing_examples import MissingExamples
from attacks.exact.spear import Factors, exchanged, polished, searchable, solved
from attacks.guesses import Reconstruction
from attacks.observations import AttackError, ClientUpdate
from defenses.checks import steps_field

LEAST_GAP = 1.5
"""Ratio of the examples' smallest singular value to the largest of the noise, below which an example counts as noise."""


@dataclass(frozen=True, repr=False)
class SpearPlusPlus(SolvingAttack):
    """Solve for a batch of images as ``Spear`` does, with all sparse directions learned together (``SparseDictionary``).

    SPEAR tests kernels of random rows, of which it needs twice as many with every example. Here a column costs one descent from
    the start that the learning gives it. Wide layers and deep networks help: columns must be distinct, and a network of two layers
    gives examples of one class nearly the same signals. No property of images is used.

    An update of several steps is the sum over steps of the signals times the same inputs: its rank is the number of different
    examples, and a signal is zero where a neuron was off in every step. Noise is accepted as long as the singular values of the
    examples stand out from it. The last least squares, over all zeros of all examples, average over it.

    Reports "does not apply" if no linear layer sees the pixels, if the layer has no bias or (for two or more examples) no ReLU, if
    noise hides all examples, and for weight decay in several steps. The guess fails if too few directions are found.

    Diagnostics: ``rank``; ``singular_gap`` (noise over signal), ``starts``, ``descents``, ``directions``, ``sparsity_match``,
    ``gradient_distance`` and ``outside_share`` as in ``Spear``. After noise or several steps ``gradient_distance`` proves nothing.

    Attributes:
        max_starts: Starts of the learning, at most, after the last one that found a new direction.
    """

    threat: ClassVar[str] = "global model, one update, its number of examples; no labels, no auxiliary data"
    needs_one_step: ClassVar[bool] = False
    reads_linear_layer: ClassVar[bool] = True
    source: ClassVar[str] = (
        "Bakarsky, Dimitrov, Baader, Vechev, SPEAR++: Scaling Gradient Inversion via Sparsely-Used Dictionary Learning, "
        "arXiv 2510.24200, 2025; the learning, the separation of similar columns and the last least squares are ours"
    )
    selection: ClassVar[str] = "agreement of signs and zeros"
    quick: ClassVar[Mapping[str, Any]] = {"max_starts": 2}

    max_starts: int = steps_field(8)

    def solve(self, observation: ClientUpdate, generator: torch.Generator, numbers: dict[str, float]) -> Reconstruction:
        """See ``SolvingAttack``."""
        read = Read.of(observation, several_steps=True)
        layer = read.on_pixels()
        gradient = read.of_layer(layer)
        if gradient.bias is None:
            raise AttackError(f"does not apply: layer {layer.name!r} has no bias, whose gradient gives the lengths")
        parts = low_rank(gradient, observation.num_examples, LEAST_GAP)
        numbers |= {"rank": float(parts.rank), "singular_gap": parts.gap}
        if parts.rank == 1:
            found = solved(parts, torch.ones(1, 1, dtype=torch.float64), gradient.bias, layer)
        else:
            directions = searchable(parts, layer, observation.num_examples, SparseDictionary)
            missing = MissingExamples(directions, parts, gradient.bias, layer)
            self._learned(directions, missing, generator, numbers)
            found = _factors(directions, missing)
            found = polished(found, parts, gradient.bias, layer, several_steps=observation.local_steps > 1)
            numbers["sparsity_match"] = float(found.agreement.mean())
        return recovered(observation, read.model, read.gradient, layer.module, found.inputs, found.signals, numbers)

    def _learned(
        self,
        directions: SparseDictionary,
        missing: MissingExamples,
        generator: torch.Generator,
        numbers: dict[str, float],
    ) -> None:
        """Search until all directions are there, or ``max_starts`` starts in a row have found none."""
        left = self.max_starts
        while left and len(directions.sure()) < directions.rank:
            left = self.max_starts if directions.learn(generator) or directions.scatter(generator) else left - 1
            missing.by_elimination()
        counts = {
            "starts": directions.starts,
            "descents": directions.descents,
            "directions": len(directions.found),
        }
        numbers |= {name: float(count) for name, count in counts.items()}


def _factors(directions: SparseDictionary, missing: MissingExamples) -> Factors:
    chosen = directions.basis()
    if len(chosen) < directions.rank:
        raise AttackError(
            f"found {len(chosen)} of {directions.rank} examples in {directions.starts} starts; raise max_starts, or attack a "
            "smaller batch or a wider layer"
        )
    return exchanged(directions, chosen, missing.parts, missing.bias, missing.layer)
