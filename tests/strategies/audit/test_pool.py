"""Jobs survive the disk and the process boundary, and an attack that breaks is a result."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from attacks import LabelInference, Labels, UpdateHistory
from attacks.spec import parse_attacks
from clients.federated.client import LocalClient
from clients.task.auxiliary import Auxiliary
from clients.task.local_data import LocalData
from clients.task.task import Plan
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
        "p00-r0001-probe-00",
        (LabelInference(),),
        PROBE,
        observed,
        ThreatCard(round=1, more={"mode": "train"}),
        (observed,),
    )


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


@pytest.fixture(scope="module")
def pool() -> Iterator[AttackPool]:
    """One worker process, because each takes seconds to start."""
    pool = AttackPool(workers=1)
    yield pool
    pool.close()


@pytest.mark.long
def test_processes_give_what_this_process_gives(job: AttackJob, pool: AttackPool) -> None:
    pool.submit(job)
    pool.submit(replace(job, name="broken", observed=replace(job.observed, weights={})))
    results = []
    while len(pool):
        results += pool.finished(wait=True)
    here = run_job(job)
    by_name = {result.job.name: result for result in results}
    guesses = [[g.classes.tolist() for g in found.outcomes[0].guesses] for found in (by_name[job.name], here)]
    assert guesses[0] == guesses[1]
    assert by_name["broken"].outcomes[0].error.startswith("TaskError: weights:")


def test_what_passes_between_processes_nobody_else_can_send(job: AttackJob, pool: AttackPool) -> None:
    """It is unpickled. Pipes alone lead from one process to the other: nothing listens."""
    pool.submit(job)
    pool.finished(wait=True)
    here = psutil.Process()
    family = [here, *here.children(recursive=True)]
    assert len(family) > 1
    assert not [one for each in family for one in each.net_connections("inet") if one.status == psutil.CONN_LISTEN]
    assert not [one for each in family for one in each.net_connections("unix") if str(one.laddr)[:1] == "/"]


def test_what_is_handed_to_a_worker_stays_where_it_is(job: AttackJob, pool: AttackPool) -> None:
    """Torch would move it into shared memory, in place: a NumPy view, or a sum that is being computed, would read freed memory."""
    tensors = [*job.observed.weights.values(), *(one for seen in job.observed.seen for one in seen.update.values())]
    views = [tensor.numpy() for tensor in tensors]
    before = [(tensor.data_ptr(), tensor.clone()) for tensor in tensors]
    pool.submit(job)
    (result,) = pool.finished(wait=True)
    assert not result.outcomes[0].error
    for tensor, view, (place, values) in zip(tensors, views, before, strict=True):
        assert not tensor.is_shared()
        assert tensor.data_ptr() == place
        assert torch.equal(torch.from_numpy(view), values)


class Killer:
    """Ends the process that unpickles it, as a kernel short of memory would."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os._exit, (1,)


@pytest.mark.long
def test_a_killed_worker_costs_its_job_and_none_of_those_that_wait(job: AttackJob, pool: AttackPool) -> None:
    pool.submit(replace(job, name="a", card=job.card.but(bomb=Killer())))
    for name in "bcd":
        pool.submit(replace(job, name=name))
    found = {}
    while len(pool):
        found |= {result.job.name: result.outcomes for result in pool.finished(wait=True)}
    (lost,) = found.pop("a")
    assert lost.error == "the attack's worker failed: its process was ended from outside"
    assert sorted(found) == ["b", "c", "d"]
    for (outcome,) in found.values():
        assert not outcome.error
        assert len(outcome.guesses) == len(job.observed.seen)


def eat(group: str) -> None:
    """Joins a control group and takes more memory than that may have."""
    (Path(group) / "cgroup.procs").write_text(str(os.getpid()))
    taken = [b"x" * 2**24 for _ in range(1024)]
    raise RuntimeError(f"{len(taken)} pieces were there")


