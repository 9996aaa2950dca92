"""Adaptive clipping: its privacy from closed forms, its quantile on fixed gradients, and what later rounds and probes see."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attacks.dp_audit.gradient_canaries import audit_dp_sgd
from defenses.base import Training
from defenses.neighbours import REPLACE_ONE
from defenses.smashed.gaussian_mechanism import gaussian_epsilon
from defenses.training.accounting import epsilon_by_accountant
from defenses.training.adaptive_clipping import FARTHEST, AdaptiveNorm, raised_noise
from defenses.training.dp_sgd import DPSGD
from defenses.training.example_gradients import GHOST, PER_EXAMPLE
from defenses.training.step_settings import NORM
from tests.defenses.training.test_dp_sgd import DELTA, PUBLIC, moves, no_gradient, protect, run, set_up

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook", "ignore:Optimal order is the")


def norm_of(count: float = 10.0, **given: Any) -> AdaptiveNorm:
    settings = {"norm": 1.0, "quantile": 0.5, "learning_rate": 0.2, "count_noise": 2.0, "divisor": count, "start": 1.0}
    return AdaptiveNorm(**settings | given, generator=torch.Generator().manual_seed(0))  # type: ignore[arg-type]


def linear(model: nn.Module, images: Tensor, targets: Tensor) -> Tensor:
    """A loss whose gradients are the images, whatever the weights are."""
    return model(images.flatten(1)).mean()  # type: ignore[no-any-return]


def scaled_examples(lengths: Tensor, batch_size: int, epochs: int = 1) -> Training:
    """A training in which the gradient of each example has one of these lengths."""
    model = nn.Sequential(nn.Linear(36, 1, bias=False)).train()
    training = set_up(len(lengths), batch_size, model=model, epochs=epochs)
    images, _ = training.loader.dataset.tensors  # type: ignore[attr-defined]
    images *= (lengths / images.flatten(1).norm(dim=1)).view(-1, 1, 1, 1)
    return replace(training, loss=linear)


# ---- privacy


def test_gradients_and_count_together_have_the_account_of_the_noise_multiplier() -> None:
    for noise in (0.3, 1.0, 7.0):
        for count_noise in (0.6, 1.0, 2.0, 50.0):
            gradients, count = raised_noise(noise, count_noise), noise * count_noise
            # How far apart the means of both releases are at most, each in its own noise: mu of a Gaussian mechanism.
            assert math.hypot(1 / gradients, 0.5 / count) == pytest.approx(1 / noise, rel=1e-12)  # one added
            assert math.hypot(2 / gradients, 1 / count) == pytest.approx(2 / noise, rel=1e-12)  # one replaced
            # Theorem 1 of the paper, with its sigma_b.
            assert gradients == pytest.approx((noise**-2 - (2 * count) ** -2) ** -0.5, rel=1e-12)


@pytest.mark.numeric
def test_gradients_have_the_raised_noise_at_the_norm_of_the_step() -> None:
    for clipping, count_noise in ((PER_EXAMPLE, 0.6), (GHOST, 2.0)):
        defense = DPSGD(
            noise_multiplier=2.0, max_grad_norm=3.0, target_quantile=0.5, count_noise=count_noise, clipping=clipping
        )
        training = replace(set_up(count=4, batch_size=4, epochs=60), loss=no_gradient)
        protected, seen, norms = protect(defense, training), [], [3.0]
        for moved in moves(protected):
            seen.append(moved * 4 / norms[-1])  # times the divisor
            norms.append(protected.state[NORM])
        noise = torch.cat(seen)
        assert len(noise) > 20_000  # a standard error of 0.5 %
        assert float(noise.std()) == pytest.approx(raised_noise(2.0, count_noise), rel=0.025)
        assert norms[-1] < 0.3  # as gradients of length 0 are all within it
        assert protected.state["accountant"]["steps"] == [[1.0, 1.0, 60]]


@pytest.mark.numeric
def test_the_count_has_the_promised_noise() -> None:
    norm, found = norm_of(learning_rate=1e-3), []
    for _ in range(4000):
        before = math.log(norm.norm)
        found.append((before - math.log(norm.move(3.0))) / 1e-3 * 10.0)
    assert torch.tensor(found).std() == pytest.approx(6.0, rel=5 / 8000**0.5)
    assert torch.tensor(found).mean() == pytest.approx(0.0, abs=5 * 6 / 4000**0.5)


def test_epsilon_of_full_batches_is_the_closed_form() -> None:
    for steps in (1, 9):
        protected = protect(
            DPSGD(noise_multiplier=6.0, target_quantile=0.5), set_up(count=6, batch_size=6, epochs=steps)
        )
        assert len(list(run(protected))) == steps
        found = epsilon_by_accountant(protected.state, DELTA, REPLACE_ONE)
        together = math.sqrt(steps * ((2 / raised_noise(6.0, 2.0)) ** 2 + (1 / 12.0) ** 2))
        assert found["exact"] == pytest.approx(gaussian_epsilon(together, DELTA), rel=1e-9)


def test_a_target_epsilon_and_the_samples_are_those_without_it() -> None:
    for more in ({}, PUBLIC | {"sample_rate": 1}):
        states, sizes = [], []
        for quantile in (None, 0.5):
            defense = DPSGD(target_epsilon=3.0, target_quantile=quantile, **more)
            protected = protect(defense, set_up(count=5, batch_size=5, epochs=3))
            sizes.append(list(run(protected)))
            states.append(protected.state["accountant"])
        assert states[0] == states[1]
        assert sizes[0] == sizes[1]


def test_the_divisor_of_the_count_is_public() -> None:
    """A batch twice as large, all within the norm, moves the norm by twice as much: no division by the true number."""
    found = []
    for drawn in (0, 5, 10):
        norm = norm_of(count_noise=1.0)
        norm.measure(torch.zeros(drawn))
        found.append(math.log(norm.move(0.0)))
    assert found == pytest.approx([0.0, -0.2 * 0.25, -0.2 * 0.5])


# ---- the norm


def test_without_noise_the_norm_reaches_the_quantile() -> None:
    lengths = torch.logspace(-1, 1, 40)
    cases = ((PER_EXAMPLE, 0.5, 0.01), (GHOST, 0.5, 40.0), (PER_EXAMPLE, 0.2, 1.0), (GHOST, 0.9, 1.0))
    for clipping, quantile, start in cases:
        training = scaled_examples(lengths, 40, epochs=150)
        defense = DPSGD(noise_multiplier=0.0, max_grad_norm=start, target_quantile=quantile, clipping=clipping)
        protected = protect(defense, training)
        assert len(list(run(protected))) == 150
        within = float((lengths <= protected.state[NORM]).double().mean())
        assert within == pytest.approx(quantile, abs=1.5 / 40), (clipping, quantile, start)


def test_empty_batches_move_the_norm_by_noise_alone() -> None:
    for clipping in (PER_EXAMPLE, GHOST):
        protected = protect(DPSGD(noise_multiplier=0.0, target_quantile=0.25, clipping=clipping), set_up())
        empty = torch.zeros(0, 1, 6, 6), torch.zeros(0, 3)
        for number in range(1, 4):
            protected.optimizer.zero_grad()
            protected.loss(protected.model, *empty).backward()  # type: ignore[no-untyped-call]
            protected.optimizer.step()
            # Half of no gradients is within the norm, as far as a count of none says.
            assert protected.state[NORM] == pytest.approx(math.exp(-0.2 * (0.5 - 0.25) * number))
        assert sum(count for *_, count in protected.state["accountant"]["steps"]) == 3


def test_the_norm_stays_within_its_limits() -> None:
    norm = norm_of(learning_rate=10.0)
    for _ in range(10):
        norm.measure(torch.full((10,), math.nan))  # a training that diverged
        highest = norm.move(0.0)
    for _ in range(10):
        norm.measure(torch.zeros(10**6))
        lowest = norm.move(0.0)
    assert (highest, lowest) == (pytest.approx(FARTHEST), pytest.approx(1 / FARTHEST))


def test_both_ways_of_clipping_have_the_same_norms_which_later_rounds_go_on_from() -> None:
    found = {}
    for clipping in (PER_EXAMPLE, GHOST):
        defense = DPSGD(noise_multiplier=0.5, max_grad_norm=2.0, target_quantile=0.7, clipping=clipping)
        state, norms = {}, [2.0]
        for number in range(3):
            protected = protect(defense, set_up(state=state, epochs=1), number)
            assert protected.optimizer.max_grad_norm == norms[-1]  # type: ignore[attr-defined]
            list(run(protected))
            state = json.loads(json.dumps(protected.state))
            norms.append(state[NORM])
        found[clipping] = state
        assert len(set(norms)) == 4
    assert found[PER_EXAMPLE] == found[GHOST]


def test_a_probe_has_the_norm_of_the_training_and_leaves_it() -> None:
    defense = DPSGD(noise_multiplier=2.0, target_quantile=0.5)
    protected = protect(defense, replace(set_up(count=4, batch_size=4), probe=True, state={NORM: 0.125}))
    assert protected.optimizer.max_grad_norm == 0.125  # type: ignore[attr-defined]
    assert protected.optimizer.noise_multiplier == 2.0  # type: ignore[attr-defined] # no count is released
    list(run(protected))
    assert protected.state == {NORM: 0.125, "accountant": {"steps": [[1.0, 1.0, 1]]}}


def test_canaries_refuse_a_norm_that_changes_before_they_train() -> None:
    for changing in ({"target_quantile": 0.5}, {"clip_decay": 0.9}):
        with pytest.raises(ValueError, match="clipping norm that changes"):
            audit_dp_sgd(DPSGD(noise_multiplier=1.0, **changing), runs=1, rounds=1)  # type: ignore[arg-type]
