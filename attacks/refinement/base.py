"""Attacks that refine the guess of another attack, and chains of an attack and its refinements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from attacks.base import AnyAttack, Attack, Knowledge
from attacks.guesses import Reconstruction, found_nothing
from attacks.observations import AttackError, ClientUpdate
from defenses.checks import algorithm


class Begun(NamedTuple):
    """A guess to be refined, its observation, and the generator for random draws."""

    observation: ClientUpdate
    guess: Reconstruction
    generator: torch.Generator


class Refinement(Attack[ClientUpdate, Reconstruction]):
    """Base of attacks that undo a defence in images which another attack recovered.

    Written after another attack, as in ``InvertingGradients() | LearnedRestorer()``. A subclass implements ``refine``; a subclass
    that is faster on many guesses at once overrides ``refine_begun``.
    """

    def refine(self, observation: ClientUpdate, guess: Reconstruction, generator: torch.Generator) -> Reconstruction:
        """Improve one guess that did not fail; keep its diagnostics and add further ones.

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
        """Improve one guess per observation. A failed guess stays failed; one that cannot be refined becomes grey and failed.

        Of a guess with grey images for those that were not found, the others are refined.

        Raises:
            AttackError: When the refinement needs ``fit`` first.
        """
        self.check_fitted()
        together = zip(observations, guesses, generators, strict=True)
        begun = [Begun(seen, old.part(), own) for seen, old, own in together if not found_nothing(old)]
        refined = iter(self.refine_begun(begun))
        return [old if found_nothing(old) else _whole(next(refined), old) for old in guesses]

    def refine_begun(self, begun: Sequence[Begun]) -> list[Reconstruction]:
        """Improve guesses that did not fail, by default one by one; a guess that cannot be refined becomes ``failed``."""
        return [self._refined(entry) for entry in begun]

    def _refined(self, begun: Begun) -> Reconstruction:
        try:
            return self.refine(*begun)
        except AttackError as error:
            return begun.guess.failed(error)

    def attack_many(
        self, observations: Sequence[ClientUpdate], generators: Sequence[torch.Generator]
    ) -> list[Reconstruction]:
        """Raise ``AttackError``: a refinement needs the guess of another attack."""
        raise AttackError(
            f"{self} refines the guess of another attack; write it behind one: InvertingGradients() | {self}"
        )


def _whole(new: Reconstruction, old: Reconstruction) -> Reconstruction:
    """The refined guess, with as many images as before."""
    return old.failed(new.failure) if new.failure else new.but_missing(len(old.images), old.failure)


@algorithm
class Chain(Attack[ClientUpdate, Reconstruction]):
    """An attack followed by refinements of its guess; its text joins their texts by ``|``.

    Raises:
        AttackError: When a later stage is no refinement, or the first stage is one.
    """

    stages: tuple[AnyAttack, ...]

    def __post_init__(self) -> None:
        if not self.stages or isinstance(self.stages[0], Refinement):
            raise AttackError(f"{self}: the first attack must not be a refinement; begin with InvertingGradients()")
        if wrong := [stage for stage in self.stages[1:] if not isinstance(stage, Refinement)]:
            raise AttackError(f"{self}: {wrong[0]} is no refinement; separate independent attacks by ;")

    def __repr__(self) -> str:
        return " | ".join(map(repr, self.stages))

    @property
    def needs_auxiliary(self) -> bool:
        """Whether any stage must be fitted."""
        return any(stage.needs_auxiliary for stage in self.stages)

    @property
    def knows_defenses(self) -> bool:
        """Whether any stage knows the clients' defences."""
        return any(stage.knows_defenses for stage in self.stages)

    @property
    def threat_class(self) -> str:
        """The strongest threat model of the stages; "" if the first stage attacks no update."""
        letter = max(stage.threat_class for stage in self.stages) if self.stages[0].threat_class else ""
        # "G" is a server that manipulates models ("F") and has examples of its own, for whichever stage.
        return "G" if letter == "F" and self.needs_auxiliary else letter

    @property
    def upper_bound(self) -> str:
        """The descriptions of all stages that are upper bounds, joined by commas; "" without one."""
        return ", ".join(dict.fromkeys(stage.upper_bound for stage in self.stages if stage.upper_bound))

    def card(self) -> dict[str, int | str]:
        """The entries of all stages, in order."""
        said: dict[str, list[int | str]] = {}
        for stage in self.stages:
            for key, value in stage.card().items():
                said.setdefault(key, []).append(value)
        return {
            key: values[0] if len(values) == 1 else ", then ".join(map(str, values)) for key, values in said.items()
        }

    def fit(self, knowledge: Knowledge, generator: torch.Generator) -> Chain:
        """Fit every stage."""
        return Chain(tuple(stage.fit(knowledge, generator) for stage in self.stages))

    def attack_many(
        self, observations: Sequence[ClientUpdate], generators: Sequence[torch.Generator]
    ) -> list[Reconstruction]:
        """Run the first stage, then the refinements."""
        guesses: list[Reconstruction] = self.stages[0].attack_many(observations, generators)
        return self.refine_many(observations, guesses, generators)

    def refine_many(
        self,
        observations: Sequence[ClientUpdate],
        guesses: Sequence[Reconstruction],
        generators: Sequence[torch.Generator],
    ) -> list[Reconstruction]:
        """Run the refinements on guesses of the first stage, which several chains may share."""
        refined = list(guesses)
        for stage in self.stages[1:]:
            assert isinstance(stage, Refinement)
            refined = stage.refine_many(observations, refined, generators)
        return refined
