"""Runs an attack job in this process: fits what learns, attacks every update, lets the oracle look at the pictures."""

from __future__ import annotations

import functools
import hashlib
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attacks.base import Attack, AttackError, ClientUpdate, Knowledge, Reconstruction, Representatives, UpdateHistory
from attacks.refinement.base import Chain
from attacks.registry import ATTACKS
from attacks.scoring.oracle import Oracle, train_oracle
from attacks.sender import Sender
from attacks.smashed.base import SmashedAttack
from clients.auxiliary import OWN_AUXILIARY, Auxiliary
from clients.federated.lone_training import train_alone
from clients.task import Task
from defenses.base import Batch, generator_for
from defenses.spec import parse_statements
from strategies.audit.jobs import EDGE, AttackJob, AttackResult, Observed, Outcome, parse_attacks, stages_of

MOST_LEARNED = 8
"""Fitted attacks that a process keeps."""


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
    """Runs the attacks of one job, which share the observations; chains also share the guess of their first attack."""

    def __init__(self, job: AttackJob) -> None:
        self.job = job
        self.first: dict[str, list[Any]] = {}

    def __call__(self, text: str) -> Outcome:
        attack, task = parse_attacks(text)[0], self.job.task
        if attack.needs_auxiliary and not self.has_auxiliary:
            raise AttackError(f"{text} learns from auxiliary data, and auxiliary-fraction is 0")
        guesses = self._guess(_fitted(attack, self.job.observed), text)
        if not self.has_auxiliary or not isinstance(guesses[0], Reconstruction | Representatives):
            return Outcome(text, guesses, 0.0)
        if task.auxiliary_data not in OWN_AUXILIARY:  # it would know other classes than the clients'
            return Outcome(text, guesses, 0.0)
        try:
            oracle = _oracle(replace(task, pipeline="", round=0, edge_learning_rate=0.0))
        except AttackError as error:
            # The guesses are worth as much without a judge: only the judge's own scores are missing.
            return Outcome(text, guesses, 0.0, oracle_error=str(error))
        seen = [oracle.classify(guess.images) for guess in guesses]
        shipped = oracle.to_tensors() if self.job.observation == "smashed" else {}
        return Outcome(text, guesses, 0.0, "", seen, oracle.accuracy, shipped)

    @functools.cached_property
    def has_auxiliary(self) -> bool:
        """Whether the server holds examples of its own; no image is copied to find out."""
        task = self.job.task
        if task.auxiliary_data not in OWN_AUXILIARY:
            return True
        return len(Auxiliary(task).indices(task.load_data().train.labels.numpy())) > 0

    @functools.cached_property
    def updates(self) -> list[Any]:
        """What the attacks see of the round, all of one model; no attack changes it."""
        observed = self.job.observed
        return observed.smashed() if self.job.observation == "smashed" else observed.updates()

    @functools.cached_property
    def histories(self) -> list[UpdateHistory]:
        """What attacks on several rounds see: of each update, those that the same client sent before, too."""
        rounds = [*self.job.earlier, self.job.observed]
        updates = [*(earlier.updates() for earlier in self.job.earlier), self.updates]
        by_place: dict[tuple[int, int], list[ClientUpdate]] = {}
        for observed, ours in zip(rounds, updates, strict=True):
            for seen, update in zip(observed.seen, ours, strict=True):
                by_place.setdefault((seen.partition, seen.target), []).append(update)
        return [UpdateHistory(tuple(by_place[seen.partition, seen.target])) for seen in self.job.observed.seen]

    def _guess(self, attack: Attack[Any, Any], text: str) -> list[Any]:
        if attack.observes_history:
            return list(attack.attack_many(self.histories, self._streams(text)))
        first, name = stages_of(attack)[0], text.split(" | ")[0]
        if name not in self.first:
            self.first[name] = list(first.attack_many(self.updates, self._streams(name)))
        if isinstance(attack, Chain):
            return attack.refine_many(self.updates, self.first[name], self._streams(text))
        return self.first[name]

    def _streams(self, text: str) -> list[torch.Generator]:
        # The attacker's randomness is its own: no defence draws from a stream that starts with "attack".
        task, kind = self.job.task, self.job.observation
        return [
            generator_for("attack", task.seed, text, kind, task.round, seen.partition, seen.target)
            for seen in self.job.observed.seen
        ]


def knowledge_of(task: Task, sender: Sender | None = None) -> Knowledge:
    """What the server holds besides its observations; without auxiliary data, an empty batch of it.

    Args:
        task: The clients' orders.
        sender: In split learning, the clients' sending side.
    """
    card = task.data_card()
    train: Callable[[Batch, int], nn.Module] = functools.partial(train_alone, task)
    return Knowledge(_auxiliary(replace(task, pipeline="")), task.defenses(), card.mean, card.std, train, sender)


@functools.lru_cache(maxsize=1)
def _auxiliary(task: Task) -> Batch:
    return Auxiliary(task).examples()


def _fitted(attack: Attack[Any, Any], observed: Observed) -> Attack[Any, Any]:
    """What is learned depends on the pipeline alone, and on a trained client half: it serves in other rounds, too."""
    stages = tuple(_fitted_stage(repr(_limited(stage, observed)), observed) for stage in stages_of(attack))
    return Chain(stages) if len(stages) > 1 else stages[0]


def _limited(stage: Attack[Any, Any], observed: Observed) -> Attack[Any, Any]:
    """For as many transmissions as there are: what is learned depends on them."""
    features = observed.seen[0].features if observed.seen else None
    return stage.limited_to(len(features)) if isinstance(stage, SmashedAttack) and features is not None else stage


_learned: OrderedDict[tuple[str, Task, str], Attack[Any, Any]] = OrderedDict()
"""What this process fitted last."""


def _fitted_stage(text: str, observed: Observed) -> Attack[Any, Any]:
    task = replace(observed.task, round=0, edge_learning_rate=0.0)
    # Of a whole model there is no client half; a frozen one is the same in every round.
    place = (text, task, _digest(observed.weights) if observed.in_halves and task.trains_edge else "")
    if place not in _learned:
        # Not by ``parse_attacks``, which refuses a refinement that stands alone.
        attack: Attack[Any, Any] = parse_statements(text, ATTACKS, "attack")[0][0]
        knowledge = knowledge_of(task, observed.sender())
        _learned[place] = attack.fit(knowledge, generator_for("attack", task.seed, text, "fit"))
        while len(_learned) > MOST_LEARNED:
            _learned.popitem(last=False)
    return _learned[place]


def _digest(weights: Mapping[str, Tensor]) -> str:
    """Of the client half among both halves' weights."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(name for name in weights if name.startswith(EDGE)):
        digest.update(np.ascontiguousarray(weights[name].cpu().numpy()).tobytes())
    return digest.hexdigest()


@functools.lru_cache(maxsize=1)
def _oracle(task: Task) -> Oracle:
    return train_oracle(Auxiliary(task).examples(), task.seed)
