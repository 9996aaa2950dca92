"""Settings of attacks on a sensitive attribute, which several scenarios have."""

from __future__ import annotations

from typing import Any

from simulations.settings.defaults import AUTO
from simulations.settings.fields import at_least, setting


def attacks_setting() -> Any:
    """The setting ``attribute-attacks``, the same in each of these scenarios."""
    return setting(
        AUTO,
        "attacks on the sensitive attribute behind queries (inference), tokens of test images (split) or one-step probes "
        "(federated), separated by ;; auto: with scenario = inference a static and a retrained adversary where the data set has "
        "such an attribute; else none",
    )


def queries_setting() -> Any:
    """The setting ``attribute-queries``, likewise."""
    return setting(
        0,
        "of each client, the first ones, whose sensitive attribute is guessed; 0: all of its test images",
        **at_least(0),
    )
