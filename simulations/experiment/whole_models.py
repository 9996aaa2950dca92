"""Settings of scenarios in which whole models are trained by SGD with a step decay."""

from __future__ import annotations

from dataclasses import dataclass

from simulations.experiment.experiment import Experiment
from simulations.experiment.known_names import require_model
from simulations.settings.errors import ConfigError
from simulations.settings.whole_models import WholeModelSettings


@dataclass(frozen=True)
class WholeModelExperiment(WholeModelSettings, Experiment):
    """What such scenarios read besides the settings of all."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.milestones

    def check_whole_model(self) -> None:
        """Raise ``ConfigError`` for models that are no whole ones, and for auxiliary data of other kinds."""
        require_model(self.model)
        if self.auxiliary_data != "held-out":
            raise ConfigError(
                f"auxiliary-data is {self.auxiliary_data!r}; allowed with scenario = {self.scenario!r}: 'held-out'"
            )
