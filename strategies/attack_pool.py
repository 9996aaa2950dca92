"""Runs attacks beside training: on Ray actors in a simulation, in worker processes in a deployment.

Client actors hold every CPU of a simulation for the whole run, so an attack that asked Ray for a CPU would wait for ever. Attack
actors therefore ask for none and share the cores with the clients, one thread each.
"""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

import attacks
from attacks.base import Attack, ClientUpdate
from clients.task import Task, load_weights
from defenses.base import Update, generator_for
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
class AttackJob:
    """One attack on every update of one kind in one round.

    Attributes:
        name: Unique in the run, and usable as a file name.
        attack: The attack's text.
        observation: "probe" or "update".
        task: Carries the model, the pipeline, the round and the seed.
        weights: The global model that the updates start from.
        seen: The updates.
        setting: The threat card so far.
    """

    name: str
    attack: str
    observation: str
    task: Task
    weights: dict[str, Tensor]
    seen: Sequence[Seen]
    setting: dict[str, Any]

    def save(self, directory: Path) -> None:
        """Writes the job to ``directory``, so that a killed run need not collect its updates again."""
        tensors = {f"weights/{name}": tensor for name, tensor in self.weights.items()}
        entries = []
        for at, seen in enumerate(self.seen):
            tensors |= {f"update-{at}/{name}": tensor for name, tensor in seen.update.items()}
            if seen.labels is not None:
                tensors[f"labels-{at}"] = seen.labels
            entries.append([seen.partition, seen.target, seen.num_examples, seen.local_steps])
        about = {"attack": self.attack, "observation": self.observation, "setting": self.setting, "seen": entries}
        path = directory / f"{self.name}.safetensors"
        partial = path.with_suffix(".tmp")
        contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
        save_file(contiguous, partial, metadata={"job": json.dumps(about), "task": self.task.to_json()})
        partial.replace(path)

    @classmethod
    def load(cls, path: Path) -> AttackJob:
        """Reads what ``save`` wrote."""
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata()
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
        about = json.loads(metadata["job"])

        def part(prefix: str) -> dict[str, Tensor]:
            return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}

        seen = [
            Seen(partition, target, part(f"update-{at}/"), examples, steps, tensors.get(f"labels-{at}"))
            for at, (partition, target, examples, steps) in enumerate(about["seen"])
        ]
        task = Task.from_json(metadata["task"])
        return cls(path.stem, about["attack"], about["observation"], task, part("weights/"), seen, about["setting"])


@dataclass(frozen=True)
class AttackResult:
    """What a job ended with: one guess per observed update, or the error that ended it."""

    job: AttackJob
    guesses: Sequence[Any]
    seconds: float
    error: str = ""


def parse_attacks(text: str) -> list[Attack[Any, Any]]:
    """Reads ``InvertingGradients(); DLG(iterations=100)``.

    Raises:
        SpecError: Naming what is unknown or not allowed.
    """
    statements = parse_statements(text, registry_of(attacks, Attack), "attack")
    return [attack for statement in statements for attack in statement]


def run_job(job: AttackJob) -> AttackResult:
    """Runs a job in this process. A crash of the attack is a result as well; it must not end the run."""
    start = time.perf_counter()
    try:
        guesses: Sequence[Any] = _guess(job)
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        reason = f"{type(error).__name__}: {error} ({Path(last.filename).name}:{last.lineno})"
        return AttackResult(job, [], time.perf_counter() - start, reason)
    return AttackResult(job, guesses, time.perf_counter() - start)


def _guess(job: AttackJob) -> list[Any]:
    task = job.task
    card = task.data_card()
    model = load_weights(task.build_model(), job.weights)
    attack = parse_attacks(job.attack)[0]
    observations = [
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
        )
        for seen in job.seen
    ]
    # The attacker's randomness is its own: no defence draws from a stream that starts with "attack".
    streams = [
        generator_for("attack", task.seed, job.attack, job.observation, task.round, seen.partition, seen.target)
        for seen in job.seen
    ]
    return list(attack.attack_many(observations, streams))


