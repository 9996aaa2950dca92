"""Trials of a measured search: Optuna keeps, prunes and resumes them, in a file that several processes write to."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import optuna
from optuna.pruners import BasePruner, NopPruner, SuccessiveHalvingPruner
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from simulations.search.measured.judging import Judgement
from simulations.search.measured.proposals import Proposal
from simulations.search.measured.settings import Measured

JOURNAL = "trials.log"
SCALE, CHOICE, CONFIRMATION = "no-defence", "choice", "confirmation"
"""Studies: no defence on the images of the search, successive halving of hybrids there, and whole trainings on held-out images."""
CLEAR = 6.0
"""dB above the null baselines that count as much as all images recovered; 3 dB is the least of a recovered image."""
HYBRID, SEED, ORIGIN, RUNG, FAILURE = "hybrid", "seed", "origin", "rung", "failure"
"""Attributes of a trial."""
PLAN = "plan"
"""Attribute of a study."""


class Judged(NamedTuple):
    """What is known of a hybrid on one seed.

    Attributes:
        hybrid: Its text; "" for no defence.
        origin: See ``proposals``.
        seed: Of the training and the attacks.
        rungs: Judgements, from the lowest rung.
        complete: Whether the last of these is that of the whole training.
        failure: Why it was not judged; "" where it was.
    """

    hybrid: str
    origin: str
    seed: int
    rungs: tuple[Judgement, ...]
    complete: bool
    failure: str = ""

    @property
    def last(self) -> Judgement:
        """The judgement with the largest budget."""
        return self.rungs[-1]


def open_study(folder: Path, name: str, search: Measured) -> optuna.Study:
    """Open one of the three studies in a folder, or begin it."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    pruner: BasePruner = NopPruner()
    if name == CHOICE:
        pruner = SuccessiveHalvingPruner(min_resource=1, reduction_factor=search.reduction)
    storage = JournalStorage(JournalFileBackend(str(folder / JOURNAL)))
    sampler = optuna.samplers.RandomSampler(seed=search.seed)
    return optuna.create_study(
        storage=storage, study_name=name, sampler=sampler, pruner=pruner, direction="minimize", load_if_exists=True
    )


def plan(study: optuna.Study, stages: Sequence[Sequence[Proposal]], seeds: Sequence[int]) -> None:
    """Keep what is judged, stage by stage, each hybrid on each seed; a study that has a plan keeps that one."""
    if PLAN not in study.user_attrs:
        hybrids = [one.hybrid for stage in stages for one in stage]
        study.set_user_attr(PLAN, {"stages": stages, "hybrids": hybrids, "seeds": list(seeds)})


def planned(study: optuna.Study) -> list[list[Proposal]]:
    """The stages of a study's plan; none before it has one."""
    known = study.user_attrs.get(PLAN, {"stages": []})
    return [[Proposal(*one) for one in stage] for stage in known["stages"]]


def enqueue(study: optuna.Study, proposals: Sequence[Proposal]) -> None:
    """Queue hybrids of the plan on each seed; those that were queued before are not queued again."""
    for seed in study.user_attrs[PLAN]["seeds"]:
        for one in proposals:
            study.enqueue_trial(
                {HYBRID: one.hybrid, SEED: seed},
                {HYBRID: one.hybrid, SEED: seed, ORIGIN: one.origin},
                skip_if_exists=True,
            )


def queued(study: optuna.Study, proposals: Sequence[Proposal]) -> bool:
    """Whether any of these hybrids was queued, on any seed."""
    hybrids = {one.hybrid for one in proposals}
    return any(trial.user_attrs.get(HYBRID) in hybrids for trial in study.get_trials(deepcopy=False))


def requeue(study: optuna.Study) -> None:
    """Queue again what a killed process left unfinished; what it had judged is kept."""
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        study.tell(trial.number, state=TrialState.FAIL)
        if HYBRID in trial.user_attrs:
            study.enqueue_trial({key: trial.user_attrs[key] for key in (HYBRID, SEED)}, trial.user_attrs)


def retry(study: optuna.Study) -> None:
    """Queue again what failed with a reason; what was judged before the failure is kept."""
    latest = {_key(trial): trial for trial in study.get_trials(deepcopy=False) if HYBRID in trial.user_attrs}
    for trial in latest.values():
        if trial.state == TrialState.FAIL and FAILURE in trial.user_attrs:
            kept = {key: value for key, value in trial.user_attrs.items() if key != FAILURE}
            study.enqueue_trial({key: kept[key] for key in (HYBRID, SEED)}, kept)


def _key(trial: FrozenTrial) -> tuple[str, int]:
    return str(trial.user_attrs[HYBRID]), int(trial.user_attrs[SEED])


def next_trial(study: optuna.Study) -> optuna.Trial | None:
    """The next trial of the queue, with its parameters; None where the queue is empty."""
    if not study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
        return None
    trial = study.ask()
    if HYBRID not in trial.user_attrs:  # another process took the last one in between
        study.tell(trial, state=TrialState.FAIL)
        return None
    return trial


def parameters(study: optuna.Study, trial: optuna.Trial) -> tuple[str, int]:
    """Hybrid and seed of a trial."""
    known = study.user_attrs[PLAN]
    hybrid = str(trial.suggest_categorical(HYBRID, known["hybrids"]))
    return hybrid, int(trial.suggest_categorical(SEED, known["seeds"]))


def score(search: Measured, one: Judgement) -> float:
    """The number by which successive halving compares hybrids on a rung; lower is better.

    leak - accuracy / exchange, with leak = (share of recovered images + gain / 6 dB) / 2 and the gain between 0 and 6 dB.
    """
    leak = (one.share + min(max(one.gain / CLEAR, 0.0), 1.0)) / 2
    return leak - one.accuracy / search.exchange


def judged(study: optuna.Study, search: Measured) -> list[Judged]:
    """What is known of each hybrid and seed, in the order of the queue; of one that was tried again, the last result."""
    ended = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)
    found = (_judged(trial, search) for trial in study.get_trials(deepcopy=False, states=ended))
    return list({(one.hybrid, one.seed): one for one in found if one}.values())


def _judged(trial: FrozenTrial, search: Measured) -> Judged | None:
    known: Mapping[str, Any] = trial.user_attrs
    failure = str(known.get(FAILURE, ""))
    if trial.state == TrialState.FAIL and not failure:  # of a killed process; it was queued again
        return None
    rungs = tuple(
        Judgement.from_json(known[f"{RUNG} {number}"]) for number in range(search.rungs) if f"{RUNG} {number}" in known
    )
    hybrid, seed = str(known[HYBRID]), int(known[SEED])
    complete = trial.state == TrialState.COMPLETE
    return Judged(hybrid, str(known[ORIGIN]), seed, rungs, complete, failure)


def front(every: Sequence[Judged]) -> list[Judged]:
    """The Pareto front of the hybrids that reached the last rung.

    A hybrid is on the front if no other is at least as good in accuracy, share of recovered images and gain over the null
    baselines, and better in one of them.
    """
    study = optuna.create_study(directions=["maximize", "minimize", "minimize"])
    whole = [one for one in every if one.complete]
    for one in whole:
        values = [one.last.accuracy, one.last.share, one.last.gain]
        if not all(map(math.isfinite, values)):
            raise ValueError(f"{one.hybrid}: {values} is not finite")
        study.add_trial(optuna.trial.create_trial(values=values))
    return [whole[trial.number] for trial in study.best_trials]
