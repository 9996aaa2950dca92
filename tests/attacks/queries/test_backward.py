"""The backward attack against closed forms, and through and around a plug-in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attacks.image_measures import psnr, squared_total_variation
from attacks.queries.backward import BackwardReconstruction
from attacks.queries.base import Query
from tests.attacks.queries.query_wire import MEAN, STD, Negate, pictures, query, seeded

LOW = {"learning_rate": 0.02, "energy": 0.0, "total_variation": 0.0}


def identity_query(features: Tensor) -> Query:
    """The client half sends its normalised image as it is."""
    server = nn.Sequential(nn.Flatten(), nn.Linear(features[0].numel(), 3)).to(features.dtype)
    return Query(features, features, nn.Identity(), server, tuple(features.shape[1:]), MEAN, STD)


def guessed(attack: BackwardReconstruction, seen: Query) -> Tensor:
    """The guess, normalised again."""
    guess = attack(seen, seeded(0))
    assert not guess.failure
    return (guess.images - MEAN[0]) / STD[0]


def quadratic_form(height: int, width: int) -> Tensor:
    """Q with x'Qx = TV(x), entry by entry."""
    form = torch.zeros(height * width, height * width, dtype=torch.float64)
    for row in range(height):
        for column in range(width):
            here = row * width + column
            for there, inside, count in (
                (here + width, row + 1 < height, (height - 1) * width),
                (here + 1, column + 1 < width, height * (width - 1)),
            ):
                if inside:
                    form[here, here] += 1 / count
                    form[there, there] += 1 / count
                    form[here, there] -= 1 / count
                    form[there, here] -= 1 / count
    return form


@pytest.mark.parametrize(("prior", "energy"), [(0.0, 0.0), (0.0, 0.7), (3.0, 0.2)])
def test_behind_the_identity_it_is_the_solution_of_a_linear_system(prior: float, energy: float) -> None:
    height, width = 5, 4
    clean = torch.rand(2, 1, height, width, generator=seeded(1), dtype=torch.float64)
    target = (clean - MEAN[0]) / STD[0]
    attack = BackwardReconstruction(iterations=600, learning_rate=0.05, total_variation=prior, energy=energy)
    # The gradient of |x - z|^2 / n + prior x'Qx + energy |x|^2 / n vanishes.
    size = height * width
    system = (1 + energy) / size * torch.eye(size, dtype=torch.float64) + prior * quadratic_form(height, width)
    expected = torch.linalg.solve(system, target.flatten(1).T / size).T.view_as(target)
    assert (guessed(attack, identity_query(target)) - expected).abs().max() < 2e-3


def test_variation_is_that_of_a_loop() -> None:
    images = torch.rand(3, 2, 4, 6, generator=seeded(2), dtype=torch.float64)
    for image, found in zip(images, squared_total_variation(images), strict=True):
        down = [(image[c, r + 1, k] - image[c, r, k]) ** 2 for c in range(2) for r in range(3) for k in range(6)]
        across = [(image[c, r, k + 1] - image[c, r, k]) ** 2 for c in range(2) for r in range(4) for k in range(5)]
        assert found == pytest.approx(torch.stack(down).mean() + torch.stack(across).mean())
    assert squared_total_variation(torch.rand(2, 1, 1, 1)).tolist() == [0, 0]


@pytest.mark.long
def test_it_inverts_a_client_half_and_goes_around_or_through_a_plug_in() -> None:
    images, _ = pictures(4, seed=3)
    scores = {}
    for plug_in in ("ignored", "included"):
        for defenses in ((), (Negate(),)):
            attack = BackwardReconstruction(plug_in, iterations=200, learning_rate=0.05, total_variation=0.001)
            guess = attack(query(images, *defenses), seeded(0))
            scores[plug_in, len(defenses)] = float(psnr(guess.images, images).mean())
            if plug_in == "included" or not defenses:
                assert guess.diagnostics["relative_loss"] < 0.1
    # A change of sign is undone exactly; the normalisation's mean, where the search starts, is no better than its failure.
    assert scores["included", 1] == scores["included", 0] == scores["ignored", 0]
    null = float(psnr(torch.full_like(images, MEAN[0]), images).mean())
    assert scores["included", 1] > null + 2 > scores["ignored", 1] + 2


def test_a_guess_does_not_depend_on_its_company() -> None:
    images, _ = pictures(3, seed=4)
    seen = query(images)
    attack = BackwardReconstruction(iterations=20)
    together = attack(seen, seeded(0)).images
    for row in range(3):
        one = replace(seen, features=seen.features[row : row + 1], latent=seen.latent[row : row + 1])
        assert torch.allclose(attack(one, seeded(0)).images[0], together[row], atol=1e-4)


def test_it_keeps_the_best_iterate() -> None:
    images, _ = pictures(2, seed=5)
    # Steps of this length overshoot for ever: later iterates are worse than the first few.
    losses = [
        BackwardReconstruction(iterations=steps, **LOW | {"learning_rate": 5.0})(query(images), seeded(0)).diagnostics[
            "feature_loss"
        ]
        for steps in (1, 5, 25)
    ]
    assert losses[0] >= losses[1] >= losses[2]


def test_on_noise_it_does_not_find_the_images() -> None:
    images, _ = pictures(4, seed=6)
    seen = query(images)
    noise = torch.randn(seen.features.shape, generator=seeded(7)).abs()
    guess = BackwardReconstruction(iterations=100, learning_rate=0.05)(replace(seen, features=noise), seeded(0))
    # It starts at the normalisation's mean, which is close to that of the pictures.
    assert psnr(guess.images, images).mean() < psnr(torch.full_like(images, MEAN[0]), images).mean() + 1


def test_features_that_do_not_fit_make_a_failed_guess() -> None:
    images, _ = pictures(2, seed=8)
    seen = query(images)
    guess = BackwardReconstruction(iterations=2)(replace(seen, features=seen.features[:, :2]), seeded(0))
    assert "what was sent has shape (2, 2, 16, 16), expected (2, 4, 16, 16)" in guess.failure
    assert torch.equal(guess.images, torch.full_like(images, 0.5))


@pytest.mark.parametrize(
    "settings",
    [
        {"plug_in": "both"},
        {"iterations": 0},
        {"learning_rate": 0.0},
        {"total_variation": -1.0},
        {"energy": float("inf")},
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        BackwardReconstruction(**settings)
