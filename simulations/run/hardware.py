"""Cores and graphics cards of the machine, and the shares of the cards that clients and attacks get."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from simulations.settings.common import CHOSEN_SHARE
from simulations.settings.errors import ConfigError

MOST_CLIENTS = 8
"""Client processes on one card: each takes about half a gigabyte of its memory before it computes."""
DIGITS = 10_000
"""Ray knows shares to four digits."""


@dataclass(frozen=True)
class Hardware:
    """Processor ``cores`` and graphics ``cards`` of a machine, as a run may use them."""

    cores: int
    cards: int

    def workers(self, clients: int, cpus_per_client: int) -> int:
        """Client processes that work at the same time."""
        return max(1, min(clients, self.cores // cpus_per_client))

    def require(self, cpus_per_client: int, gpus_per_client: float) -> None:
        """Raise ``ConfigError`` unless a client's worker finds room: Flower's runtime would wait for it without end."""
        if cpus_per_client > self.cores:
            raise ConfigError(f"--cpus-per-client is {cpus_per_client}; this machine has {self.cores}")
        self.require_cards("--gpus-per-client", gpus_per_client)

    def require_cards(self, name: str, share: float) -> None:
        """Raise ``ConfigError`` where a worker's share, set by ``name``, exceeds the graphics cards; Ray would wait for them."""
        if share > 1 and not float(share).is_integer():
            raise ConfigError(
                f"{name} is {share:g}; allowed: 0 to 1, or a whole number of graphics cards, as Ray shares no more than one"
            )
        if not 0 <= share <= self.cards:
            raise ConfigError(f"{name} is {share:g}; allowed: 0 to {self.cards}, the graphics cards of this machine")


@dataclass(frozen=True)
class CardShares:
    """Graphics ``cards`` of the machine, and what Ray reserves of one for each ``client`` and each ``attack`` process.

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
            f"{share:g} of a card for each {worker}" if share else f"nothing reserved for {all_}"
            for share, worker, all_ in shares
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
