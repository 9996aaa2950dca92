"""Updates for attacks that solve for the images, and how far a guess is from the truth."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from attacks.guesses import Reconstruction
from attacks.observations import ClientUpdate
from attacks.scoring.metrics import optimal_assignment
from tests.attacks.wire import CLASSES, classes, observe, pictures, relu_net, stream


def in_single_precision(seen: ClientUpdate) -> ClientUpdate:
    """What a client really sends: the difference of two models."""
    before = dict(seen.model.named_parameters())
    return replace(seen, update={n: ((before[n] + d) - before[n]).detach() for n, d in seen.update.items()})


def sent(batch: int, width: int, *, seed: int = 3, **changes: Any) -> ClientUpdate:
    return observe(relu_net(width), pictures(batch, seed=seed), classes(batch, seed=seed), **changes)


def smooth() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(144, 60), nn.Sigmoid(), nn.Linear(60, CLASSES))


def without_bias() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(144, 60, bias=False), nn.ReLU(), nn.Linear(60, CLASSES))


def noise_for(seen: ClientUpdate, seed: int = 7) -> dict[str, Tensor]:
    """Normal noise in the shape of the update."""
    return {n: torch.randn(u.shape, generator=stream(seed), dtype=u.dtype) for n, u in seen.update.items()}


def paired(guess: Reconstruction, truth: Tensor) -> tuple[Tensor, Tensor]:
    """The guessed images (B, C, H, W) and labels (B,) in the order of the true images."""
    assert not guess.failure, guess.failure
    assert len(guess.images) == len(truth)
    own, theirs = optimal_assignment(guess.images, truth)
    order = own[theirs.argsort()]
    return guess.images[order], guess.labels[order]


def assert_refused(attack: Any, cases: Iterable[tuple[ClientUpdate, str]]) -> None:
    """The attack does not apply to these updates, says why, and guesses grey images."""
    for seen, why in cases:
        guess = attack(seen, stream())
        assert guess.failure.startswith("does not apply")
        assert why in guess.failure
        assert torch.equal(guess.images, torch.full_like(guess.images, 0.5))


def largest_error(guess: Reconstruction, truth: Tensor) -> float:
    return float((paired(guess, truth)[0] - truth).abs().max())
