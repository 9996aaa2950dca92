"""Learning rates that clients were sent or reported, where attacks use another one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

Sent = Mapping[int, float | None]
"""Client -> its learning rate; None or 0 where it is unknown."""


def other_rates(server_round: int, verb: str, rates: Sent, used: float) -> str:
    """Warn where attacks use a learning rate that is not the clients' own; "" where no such client is known.

    Args:
        server_round: Round of the rates.
        verb: How the rates became known, such as "were sent" or "reported".
        rates: Learning rates of the round's clients.
        used: Learning rate of the attacks.

    Returns:
        Sentences for the log and for the page.
    """
    known = {client: rate for client, rate in rates.items() if rate is not None and 0 < rate < math.inf}
    other = {client: rate for client, rate in known.items() if not math.isclose(rate, used, rel_tol=1e-5)}
    if not other or used <= 0:
        return ""
    return (
        f"Learning rates differ in round {server_round}: attacks use {used:g} for every client, and {len(other)} of {len(rates)} "
        f"clients {verb} {listed(other.values())}. For these clients, attacks that use the learning rate have unreliable scores."
    )


def listed(rates: Iterable[float]) -> str:
    """Learning rates as text, each once, in increasing order; of many only the ends."""
    found = sorted(set(rates))
    if len(found) > 4:
        return f"{len(found)} rates from {found[0]:g} to {found[-1]:g}"
    return " or ".join(f"{rate:g}" for rate in found)
