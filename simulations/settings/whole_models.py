"""Settings of scenarios in which whole models are trained by SGD with a step decay."""

from __future__ import annotations

import math
from functools import cached_property

from clients.wire.schema import setting
from simulations.settings.common import CommonSettings
from simulations.settings.errors import ConfigError

DEFAULT_MILESTONES = "5/8,7/8"
"""The rate falls late in a run, so that the final accuracy depends less on the noise of the last steps."""


class WholeModelSettings(CommonSettings):
    """Names, defaults, meanings and ranges of the settings of training whole models."""

    learning_rate_milestones: str = setting(
        DEFAULT_MILESTONES,
        "rounds after which learning-rate is divided by 10 (MultiStepLR with rounds as epochs), separated by "
        "commas: numbers, or shares of rounds such as 5/8 (ignored if no round fits); empty: constant rate",
    )

    @cached_property
    def milestones(self) -> tuple[int, ...]:
        """Rounds after which the learning rate falls, ascending."""
        return milestones_of(self.learning_rate_milestones, self.rounds)


def milestones_of(text: str, rounds: int) -> tuple[int, ...]:
    """Rounds in a text such as ``learning-rate-milestones``, ascending; ``ConfigError`` for a word that is no round."""
    found = {_milestone(word.strip(), rounds) for word in text.split(",") if word.strip()}
    # A share of few rounds may be all of them, or none; two shares may be the same round.
    return tuple(sorted(at for at in found if 0 < at < rounds))


def _milestone(word: str, rounds: int) -> int:
    part, slash, whole = (piece.strip() for piece in word.partition("/"))
    if part.isdecimal() and whole.isdecimal() and 0 < int(part) < int(whole):
        return math.floor(rounds * int(part) / int(whole) + 0.5)
    if slash or not part.isdecimal() or not 1 <= int(part) < rounds:
        raise ConfigError(
            f"learning-rate-milestones: {word!r}; allowed: numbers from 1 to {rounds - 1}, as rounds = {rounds}, "
            "and shares such as 5/8"
        )
    return int(part)
