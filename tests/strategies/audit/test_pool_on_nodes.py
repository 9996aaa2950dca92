"""Attack workers on a Ray cluster: where they run, and what a lost node costs. Ray is played; a slow test has the real one."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from strategies.audit import pool
from strategies.audit.jobs import AttackResult


class LostError(Exception):
    """As Ray's error for an actor that cannot be reached."""


class PlayedRay:
    """Ray with these nodes; a call fails on an actor whose node is in ``down``."""

    def __init__(self, *names: str) -> None:
        self.names, self.down, self.seen_after = list(names), set[str](), 0
        self.homes: list[str] = []
        self.ran_on: list[str] = []
        self.exceptions = SimpleNamespace(RayError=LostError)

    def nodes(self) -> list[dict[str, Any]]:
        """The nodes that Ray believes in: a loss is seen some calls later, and actors are then elsewhere."""
        if self.down and self.seen_after <= 0:
            self.names = [name for name in self.names if name not in self.down]
            self.homes = [home if home in self.names else self.names[0] for home in self.homes]
        self.seen_after -= bool(self.down)
        return [{"NodeID": name, "Alive": True, "Resources": {"CPU": 1.0}} for name in self.names]

    def remote(self, cls: type) -> Any:
        def start(scheduling_strategy: str, **_: Any) -> Any:
            at = len(self.homes)
            self.homes.append(scheduling_strategy)
            run = SimpleNamespace(remote=lambda job: (self.homes[at], job))
            return SimpleNamespace(remote=lambda **_: SimpleNamespace(run=run))

        return SimpleNamespace(options=start)

    def wait(self, handles: list[Any], num_returns: int, timeout: float | None) -> tuple[list[Any], list[Any]]:
        return handles, []

    def get(self, handle: Any) -> AttackResult:
        home, job = handle
        if home in self.down:
            raise LostError(f"{home} cannot be reached")
        self.ran_on.append(home)
        return AttackResult(job)


class Job(SimpleNamespace):
    __hash__ = object.__hash__  # type: ignore[assignment]


def jobs(count: int) -> list[Any]:
    return [Job(name=f"job-{at}", learned_stages=[], attacks=("attack",)) for at in range(count)]


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> PlayedRay:
    found = PlayedRay("a", "b")
    monkeypatch.setitem(sys.modules, "ray", found)  # type: ignore[arg-type]
    monkeypatch.setattr(pool, "living_nodes", found.nodes)
    monkeypatch.setattr(pool, "on_node", lambda home: home)
    monkeypatch.setattr(pool.time, "sleep", lambda seconds: None)
    return found


def run_all(workers: int, given: list[Any], backend: Any = None) -> list[AttackResult]:
    audit = pool.AttackPool(workers)
    audit._backend = backend or pool._RayActors(workers, 0.0)
    for job in given:
        audit.submit(job)
    done = []
    while len(audit):
        done += audit.finished(wait=True)
    return done


def test_workers_take_turns_and_a_failed_one_costs_its_job(played: PlayedRay, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray has tried such a job twice."""
    assert len(run_all(4, jobs(4))) == 4
    assert played.homes == ["a", "b", "a", "b"]
    assert sorted(played.ran_on) == ["a", "a", "b", "b"]
    played.homes.clear()
    monkeypatch.setattr(pool, "SECONDS_TO_SEE_A_LOSS", 0.0)
    played.down, played.seen_after = {"b"}, 10_000
    done = run_all(2, jobs(2))
    errors = [one.error for result in done for one in result.outcomes]
    assert (len(done), errors) == (2, ["the attack's worker failed: b cannot be reached"])


def test_what_was_learned_of_a_pipeline_is_not_learned_again_elsewhere(played: PlayedRay) -> None:
    """One worker has all jobs that share a learned stage, whatever else they attack; another pipeline's go elsewhere."""

    def job(pipeline: str, *stages: str) -> Any:
        name = f"{pipeline} {len(given)}"
        task = SimpleNamespace(plan=SimpleNamespace(pipeline=pipeline))
        return Job(name=name, learned_stages=list(stages), attacks=("attack",), task=task)

    given: list[Any] = []
    for pipeline, stages in (("x", ["U"]), ("y", ["U"]), ("x", ["V"]), ("x", ["U", "W"]), ("x", ["W"]), ("y", ["U"])):
        given.append(job(pipeline, *stages))
    backend = pool._RayActors(2, 0.0)
    handles = [backend.submit(one) for one in given]
    assert [home for home, _ in handles] == ["a", "b", "a", "a", "a", "b"]


def test_a_lost_node_costs_no_attack(played: PlayedRay) -> None:
    """Also where all workers were on it, and where Ray sees the loss only after a while."""
    for workers in (1, 2, 4):
        played.__init__("b", "a")  # type: ignore[misc]
        played.seen_after, backend = 5, pool._RayActors(workers, 0.0)
        played.down = {"b"}
        done = run_all(workers, jobs(6), backend)
        assert sorted(result.job.name for result in done) == [f"job-{at}" for at in range(6)]
        assert not [one.error for result in done for one in result.outcomes]
        assert set(played.ran_on) == {"a"}