class Hungry:
    """Has the process that unpickles it take memory until the kernel ends it."""

    def __init__(self, group: Path) -> None:
        self.group = str(group)

    def __reduce__(self) -> tuple[Any, ...]:
        return eat, (self.group,)


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A control group of 1 GiB, where this process may make one."""
    for root, name in (
        (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
        (Path("/sys/fs/cgroup"), "memory.max"),
    ):
        group = root / f"fedveil-test-{os.getpid()}"
        try:
            group.mkdir()
            (group / name).write_text(str(2**30))
        except OSError:
            if group.is_dir():
                group.rmdir()
            continue
        yield group
        group.rmdir()
        return
    pytest.skip("no control group can be made here")


@pytest.mark.long
def test_a_worker_that_the_kernel_ends_for_its_memory_costs_its_job_with_that_cause(
    job: AttackJob, pool: AttackPool, small_group: Path
) -> None:
    pool.submit(replace(job, name="a", card=job.card.but(bomb=Hungry(small_group))))
    pool.submit(replace(job, name="b"))
    found = {}
    while len(pool):
        found |= {result.job.name: result.outcomes for result in pool.finished(wait=True)}
    (lost,), (kept,) = found["a"], found["b"]
    assert lost.error == "the attack's worker failed: its process was ended as memory ran out"
    assert not kept.error


def test_a_job_builds_its_model_and_its_auxiliary_data_once(job: AttackJob, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    for owner, name in ((Plan, "build_model"), (Auxiliary, "examples")):
        original = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda one, n=name, o=original: calls.append(n) or o(one))
    several = tuple(parse_attacks("LabelInference(); LossThreshold(); InvertingGradients(iterations=1, restarts=1)"))
    observed = replace(job.observed, task=job.task.but(seed=91))  # of no other test: fitted attacks are cached
    outcomes = run_job(replace(job, attacks=several, observed=observed)).outcomes
    assert [outcome.error for outcome in outcomes] == ["", "", ""]
    assert sorted(calls) == ["build_model", "examples"]


def test_a_history_holds_the_updates_of_one_client_oldest_first(
    job: AttackJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    histories: list[UpdateHistory] = []

    def attack_many(_: Any, observations: Sequence[UpdateHistory], __: Any) -> list[Labels]:
        histories.extend(observations)
        return [Labels(torch.zeros(1, dtype=torch.int64))] * len(observations)

    monkeypatch.setattr("attacks.ClassGAN.attack_many", attack_many)
    first, second = job.observed.seen
    earlier = [replace(job.observed, seen=seen) for seen in ([second], [replace(second, num_examples=1), first])]
    (outcome,) = run_job(replace(job, attacks=tuple(parse_attacks("ClassGAN()")), earlier=tuple(earlier))).outcomes
    assert not outcome.error
    assert [[update.num_examples for update in history.updates] for history in histories] == [[2, 2], [2, 1, 2]]
    for history, seen in zip(histories, job.observed.seen, strict=True):
        assert all(update.update is seen.update for update in history.updates)


def test_a_history_holds_what_the_other_clients_sent_in_each_round(
    job: AttackJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    histories: list[UpdateHistory] = []

    def attack_many(_: Any, observations: Sequence[UpdateHistory], __: Any) -> list[Labels]:
        histories.extend(observations)
        return [Labels(torch.zeros(1, dtype=torch.int64))] * len(observations)

    monkeypatch.setattr("attacks.ClassGAN.attack_many", attack_many)
    # Client 0 with two updates in each round; clients 1 and 2 with one for the target of its first, or its second.
    first, second = job.observed.seen
    now = [first, second, replace(first, partition=1, num_examples=3), replace(second, partition=2, num_examples=4)]
    then = [second, replace(second, partition=2, num_examples=5), replace(second, partition=3, num_examples=6)]
    observed, earlier = replace(job.observed, seen=now), replace(job.observed, seen=then)
    attacks = tuple(parse_attacks("ClassGAN()"))
    (outcome,) = run_job(replace(job, attacks=attacks, observed=observed, earlier=(earlier,))).outcomes
    assert not outcome.error
    others = [[[one.num_examples for one in sent] for sent in history.others] for history in histories]
    assert others == [[[3]], [[5, 6], [4]], [[2]], [[2, 6], [2]]]


@pytest.mark.parametrize(
    "source", [OWN_SECRET, f"{FROM_SEED} at clients 0; {OWN_SECRET} elsewhere", FROM_SEED, ""], ids=str
)
def test_no_real_client_receives_another_client_s_update(job: AttackJob, source: str) -> None:
    one = replace(job.observed.seen[0], local_steps=1)
    observed = replace(job.observed, seen=[one, replace(one, partition=1)])
    attacks = tuple(parse_attacks("FedMIA(signal='loss'); GradientAlignment()"))
    card = replace(job.card, randomness=source)
    shared, alone = run_job(
        replace(job, kind=UPDATE, attacks=attacks, observed=observed, card=card, earlier=())
    ).outcomes
    assert ("would receive other clients' updates" in shared.error) == ("secret" in source)
    assert bool(shared.guesses) == ("secret" not in source)
    assert not alone.error
    assert {name.split("/")[2] for name in alone.guesses[0].to_tensors() if "/0/" in name} == {"weights", "updates"}


def test_an_attack_that_raises_is_a_result(job: AttackJob) -> None:
    (outcome,) = run_job(replace(job, observed=replace(job.observed, weights={}))).outcomes
    assert outcome.error.startswith("TaskError: weights:")
    assert not outcome.guesses


def test_interval_is_student_s() -> None:
    from scipy import stats

    values = [1.0, 2.0, 4.0, 8.0]
    low, high = stats.t.interval(0.95, 3, loc=3.75, scale=stats.sem(values))
    found = mean_and_interval(values)
    assert (found["value"], found["n"]) == (3.75, 4)
    assert (found["ci_low"], found["ci_high"]) == pytest.approx((low, high))
    assert mean_and_interval([5.0])["ci_low"] is None
