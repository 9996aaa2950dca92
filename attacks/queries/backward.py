"""The backward attack of delta protection: white-box inversion of features by He, Zhang and Lee."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from attacks.base import OWN_OBJECTIVE, AttackError, Reconstruction
from attacks.normalisation import channel_statistics
from attacks.queries.base import Query, QueryAttack
from attacks.smashed.feature_inversion import without_noise
from defenses.base import DefenseError
from defenses.checks import is_number, is_whole, require

IGNORED, INCLUDED = PLUG_INS = ("ignored", "included")
START_STD = 0.1
"""In units of normalised pixels. From a constant image, as He et al. start, group normalisation divides by almost nothing: the
first gradient is hundreds of times too long, AMSGrad never forgets it, and the search stands still."""


@dataclass(frozen=True, repr=False)
class BackwardReconstruction(QueryAttack[Reconstruction]):
    """Searches, for each image alone, what the client half maps to the features that the server was given.

        argmin_x  mean (f(x) - z)^2 + total_variation * TV(x) + energy * mean x^2

    x is normalised, as the client half sees it, and starts as faint noise around 0; TV is the sum of the mean squared differences
    of neighbours across and down. f is the client half alone where the plug-in is "ignored", as the paper attacks its own defence.
    Where it is "included", features pass through the clients' defences too, noise left out, with what they have learned: the
    adaptive attack. Input defences are not undone.

    The objective has no scale of its own: the weight of TV has to follow the depth of the cut. He et al. give 0 behind the first
    convolution, 10 behind the second block and 1000 behind the third; try a grid.

    Diagnostics: ``feature_loss`` (the first term) and ``relative_loss`` (over the variance of the features; 1 is what a constant
    would reach), means over images. Classes are those that the server half answers with, which its owner knows anyway.

    Attributes:
        plug_in: "ignored" or "included".
        iterations: Steps of Adam (AMSGrad, epsilon 0.001); 20,000 in the ADP paper. Of each image, the iterate with the lowest
            objective becomes the guess; He et al. take the last.
        learning_rate: In units of normalised pixels.
        total_variation: Weight of TV.
        energy: Weight of the mean square.
    """

    source: ClassVar[str] = (
        "He, Zhang, Lee, Model Inversion Attacks against Collaborative Inference, ACSAC 2019, white box, as ADP uses it"
    )
    threat: ClassVar[str] = (
        "one query; weights of the client half; included: the defences' algorithm and what they have learned"
    )
    quick: ClassVar[Mapping[str, Any]] = {"iterations": 12}

    plug_in: str = INCLUDED
    iterations: int = 5000
    learning_rate: float = 0.01
    total_variation: float = 10.0
    energy: float = 0.0

    def __post_init__(self) -> None:
        require(self.plug_in in PLUG_INS, self, "plug_in", " | ".join(PLUG_INS))
        require(is_whole(self.iterations) and self.iterations >= 1, self, "iterations", "a whole number of at least 1")
        rate = self.learning_rate
        require(is_number(rate) and 0 < rate < float("inf"), self, "learning_rate", "a positive number")
        for name in ("total_variation", "energy"):
            weight = getattr(self, name)
            require(is_number(weight) and 0 <= weight < float("inf"), self, name, "a number of at least 0")

    @property
    def knows_defenses(self) -> bool:
        """Only where the plug-in is included: around it, only the client half is inverted."""
        return self.plug_in == INCLUDED

    def card(self) -> dict[str, int | str]:
        """Steps of the search."""
        return {"iterations": self.iterations, "restarts": 1, "selection": OWN_OBJECTIVE}

    def attack_one(self, observation: Query, generator: torch.Generator) -> Reconstruction:
        """Inverts the features; random is where it starts.

        Raises:
            AttackError: When they do not fit the client half, or an image's objective was never finite.
        """
        target = observation.features.detach()
        features = self._features(observation)

        def errors(inputs: Tensor) -> Tensor:
            return (features(inputs) - target).square().flatten(1).mean(1)

        def objectives(inputs: Tensor) -> Tensor:
            return (
                errors(inputs)
                + self.total_variation * variation(inputs)
                + self.energy * inputs.square().flatten(1).mean(1)
            )

        # One start for all images: that of an image must not depend on how many others there are.
        noise = torch.randn(observation.input_shape, generator=generator, dtype=target.dtype) * START_STD
        start = noise.to(target.device).repeat(len(target), 1, 1, 1)
        if features(start).shape != target.shape:
            raise AttackError(f"features have shape {tuple(target.shape)}, expected {tuple(features(start).shape)}")
        found = self._minimised(objectives, start)
        with torch.no_grad():
            loss = errors(found)
            answers = observation.server_model(observation.features).argmax(1)
        spread = target.flatten(1).var(1, correction=0).clamp_min(1e-12)
        numbers = {"feature_loss": float(loss.mean()), "relative_loss": float((loss / spread).mean())}
        mean, std = channel_statistics(observation, found)
        return Reconstruction((found * std + mean).clamp(0, 1), answers.cpu(), numbers)

    def _features(self, observation: Query) -> Callable[[Tensor], Tensor]:
        """f: normalised images -> features as the server half is given them."""
        if not self.knows_defenses:
            return observation.client_model
        pipeline = without_noise(observation.pipeline)

        def protected(inputs: Tensor) -> Tensor:
            try:
                return pipeline.decode_features(
                    pipeline.encode_features(observation.client_model(inputs), ("assumed",))
                )
            except DefenseError as misfit:
                raise AttackError(f"the query cannot be attacked: {misfit}") from misfit

        return protected

    def _minimised(self, objectives: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
        """Of each image, the iterate with its lowest objective."""
        inputs = start.clone().requires_grad_()
        optimizer = torch.optim.Adam([inputs], self.learning_rate, eps=1e-3, amsgrad=True)
        best, lowest = start.clone(), start.new_full((len(start),), float("inf"))
        for _ in range(self.iterations):
            values = objectives(inputs)
            better = values.detach() < lowest
            best[better], lowest[better] = inputs.detach()[better], values.detach()[better]
            # A sum, so that no image's step depends on how many others there are.
            (inputs.grad,) = torch.autograd.grad(values.sum(), [inputs])
            optimizer.step()
        if not torch.isfinite(lowest).all():
            raise AttackError("the objective was never finite")
        return best


def variation(images: Tensor) -> Tensor:
    """Mean squared difference of neighbours down plus that across, of each image (B, C, H, W): (B,). A side of one pixel adds 0."""
    down = (images[..., 1:, :] - images[..., :-1, :]).square().flatten(1)
    across = (images[..., :, 1:] - images[..., :, :-1]).square().flatten(1)
    return down.sum(1) / max(down.shape[1], 1) + across.sum(1) / max(across.shape[1], 1)
