"""The server's own picture that fits an update best."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import torch
from torch.nn import functional as F

from attacks.base import Attack, Knowledge
from attacks.guesses import Reconstruction
from attacks.normalisation import normalise
from attacks.observations import ClientUpdate
from defenses.base import Batch
from defenses.checks import Examples


@dataclass(frozen=True, repr=False)
class NearestAuxiliary(
    Attack[ClientUpdate, Reconstruction],
    needs_auxiliary=True,
    effort={"candidates": "iterations"},
    selection="highest cosine",
):
    """Guesses the auxiliary image whose gradient points most nearly where the observed one does (cosine)."""

    candidates: Examples = 64
    learned: Batch | None = field(default=None, repr=False, compare=False)

    source: ClassVar[str] = "folklore: a gradient as a fingerprint"
    threat: ClassVar[str] = "global model, one update, its learning rate; auxiliary images with labels"

    def fit(self, knowledge: Knowledge, generator: torch.Generator) -> Self:
        """Keeps the first ``candidates`` auxiliary examples."""
        own = knowledge.auxiliary
        return replace(self, learned=Batch(own.images[: self.candidates], own.targets[: self.candidates]))

    def attack_one(self, observation: ClientUpdate, generator: torch.Generator) -> Reconstruction:
        """The same image for each of the update's examples."""
        assert self.learned is not None
        known, count, observed = self.learned, observation.num_examples, observation.gradient()
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