class AttackPool:
    """A queue of attack jobs and a few workers; nothing blocks until ``wait``.

    Args:
        workers: Attacks that run at the same time; 0 runs each at once in this process (tests, debugging).
        num_gpus: Share of a GPU that each worker asks Ray for.
    """

    def __init__(self, workers: int, num_gpus: float = 0.0) -> None:
        self._workers = workers
        self._num_gpus = num_gpus
        self._running: dict[Any, AttackJob] = {}
        self._done: list[AttackResult] = []
        self._backend: _Backend | None = None

    def __len__(self) -> int:
        """Jobs whose results have not been fetched."""
        return len(self._running) + len(self._done)

    def submit(self, job: AttackJob) -> None:
        """Queues a job."""
        if self._workers == 0:
            self._done.append(run_job(job))
            return
        # Chosen at the first job: by then a simulation's Ray is up; starting Ray here would take Flower's place.
        self._backend = self._backend or _choose_backend(self._workers, self._num_gpus)
        self._running[self._backend.submit(job)] = job

    def finished(self, *, wait: bool = False) -> list[AttackResult]:
        """Results since the last call, in the order of their jobs' names; with ``wait``, at least one while any is open."""
        if self._backend and self._running:
            block = wait and not self._done
            for handle in self._backend.ready(list(self._running), block=block):
                job = self._running.pop(handle)
                self._done.append(self._backend.result(handle, job))
        done, self._done = sorted(self._done, key=lambda result: result.job.name), []
        return done

    def close(self) -> None:
        """Ends the workers; jobs still running are dropped."""
        if self._backend:
            self._backend.close()


class _Backend:
    """Where jobs run."""

    def submit(self, job: AttackJob) -> Any:
        raise NotImplementedError

    def ready(self, handles: list[Any], *, block: bool) -> list[Any]:
        raise NotImplementedError

    def result(self, handle: Any, job: AttackJob) -> AttackResult:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


def _choose_backend(workers: int, num_gpus: float) -> _Backend:
    try:
        import ray
    except ImportError:
        return _Processes(workers)
    return _RayActors(workers, num_gpus) if ray.is_initialized() else _Processes(workers)


class _RayActors(_Backend):
    """Long-lived actors, each with its own queue; a job goes to the shortest."""

    def __init__(self, workers: int, num_gpus: float) -> None:
        import ray

        self._ray = ray
        remote: Any = ray.remote(_Worker).options(num_cpus=0, num_gpus=num_gpus, max_restarts=-1, max_task_retries=1)
        self._actors: list[Any] = [remote.remote() for _ in range(workers)]
        self._queues: list[set[Any]] = [set() for _ in range(workers)]

    def submit(self, job: AttackJob) -> Any:
        at = min(range(len(self._actors)), key=lambda i: len(self._queues[i]))
        handle = self._actors[at].run.remote(job)
        self._queues[at].add(handle)
        return handle

    def ready(self, handles: list[Any], *, block: bool) -> list[Any]:
        done, _ = self._ray.wait(handles, num_returns=1, timeout=None if block else 0)
        more, _ = self._ray.wait(handles, num_returns=len(handles), timeout=0)
        return list({*done, *more})

    def result(self, handle: Any, job: AttackJob) -> AttackResult:
        for queue in self._queues:
            queue.discard(handle)
        try:
            result: AttackResult = self._ray.get(handle)
        except self._ray.exceptions.RayError as error:
            return AttackResult(job, [], 0.0, f"the attack's worker failed: {error}")
        return result

    def close(self) -> None:
        for actor in self._actors:
            self._ray.kill(actor)


class _Worker:
    """Body of a Ray actor."""

    def run(self, job: AttackJob) -> AttackResult:
        torch.set_num_threads(1)
        return run_job(job)


class _Processes(_Backend):
    """Worker processes, for a deployment's ServerApp, where no Ray runs."""

    def __init__(self, workers: int) -> None:
        initializer: Callable[..., None] = torch.set_num_threads
        # "spawn": forking a process that already runs gRPC and torch threads can deadlock.
        self._pool = ProcessPoolExecutor(workers, get_context("spawn"), initializer, (1,))

    def submit(self, job: AttackJob) -> Future[AttackResult]:
        return self._pool.submit(run_job, job)

    def ready(self, handles: list[Any], *, block: bool) -> list[Any]:
        from concurrent.futures import FIRST_COMPLETED, wait

        return list(wait(handles, timeout=None if block else 0, return_when=FIRST_COMPLETED).done)

    def result(self, handle: Any, job: AttackJob) -> AttackResult:
        try:
            result: AttackResult = handle.result()
        except Exception as error:
            return AttackResult(job, [], 0.0, f"the attack's worker failed: {type(error).__name__}: {error}")
        return result

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
