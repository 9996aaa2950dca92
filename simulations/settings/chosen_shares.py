"""What ``fedveil run`` chose for a run on its machines: in the environment of the server, since a resumed run may have others."""

from __future__ import annotations

import os

from simulations.settings.common import CHOSEN_SHARE

SHARE, MACHINES = "FEDVEIL_ATTACK_SHARE", "FEDVEIL_MACHINES"


def environment_of(share: float, machines: str) -> dict[str, str]:
    """Variables of a server whose attack workers get this share of a graphics card, on machines of this description."""
    return {SHARE: repr(share), MACHINES: machines}


def attack_share(setting: float) -> float:
    """Share of a graphics card for each attack worker: the setting, or of "auto" what was chosen; 0 where nothing was."""
    return float(os.environ.get(SHARE, 0.0)) if setting == CHOSEN_SHARE else setting


def machines() -> str:
    """The machines of the run and the shares of their graphics cards, in words; "" where nothing was chosen."""
    return os.environ.get(MACHINES, "")
