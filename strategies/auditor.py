"""Sends guesses back to the clients for scoring, and turns the scores into rows.

The truth stays with the clients; the server keeps means, intervals and counts.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from flwr.app import ArrayRecord, Message, RecordDict
from torch import Tensor

from attacks.base import Labels
from clients.records import reason_of, tensors_of, to_record, values_of
from clients.task import Task
from strategies.attack_pool import AttackJob, AttackPool, AttackResult
from strategies.exchange import Exchange

Scores = dict[str, list[float]]


class Recorder(Protocol):
    """Where rows, pictures and unfinished jobs go."""

    def row(self, task: Task, *, metric: str, value: float | None, **fields: Any) -> None:
        """Adds one number; ``fields`` are further columns."""

    def picture(self, task: Task, image: Tensor, *, image_number: int, **fields: Any) -> None:
        """Adds one image (C, H, W) in [0, 1]."""

    def open_job(self, job: AttackJob) -> None:
        """Keeps a job that has no result yet."""

    def close_job(self, job: AttackJob) -> None:
        """Forgets a job whose rows are written."""


class Auditor:
    """Queues attacks, and has each finished one scored by the clients it concerns.

    Args:
        exchange: Round trips with the nodes.
        pool: Runs the attacks.
        recorder: Keeps what comes out.
        share_images: Clients send pictures of their images for the report.
    """

    def __init__(self, exchange: Exchange, pool: AttackPool, recorder: Recorder, *, share_images: bool) -> None:
        self.exchange = exchange
        self.pool = pool
        self.recorder = recorder
        self.share_images = share_images

    def submit(self, job: AttackJob) -> None:
        """Queues a job; ``collect`` finishes it."""
        self.recorder.open_job(job)
        self.pool.submit(job)

    def collect(self, *, wait: bool = False) -> None:
        """Audits the jobs that have finished; with ``wait``, until none is left."""
        while True:
            for result in self.pool.finished(wait=wait):
                self._audit(result)
                self.recorder.close_job(result.job)
            if not wait or not len(self.pool):
                return

    def baselines(self, task: Task, observation: str, partitions: Sequence[int], setting: dict[str, Any]) -> None:
        """Rows of the guesses that used no observation, and the original and protected pictures."""
        replies = self._ask(task, observation, "baselines", dict.fromkeys(partitions, RecordDict()))
        by_name: dict[str, Scores] = defaultdict(lambda: defaultdict(list))
        for name, values in _gather(replies.values()).items():
            baseline, metric = name.split(":", 1)
            by_name[baseline][metric].extend(values)
        for baseline, scores in by_name.items():
            self._rows(task, f"baseline:{baseline}", setting, scores)
        for partition, reply in replies.items():
            for name, images in tensors_of(reply, "pictures").items():
                kind, target = name.rsplit("-", 1)
                self._pictures(task, images, attack="", client=partition, target=int(target), kind=kind)

    def _audit(self, result: AttackResult) -> None:
        job = result.job
        if result.error:
            self.recorder.row(
                job.task, metric="attack", value=None, attack=job.attack, setting=job.setting, status="failed",
                n=len(job.seen), failures=len(job.seen), message=result.error, seconds=result.seconds,
            )  # fmt: skip
            return
        guesses: dict[int, list[tuple[int, Any]]] = defaultdict(list)
        for seen, guess in zip(job.seen, result.guesses, strict=True):
            guesses[seen.partition].append((seen.target, guess))
        kind = "labels" if isinstance(result.guesses[0], Labels) else "images"
        contents = {partition: RecordDict({"guesses": _records(theirs)}) for partition, theirs in guesses.items()}
        replies = self._ask(job.task, job.observation, kind, contents)
        scores = _gather(replies.values())
        failed = [guess.failure for guess in result.guesses if guess.failure]
        setting = job.setting | {"attack_failures": sorted(set(failed))} if failed else job.setting
        self._rows(job.task, job.attack, setting, scores, failures=len(failed), seconds=result.seconds)
        self._diagnostics(result, setting)
        if kind == "images" and self.share_images and job.observation == "probe":
            self._keep_reconstructions(job, guesses, replies)

    def _diagnostics(self, result: AttackResult, setting: dict[str, Any]) -> None:
        job = result.job
        names = sorted({name for guess in result.guesses for name in guess.diagnostics})
        for name in names:
            values = [guess.diagnostics[name] for guess in result.guesses if name in guess.diagnostics]
            self._rows(job.task, job.attack, setting, {name: [float(value) for value in values]})
        self.recorder.row(
            job.task, metric="attack-seconds", value=result.seconds, attack=job.attack, setting=setting,
            n=len(job.seen), seconds=result.seconds,
        )  # fmt: skip

    def _keep_reconstructions(
        self, job: AttackJob, guesses: Mapping[int, list[tuple[int, Any]]], replies: Mapping[int, Message]
    ) -> None:
        for partition, theirs in guesses.items():
            if partition not in replies:
                continue
            psnr = iter(values_of(replies[partition], "metrics")["psnr-original"])
            for target, guess in theirs:
                scores = [next(psnr) for _ in guess.images]
                self._pictures(
                    job.task, guess.images, attack=job.attack, client=partition, target=target,
                    kind="reconstruction", psnr=scores,
                )  # fmt: skip

    def _pictures(self, task: Task, images: Tensor, *, psnr: list[float] | None = None, **fields: Any) -> None:
        for at, image in enumerate(images):
            self.recorder.picture(task, image, image_number=at, psnr=psnr[at] if psnr else None, **fields)

    def _ask(self, task: Task, observation: str, kind: str, contents: Mapping[int, RecordDict]) -> dict[int, Message]:
        """One audit message to each partition; a client that does not answer leaves a row, and its score is missing."""
        config = self.exchange.config(task, observation=observation, kind=kind, **{"share-images": self.share_images})
        messages = {partition: RecordDict({**content, "config": config}) for partition, content in contents.items()}
        replies = self.exchange("query.audit", messages)
        answered = {}
        for partition in contents:
            reply = replies.get(partition)
            if reply is not None and not reply.has_error():
                answered[partition] = reply
                continue
            reason = reason_of(reply) if reply is not None else "no reply"
            self.recorder.row(
                task, metric="client", value=None, status="failed", client=partition, message=f"query.audit: {reason}"
            )
        return answered

    def _rows(
        self,
        task: Task,
        attack: str,
        setting: dict[str, Any],
        scores: Scores,
        *,
        failures: int = 0,
        seconds: float = 0.0,
    ) -> None:
        for name, values in scores.items():
            metric, _, reference = (
                name.rpartition("-") if name.endswith(("-original", "-transformed")) else (name, "", "")
            )
            self.recorder.row(
                task, metric=metric, attack=attack, setting=setting, reference=reference, failures=failures,
                seconds=seconds, worst=_worst(metric, values), **mean_and_interval(values),
            )  # fmt: skip


def mean_and_interval(values: Sequence[float]) -> dict[str, Any]:
    """Mean, 95 % interval of the mean (Student's t; none for one value) and n."""
    from scipy.stats import t

    n = len(values)
    if n == 0:
        return {"value": None, "n": 0}
    mean = float(np.mean(values))
    if n == 1:
        return {"value": mean, "n": 1, "ci_low": None, "ci_high": None}
    half = float(t.ppf(0.975, n - 1) * np.std(values, ddof=1) / math.sqrt(n))
    return {"value": mean, "n": n, "ci_low": mean - half, "ci_high": mean + half}


def _worst(metric: str, values: Sequence[float]) -> float | None:
    """The value of the person who lost most."""
    return (min(values) if metric == "mse" else max(values)) if values else None


def _records(guesses: Sequence[tuple[int, Any]]) -> ArrayRecord:
    tensors = {}
    for target, guess in guesses:
        if isinstance(guess, Labels):
            tensors[f"labels-{target}"] = guess.classes
        else:
            tensors |= {f"labels-{target}": guess.labels, f"images-{target}": guess.images.float()}
    return to_record(tensors)


def _gather(replies: Any) -> Scores:
    """Scores of all clients, in order of partition."""
    scores: Scores = defaultdict(list)
    for reply in replies:
        for name, values in values_of(reply, "metrics").items():
            scores[name].extend(values)
    return dict(scores)
