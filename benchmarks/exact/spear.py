"""SPEAR's samples (Dimitrov et al., NeurIPS 2024, Algorithm 1) in place of the learning of ``SpearPlusPlus``, with its rest."""

from __future__ import annotations

from typing import Any

import torch

from attacks import SpearPlusPlus
from attacks.exact.factors import MissingExamples
from attacks.exact.sparse_directions import sampled_kernels
from defenses.checks import Steps, algorithm

AT_ONCE = 1024
"""Sets of rows in memory at once."""


@algorithm
class Spear(SpearPlusPlus, selection="agreement of signs and zeros"):
    """Tests the kernels of random sets of R - 1 rows until R directions are found, or of ``max_samples`` sets."""

    max_samples: Steps = 1_000_000

    def _learn(self, missing: MissingExamples, shape: Any, generator: torch.Generator) -> None:
        directions = missing.directions
        for _ in range(-(-self.max_samples // (AT_ONCE * directions.rank))):
            directions.look(sampled_kernels(directions.rows, AT_ONCE, generator))
            if len(directions.basis()) == directions.rank:
                break
