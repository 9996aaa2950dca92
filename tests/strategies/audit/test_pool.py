"""Jobs survive the disk and the process boundary, an attack that breaks is a result, and no file is read as another."""

import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors import SafetensorError

from attacks import LabelInference, Labels, Shredder, UpdateHistory, WindowMean
from attacks.refinement import unshuffle
from attacks.refinement.window_inference import learn_windows
from attacks.spec import parse_attacks
from clients.federated.client import LocalClient
from clients.task.local_data import LocalData
from strategies.audit import runner
from strategies.audit.jobs import AttackJob
from strategies.audit.kinds import Observed
from strategies.audit.pool import AttackPool
from strategies.audit.runner import run_job
from strategies.audit.score_rows import mean_and_interval
from strategies.audit.threat_card import ThreatCard
from strategies.audit.whole_files import load_tensors, save_tensors
from strategies.federated.observations import PROBE, SeenUpdate
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


def test_a_history_holds_a_clients_updates_oldest_first(job: AttackJob, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.long
def test_attacks_with_the_same_lesson_learn_once(job: AttackJob, monkeypatch: pytest.MonkeyPatch) -> None:
    learned = []

    def counted(*given: Any) -> Any:
        learned.append(learn_windows(*given))
        return learned[-1]

    monkeypatch.setattr(unshuffle, "learn_windows", counted)
    task = job.task.but(pipeline="VisualMixer(window_lower=2, window_upper=4)", auxiliary_fraction=0.2)
    knowing = replace(job, observed=replace(job.observed, task=task))
    attacks = Shredder(), WindowMean(), Shredder(sweeps=5)
    stages = [runner._fitted(stage, knowing) for stage in attacks]
    assert stages == list(attacks)
    assert len(learned) == 1
    assert all(stage.learned[0] is learned[0] for stage in stages)


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


TENSORS = {
    "weight": torch.arange(6.0).view(2, 3), "scalar": torch.tensor(0.5), "counts": torch.tensor([3, -1]),
    "half": torch.ones(3).half(), "none": torch.zeros(0, 4), "yes": torch.tensor([True, False]),
    "brain": torch.ones(2).bfloat16(),
}  # fmt: skip
ABOUT = {"about": '{"round": 3, "accuracy": 0.5, "word": "\u00fc"}'}


def test_what_was_written_is_read(tmp_path: Path) -> None:
    save_tensors(tmp_path / "a.safetensors", TENSORS, ABOUT)
    tensors, about = load_tensors(tmp_path / "a.safetensors")
    assert about == ABOUT
    assert tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        torch.testing.assert_close(tensors[name], tensor, rtol=0, atol=0)


@pytest.mark.long
def test_no_flipped_bit_is_read_as_something_else(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_tensors(path, TENSORS, ABOUT)
    data, refused = path.read_bytes(), 0
    for at in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[at // 8] ^= 1 << at % 8
        path.write_bytes(flipped)
        try:
            tensors, about = load_tensors(path)
        except (SafetensorError, ValueError):
            refused += 1
            continue
        # Bits that mean nothing, such as those of the space behind the header and of the key of the digest.
        assert about.items() >= ABOUT.items(), at
        assert all(torch.equal(tensors[name], tensor) for name, tensor in TENSORS.items()), at
    assert refused > 0.9 * 8 * len(data)


def test_a_file_that_was_cut_off_or_stands_in_the_place_of_another_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_tensors(path, TENSORS, ABOUT)
    data = path.read_bytes()
    for share in (0.0, 0.3, 0.9, 0.999):
        path.write_bytes(data[: int(share * len(data))])
        with pytest.raises((SafetensorError, ValueError)):
            load_tensors(path)
    path.with_name("b.safetensors").write_bytes(data)
    with pytest.raises(ValueError, match=r"its digest is [0-9a-f]{32}, and [0-9a-f]{32} was written"):
        load_tensors(path.with_name("b.safetensors"))
