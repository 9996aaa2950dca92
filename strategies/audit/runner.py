"""An attack job in this process: fit the attacks that learn, attack every update, let the oracle classify the guesses."""

from __future__ import annotations

import functools
import time
import traceback
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from attacks.base import AnyAttack
from attacks.choice import Needless, Turns
from attacks.gradient.trial_gradients.memory import is_out_of_memory
from attacks.guesses import Reconstruction, Representatives, found_nothing
from attacks.observations import AttackError, ClientUpdate, UpdateHistory, untried
from attacks.refinement.base import Refinement
from attacks.scoring.oracle import Oracle, train_oracle
from attacks.spec import stages_of
from clients.task.auxiliary import OWN_AUXILIARY, Auxiliary
from clients.task.task import Plan
from clients.training.evaluation import device_name, place
from defenses.random_draws import generator_for
from strategies.audit.jobs import AttackJob, AttackResult, Outcome

MOST_LEARNED = 8
"""Fitted attacks that a process keeps."""


def run_job(job: AttackJob) -> AttackResult:
    """Run a job in this process. A crash of an attack is a result as well; it must not end the run."""
    outcomes = []
    runner, turns = _Runner(job), Turns()
    for attack in job.attacks:
        if job.needless is not Needless.RUN and (why := turns.needless(attack)) is not None:
            if why and job.needless is Needless.SAMPLE:
                part = job.sample
                outcomes.append(replace(_timed(_Runner(job.part(part)), attack), part=part))
            elif why:
                outcomes.append(Outcome(attack, [], 0.0, why))
            continue
        outcomes.append(_timed(runner, attack))
        turns.note(attack, outcomes[-1].guesses)
    return AttackResult(job, outcomes)


def _timed(runner: _Runner, attack: AnyAttack) -> Outcome:
    start = time.perf_counter()
    try:
        outcome = runner(attack)
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        reason = f"{type(error).__name__}: {error} ({Path(last.filename).name}:{last.lineno})"
        reason = str(error) if untried(str(error)) else reason
        outcome = Outcome(attack, [], 0.0, reason)
        if isinstance(error, RuntimeError) and is_out_of_memory(error):
            learned.clear()  # which stays where it was learned: the next attack may need the room
    return replace(outcome, seconds=time.perf_counter() - start, computed_on=device_name())


class _Runner:
    """Runs the attacks of one job, which share the observations; chains also share the guess of their first attack."""

    def __init__(self, job: AttackJob) -> None:
        self.job = job
        self.first: dict[str, list[Any]] = {}

    def __call__(self, attack: AnyAttack) -> Outcome:
        plan = self.job.task.plan
        if attack.needs_auxiliary and not self.has_auxiliary:
            raise AttackError(f"{attack} learns from auxiliary data, and auxiliary-fraction is 0")
        guesses = self._guess(attack)
        if not self.has_auxiliary or not isinstance(guesses[0], Reconstruction | Representatives):
            return Outcome(attack, guesses, 0.0)
        if plan.auxiliary_data not in OWN_AUXILIARY:  # it would know other classes than the clients'
            return Outcome(attack, guesses, 0.0)
        try:
            oracle = _oracle(replace(plan.of_training, pipeline=""))
        except AttackError as error:
            # The guesses are worth as much without a judge: only the judge's own scores are missing.
            return Outcome(attack, guesses, 0.0, oracle_error=str(error))
        # Whoever has many labels is recognised by none of them; features are compared all the same.
        seen = [oracle.classify(guess.images) for guess in guesses] if plan.objective.one_class else []
        shipped = oracle.to_tensors() if self.job.kind.paired else {}
        return Outcome(attack, guesses, 0.0, "", seen, oracle.accuracy, shipped)

    @functools.cached_property
    def has_auxiliary(self) -> bool:
        """Whether the server holds examples of its own; no image is copied to find out."""
        plan = self.job.task.plan
        if plan.auxiliary_data not in OWN_AUXILIARY:
            return True
        return len(Auxiliary(plan).labels()) > 0

    @functools.cached_property
    def observations(self) -> list[Any]:
        """What the attacks see of the round, all of one model; no attack changes it."""
        return self.job.kind.observations(self.job.observed)

    @functools.cached_property
    def histories(self) -> list[UpdateHistory]:
        """What attacks on several rounds see: of each update, also those that the same client sent before."""
        rounds = [*self.job.earlier, self.job.observed]
        updates = [*(self.job.kind.observations(earlier) for earlier in self.job.earlier), self.observations]
        by_place: dict[tuple[int, int], list[ClientUpdate]] = {}
        for observed, ours in zip(rounds, updates, strict=True):
            for seen, update in zip(observed.seen, ours, strict=True):
                by_place.setdefault((seen.partition, seen.target), []).append(update)
        return [UpdateHistory(tuple(by_place[seen.partition, seen.target])) for seen in self.job.observed.seen]

    def _guess(self, attack: AnyAttack) -> list[Any]:
        first, *refinements = stages_of(attack)
        streams = self._streams(repr(attack))
        if attack.profile.observes_history:
            return place().attack_many(_fitted(first, self.job), self.histories, streams)
        name = repr(first)
        if name not in self.first:
            first = _fitted(first, self.job)
            self.first[name] = place().attack_many(first, self.observations, self._streams(name))
        guesses = self.first[name]
        # What has nothing to refine need not learn, which may take minutes.
        for refinement in refinements if not all(map(found_nothing, guesses)) else ():
            fitted = _fitted(refinement, self.job)
            assert isinstance(fitted, Refinement)
            guesses = place().refine_many(fitted, self.observations, guesses, streams)
        return guesses

    def _streams(self, text: str) -> list[torch.Generator]:
        # The attacker's randomness is its own: no defence draws from a stream that starts with "attack".
        task, kind = self.job.task, self.job.kind.name
        return [
            generator_for("attack", task.plan.seed, text, kind, task.round, seen.partition, seen.target)
            for seen in self.job.observed.seen
        ]


learned: OrderedDict[tuple[str, Plan, str], AnyAttack] = OrderedDict()
"""What this process fitted last."""


def _fitted(stage: AnyAttack, job: AttackJob) -> AnyAttack:
    """What is learned depends on the pipeline and on what the kind of observation names: it serves in other rounds, too."""
    stage = job.kind.limited(stage, job.observed)
    observed = job.observed if stage.learns_from_defenses else job.kind.undefended(job.observed)
    plan = observed.task.plan
    key = stage.lesson, plan.of_training, job.kind.depends_on(observed)
    if key in learned:
        learned.move_to_end(key)
    else:
        knowledge = job.kind.knowledge(observed)
        learned[key] = place().fit(stage, knowledge, generator_for("attack", plan.seed, stage.lesson, "fit"))
        while len(learned) > MOST_LEARNED:
            learned.popitem(last=False)
    known = learned[key]
    return known if known == stage else replace(stage, learned=known.learned)  # type: ignore[type-var]


@functools.lru_cache(maxsize=1)
def _oracle(plan: Plan) -> Oracle:
    return train_oracle(place().moved(Auxiliary(plan).examples()), plan.seed, objective=plan.objective)
