"""Jobs survive the disk and the process boundary, and an attack that breaks is a result."""

import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from attacks import LabelInference, Labels, UpdateHistory
from attacks.spec import parse_attacks
from clients.federated.client import LocalClient
from clients.task.local_data import LocalData
from strategies.audit.jobs import AttackJob
from strategies.audit.kinds import Observed
from strategies.audit.pool import AttackPool
from strategies.audit.runner import run_job
from strategies.audit.score_rows import mean_and_interval
from strategies.audit.threat_card import FROM_SEED, OWN_SECRET, ThreatCard
from strategies.federated.observations import PROBE, UPDATE, SeenUpdate
from tests.clients.federated.test_client import TASK, weights


@pytest.fixture(scope="module")
def job() -> AttackJob:
    start = weights()
    updates = LocalClient(LocalData(TASK, 0, range(40), range(20))).probe(start, {}).updates
    labels = torch.tensor([1, 2])
    seen = [SeenUpdate(0, at, 2, update, 1, labels if at else None) for at, update in enumerate(updates)]
    observed = Observed(TASK, start, seen)
    return AttackJob(
        "p00-r0001-probe-00", (LabelInference(),), PROBE, observed, ThreatCard(round=1, mode="train"),
        (observed,),
    )  # fmt: skip


def test_saving_and_loading_keeps_everything(job: AttackJob, tmp_path: Path) -> None:
    job.save(tmp_path)
    loaded = AttackJob.load(tmp_path / "p00-r0001-probe-00.safetensors")
    assert (loaded.name, loaded.attacks, loaded.kind, loaded.task, loaded.card) == (
        job.name, job.attacks, job.kind, job.task, job.card,
    )  # fmt: skip
    assert len(loaded.earlier) == 1
    for found in (loaded.observed, loaded.earlier[0]):
        assert all(torch.equal(found.weights[name], tensor) for name, tensor in job.observed.weights.items())
        for mine, theirs in zip(found.seen, job.observed.seen, strict=True):
            assert all(torch.equal(mine.update[name], theirs.update[name]) for name in theirs.update)
            assert (mine.labels is None) == (theirs.labels is None)
    assert [path.name for path in tmp_path.iterdir()] == ["p00-r0001-probe-00.safetensors"]


