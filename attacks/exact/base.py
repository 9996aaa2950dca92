"""What attacks that solve a gradient for its examples have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from attacks.base import Attack
from attacks.exact.guessing import grey_guess
from attacks.guesses import Reconstruction
from attacks.observations import AttackError, ClientUpdate


@dataclass(frozen=True, repr=False)
class SolvingAttack(Attack[ClientUpdate, Reconstruction]):
    """Solves updates of one step, one after the other; where the conditions of that fail, the guess is grey and says why."""

    needs_one_step: ClassVar[bool] = True

    @property
    def threat_class(self) -> str:
        """How clients train is not asked for, other than that it was one step."""
        return "B"

    def _attempt(self, observation: ClientUpdate, generator: torch.Generator) -> Reconstruction:
        numbers: dict[str, float] = {}
        try:
            return self.solve(observation, generator, numbers)
        except AttackError as error:
            return grey_guess(observation, error, numbers)

    def solve(self, observation: ClientUpdate, generator: torch.Generator, numbers: dict[str, float]) -> Reconstruction:
        """The images; ``numbers`` take what is told of the way there, also where it ends in an ``AttackError``."""
        raise NotImplementedError
