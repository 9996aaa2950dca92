"""Gradient inversion with settings chosen on simulated updates of the server's own images."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import torch
from torch import Tensor

from attacks.attributes.update_sketch import made_by
from attacks.base import Knowledge, learned_field
from attacks.gradient.inversion import GradientInversion
from attacks.gradient.presets import InvertingGradients
from attacks.guesses import Reconstruction
from attacks.image_measures import psnr
from attacks.learned.learning_to_invert import matched
from attacks.observations import AttackError, ClientUpdate
from attacks.queries.training import split_rows
from defenses.base import Numbers, Update
from defenses.checks import examples_field, starts_field

SHORT = 4
"""Settings are first tried with so many times fewer iterations; one in so many of them, and the defaults, again with all."""
PRIORS = (1e-4, 10.0)
RATES = (0.02, 0.3)


@dataclass(frozen=True)
class Trials:
    """What settings are tried on.

    Attributes:
        updates: One-step updates of auxiliary images.
        images: The images behind each, (B, C, H, W).
        labels: And their classes, (B,).
        settings: What is tried, the defaults first.
    """

    updates: tuple[Update, ...]
    images: tuple[Tensor, ...]
    labels: tuple[Tensor, ...]
    settings: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, repr=False)
class TunedInversion(InvertingGradients):
    """``InvertingGradients`` with the prior weight, step size, sign and cost that work best on the server's own images.

    The best weight of the prior differs by orders of magnitude between networks and kinds of images, and the objective cannot
    choose it. The server simulates updates of its own images with the clients' own code at the attacked global model, defences
    included. It attacks these updates and keeps the settings that recover its own images best. No client's update is used.

    The attack tries the defaults and ``tune - 1`` random settings: ``total_variation`` log-uniform from 1e-4 to 10,
    ``learning_rate`` log-uniform from 0.02 to 0.3, ``prior_decay``, ``signed``, ``normalise_by`` and ``cost`` (of those that ignore
    the scale) at random. Each gets a quarter of the iterations, then the best quarter and the defaults get all: successive halving
    (Jamieson and Talwalkar, AISTATS 2016) of two rungs. This costs as much as attacking about ``tune * updates / 2`` further
    updates.

    Diagnostics: the chosen settings; ``tuned_psnr`` and ``tuned_psnr_default``, mean PSNR in dB on the auxiliary images under
    these and under the defaults. The first uses the images of the choice, and is therefore too high as an estimate.

    Attributes:
        tune: Number of settings to try.
        updates: Number of simulated updates for each setting.
    """

    needs_auxiliary = True
    learns_from_model = True
    source = "Geiping 2020 (Inverting Gradients), Eq. 4; settings by successive halving on auxiliary images"
    threat = (
        "global model, one update, its number of examples, learning rate and normalisation, the client's training procedure and "
        "its defences' algorithm; auxiliary images like the clients', with labels"
    )
    quick = {"iterations": 8, "tune": 2, "updates": 1}

    tune: int = starts_field(20, 2)
    updates: int = examples_field(4)
    learned: Trials | None = learned_field()

    def card(self) -> dict[str, int | str]:
        """Entries of the inversion, and the costs and rule of the choice of settings."""
        own = super().card()
        # Evaluations on updates of auxiliary images: of all settings shortly, of the best of them and the defaults whole.
        short, whole = self.tune * max(1, self.iterations // SHORT), (max(1, self.tune // SHORT) + 1) * self.iterations
        spent = (short + whole) * self.updates * self.restarts * self._step_evaluations
        chosen = f"settings: highest PSNR on {self.updates} updates of auxiliary images, of {self.tune} tried"
        return {**own, "training_iterations": spent, "selection": f"{own['selection']}; {chosen}"}

    def fit(self, knowledge: Knowledge, generator: torch.Generator) -> Self:
        """Simulate updates and draw settings; the attack tries them once it has the global model."""
        rows = torch.cat(split_rows(knowledge, generator))
        made = list(made_by(knowledge, rows, self.updates, generator))
        images, targets = knowledge.auxiliary.images.cpu()[rows], knowledge.auxiliary.targets.cpu()[rows]
        behind = [own.cpu() for own, _ in made]
        learned = Trials(
            tuple(update for _, update in made),
            tuple(images[own] for own in behind),
            tuple(targets[own].argmax(1) for own in behind),
            ({}, *(self._drawn(generator) for _ in range(self.tune - 1))),
        )
        return replace(self, learned=learned)

    def _drawn(self, generator: torch.Generator) -> dict[str, Any]:
        prior, rate, decay, sign, cost, normalised = torch.rand(6, generator=generator).tolist()
        costs = [name for name, cost in self.costs.items() if cost.scale_free]
        return {
            "total_variation": between(PRIORS, prior),
            "learning_rate": between(RATES, rate),
            "prior_decay": decay < 0.5 and self.step_decay,
            "signed": sign < 0.5,
            "normalise_by": "sent" if normalised < 0.5 else "batch",
            "cost": costs[int(cost * len(costs))],
        }

    def attack_many(
        self, observations: Sequence[ClientUpdate], generators: Sequence[torch.Generator]
    ) -> list[Reconstruction]:
        """Choose the settings, then attack all observations with them."""
        self.check_fitted()
        assert self.learned is not None
        if not observations:
            return []
        best, scores = self._chosen(self.learned, observations[0])
        guesses = best.attack_many(observations, generators)
        return [replace(guess, diagnostics={**guess.diagnostics, **scores}) for guess in guesses]

    def _chosen(self, trials: Trials, like: ClientUpdate) -> tuple[GradientInversion, Numbers]:
        """The inversion to attack with, and the scores of the choice."""
        count = len(trials.images[0])
        if like.num_examples != count:
            raise AttackError(f"the update covers {like.num_examples} examples; allowed: {count}, as in tuning")
        quarter = max(1, self.iterations // SHORT)
        short = [self._tried(trials, like, settings, quarter) for settings in trials.settings]
        order = sorted(range(len(short)), key=lambda at: -short[at])
        # The defaults come with them: what is chosen is never worse than they are, on these images.
        again = dict.fromkeys([*order[: max(1, len(short) // SHORT)], 0])
        whole = {at: self._tried(trials, like, trials.settings[at], self.iterations) for at in again}
        winner = max(whole, key=lambda at: whole[at])
        best = self._with(trials.settings[winner], self.iterations)
        scores = {"tuned_psnr": whole[winner], "tuned_psnr_default": whole[0]}
        chosen = {"total_variation": best.total_variation, "step_size": best.learning_rate, "signed": best.signed}
        return best, scores | {f"tuned_{name}": float(value) for name, value in chosen.items()}

    def _tried(self, trials: Trials, like: ClientUpdate, settings: Mapping[str, Any], iterations: int) -> float:
        """Mean PSNR on the auxiliary images, in dB; minus infinity where an attack failed."""
        known = like.labels is not None
        seen = [
            replace(like, update=update, labels=labels if known else None)
            for update, labels in zip(trials.updates, trials.labels, strict=True)
        ]
        generators = [torch.Generator().manual_seed(at) for at in range(len(seen))]
        guesses = self._with(settings, iterations).attack_many(seen, generators)
        if any(guess.failure for guess in guesses):
            return -math.inf
        pairs = [(guess.images.cpu(), truth) for guess, truth in zip(guesses, trials.images, strict=True)]
        found = [psnr(guess, matched(guess[None], truth[None])[0]) for guess, truth in pairs]
        # Equal images have infinite PSNR, which would outweigh every other image.
        return float(torch.cat(found).clamp(max=100).mean())

    def _with(self, settings: Mapping[str, Any], iterations: int) -> GradientInversion:
        """``InvertingGradients`` with this attack's fields, but for some."""
        own = {one.name: getattr(self, one.name) for one in fields(InvertingGradients)}
        return InvertingGradients(**{**own, **settings, "iterations": iterations})


def between(bounds: tuple[float, float], share: float) -> float:
    """From the first bound (share 0) to the second (1), evenly in the logarithm; three significant digits."""
    low, high = map(math.log, bounds)
    return float(f"{math.exp(low + share * (high - low)):.3g}")
