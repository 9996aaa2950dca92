"""Attacks on the updates of one round as a piece of work: saved, loaded, sent to a worker and run there."""

from __future__ import annotations

import functools
import json
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

import attacks
from attacks.base import Attack, AttackError, Chain, ClientUpdate, Knowledge, Reconstruction, Representatives
from attacks.base import UpdateHistory as History
from attacks.oracle import Oracle, train_oracle
from clients.task import Task, load_weights
from clients.training import train_alone
from defenses.base import Batch, Update, generator_for
from defenses.spec import parse_statements, registry_of


@dataclass(frozen=True)
class Seen:
    """One update that the server received, and what it knows of its making.

    Attributes:
        partition: The client's partition.
        target: Number of the probe, 0 for a training update.
        update: Name -> (local - global).
        num_examples: Examples that the update was computed on, as the client said.
        local_steps: Optimizer steps, as the client said.
        labels: Classes of the examples where clients publish them, else None.
    """

    partition: int
    target: int
    update: Update
    num_examples: int
    local_steps: int
    labels: Tensor | None = None


@dataclass(frozen=True)
class Observed:
    """The updates of one kind in one round, and the global model that they start from.

    Attributes:
        task: Carries the model, the pipeline, the round and the seed.
        weights: The global model.
        seen: The updates.
    """

    task: Task
    weights: dict[str, Tensor]
    seen: Sequence[Seen]

    def tensors(self) -> dict[str, Tensor]:
        """All tensors under flat names, for a file."""
        found = {f"weights/{name}": tensor for name, tensor in self.weights.items()}
        for at, seen in enumerate(self.seen):
            found |= {f"update-{at}/{name}": tensor for name, tensor in seen.update.items()}
            if seen.labels is not None:
                found[f"labels-{at}"] = seen.labels
        return found

    def about(self) -> dict[str, Any]:
        """All that is not a tensor, for JSON."""
        entries = [[seen.partition, seen.target, seen.num_examples, seen.local_steps] for seen in self.seen]
        return {"task": self.task.to_json(), "seen": entries}

    @classmethod
    def of(cls, about: dict[str, Any], tensors: dict[str, Tensor]) -> Observed:
        """What ``about`` and ``tensors`` returned."""
        seen = [
            Seen(partition, target, _part(tensors, f"update-{at}/"), examples, steps, tensors.get(f"labels-{at}"))
            for at, (partition, target, examples, steps) in enumerate(about["seen"])
        ]
        return cls(Task.from_json(about["task"]), _part(tensors, "weights/"), seen)

    def updates(self) -> list[ClientUpdate]:
        """What an attack gets to see of each update."""
        task = self.task
        card = task.data_card()
        model = load_weights(task.build_model(), self.weights)
        return [
            ClientUpdate(
                model=model,
                update=seen.update,
                input_shape=card.input_shape,
                mean=card.mean,
                std=card.std,
                num_examples=seen.num_examples,
                batch_size=min(task.batch_size, seen.num_examples),
                local_steps=seen.local_steps,
                learning_rate=task.learning_rate,
                weight_decay=task.weight_decay,
                labels=seen.labels,
                momentum=task.momentum,
            )
            for seen in self.seen
        ]


