"""Attacks beside training: on Ray actors in a simulation, in worker processes in a deployment.

Client actors hold every CPU of a simulation for the whole run, so an attack that requests a CPU would wait forever. Attack
actors therefore ask for none and share the cores with the clients, one thread each.
"""

from __future__ import annotations

import pickle
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent import futures
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from attacks.gradient.trial_gradients.memory import keep_freed_memory
from clients.process.worker_processes import end_with_parent
from strategies.audit.jobs import AttackJob, AttackResult, Outcome
from strategies.audit.runner import run_job


class AttackPool:
    """A queue of attack jobs and a few workers; only ``finished(wait=True)`` blocks.

    Args:
        workers: Attacks that run at the same time; 0 runs each at once in this process (tests, debugging).
        num_gpus: Share of a GPU that each worker asks Ray for.
    """

    def __init__(self, workers: int, num_gpus: float = 0.0) -> None:
        self._workers = workers
        self._num_gpus = num_gpus
        self._running: dict[Any, AttackJob] = {}
        self._done: list[AttackResult] = []
        self._backend: _RayActors | _Processes | None = None

    def __len__(self) -> int:
        """Jobs whose results have not been fetched."""
        return len(self._running) + len(self._done)

    def submit(self, job: AttackJob) -> None:
        """Queues a job."""
        if self._workers == 0:
            with threads(1):  # as a worker has, so that the same seed gives the same rows
                self._done.append(run_job(job))
            return
        if self._backend is None:
            # Chosen at the first job: by then a simulation's Ray is up and imported; starting it here would take Flower's place.
            ray = sys.modules.get("ray")
            on_ray = ray is not None and ray.is_initialized()
            self._backend = _RayActors(self._workers, self._num_gpus) if on_ray else _Processes(self._workers)
        self._running[self._backend.submit(job)] = job

    def finished(self, *, wait: bool = False) -> list[AttackResult]:
        """Results since the last call, in the order of their jobs' names; with ``wait``, at least one while any job is open."""
        while self._backend and self._running:
            for handle in self._backend.ready(list(self._running), block=wait and not self._done):
                self._done.append(self._backend.result(handle, self._running.pop(handle)))
            if self._done or not wait:
                break
        done, self._done = sorted(self._done, key=lambda result: result.job.name), []
        return done

    def close(self) -> None:
        """End the workers; jobs still running are dropped."""
        if self._backend:
            self._backend.close()


class _RayActors:
    """Long-lived actors, each with its own queue; a job goes to the shortest, or to the one that learned for it before."""

    def __init__(self, workers: int, num_gpus: float) -> None:
        import ray

        self._ray = ray
        remote: Any = ray.remote(_Worker)
        options = {"num_cpus": 0, "num_gpus": num_gpus, "max_restarts": -1, "max_task_retries": 1}
        self._actors: list[Any] = [remote.options(**options).remote() for _ in range(workers)]
        self._queues: list[set[Any]] = [set() for _ in range(workers)]
        self._learned: dict[tuple[str, str], int] = {}

    def submit(self, job: AttackJob) -> Any:
        at = min(range(len(self._actors)), key=lambda i: len(self._queues[i]))
        if job.learned_stages:
            # What one actor learned about a pipeline the next would have to learn again.
            learned = [(job.task.plan.pipeline, stage) for stage in job.learned_stages]
            at = next((self._learned[key] for key in learned if key in self._learned), at)
            self._learned |= dict.fromkeys(learned, at)
        handle = self._actors[at].run.remote(job)
        self._queues[at].add(handle)
        return handle

    def ready(self, handles: list[Any], *, block: bool) -> list[Any]:
        done, _ = self._ray.wait(handles, num_returns=1, timeout=None if block else 0)
        more, _ = self._ray.wait(handles, num_returns=len(handles), timeout=0)
        return list({*done, *more})

    def result(self, handle: Any, job: AttackJob) -> AttackResult:
        at = next(i for i, queue in enumerate(self._queues) if handle in queue)
        self._queues[at].discard(handle)
        try:
            result: AttackResult = self._ray.get(handle)
        except self._ray.exceptions.RayError as error:
            return _lost(job, str(error))
        return result

    def close(self) -> None:
        for actor in self._actors:
            self._ray.kill(actor)


class _Worker:
    """Body of a Ray actor."""

    def run(self, job: AttackJob) -> AttackResult:
        _prepare_process()
        return run_job(job)


class _Processes:
    """Worker processes, for a deployment's ServerApp and runs in one process, where no Ray runs.

    Each has a thread that hands it one job after the other: a process that is killed costs the job that it had, and no other.

    Jobs and results travel as bytes. Left to ``multiprocessing``, torch would move each tensor of a job into shared memory, in
    place and from another thread: a sum that is being computed with it, or its NumPy view, would read freed memory.
    """

    def __init__(self, workers: int) -> None:
        self._threads = futures.ThreadPoolExecutor(workers)
        self._own = threading.local()
        self._started: list[futures.ProcessPoolExecutor] = []

    def submit(self, job: AttackJob) -> futures.Future[AttackResult]:
        return self._threads.submit(self._run, job)

    def _run(self, job: AttackJob) -> AttackResult:
        if getattr(self._own, "process", None) is None:
            # "spawn": forking a process that already runs gRPC and torch threads can deadlock.
            self._own.process = futures.ProcessPoolExecutor(1, get_context("spawn"), _begin_process)
            self._started.append(self._own.process)
        before = _killed_for_memory()
        try:
            result: AttackResult = pickle.loads(self._own.process.submit(_run_bytes, pickle.dumps(job)).result())
        except BrokenProcessPool:
            self._own.process = None
            why = "as memory ran out" if _killed_for_memory() > before else "from outside"
            return _lost(job, f"its process was ended {why}")
        except Exception as error:
            return _lost(job, f"{type(error).__name__}: {error}")
        return result

    def ready(self, handles: list[Any], *, block: bool) -> list[Any]:
        return list(futures.wait(handles, None if block else 0, futures.FIRST_COMPLETED).done)

    def result(self, handle: Any, job: AttackJob) -> AttackResult:
        result: AttackResult = handle.result()
        return result

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        for pool in self._started:
            # Python waits for threads when it ends, and these for attacks that may take hours.
            for process in list((getattr(pool, "_processes", None) or {}).values()):
                process.kill()


def _run_bytes(job: bytes) -> bytes:
    return pickle.dumps(run_job(pickle.loads(job)))


def _killed_for_memory() -> int:
    """Number of processes that this machine's kernel has ended for lack of memory, as far as the kernel reports it."""
    try:
        counts = dict(line.split() for line in Path("/proc/vmstat").read_text(encoding="ascii").splitlines())
        return int(counts["oom_kill"])
    except (OSError, KeyError, ValueError):
        return 0


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Context in which torch uses this number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _prepare_process() -> None:
    torch.set_num_threads(1)
    keep_freed_memory()


def _begin_process() -> None:
    """Of a worker process: Ray ends its own itself. Ctrl-C, which a terminal sends to all, is for the process that started it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    _prepare_process()


def _lost(job: AttackJob, reason: str) -> AttackResult:
    return AttackResult(
        job, [Outcome(attack, [], 0.0, f"the attack's worker failed: {reason}") for attack in job.attacks]
    )
