"""Cores and graphics cards of the machine, or of a Ray cluster, and the shares of the cards that clients and attacks get."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from clients.process.ray_cluster import join_cluster
from simulations.settings.common import CHOSEN_SHARE
from simulations.settings.errors import ConfigError

MOST_CLIENTS = 8
"""Client processes on one card: each takes about half a gigabyte of its memory before it computes."""
DIGITS = 10_000
"""Ray knows shares to four digits."""


class Node(NamedTuple):
    """Processor cores and graphics cards of a machine, as a run may use them."""

    cores: int
    cards: int


@dataclass(frozen=True)
class Hardware:
    """The machines of a run: the living ``nodes`` of the Ray cluster at ``ray_address``, or this machine alone at ""."""

    nodes: tuple[Node, ...]
    ray_address: str = ""

    def __str__(self) -> str:
        held = {"node": len(self.nodes), "core": sum(node.cores for node in self.nodes), "graphics card": self.cards}
        counts = ", ".join(f"{number} {what}{'s' * (number != 1)}" for what, number in held.items())
        return f"Ray cluster {self.ray_address}: {counts}"

    @property
    def cards(self) -> int:
        """Graphics cards of all nodes."""
        return sum(node.cards for node in self.nodes)

    @property
    def most(self) -> Node:
        """The most cores, and the most cards, that one node has."""
        return Node(*map(max, zip(*self.nodes, strict=True)))

    def workers(self, clients: int, cpus_per_client: int) -> int:
        """Client processes that work at the same time: on the nodes with cards, or on all where none has any."""
        able = [node for node in self.nodes if node.cards or not self.cards]
        return max(1, min(clients, sum(node.cores // cpus_per_client for node in able)))

    def workers_on_one(self, clients: int, cpus_per_client: int) -> int:
        """Client processes on the node that has most of them, as its memory must hold them."""
        return max(1, min(clients, self.most.cores // cpus_per_client))

    def require(self, cpus_per_client: int, gpus_per_client: float) -> None:
        """Raise ``ConfigError`` unless a client's worker fits on one node: Flower's runtime would wait for it without end."""
        where = "the largest node of the cluster" if self.ray_address else "this machine"
        if cpus_per_client > self.most.cores:
            raise ConfigError(f"--cpus-per-client is {cpus_per_client}; {where} has {self.most.cores}")
        self._require_cards("--gpus-per-client", gpus_per_client, where)

    def require_attack_cards(self, share: float) -> None:
        """Raise ``ConfigError`` where an attack worker needs more graphics cards than one node has; Ray would wait for them."""
        self._require_cards("attack-gpus", max(share, 0.0), "one machine of this run")

    def _require_cards(self, name: str, share: float, where: str) -> None:
        if share > 1 and not float(share).is_integer():
            raise ConfigError(
                f"{name} is {share:g}; allowed: 0 to 1, or a whole number of graphics cards, as Ray shares no more than one"
            )
        if not 0 <= share <= self.most.cards:
            raise ConfigError(f"{name} is {share:g}; allowed: 0 to {self.most.cards}, the graphics cards of {where}")


def hardware_at(ray_address: str) -> Hardware:
    """The nodes of the Ray cluster at an address, such as "10.0.0.1:6379", or this machine at ""; ``ConfigError`` without any."""
    if not ray_address:
        return Hardware((Node(os.cpu_count() or 1, torch.cuda.device_count()),))
    try:
        join_cluster(ray_address, logging_level="ERROR", log_to_driver=False)
    except ConnectionError as error:
        raise ConfigError(f"RAY_ADDRESS {error}") from error
    import ray

    try:
        found: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    finally:
        ray.shutdown()
    held = [node["Resources"] for node in found if node["Alive"]]
    nodes = tuple(Node(int(one["CPU"]), int(one.get("GPU", 0))) for one in held if one.get("CPU"))
    if not nodes:
        raise ConfigError(f"RAY_ADDRESS is {ray_address!r}, and no node of that cluster offers a core")
    return Hardware(nodes, ray_address)


@dataclass(frozen=True)
class CardShares:
    """Graphics ``cards`` of the run's machines, and what Ray reserves of one for each ``client`` and each ``attack`` process.

    Where nothing is reserved (0), all processes of the kind may use every card.
    """

    cards: int
    client: float = 0.0
    attack: float = 0.0

    def __str__(self) -> str:
        if not self.cards:
            return "no graphics card: clients and attacks compute on the processor"
        names = ", ".join(dict.fromkeys(torch.cuda.get_device_name(at) for at in range(torch.cuda.device_count())))
        shares = (self.client, "client process", "client processes"), (self.attack, "attack worker", "attack workers")
        held = (
            f"{share:g} of a card for each {one}" if share else f"nothing reserved for {all_}"
            for share, one, all_ in shares
        )
        return f"{self.cards} x {names or 'graphics card'}; {', '.join(held)}"


def card_shares(
    cards: int, workers: int, attackers: int, client: float | None = None, attack: float = CHOSEN_SHARE
) -> CardShares:
    """Shares for ``workers`` client processes and ``attackers`` attack workers, which must all find room on the cards.

    Flower starts as many client processes as find room, before any attack worker. The clients' share is therefore a little more
    than their part, so that one more does not fit; attack workers share what is left. ``client`` and ``attack`` are the shares
    where they are given (None and ``CHOSEN_SHARE`` else); 0 ``attackers``: attacks run in the server's process.
    """
    if not cards or attack != CHOSEN_SHARE:
        return CardShares(cards, client or 0.0, max(attack, 0.0))
    if client is None:
        on_one = min(math.ceil(workers / cards), MOST_CLIENTS)
        # More than a part of on_one * cards + 1 parts, where attack workers must find room.
        client = (DIGITS * cards // (on_one * cards + 1) + 1 if attackers else DIGITS // on_one) / DIGITS
    if not attackers or client == 0:
        return CardShares(cards, client)
    left = 1 - math.floor(1 / client) * client if client < 1 else 0.0
    return CardShares(cards, client, math.floor(DIGITS * left / math.ceil(attackers / cards)) / DIGITS)
