"""Label inference from smashed data by the server half's own prediction."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from attacks.guesses import Labels
from attacks.observations import AttackError
from attacks.smashed.base import SmashedAttack, SmashedData


@dataclass(frozen=True, repr=False)
class ServerPrediction(SmashedAttack[Labels]):
    """Infer the class of each image as the server half's own prediction from its smashed data, in the images' order.

    No defence can prevent this attack and keep the accuracy, because the server needs the prediction. Its score is a baseline for
    the label information that remains. Diagnostics: ``confidence``, the mean probability of the predicted classes.
    """

    source = "the task itself: a server half that classifies smashed data"
    threat = "one transmission of smashed data; the server's own half"
    infers_labels = True
    on_tables = True
    needs_classes = True

    def attack_one(self, observation: SmashedData, generator: torch.Generator) -> Labels:
        """Predict the classes of the first transmission's targets."""
        try:
            with torch.no_grad():
                logits = observation.server(observation.features[0])[: observation.num_targets]
        except RuntimeError as error:
            raise AttackError(f"the server half does not take these tokens: {error}") from error
        if not torch.isfinite(logits).all():
            raise AttackError("the server half's logits are NaN or infinite")
        confidence, classes = logits.softmax(1).max(1)
        return Labels(classes.cpu(), {"confidence": float(confidence.mean())})

    def failed(self, observation: SmashedData, reason: str) -> Labels:
        """Unknown classes."""
        return Labels(torch.full((observation.num_targets,), -1), failure=reason)
