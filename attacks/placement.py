"""Where an attack computes: what it is given moves to one device, and its guesses come back to the host."""

import copy
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import chain
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from attacks.base import AnyAttack, Knowledge
from attacks.gradient.trial_gradients.finite_difference import full_precision
from attacks.gradient.trial_gradients.memory import in_chunks
from attacks.refinement.base import Refinement
from defenses.base import Batch
from defenses.pipeline import Pipeline

Value = TypeVar("Value")
Learner = TypeVar("Learner", bound=AnyAttack)
HOST = torch.device("cpu")


@dataclass(frozen=True)
class Placement:
    """The device on which attacks compute.

    Attacks follow their observations: moving these, the models in them and the server's knowledge decides where an attack computes.
    On a GPU it computes in full float32: neither TensorFloat-32 nor mixed precision.
    """

    device: torch.device

    def fit(self, attack: Learner, knowledge: Knowledge, generator: torch.Generator) -> Learner:
        """The attack after learning on the device; what it has learned stays there."""
        with full_precision():
            return attack.fit(self.knowledge(knowledge), generator)

    def attack_many(
        self, attack: AnyAttack, observations: Sequence[Any], generators: Sequence[torch.Generator]
    ) -> list[Any]:
        """Guesses of an attack, on the host; where memory runs out, the attack gets fewer observations at once.

        Raises:
            AttackError: When the attack needs ``fit`` first, or memory does not hold a single observation.
        """
        return self._guesses(attack.attack_many, (observations,), generators)

    def refine_many(
        self,
        refinement: Refinement,
        observations: Sequence[Any],
        guesses: Sequence[Any],
        generators: Sequence[torch.Generator],
    ) -> list[Any]:
        """Refined guesses, on the host, as ``attack_many`` returns those of attacks."""
        return self._guesses(refinement.refine_many, (observations, guesses), generators)

    def _guesses(
        self, run: Callable[..., Sequence[Any]], given: tuple[Sequence[Any], ...], generators: Sequence[torch.Generator]
    ) -> list[Any]:
        """What ``run`` makes of the given values on the device, with copies of the generators.

        A try that runs out of memory must leave the generators as they were: they go on where the copies of the good try ended.
        """

        def guess(some: Sequence[tuple[Any, ...]]) -> list[Any]:
            *values, streams = map(list, zip(*some, strict=True))
            copies = [torch.Generator().set_state(stream.get_state()) for stream in streams]
            guesses = run(*map(self.moved, values), copies)
            for stream, copied in zip(streams, copies, strict=True):
                stream.set_state(copied.get_state())
            return list(Placement(HOST).moved(list(guesses)))

        jobs = list(zip(*given, generators, strict=True))
        if not jobs:
            return []
        with full_precision():
            return list(chain.from_iterable(in_chunks(guess, jobs, len(jobs))))

    def knowledge(self, knowledge: Knowledge) -> Knowledge:
        """The server's knowledge with its examples, models and client half on the device.

        What simulates clients gets examples on the host, as clients hold them, and moves its own models.
        """
        train = knowledge.train

        def trained(batch: Batch, seed: int) -> nn.Module:
            return self.moved(train(Placement(HOST).moved(batch), seed))

        return replace(self.moved(knowledge), train=trained)

    def moved(self, value: Value) -> Value:
        """A value whose tensors and modules are on the device: itself where all of them are; its own tensors never change.

        Lists, tuples, mappings and dataclasses are searched. Two that share a module still share it afterwards. A pipeline stays as
        it is, because defences follow what they protect.
        """
        placed: Value = self._moved(value, {})
        return placed

    def _moved(self, value: Any, seen: dict[int, Any]) -> Any:
        if isinstance(value, Tensor):
            return value.to(self.device)
        if isinstance(value, Pipeline | type):
            return value
        if id(value) not in seen:
            seen[id(value)] = self._container(value, seen)
        return seen[id(value)]

    def _container(self, value: Any, seen: dict[int, Any]) -> Any:
        if isinstance(value, nn.Module):
            tensors = [*value.parameters(), *value.buffers()]
            at_home = all(tensor.device == self.device for tensor in tensors)
            return value if at_home else copy.deepcopy(value).to(self.device)
        if is_dataclass(value):
            held = {field.name: getattr(value, field.name) for field in fields(value) if field.init}
            moved = {name: self._moved(part, seen) for name, part in held.items()}
            changed = {name: part for name, part in moved.items() if part is not held[name]}
            return replace(value, **changed) if changed else value  # type: ignore[type-var]
        if isinstance(value, Mapping):
            entries = {name: self._moved(entry, seen) for name, entry in value.items()}
            return entries if any(entry is not value[name] for name, entry in entries.items()) else value
        if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
            members = [self._moved(member, seen) for member in value]
            return value if all(map(operator.is_, members, value)) else type(value)(members)
        return value
