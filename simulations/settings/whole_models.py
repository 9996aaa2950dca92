"""Settings of scenarios in which whole models are trained by SGD with a step decay."""

from __future__ import annotations

from dataclasses import dataclass

from simulations.settings.common import CommonSettings
from simulations.settings.fields import SHARE, setting

DEFAULT_MILESTONES = "5/8,7/8"
"""Where accuracy has climbed, the rate falls, so that the end of a run is no longer where the last steps happened to throw it."""


@dataclass(frozen=True)
class WholeModelSettings(CommonSettings):
    """Their names, defaults, meanings and ranges."""

    learning_rate_milestones: str = setting(
        DEFAULT_MILESTONES,
        "rounds after each of which learning-rate is multiplied by learning-rate-factor (MultiStepLR, a round for an "
        "epoch), separated by commas: numbers, or shares such as 5/8, which few rounds may lack; empty: the rate is constant",
    )
    learning_rate_factor: float = setting(0.1, "see learning-rate-milestones", **SHARE)
