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
from attacks.learned.learning_to_invert import noise_like
from attacks.observations import AttackError, ClientUpdate, UpdateHistory, untried
from attacks.refinement.base import Refinement
from attacks.scoring.oracle import Oracle, train_oracle
from attacks.spec import stages_of
from attacks.uploads.base import UploadedImages
from clients.task.auxiliary import OWN_AUXILIARY, Auxiliary
from clients.task.task import Plan
from clients.training.evaluation import device_name, place
from defenses.random_draws import generator_for
from strategies.audit.jobs import AttackJob, AttackResult, Outcome
from strategies.audit.kinds import digest
from strategies.audit.threat_card import FROM_SEED

MOST_LEARNED = 8
"""Fitted attacks that a process keeps."""


def run_job(job: AttackJob) -> AttackResult:
    """Run a job in this process. A crash of an attack is a result as well; it must not end the run."""
    outcomes = []
    runner, silent, turns = _Runner(job), _Runner(job, of_noise=True), Turns()
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
        if attack.learns_prior and not outcomes[-1].why_none:
            outcomes.append(replace(_timed(silent, attack), of_noise=True))
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
            _learned.clear()  # which stays where it was learned: the next attack may need the room
    return replace(outcome, seconds=time.perf_counter() - start, computed_on=device_name())


class _Runner:
    """Runs the attacks of one job, which share the observations; chains also share the guess of their first attack.

    ``of_noise``: attacks are given noise in place of every update, the null control of attacks with a prior.
    """

    def __init__(self, job: AttackJob, *, of_noise: bool = False) -> None:
        self.job = job
        self.of_noise = of_noise
        self.first: dict[str, list[Any]] = {}

    def __call__(self, attack: AnyAttack) -> Outcome:
        plan = self.job.task.plan
        if attack.needs_auxiliary and not self.has_auxiliary:
            raise AttackError(f"{attack} learns from auxiliary data, and auxiliary-fraction is 0")
        if attack.profile.shares_updates and self.job.card.randomness not in ("", FROM_SEED):
            raise AttackError(
                "does not apply: the client that scores the test would receive other clients' updates; allowed: a simulation, "
                "whose clients draw from its seed"
            )
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
        found = self.job.kind.observations(self.job.observed)
        if not self.of_noise:
            return found
        return [silenced(one, noise) for one, noise in zip(found, self._streams("noise for updates"), strict=True)]

    @functools.cached_property
    def histories(self) -> list[UpdateHistory]:
        """What attacks on several rounds see: of each update, those that the same client sent before, and the other clients'."""
        rounds = [*self.job.earlier, self.job.observed]
        updates = [*(self.job.kind.observations(earlier) for earlier in self.job.earlier), self.observations]
        by_place: dict[tuple[int, int], list[tuple[ClientUpdate, tuple[ClientUpdate, ...]]]] = {}
        for observed, ours in zip(rounds, updates, strict=True):
            sent = list(zip(observed.seen, ours, strict=True))
            for seen, update in sent:
                others = (one for by, one in sent if by.partition != seen.partition and by.target == seen.target)
                by_place.setdefault((seen.partition, seen.target), []).append((update, tuple(others)))
        mine = (by_place[seen.partition, seen.target] for seen in self.job.observed.seen)
        return [UpdateHistory(*zip(*pairs, strict=True)) for pairs in mine]

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


def silenced(observation: Any, generator: torch.Generator) -> Any:
    """The observation with noise for its update, each tensor as long as before, or its images; ``AttackError`` without either."""
    if isinstance(observation, UploadedImages):
        noise = torch.rand(observation.images.shape, generator=generator)
        return replace(observation, images=noise.to(observation.images))
    if not isinstance(observation, ClientUpdate):
        raise AttackError(f"{type(observation).__name__} holds neither an update nor images that noise could stand for")
    return replace(observation, update=noise_like(observation.update, generator))


_learned: OrderedDict[tuple[str, Plan, str], AnyAttack] = OrderedDict()
"""What this process fitted last."""


def _fitted(stage: AnyAttack, job: AttackJob) -> AnyAttack:
    """What is learned depends on the pipeline and on what the kind of observation names: it serves in other rounds, too."""
    stage = job.kind.limited(stage, job.observed)
    observed = job.observed if stage.learns_from_defenses else job.kind.undefended(job.observed)
    plan = observed.task.plan
    model = f"{observed.task.round} {digest(observed.weights)}" if stage.profile.learns_from_model else ""
    key = (
        repr(stage),
        plan if stage.profile.learns_from_model else plan.of_training,
        f"{job.kind.depends_on(observed)} {model}",
    )
    if key in _learned:
        _learned.move_to_end(key)
    else:
        knowledge = job.kind.knowledge(observed)
        _learned[key] = place().fit(stage, knowledge, generator_for("attack", plan.seed, repr(stage), "fit"))
        while len(_learned) > MOST_LEARNED:
            _learned.popitem(last=False)
    return _learned[key]


@functools.lru_cache(maxsize=1)
def _oracle(plan: Plan) -> Oracle:
    return train_oracle(place().moved(Auxiliary(plan).examples()), plan.seed, objective=plan.objective)
