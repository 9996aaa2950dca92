"""The settings of edge-cloud inference."""

from __future__ import annotations

from dataclasses import dataclass, replace

from clients.data.card import DataCard
from clients.models.packaged_weights import NORMALISATIONS, normalisation
from simulations.experiment.whole_models import WholeModelExperiment
from simulations.settings.inference import InferenceSettings


@dataclass(frozen=True)
class InferenceExperiment(InferenceSettings, WholeModelExperiment):
    """What such runs read besides the settings of whole models."""

    def normalised(self, card: DataCard) -> DataCard:
        """The card of the data with the mean and standard deviation that the model's images have.

        Raises:
            ModelError: When images have other channels than the weights expect.
        """
        name = self.normalisation or self.weights
        if name not in NORMALISATIONS:
            return card
        mean, std = normalisation(name, card.input_shape[0])
        return replace(card, mean=mean, std=std)
