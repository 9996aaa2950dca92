"""Gradient inversion as published: subclasses with other defaults and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from attacks.gradient_inversion import GradientInversion


@dataclass(frozen=True, repr=False)
class InvertingGradients(GradientInversion):
    """Signed Adam on the cosine distance."""

    iterations: int = 600
    total_variation: float = 1e-2
    prior_decay: bool = True


@dataclass(frozen=True, repr=False)
class DLG(GradientInversion):
    """L-BFGS on the squared distance, labels optimised jointly."""

    source: ClassVar[str] = "Zhu 2019 (DLG), Algorithm 1"

    cost: str = "l2"
    optimizer: str = "lbfgs"
    signed: bool = False
    learning_rate: float = 1.0
    iterations: int = 300
    restarts: int = 1
    total_variation: float = 0.0
    boxed: bool = False
    labels: str = "joint"
    step_decay: bool = False
    line_search: bool = True