class Killer:
    """Ends the process that unpickles it, as a kernel short of memory would."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os._exit, (1,)


def test_interval_is_student_s() -> None:
    from scipy import stats

    values = [1.0, 2.0, 4.0, 8.0]
    low, high = stats.t.interval(0.95, 3, loc=3.75, scale=stats.sem(values))
    found = mean_and_interval(values)
    assert (found["value"], found["n"]) == (3.75, 4)
    assert (found["ci_low"], found["ci_high"]) == pytest.approx((low, high))
    assert mean_and_interval([5.0])["ci_low"] is None


def test_a_history_holds_a_clients_updates_oldest_first_and_what_the_others_sent_in_each_round(
    job: AttackJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    histories: list[UpdateHistory] = []

    def attack_many(_: Any, observations: Sequence[UpdateHistory], __: Any) -> list[Labels]:
        histories.extend(observations)
        return [Labels(torch.zeros(1, dtype=torch.int64))] * len(observations)

    monkeypatch.setattr("attacks.ClassGAN.attack_many", attack_many)
    attacks = tuple(parse_attacks("ClassGAN()"))
    first, second = job.observed.seen
    earlier = [replace(job.observed, seen=seen) for seen in ([second], [replace(second, num_examples=1), first])]
    (outcome,) = run_job(replace(job, attacks=attacks, earlier=tuple(earlier))).outcomes
    assert not outcome.error
    assert [[update.num_examples for update in history.updates] for history in histories] == [[2, 2], [2, 1, 2]]
    for history, seen in zip(histories, job.observed.seen, strict=True):
        assert all(update.update is seen.update for update in history.updates)
    histories.clear()
    # Client 0 with two updates in each round; clients 1 and 2 with one for the target of its first, or its second.
    now = [first, second, replace(first, partition=1, num_examples=3), replace(second, partition=2, num_examples=4)]
    then = [second, replace(second, partition=2, num_examples=5), replace(second, partition=3, num_examples=6)]
    observed, before = replace(job.observed, seen=now), replace(job.observed, seen=then)
    run_job(replace(job, attacks=attacks, observed=observed, earlier=(before,)))
    others = [[[one.num_examples for one in sent] for sent in history.others] for history in histories]
    assert others == [[[3]], [[5, 6], [4]], [[2]], [[2, 6], [2]]]


def test_no_real_client_receives_another_client_s_update(job: AttackJob) -> None:
    one = replace(job.observed.seen[0], local_steps=1)
    observed = replace(job.observed, seen=[one, replace(one, partition=1)])
    attacks = tuple(parse_attacks("FedMIA(signal='loss'); GradientAlignment()"))
    for source in (OWN_SECRET, f"{FROM_SEED} at clients 0; {OWN_SECRET} elsewhere", FROM_SEED, ""):
        card = replace(job.card, randomness=source)
        given = replace(job, kind=UPDATE, attacks=attacks, observed=observed, card=card, earlier=())
        shared, alone = run_job(given).outcomes
        assert ("would receive other clients' updates" in shared.error) == ("secret" in source), source
        assert bool(shared.guesses) == ("secret" not in source), source
        assert not alone.error
        assert {name.split("/")[2] for name in alone.guesses[0].to_tensors() if "/0/" in name} == {"weights", "updates"}


@pytest.mark.long
def test_worker_processes_give_what_this_process_gives_and_one_that_is_killed_costs_its_job(job: AttackJob) -> None:
    """One worker process for all of it: each takes seconds to start."""
    with closing(AttackPool(workers=1)) as pool:
        check_workers(pool, job)


def check_workers(pool: AttackPool, job: AttackJob) -> None:

    def all_of(*jobs: AttackJob) -> dict[str, Any]:
        for one in jobs:
            pool.submit(one)
        found = {}
        while len(pool):
            found |= {result.job.name: result.outcomes[0] for result in pool.finished(wait=True)}
        return found

    # Torch would move tensors into shared memory, in place: a NumPy view, or a sum being computed, would read freed memory.
    tensors = [*job.observed.weights.values(), *(one for seen in job.observed.seen for one in seen.update.values())]
    views, before = [tensor.numpy() for tensor in tensors], [(one.data_ptr(), one.clone()) for one in tensors]
    found = all_of(job, replace(job, name="broken", observed=replace(job.observed, weights={})))
    here = run_job(job).outcomes[0]
    guesses = [[guess.classes.tolist() for guess in outcome.guesses] for outcome in (found[job.name], here)]
    assert guesses[0] == guesses[1]
    assert found["broken"].error.startswith("TaskError: weights:")
    for tensor, view, (place, values) in zip(tensors, views, before, strict=True):
        assert not tensor.is_shared()
        assert tensor.data_ptr() == place
        assert torch.equal(torch.from_numpy(view), values)

    # What passes between processes is unpickled. Pipes alone lead from one to the other: nothing listens.
    family = [psutil.Process(), *psutil.Process().children(recursive=True)]
    assert len(family) > 1
    assert not [one for each in family for one in each.net_connections("inet") if one.status == psutil.CONN_LISTEN]
    assert not [one for each in family for one in each.net_connections("unix") if str(one.laddr)[:1] == "/"]

    killed = replace(job, name="a", card=job.card.but(bomb=Killer()))
    found = all_of(killed, *(replace(job, name=name) for name in "bcd"))
    assert found.pop("a").error == "the attack's worker failed: its process was ended from outside"
    assert sorted(found) == ["b", "c", "d"]
    assert not any(outcome.error for outcome in found.values())
