r"""Gradient inversion with one thing changed at a time: what each change is worth on the same updates.

The cells and measures are those of ``peer_strength.py``. Every variant gets the same number of evaluations of the objective; those
that need two for a step take half as many steps. Images are of the training split, so that what is chosen here has not seen what is
compared there. One line is printed for each variant; changes that help are worth a study of their own, n is too small to rank
what is close.

    uv run --with piq==0.8.0 python benchmarks/inversion/inversion_variants.py --cells resnet20:eval:photos:1 \
        --images 6 --evaluations 300
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from peer_strength import CELLS, MEAN, MEASURES, Cell, mean_and_reach
from torch import Tensor

from attacks.gradient.costs import COSTS, Cost, cosine_distance
from attacks.gradient.inversion import Trials
from attacks.gradient.inversion_target import Victim
from attacks.gradient.presets import InvertingGradients
from attacks.gradient.surrogate import SurrogateDifferencedMatching, SurrogateGradientMatching, SurrogateMatching
from attacks.gradient.trial_gradients.finite_difference import DifferencedMatching
from attacks.gradient.trial_gradients.matching import GradientMatching
from defenses.base import Update


def largest(share: float) -> Cost:
    """Cosine distance over that share of the entries which are largest in the target.

    Partial matching after Fan et al., "Boosting Gradient Leakage Attacks: Data Reconstruction in Realistic FL Settings", USENIX
    Security 2025; the choice of entries is ours.
    """

    def kept(target: Tensor) -> Tensor:
        size = target.abs()
        return size > size.kthvalue(int(size.shape[-1] * (1 - share)), dim=-1, keepdim=True).values

    def closed_form(dummy: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        mask = kept(target)
        return COSTS["cosine"].with_gradient(dummy * mask, target * mask, unnamed)

    def distance(dummy: Update, target: Update) -> Tensor:
        mask = kept(joined(target))
        return cosine_distance(unnamed(joined(dummy) * mask), unnamed(joined(target) * mask))

    return Cost(distance, scale_free=True, closed_form=closed_form)


def weighted(power: float) -> Cost:
    """Cosine distance of entries that are multiplied by their size in the target to that power."""

    def weights(target: Tensor) -> Tensor:
        return (target.abs() + 1e-12).pow(power)  # Finite where the target is zero.

    def closed_form(dummy: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        weight = weights(target)
        values, gradients = COSTS["cosine"].with_gradient(dummy * weight, target * weight, unnamed)
        return values, gradients * weight

    def distance(dummy: Update, target: Update) -> Tensor:
        weight = weights(joined(target))
        return cosine_distance(unnamed(joined(dummy) * weight), unnamed(joined(target) * weight))

    return Cost(distance, scale_free=True, closed_form=closed_form)


def by_layer(dummy: Update, target: Update) -> Tensor:
    """Mean of the cosine distances of the parameters, one by one."""
    return torch.stack([cosine_distance(unnamed(dummy[name]), unnamed(value)) for name, value in target.items()]).mean()


def joined(named: Update) -> Tensor:
    """All entries, (P,)."""
    return torch.cat([value.flatten() for value in named.values()])


def unnamed(row: Tensor) -> Update:
    """For functions of named tensors."""
    return {"": row}


class Flat:
    """The objective plus ``radius * share`` times the norm of its own gradient, which prefers flat minima; before another class.

    The gradient of that norm is taken as the difference of two gradients along it: (1 - share) g(u) + share g(u + radius g / |g|).
    Gradient regularisation after Fan et al. (as above); the difference is that of Karakida et al., "Understanding gradient
    regularization: the case of finite-difference computation", ICML 2023.
    """

    radius = 0.5
    share = 0.5

    def __call__(self, unknowns: Tensor, trials: Tensor) -> tuple[Tensor, Tensor]:
        """Losses (n,) of the plain objective, and gradients (n, D) of the regularised one."""
        plain = super().__call__  # type: ignore[misc]
        losses, here = plain(unknowns, trials)
        ahead = unknowns + self.radius * here / here.norm(dim=1, keepdim=True).clamp_min(1e-20)
        _, there = plain(ahead, trials)
        return losses, (1 - self.share) * here + self.share * there


class FlatMatching(Flat, DifferencedMatching):
    """Of one step."""


class FlatterMatching(FlatMatching):
    """With a radius four times as long."""

    radius = 2.0


class FlatRoundMatching(Flat, SurrogateDifferencedMatching):
    """Of a whole round."""


@dataclass(frozen=True, repr=False)
class FlatSurrogateMatching(SurrogateMatching):
    """``SurrogateMatching`` with gradient regularisation: an iteration takes two evaluations.

    Attributes:
        radius: See ``Flat``; in normalised pixels, of the whole row of unknowns.
    """

    radius: float = 0.5

    def _differences(self, trials: Trials, victim: Victim) -> bool:
        # An objective of its own cannot agree with the one that it replaces.
        return True

    def _differenced(self, exact: GradientMatching) -> DifferencedMatching:
        assert isinstance(exact, SurrogateGradientMatching)
        objective = FlatRoundMatching(exact)
        objective.radius = self.radius
        return objective


@dataclass(frozen=True, repr=False)
class Varied(InvertingGradients):
    """``InvertingGradients`` with more costs, and another objective than its own where it is given one."""

    costs: ClassVar[Mapping[str, Cost]] = {
        **COSTS,
        **{f"largest {share}": largest(share) for share in (0.1, 0.3)},
        **{f"weighted {power}": weighted(power) for power in (-0.5, -0.25, 0.5)},
        "layers": Cost(by_layer, scale_free=True),
    }
    objective: type[DifferencedMatching] = field(default=DifferencedMatching, kw_only=True)

    def _differences(self, trials: Trials, victim: Victim) -> bool:
        # An objective of its own cannot agree with the one that it replaces.
        return self.objective is not DifferencedMatching or super()._differences(trials, victim)

    def _differenced(self, exact: GradientMatching) -> DifferencedMatching:
        return self.objective(exact)


VARIANTS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "prior 0.001": {"total_variation": 1e-3},
    "prior 0.03": {"total_variation": 3e-2},
    "prior 0.1": {"total_variation": 1e-1},
    "prior 0.1, the gradient, not its sign": {"total_variation": 1e-1, "signed": False},
    "prior 0.3": {"total_variation": 0.3},
    "prior 0.3, the gradient, not its sign": {"total_variation": 0.3, "signed": False},
    "prior 1": {"total_variation": 1.0},
    "prior 0.001 that stays": {"total_variation": 1e-3, "prior_decay": False},
    "the gradient, not its sign": {"signed": False},
    "largest tenth of the gradient": {"cost": "largest 0.1"},
    "largest three tenths": {"cost": "largest 0.3"},
    "mean of the layers' cosines": {"cost": "layers"},
    "entries weighted by size ** -0.5": {"cost": "weighted -0.5"},
    "entries weighted by size ** -0.25": {"cost": "weighted -0.25"},
    "entries weighted by size ** 0.5": {"cost": "weighted 0.5"},
    "gradient regularisation, radius 0.5": {"objective": FlatMatching},
    "gradient regularisation, radius 2": {"objective": FlatterMatching},
    "grey start": {"init": "grey"},
    "step size 0.03": {"learning_rate": 0.03},
    "step size 0.3": {"learning_rate": 0.3},
}
"""What is changed -> the settings of ``Varied``."""


def shown(name: str, scores: dict[str, list[float]]) -> str:
    picked = f"{sum(scores['picked']):.0f} of {len(scores['picked'])}"
    values = ["{:.2f} ± {:.2f}".format(*mean_and_reach(scores[key])) for key in MEASURES[:3]]
    return f"{name:40s} PSNR {values[0]} dB, SSIM {values[1]}, HaarPSI {values[2]}, identified {picked}"


def reconstructed(settings: Mapping[str, Any], evaluations: int, cell: Cell) -> list[Tensor]:
    halved = "objective" in settings
    attack = replace(Varied(**settings), iterations=evaluations // 2 if halved else evaluations, labels="known")
    guesses = attack.attack_many(cell.seen, [torch.Generator().manual_seed(at) for at in range(len(cell.seen))])
    assert not any(guess.failure for guess in guesses), guesses[0].failure
    return [guess.images for guess in guesses]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", nargs="+", default=["resnet20:eval:photos:1"], choices=CELLS, metavar="CELL")
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS), metavar="VARIANT")
    parser.add_argument("--images", type=int, default=6)
    parser.add_argument("--evaluations", type=int, default=300, help="of the objective, for each start")
    parser.add_argument("--seed", type=int, default=100)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.cells:
        cell = Cell(name, options.seed, options.images, auxiliary=True, averages=True)
        print(f"\n{name}, n = {options.images}, {options.evaluations} evaluations, seed {options.seed}")
        print(shown(MEAN, cell.scores([cell.mean_image.expand_as(truth) for truth, _ in cell.batches])), flush=True)
        for variant in options.variants:
            found = reconstructed(VARIANTS[variant], options.evaluations, cell)
            print(shown(variant, cell.scores(found)), flush=True)


if __name__ == "__main__":
    logging.disable(logging.INFO)
    main()
