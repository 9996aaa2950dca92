"""Shares of the graphics cards of a run that its clients and attacks get."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from simulations.experiment.experiment import Experiment
from simulations.settings.common import CHOSEN_SHARE

MOST_CLIENTS = 8
"""Client processes on one card: each takes about half a gigabyte of its memory before it computes."""
DIGITS = 10_000
"""Ray knows shares to four digits."""


@dataclass(frozen=True)
class CardShares:
    """What Ray reserves of a card for a process.

    Attributes:
        cards: Graphics cards of the run's machines.
        client: Share of each client process; 0: none is reserved, and all processes may use every card.
        attack: Share of each attack worker; 0 likewise.
    """

    cards: int
    client: float = 0.0
    attack: float = 0.0

    def __str__(self) -> str:
        if not self.cards:
            return "no graphics card: clients and attacks compute on the processor"
        names = ", ".join(dict.fromkeys(torch.cuda.get_device_name(at) for at in range(torch.cuda.device_count())))
        held = [
            f"{share:g} of a card for each {what}" if share else f"nothing reserved for {several}"
            for share, what, several in (
                (self.client, "client process", "client processes"),
                (self.attack, "attack worker", "attack workers"),
            )
        ]
        return f"{self.cards} x {names or 'graphics card'}; {', '.join(held)}"


def card_shares(
    cards: int, workers: int, attackers: int, client: float | None = None, attack: float = CHOSEN_SHARE
) -> CardShares:
    """Shares for ``workers`` client processes and ``attackers`` attack workers, which must all find room on the cards.

    Flower starts as many client processes as find room, before any attack worker. The clients' share is therefore a little more
    than their part, so that one more does not fit; attack workers share what is left.

    Args:
        cards: Graphics cards.
        workers: Client processes at the same time.
        attackers: Attack workers; 0 where attacks run in the server's process.
        client: The clients' share, if it is given.
        attack: The attack workers' share, unless it is ``CHOSEN_SHARE``.
    """
    if not cards:
        return CardShares(0, client or 0.0, max(attack, 0.0))
    if attack != CHOSEN_SHARE:
        return CardShares(cards, client or 0.0, attack)
    if client is None:
        on_one = min(math.ceil(workers / cards), MOST_CLIENTS)
        # More than a part of on_one * cards + 1 parts, where attack workers must find room.
        client = (DIGITS * cards // (on_one * cards + 1) + 1 if attackers else DIGITS // on_one) / DIGITS
    if not attackers or client == 0:
        return CardShares(cards, client)
    left = 1 - math.floor(1 / client) * client if client < 1 else 0.0
    return CardShares(cards, client, math.floor(DIGITS * left / math.ceil(attackers / cards)) / DIGITS)


def shares_of(experiment: Experiment, workers: int, client: float | None, cards: int) -> CardShares:
    """The shares of a run on machines with so many cards; ``client`` is the clients' share, if it is given."""
    attackers = experiment.attack_workers if experiment.attacked_rounds else 0
    return card_shares(cards, workers, attackers, client, experiment.attack_gpus)
