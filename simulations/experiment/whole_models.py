"""Settings of scenarios in which whole models are trained by SGD with a step decay."""

from __future__ import annotations

from simulations.experiment.experiment import Experiment
from simulations.experiment.known_names import require_model
from simulations.settings.errors import ConfigError
from simulations.settings.whole_models import WholeModelSettings


class WholeModelExperiment(WholeModelSettings, Experiment):
    """Settings of such scenarios besides those that all scenarios read."""

    def check_together(self) -> None:
        """As for all experiments, and rounds of ``learning-rate-milestones`` that there are."""
        super().check_together()
        _ = self.milestones

    def check_training_by_server(self, why: str) -> None:
        """Raise ``ConfigError`` for settings of the clients' training, as they train nothing; ``why`` they show no views."""
        if self.local_steps:
            raise ConfigError(
                f"local-steps is {self.local_steps}; allowed with scenario = {self.scenario!r}: 0, as the server trains on "
                "whole passes"
            )
        if self.crop_padding or self.horizontal_flip:
            raise ConfigError(
                f"crop-padding is {self.crop_padding} and horizontal-flip {self.horizontal_flip}; allowed with "
                f"scenario = {self.scenario!r}: 0 and False, as {why}"
            )

    def check_whole_model(self) -> None:
        """Raise ``ConfigError`` for models that are no whole ones, and for auxiliary data of other kinds."""
        require_model(self.model)
        if self.auxiliary_data != "held-out":
            raise ConfigError(
                f"auxiliary-data is {self.auxiliary_data!r}; allowed with scenario = {self.scenario!r}: 'held-out'"
            )
