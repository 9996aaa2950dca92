"""Scoring of policies in several processes by Ray, or in this one where one is enough."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from typing import Any

from clients.process.ray_cluster import join_cluster, keep_ray_here, start_ray
from defenses.images.ats import Policy
from simulations.console.command_line import errors
from simulations.search.scorer import Scorer, Scores
from simulations.search.settings import Search
from simulations.settings.errors import ConfigError

AT_ONCE = 2
"""Policies at a worker, so that it never waits itself."""


def score_all(
    about: tuple[Any, ...], policies: Sequence[Policy], least: float | None, search: Search
) -> Generator[tuple[Policy, Scores], None, None]:
    """Yield each policy with its scores as soon as they are known, in any order, from scorers ``Scorer(*about)``.

    Raises:
        ConfigError: When the cluster cannot be reached, or started.
    """
    workers = min(search.workers or os.cpu_count() or 1, len(policies))
    if workers == 1 and not search.ray_address:
        scorer = Scorer(*about)
        yield from ((policy, scorer(policy, least)) for policy in policies)
        return
    import ray
    import torch
    from ray.util import ActorPool

    gpus = torch.cuda.device_count()
    _start(search, {} if search.ray_address else {"num_cpus": workers, "num_gpus": gpus})
    try:
        if search.ray_address and not search.workers:  # the cluster's processors, not this machine's
            known: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
            workers = max(1, min(int(known.get("CPU", 1)), len(policies)))
        remote: Any = ray.remote(_ScoringWorker).options(
            num_cpus=1, num_gpus=gpus / workers if gpus else 0, max_restarts=1, max_task_retries=1
        )
        shared = [ray.put(one) for one in about]
        pool: Any = ActorPool([remote.remote(*shared) for _ in range(workers)] * AT_ONCE)
        yield from pool.map_unordered(lambda actor, policy: actor.score.remote(policy, least), policies)
    except ray.exceptions.RayError as error:
        raise ConfigError(f"a process that scores was lost twice, or the cluster: {error}") from error
    finally:
        ray.shutdown()


def require_cluster(search: Search) -> None:
    """Raise ``ConfigError`` where nothing answers at ``ray-address``, before hours of training for scores that could not follow."""
    if not search.ray_address or search.sampler == "random":
        return
    import ray

    _start(search, {})
    ray.shutdown()


def _start(search: Search, here: dict[str, Any]) -> None:
    """Connects to the cluster, or starts one of these resources on this machine."""
    quiet: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False, "include_dashboard": False}
    if search.ray_address:
        try:
            join_cluster(search.ray_address, **quiet)
        except ConnectionError as error:
            raise ConfigError(f"ray-address {error}") from error
        return
    # Under `uv run` Ray would start each worker by uv anew, in an environment of its own: half a minute each.
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray reports its use by default
    keep_ray_here()
    try:
        start_ray(errors.say, **quiet, **here)
    except Exception as error:  # Ray raises bare ones for a late start
        where = f"workers is {search.workers}, and Ray cannot start them on this machine; workers=1 does without it"
        raise ConfigError(f"{where}: {str(error) or type(error).__name__}") from error


class _ScoringWorker:
    """A process that scores."""

    def __init__(self, *about: Any) -> None:
        import torch

        torch.set_num_threads(1)
        self._scorer = Scorer(*about)

    def score(self, policy: Policy, least: float | None) -> tuple[Policy, Scores]:
        return policy, self._scorer(policy, least)
