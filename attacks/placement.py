"""Where an attack computes: what it is given moves to one device, and its guesses come back to the host."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from attacks.base import AnyAttack, Knowledge
from attacks.gradient.trial_gradients.finite_difference import full_precision
from attacks.gradient.trial_gradients.memory import in_chunks
from attacks.refinement.base import Refinement
from defenses.base import Batch, Update
from defenses.pipeline import Pipeline

Value = TypeVar("Value")
Learner = TypeVar("Learner", bound=AnyAttack)
HOST = torch.device("cpu")


@dataclass(frozen=True)
class Placement:
    """The device on which attacks compute.

    Attacks follow their observations: moving these, the models in them and the server's knowledge decides where an attack computes.
    On a GPU it computes in full float32: neither TensorFloat-32 nor mixed precision.

    Attributes:
        device: The device.
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

        def run(some: Sequence[_Job]) -> list[Any]:
            seen, streams = self.moved([one.given[0] for one in some]), [one.stream() for one in some]
            return _ended(some, streams, attack.attack_many(seen, streams))

        jobs = [_Job((one,), stream) for one, stream in zip(observations, generators, strict=True)]
        # Attacks on histories compare clients with each other, which all must be there.
        with full_precision():
            return _in_parts(run, jobs, together=attack.observes_history)

    def refine_many(
        self,
        refinement: Refinement,
        observations: Sequence[Any],
        guesses: Sequence[Any],
        generators: Sequence[torch.Generator],
    ) -> list[Any]:
        """Refined guesses, on the host, as ``attack_many`` returns those of attacks."""

        def run(some: Sequence[_Job]) -> list[Any]:
            seen, begun = (self.moved([one.given[at] for one in some]) for at in range(2))
            streams = [one.stream() for one in some]
            return _ended(some, streams, refinement.refine_many(seen, begun, streams))

        jobs = [
            _Job((seen, guess), stream) for seen, guess, stream in zip(observations, guesses, generators, strict=True)
        ]
        with full_precision():
            return _in_parts(run, jobs)

    def knowledge(self, knowledge: Knowledge) -> Knowledge:
        """The server's knowledge with its examples, models and client half on the device.

        What simulates clients gets examples on the host, as clients hold them, and moves its own models. Simulated updates stay on
        the host, as updates arrive there.
        """
        train, probes = knowledge.train, knowledge.probes

        def trained(batch: Batch, seed: int) -> nn.Module:
            return self.moved(train(Placement(HOST).moved(batch), seed))

        def probed(batch: Batch, count: int, seed: int) -> Iterator[tuple[Tensor, Update]]:
            assert probes is not None
            return probes(Placement(HOST).moved(batch), count, seed)

        moved = self.moved(replace(knowledge, train=_untrained, probes=None))
        return replace(moved, train=trained, probes=probes and probed)

    def moved(self, value: Value) -> Value:
        """A value whose tensors and modules are on the device: itself where all of them are; its own tensors never change.

        Lists, tuples, mappings and dataclasses are searched. Two that share a module still share it afterwards. A pipeline stays as
        it is, because defences follow what they protect.
        """
        found: Value = self._moved(value, {})
        return found

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
            held = {one.name: getattr(value, one.name) for one in fields(value) if one.init}
            moved = {name: self._moved(one, seen) for name, one in held.items()}
            changed = {name: one for name, one in moved.items() if one is not held[name]}
            return replace(value, **changed) if changed else value  # type: ignore[type-var]
        if isinstance(value, Mapping):
            found = {name: self._moved(one, seen) for name, one in value.items()}
            return found if any(one is not value[name] for name, one in found.items()) else value
        if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
            members = [self._moved(one, seen) for one in value]
            return value if all(map(operator.is_, members, value)) else type(value)(members)
        return value


@dataclass(frozen=True)
class _Job:
    """One observation to be attacked, with its guess so far if there is one, and its generator.

    A try that runs out of memory must leave the generator as it was: each try has a copy.
    """

    given: tuple[Any, ...]
    generator: torch.Generator

    def stream(self) -> torch.Generator:
        """A copy of the generator in its state."""
        return torch.Generator().set_state(self.generator.get_state())


def _ended(some: Sequence[_Job], streams: Sequence[torch.Generator], guesses: Sequence[Any]) -> list[Any]:
    """The guesses on the host; the jobs' own generators go on where the copies ended."""
    for one, stream in zip(some, streams, strict=True):
        one.generator.set_state(stream.get_state())
    return list(Placement(HOST).moved(list(guesses)))


def _in_parts(run: Callable[[Sequence[_Job]], list[Any]], jobs: Sequence[_Job], *, together: bool = False) -> list[Any]:
    if together or not jobs:
        return run(jobs)
    return [guess for part in in_chunks(run, jobs, len(jobs)) for guess in part]


def _untrained(batch: Batch, seed: int) -> nn.Module:
    raise NotImplementedError
