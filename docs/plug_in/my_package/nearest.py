"""The server's own picture that fits an update best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import torch
from torch.nn import functional as F

from attacks.base import Attack, Knowledge
from attacks.guesses import Reconstruction
from attacks.normalisation import normalise
from attacks.observations import AttackError, ClientUpdate
from defenses.base import Batch
from defenses.checks import MOST_EXAMPLES, require_whole


@dataclass(frozen=True, repr=False)
class NearestAuxiliary(Attack[ClientUpdate, Reconstruction]):
    """Guesses the auxiliary image whose gradient points most nearly where the observed one does (cosine)."""

    candidates: int = 64
    learned: Batch | None = field(default=None, repr=False, compare=False)

    source: ClassVar[str] = "folklore: a gradient as a fingerprint"
    threat: ClassVar[str] = "global model, one update, its learning rate; auxiliary images with labels"
    needs_auxiliary: ClassVar[bool] = True
    effort: ClassVar[Mapping[str, str]] = {"candidates": "iterations"}
    selection: ClassVar[str] = "highest cosine"

    def __post_init__(self) -> None:
        require_whole(self, "candidates", 1, MOST_EXAMPLES)

    def fit(self, knowledge: Knowledge, generator: torch.Generator) -> Self:
        """Keeps the first ``candidates`` auxiliary examples."""
        own = knowledge.auxiliary
        return replace(self, learned=Batch(own.images[: self.candidates], own.targets[: self.candidates]))

    def attack_many(
        self, observations: Sequence[ClientUpdate], generators: Sequence[torch.Generator]
    ) -> list[Reconstruction]:
        """One guess for each observation, the same image for each of its examples."""
        if self.learned is None:
            raise AttackError(f"{self} needs auxiliary data: call fit first")
        return [self._guess(observation, self.learned) for observation in observations]

    def _guess(self, observation: ClientUpdate, known: Batch) -> Reconstruction:
        count = observation.num_examples
        try:
            observed = observation.gradient()
        except AttackError as error:
            grey = torch.full((count, *observation.input_shape), 0.5)
            return Reconstruction(grey, torch.full((count,), -1), failure=str(error))
        weights = dict(observation.model.named_parameters())
        target = torch.cat([observed[name].flatten() for name in weights])
        cosines = []
        for image, label in zip(normalise(known.images, observation), known.targets, strict=True):
            loss = F.cross_entropy(observation.model(image[None]), label[None])
            own = torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(weights.values()))])
            cosines.append(F.cosine_similarity(own, target, dim=0))
        best = int(torch.stack(cosines).argmax())
        labels = known.targets[best].argmax().expand(count)
        images = known.images[best].expand(count, -1, -1, -1)
        return Reconstruction(images.clone(), labels.clone(), {"cosine": float(cosines[best])})
