"""Attacks that start from the guess of another, and chains of an attack and such refinements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from attacks.base import Attack, Knowledge
from attacks.guesses import Reconstruction
from attacks.observations import AttackError, ClientUpdate


class Begun(NamedTuple):
    """A guess to be refined, the observation that it was made from, and the stream of what is drawn for it."""

    observation: ClientUpdate
    guess: Reconstruction
    generator: torch.Generator


class Refinement(Attack[ClientUpdate, Reconstruction]):
    """An attack that starts from the guess of another: it undoes a defence in images that were recovered before it.

    Written behind another attack, as in ``InvertingGradients() | LearnedRestorer()``. A subclass implements ``refine``; one that
    gains from many guesses at once overrides ``refine_begun``.
    """

    def refine(self, observation: ClientUpdate, guess: Reconstruction, generator: torch.Generator) -> Reconstruction:
        """Improves one guess that did not fail; keeps its diagnostics and adds its own.

        Raises:
            AttackError: When this guess cannot be refined.
        """
        raise NotImplementedError

    def refine_many(
        self,
        observations: Sequence[ClientUpdate],
        guesses: Sequence[Reconstruction],
        generators: Sequence[torch.Generator],
    ) -> list[Reconstruction]:
        """Improves one guess per observation. A failed guess stays failed; one that cannot be refined becomes grey and failed.

        Raises:
            AttackError: Before ``fit``, where that is needed.
        """
        self.check_fitted()
        begun = [Begun(*one) for one in zip(observations, guesses, generators, strict=True)]
        refined = iter(self.refine_begun([one for one in begun if not one.guess.failure]))
        return [one.guess if one.guess.failure else next(refined) for one in begun]

    def refine_begun(self, begun: Sequence[Begun]) -> list[Reconstruction]:
        """Improves guesses that did not fail, by default each with ``refine``; one that cannot be refined becomes ``failed``."""
        return [self._refined(one) for one in begun]

    def _refined(self, begun: Begun) -> Reconstruction:
        try:
            return self.refine(*begun)
        except AttackError as error:
            return begun.guess.failed(error)

    def attack_many(
        self, observations: Sequence[ClientUpdate], generators: Sequence[torch.Generator]
    ) -> list[Reconstruction]:
        """Refuses: there is nothing to refine yet."""
        raise AttackError(
            f"{self} refines the guess of another attack; write it behind one: InvertingGradients() | {self}"
        )


@dataclass(frozen=True, repr=False)
class Chain(Attack[ClientUpdate, Reconstruction]):
    """An attack and the refinements of its guess, in order; its text is theirs, joined by ``|``.

    Raises:
        AttackError: When a stage behind the first is no refinement, or the first is one.
    """

    stages: tuple[Attack[Any, Any], ...]

    def __post_init__(self) -> None:
        if not self.stages or isinstance(self.stages[0], Refinement):
            raise AttackError(f"{self}: the first attack must not be a refinement; begin with InvertingGradients()")
        if wrong := [stage for stage in self.stages[1:] if not isinstance(stage, Refinement)]:
            raise AttackError(f"{self}: {wrong[0]} refines nothing; separate independent attacks by ;")

    def __repr__(self) -> str:
        return " | ".join(map(repr, self.stages))

    @property
    def needs_auxiliary(self) -> bool:  # type: ignore[override]
        """Whether any stage must be fitted."""
        return any(stage.needs_auxiliary for stage in self.stages)

    @property
    def learns_prior(self) -> bool:  # type: ignore[override]
        """Whether any stage may paint what no update says."""
        return any(stage.learns_prior for stage in self.stages)

    @property
    def knows_defenses(self) -> bool:
        """Whether any stage does."""
        return any(stage.knows_defenses for stage in self.stages)

    @property
    def threat_class(self) -> str:
        """What the most knowing stage needs; "" where the first reads no update."""
        letter = max(stage.threat_class for stage in self.stages) if self.stages[0].threat_class else ""
        # A server that manipulates models and has examples of its own is one letter further, whichever stage has them.
        return "G" if letter == "F" and self.needs_auxiliary else letter

    @property
    def upper_bound(self) -> str:
        """That of any stage."""
        return ", ".join(dict.fromkeys(stage.upper_bound for stage in self.stages if stage.upper_bound))

    def card(self) -> dict[str, int | str]:
        """What each stage says, in order."""
        said: dict[str, list[int | str]] = {}
        for stage in self.stages:
            for key, value in stage.card().items():
                said.setdefault(key, []).append(value)
        return {
            key: values[0] if len(values) == 1 else ", then ".join(map(str, values)) for key, values in said.items()
        }

    def fit(self, knowledge: Knowledge, generator: torch.Generator) -> Chain:
        """Fits every stage."""
        return Chain(tuple(stage.fit(knowledge, generator) for stage in self.stages))

    def attack_many(
        self, observations: Sequence[ClientUpdate], generators: Sequence[torch.Generator]
    ) -> list[Reconstruction]:
        """Runs the first stage, then refines."""
        guesses: list[Reconstruction] = self.stages[0].attack_many(observations, generators)
        return self.refine_many(observations, guesses, generators)

    def refine_many(
        self,
        observations: Sequence[ClientUpdate],
        guesses: Sequence[Reconstruction],
        generators: Sequence[torch.Generator],
    ) -> list[Reconstruction]:
        """Runs the stages behind the first on its guesses, which several chains may share."""
        refined = list(guesses)
        for stage in self.stages[1:]:
            assert isinstance(stage, Refinement)
            refined = stage.refine_many(observations, refined, generators)
        return refined
