"""Processes that take trials from the queue and judge them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import optuna
from optuna.trial import TrialState

from simulations.search.measured.judging import Judgement, judge
from simulations.search.measured.proposals import NONE, PAPER
from simulations.search.measured.settings import Measured
from simulations.search.measured.trials import (
    CONFIRMATION,
    FAILURE,
    ORIGIN,
    RUNG,
    next_trial,
    open_study,
    parameters,
    requeue,
    score,
)
from simulations.settings.errors import ConfigError

WAIT = 0.5
"""Seconds between two looks at processes."""


def run_all(folder: Path, name: str, search: Measured, dataset: str, show: Callable[[int, int], None]) -> None:
    """Judge all that is queued in a study.

    Args:
        folder: Of the search.
        name: Of the study.
        search: The settings.
        dataset: The part of the data.
        show: Called with the number of hybrids that were judged, and of all.

    Raises:
        ConfigError: When a process ended before the queue was empty.
    """
    study = open_study(folder, name, search)
    requeue(study)
    waiting = len(study.get_trials(deepcopy=False, states=(TrialState.WAITING,)))
    workers = min(search.workers or os.cpu_count() or 1, waiting)

    def show_all() -> None:
        trials = study.get_trials(deepcopy=False)
        show(sum(trial.state.is_finished() for trial in trials), len(trials))

    show_all()
    if workers <= 1:
        work(folder, name, search, dataset, 0, show_all)
    else:
        _run_beside(workers, (folder, name, search, dataset, os.getpid()), show_all)
    if left := study.get_trials(deepcopy=False, states=(TrialState.WAITING, TrialState.RUNNING)):
        raise ConfigError(f"processes that judge were lost, and {len(left)} hybrids are not judged")


def _run_beside(workers: int, about: tuple[Path, str, Measured, str, int], show_all: Callable[[], None]) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=work, args=about, daemon=True) for _ in range(workers)]
    for process in processes:
        process.start()
    try:
        while any(process.is_alive() for process in processes):
            time.sleep(WAIT)
            show_all()
    finally:
        for process in processes:
            process.terminate()
            process.join()


def work(
    folder: Path,
    name: str,
    search: Measured,
    dataset: str,
    parent: int,
    judged: Callable[[], None] = lambda: None,
) -> None:
    """Judge hybrids until the queue is empty, or until the process that began this one has ended (0: this one is the first).

    ``judged`` is called after each.
    """
    import torch

    torch.set_num_threads(1)
    if parent:  # a terminal interrupts all its processes; the first one ends the others
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    study = open_study(folder, name, search)
    while (not parent or os.getppid() == parent) and (trial := next_trial(study)) is not None:
        hybrid, seed = parameters(study, trial)
        try:
            run = _judge_whole if name == CONFIRMATION else _halve
            value = run(trial, hybrid, seed, search, dataset, folder / "runs" / f"{name}-{trial.number}")
        except (ValueError, RuntimeError) as error:  # one hybrid that cannot be judged must not end the search
            trial.set_user_attr(FAILURE, f"{type(error).__name__}: {error}")
            study.tell(trial, state=TrialState.FAIL)
        else:
            study.tell(trial, value, state=TrialState.PRUNED if value is None else None)
        judged()


def _halve(
    trial: optuna.Trial,
    hybrid: str,
    seed: int,
    search: Measured,
    dataset: str,
    folder: Path,
) -> float | None:
    """Judge a hybrid rung by rung; None where it is pruned. References are never pruned."""
    kept = trial.user_attrs[ORIGIN] in (NONE, PAPER)
    value = 0.0
    for number in range(search.rungs):
        value = score(search, _once(trial, number, hybrid, seed, search, dataset, folder))
        if kept:
            continue
        trial.report(value, search.reduction**number)
        if number < search.rungs - 1 and trial.should_prune():
            return None
    return value


def _judge_whole(
    trial: optuna.Trial,
    hybrid: str,
    seed: int,
    search: Measured,
    dataset: str,
    folder: Path,
) -> float:
    return score(search, _once(trial, search.rungs - 1, hybrid, seed, search, dataset, folder))


def _once(
    trial: optuna.Trial, number: int, hybrid: str, seed: int, search: Measured, dataset: str, folder: Path
) -> Judgement:
    """The judgement on a rung; one that a killed process had made is not made again."""
    known: Mapping[str, object] | None = trial.user_attrs.get(f"{RUNG} {number}")
    if known is not None:
        return Judgement.from_json(known)
    found = judge(search, dataset, hybrid, search.rung(number), seed, folder)
    trial.set_user_attr(f"{RUNG} {number}", found.to_json())
    return found