@dataclass(frozen=True)
class AttackJob:
    """Attacks on every update of one kind in one round.

    Attributes:
        name: Unique in the run, and usable as a file name.
        attacks: Texts of the attacks. Chains that begin with the same attack belong into one job, which runs that attack once.
        observation: "probe" or "update".
        observed: What they attack.
        setting: The threat card so far.
        earlier: The same kind of observation in earlier rounds, oldest first, for attacks on a history.
    """

    name: str
    attacks: tuple[str, ...]
    observation: str
    observed: Observed
    setting: dict[str, Any]
    earlier: tuple[Observed, ...] = ()

    @property
    def task(self) -> Task:
        """The clients' orders in the attacked round."""
        return self.observed.task

    def save(self, directory: Path) -> None:
        """Writes the job to ``directory``, so that a killed run need not collect its updates again."""
        rounds = [self.observed, *self.earlier]
        tensors = {f"{at}/{name}": t.contiguous() for at, one in enumerate(rounds) for name, t in one.tensors().items()}
        about = {"attacks": self.attacks, "observation": self.observation, "setting": self.setting}
        path = directory / f"{self.name}.safetensors"
        partial = path.with_suffix(".tmp")
        text = json.dumps(about | {"rounds": [one.about() for one in rounds]})
        # safetensors refuses tensors that share memory, as the global weights of two jobs' rounds may.
        save_file({name: tensor.clone() for name, tensor in tensors.items()}, partial, metadata={"job": text})
        partial.replace(path)

    @classmethod
    def load(cls, path: Path) -> AttackJob:
        """Reads what ``save`` wrote."""
        with safe_open(path, framework="pt") as file:
            about = json.loads(file.metadata()["job"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
        rounds = [Observed.of(one, _part(tensors, f"{at}/")) for at, one in enumerate(about["rounds"])]
        texts = tuple(about["attacks"])
        return cls(path.stem, texts, about["observation"], rounds[0], about["setting"], tuple(rounds[1:]))


@dataclass(frozen=True)
class Outcome:
    """What one attack of a job ended with.

    Attributes:
        attack: Its text.
        guesses: One per observed update; none when it ended with an error.
        seconds: Its share of the time.
        error: What ended it, or "".
        recognised: Per guess, the class that the oracle sees in each image (B,); none without auxiliary data.
        oracle_accuracy: The oracle's accuracy on auxiliary examples that it was not trained on.
    """

    attack: str
    guesses: Sequence[Any]
    seconds: float
    error: str = ""
    recognised: Sequence[Tensor] = ()
    oracle_accuracy: float | None = None


@dataclass(frozen=True)
class AttackResult:
    """A finished job: the outcomes of its attacks, in their order."""

    job: AttackJob
    outcomes: list[Outcome] = field(default_factory=list)


def parse_attacks(text: str) -> list[Attack[Any, Any]]:
    """Reads ``InvertingGradients(); DLG(iterations=100) | LearnedRestorer()``: ``|`` refines what the attack before it found.

    Raises:
        SpecError: Naming what is unknown or not allowed.
        AttackError: When a chain cannot be one.
    """
    statements = parse_statements(text, registry_of(attacks, Attack), "attack")
    lone = [stages[0] for stages in statements if len(stages) == 1 and isinstance(stages[0], attacks.Refinement)]
    if lone:
        raise AttackError(f"{lone[0]} refines what another attack found; write InvertingGradients() | {lone[0]}")
    return [stages[0] if len(stages) == 1 else Chain(tuple(stages)) for stages in statements]


def run_job(job: AttackJob) -> AttackResult:
    """Runs a job in this process. A crash of an attack is a result as well; it must not end the run."""
    outcomes = []
    runner = _Runner(job)
    for text in job.attacks:
        start = time.perf_counter()
        try:
            outcome = runner(text)
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            reason = f"{type(error).__name__}: {error} ({Path(last.filename).name}:{last.lineno})"
            outcome = Outcome(text, [], 0.0, reason)
        outcomes.append(replace(outcome, seconds=time.perf_counter() - start))
    return AttackResult(job, outcomes)


class _Runner:
    """Runs the attacks of one job; chains share the guess of their first attack."""

    def __init__(self, job: AttackJob) -> None:
        self.job = job
        self.first: dict[str, list[Any]] = {}

    def __call__(self, text: str) -> Outcome:
        attack = parse_attacks(text)[0]
        task = self.job.task
        has_auxiliary = len(task.auxiliary()) > 0
        if attack.needs_auxiliary and not has_auxiliary:
            raise AttackError(f"{text} learns from auxiliary data, and auxiliary-fraction is 0")
        attack = _fitted(attack, replace(task, round=0))
        guesses = self._guess(attack, text)
        if not has_auxiliary or not isinstance(guesses[0], Reconstruction | Representatives):
            return Outcome(text, guesses, 0.0)
        oracle = _oracle(replace(task, pipeline="", round=0))
        return Outcome(text, guesses, 0.0, "", [oracle.classify(guess.images) for guess in guesses], oracle.accuracy)

    def _guess(self, attack: Attack[Any, Any], text: str) -> list[Any]:
        observed = self.job.observed
        if attack.observes_history:
            return list(attack.attack_many(list(self._histories()), self._streams(text)))
        updates = observed.updates()
        first = attack.stages[0] if isinstance(attack, Chain) else attack
        name = text.split(" | ")[0]
        if name not in self.first:
            self.first[name] = list(first.attack_many(updates, self._streams(name)))
        if isinstance(attack, Chain):
            return attack.refine_many(updates, self.first[name], self._streams(text))
        return self.first[name]

    def _streams(self, text: str) -> list[torch.Generator]:
        # The attacker's randomness is its own: no defence draws from a stream that starts with "attack".
        task, kind = self.job.task, self.job.observation
        return [
            generator_for("attack", task.seed, text, kind, task.round, seen.partition, seen.target)
            for seen in self.job.observed.seen
        ]

    def _histories(self) -> Iterator[History]:
        rounds = [*self.job.earlier, self.job.observed]
        updates = [dict(zip([(s.partition, s.target) for s in r.seen], r.updates(), strict=True)) for r in rounds]
        for seen in self.job.observed.seen:
            place = (seen.partition, seen.target)
            yield History(tuple(found[place] for found in updates if place in found))


def knowledge_of(task: Task) -> Knowledge:
    """What the server holds besides its observations; without auxiliary data, an empty batch of it."""
    card = task.data_card()
    train: Callable[[Batch, int], nn.Module] = functools.partial(train_alone, task)
    return Knowledge(task.auxiliary(), task.defenses(), card.mean, card.std, train)


def _fitted(attack: Attack[Any, Any], task: Task) -> Attack[Any, Any]:
    """What is learned depends on the pipeline alone, so that it serves in every round and behind every attack."""
    if isinstance(attack, Chain):
        return Chain(tuple(_fitted(stage, task) for stage in attack.stages))
    return _fitted_stage(repr(attack), task)


@functools.lru_cache(maxsize=8)
def _fitted_stage(text: str, task: Task) -> Attack[Any, Any]:
    attack: Attack[Any, Any] = parse_statements(text, registry_of(attacks, Attack), "attack")[0][0]
    return attack.fit(knowledge_of(task), generator_for("attack", task.seed, text, "fit"))


@functools.lru_cache(maxsize=1)
def _oracle(task: Task) -> Oracle:
    return train_oracle(task.auxiliary(), task.seed)


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
