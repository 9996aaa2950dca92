"""Settings of attacks on sums of clients' updates, and their checks."""

from __future__ import annotations

from typing import Any

from simulations.settings.errors import ConfigError
from simulations.settings.fields import shown

KEY = "aggregate-clients"
MOST_DIGITS = 9
"""Of a number of clients: Python reads no number of thousands of digits."""


def group_sizes(text: str) -> tuple[int, ...]:
    """The sizes that ``aggregate-clients`` lists, in their order.

    Args:
        text: Whole numbers, separated by commas.

    Raises:
        ConfigError: Naming the word that is none, a number that comes twice, or a list of 1 alone.
    """
    if not text.strip():
        return ()
    words = [word.strip() for word in text.split(",")]
    if wrong := [
        word
        for word in words
        if not (word.isascii() and word.isdecimal() and len(word) <= MOST_DIGITS) or int(word) < 1
    ]:
        raise ConfigError(
            f"{KEY} is {shown(text)}, and {shown(wrong[0])} is no number of clients; allowed: whole numbers of at least 1, "
            "separated by commas, such as 1,2,4"
        )
    sizes = tuple(map(int, words))
    if twice := [size for at, size in enumerate(sizes) if size in sizes[:at]]:
        raise ConfigError(f"{KEY} is {text!r}, which names {twice[0]} more than once; allowed: each number once")
    if sizes == (1,):
        raise ConfigError(
            f"{KEY} is {text!r}: the sum of one client is its plain probe, which probe-attacks attack; allowed: 1 beside larger "
            "numbers, to compare with, such as 1,2,4"
        )
    return sizes


def check_group_sizes(text: str, clients: int) -> None:
    """Refuses sums over more clients than there are.

    Raises:
        ConfigError: Naming the number.
    """
    if too_large := [size for size in group_sizes(text) if size > clients]:
        raise ConfigError(f"{KEY} is {text!r}, and {too_large[0]} is more than all clients; allowed: at most {clients}")


def check_aggregates(experiment: Any) -> None:
    """Refuses sums without attacks, attacks without sums, and what ``group_sizes`` and ``check_group_sizes`` refuse.

    Args:
        experiment: Of a scenario that has these settings; ``num_clients`` 0 is not known yet.

    Raises:
        ConfigError: Naming the setting.
    """
    sizes, attacks = group_sizes(experiment.aggregate_clients), experiment.aggregate_attacks.strip()
    if sizes and not attacks:
        raise ConfigError(
            f"{KEY} is {experiment.aggregate_clients!r}, and aggregate-attacks is empty: name attacks on the sums, such as "
            "InvertingGradients()"
        )
    if attacks and not sizes:
        raise ConfigError(
            f"aggregate-attacks is {attacks!r}, and {KEY} is empty: say over how many clients updates are summed, such as 1,2,4"
        )
    if experiment.num_clients:
        check_group_sizes(experiment.aggregate_clients, experiment.num_clients)
