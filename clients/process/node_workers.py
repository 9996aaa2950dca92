"""On which nodes of a Ray cluster of several machines client and attack workers run; no Flower here.

Flower counts how many workers fit on each node and asks Ray for so many, each with processors of its own. After a node is lost,
Ray has no free processors to start its workers elsewhere, and messages to them would wait for ever. Here every worker is placed
on the node for which it was counted and reserves next to nothing of a processor, so that it starts anew on another node.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

RETRIES = 40
"""Of a message to a worker whose node is lost: one a second or so fails until Ray has seen that, after 15 seconds or more."""
NEXT_TO_NOTHING = 0.001
"""Of a processor: Ray places an actor that needs nothing at all on a random node, whatever its strategy says."""

Nodes = Sequence[dict[str, Any]]
"""Nodes of a cluster, as ``ray.nodes()`` gives them."""


class NodeWorkers:
    """Stands in the place of Flower's class of workers; ``options(...).remote()`` starts one, on the next place that is free.

    ``workers`` is Ray's actor class; ``nodes`` are by default those that live when the first worker starts.
    """

    def __init__(self, workers: Any, nodes: Nodes | None = None) -> None:
        self._workers = workers
        self._nodes = nodes
        self._places: Iterator[str] | None = None

    def options(self, num_cpus: float, num_gpus: float = 0.0, **others: Any) -> Any:
        """The class with these options, placed on a node; ``num_cpus`` is the number of its threads, and is not reserved."""
        self._nodes = self._nodes or living_nodes()
        if self._places is None:
            self._places = iter(places(self._nodes, num_cpus, num_gpus))
        home, share = on_node(next(self._places, "")), reserved(num_gpus, self._nodes)
        if num_cpus > 1:  # of what is reserved Ray would make one thread
            others = {**others, "runtime_env": {"env_vars": {"OMP_NUM_THREADS": f"{num_cpus:.0f}"}}}
        return self._workers.options(
            num_cpus=NEXT_TO_NOTHING, num_gpus=share, scheduling_strategy=home, max_task_retries=RETRIES, **others
        )


def living_nodes() -> Nodes:
    """The living nodes of the cluster that this process has joined, as ``ray.nodes()`` gives them."""
    import ray

    found: Nodes = ray.nodes()  # type: ignore[no-untyped-call]
    return [node for node in found if node["Alive"]]


def on_node(node: str) -> Any:
    """Ray's strategy for an actor that starts on the node of this id, and on another one after that is lost; "" is any."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node, soft=True) if node else "DEFAULT"


def reserved(num_gpus: float, nodes: Nodes) -> float:
    """Share of a card that Ray reserves for a worker, so that one living node has room for the workers of all nodes.

    On nodes with several cards Ray would put all workers with small shares on one of them: there the whole share is reserved.
    """
    if len(nodes) == 1 or any(node["Resources"].get("GPU", 0) > 1 for node in nodes):
        return num_gpus
    return math.floor(10_000 * num_gpus / len(nodes)) / 10_000  # Ray knows shares to four digits


def in_turn(nodes: Nodes, count: int, num_gpus: float) -> list[str]:
    """Ids of the nodes of ``count`` attack workers, in turn, of nodes that have what one needs."""
    what, least = ("GPU", num_gpus) if num_gpus else ("CPU", 1)
    able = [node["NodeID"] for node in nodes if node["Resources"].get(what, 0) >= least]
    return [able[at % len(able)] if able else "" for at in range(count)]


def places(nodes: Nodes, num_cpus: float, num_gpus: float = 0.0) -> list[str]:
    """Ids of the living nodes, each as often as workers fit on it, in turn: a few workers are on several nodes."""
    fitting = {}
    for node in nodes:
        counts = [
            node["Resources"].get(name, 0.0) / each for name, each in (("CPU", num_cpus), ("GPU", num_gpus)) if each
        ]
        fitting[node["NodeID"]] = int(min(counts, default=0))
    return [node for at in range(max(fitting.values(), default=0)) for node, count in fitting.items() if at < count]
