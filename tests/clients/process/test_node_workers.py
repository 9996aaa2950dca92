"""On which nodes workers start, and what is reserved there."""

from __future__ import annotations

from typing import Any

import pytest

from clients.process.node_workers import NEXT_TO_NOTHING, NodeWorkers, in_turn, places, reserved


def node(name: str, cores: float, cards: float = 0.0) -> dict[str, Any]:
    held = {"CPU": cores, "GPU": cards, "memory": 1e9}
    return {"NodeID": name * 56, "Alive": True, "Resources": {key: value for key, value in held.items() if value}}


def letters(found: list[str]) -> str:
    return "".join(one[:1] for one in found)


@pytest.mark.parametrize(
    ("nodes", "cpus", "gpus", "expected"),
    [
        ([node("a", 2), node("b", 2)], 1, 0.0, "abab"),
        ([node("a", 1), node("b", 4)], 1, 0.0, "abbbb"),
        ([node("a", 3), node("b", 4)], 2, 0.0, "abb"),
        ([node("a", 8), node("b", 8, 1)], 1, 0.5, "bb"),
        ([node("a", 8, 2), node("b", 1, 1)], 1, 0.5, "abaaa"),
        ([node("a", 0), node("b", 1)], 1, 0.0, "b"),
        ([], 1, 0.0, ""),
    ],
)
def test_places_are_as_many_as_flower_counts(
    nodes: list[dict[str, Any]], cpus: float, gpus: float, expected: str
) -> None:
    assert letters(places(nodes, cpus, gpus)) == expected


def test_flower_counts_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.flower_private import ray_actor

    for nodes in ([node("a", 3, 2), node("b", 9, 1)], [node("a", 0), node("b", 5, 1)], [node("a", 4, 2)]):
        monkeypatch.setattr(ray_actor.ray, "nodes", lambda nodes=nodes: nodes)
        for cpus, gpus in ((1, 0.0), (2, 0.0), (1, 0.3), (3, 0.5)):
            counted = ray_actor.pool_size_from_resources({"num_cpus": cpus, "num_gpus": gpus})
            assert counted == len(places(nodes, cpus, gpus))


def test_attack_workers_take_turns_with_nodes_that_have_what_they_need() -> None:
    nodes = [node("a", 2), node("b", 2, 1), node("c", 0, 1)]
    assert letters(in_turn(nodes, 3, 0.0)) == "aba"
    assert letters(in_turn(nodes, 3, 0.5)) == "bcb"
    assert in_turn([node("a", 2)], 2, 0.5) == ["", ""]


def test_one_living_node_has_room_for_the_workers_of_all() -> None:
    nodes = [node("a", 4, 1), node("b", 4, 1), node("c", 4, 1)]
    share = 0.25
    on_all = len(places(nodes, 1, share))
    assert on_all == 12
    assert on_all * reserved(share, nodes) <= 1
    assert reserved(share, nodes) > 0
    assert reserved(share, nodes[:1]) == share
    assert reserved(share, [node("a", 4, 2), node("b", 4, 1)]) == share, "Ray would put all of them on one card"


def test_workers_reserve_next_to_no_processor_and_go_where_they_were_counted() -> None:
    started: list[dict[str, Any]] = []

    class Workers:
        @staticmethod
        def options(**options: Any) -> None:
            started.append(options)

    workers = NodeWorkers(Workers, [node("a", 2), node("b", 4)])
    for _ in range(4):
        workers.options(num_cpus=2, num_gpus=0.0)
    assert {one["num_cpus"] for one in started} == {NEXT_TO_NOTHING}
    homes = [one["scheduling_strategy"] for one in started]
    assert letters([getattr(home, "node_id", home) for home in homes]) == "abbD", (
        "one more than was counted goes anywhere"
    )
    assert all(home.soft for home in homes[:3])
    assert {one["runtime_env"]["env_vars"]["OMP_NUM_THREADS"] for one in started} == {"2"}
