"""Matching whole rounds at a surrogate model: the objective, its derivative by alpha, and what it finds without being told how
clients trained.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_map

from attacks.gradient.costs import COSTS
from attacks.gradient.inversion import GradientInversion
from attacks.gradient.surrogate import (
    ALPHA_UNIT,
    SurrogateDifferencedMatching,
    SurrogateGradientMatching,
    SurrogateMatching,
)
from attacks.gradient.trial_gradients.batch_statistics import StatisticsPrior
from attacks.gradient.trial_gradients.finite_difference import agrees
from attacks.gradient.trial_gradients.matching import GradientMatching, MatchingProblem, PriorInput, attackable
from attacks.observations import ClientUpdate, Probe, TrainingUpdate
from attacks.scoring.metrics import null_baselines, score
from defenses.base import Update
from tests.attacks.gradient.test_multi_step import normalised, trained
from tests.attacks.wire import CLASSES, generators, pictures, seeded, sigmoid_net

FEW: dict[str, Any] = {"iterations": 300, "total_variation": 0.0, "prior_decay": False, "labels": "known"}


def relu_net(seed: int = 0) -> nn.Module:
    """A small network with kinks."""
    layers = nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(6 * 36, CLASSES)
    return seeded(nn.Sequential(*layers), 0.2, seed)


def problem(
    model: nn.Module, images: Tensor, labels: Tensor, order: list[list[int]], rate: float
) -> tuple[MatchingProblem, Update]:
    """Of one update: what is matched, and the moves of the weights."""
    seen = trained(model, images, labels, order, rate)
    targets = {name: value[None] for name, value in seen.gradient().items()}
    private = attackable(model, train_mode=False)
    shape = (len(images), *images.shape[1:])
    matched = MatchingProblem(private, shape, CLASSES, targets, labels[None], COSTS["cosine"], 0.0)
    return matched, {name: value[None].to(targets[name]) for name, value in seen.update.items()}


def objective(
    model: nn.Module, images: Tensor, labels: Tensor, order: list[list[int]], rate: float
) -> tuple[SurrogateGradientMatching, GradientMatching]:
    """At the surrogate, and at the global model, of one update."""
    matched, moves = problem(model, images, labels, order, rate)
    return SurrogateGradientMatching(matched, moves), GradientMatching(matched)


def row(images: Tensor, alpha: float) -> Tensor:
    return torch.cat([normalised(images).flatten(), torch.tensor([alpha / ALPHA_UNIT])]).double()[None]


def mean_psnr(attack: GradientInversion, observation: ClientUpdate, images: Tensor) -> float:
    scores: list[float] = score(attack(observation, generators(1)[0]), images)["psnr"]
    return sum(scores) / len(scores)


NONE = torch.tensor([0])


def test_at_the_global_model_it_is_plain_matching() -> None:
    images, labels = pictures(3), torch.tensor([0, 1, 2])
    surrogate, plain = objective(sigmoid_net().double(), images, labels, [[0, 1, 2]], 0.02)
    guess = pictures(3, seed=4)
    value, gradient = surrogate(row(guess, 0.0), NONE)
    other, by_pixels = plain(row(guess, 0.0)[:, :-1], NONE)
    torch.testing.assert_close(value, other)
    torch.testing.assert_close(gradient[:, :-1], by_pixels)
    # One step was taken at the global model: the truth explains it there, and nowhere else so well.
    values = [float(surrogate(row(images, alpha), NONE)[0]) for alpha in (0.0, 0.5, 1.0)]
    assert values[0] < 1e-10
    assert values[0] < values[1] < values[2]


def test_of_many_steps_the_truth_is_explained_best_between_the_two_models() -> None:
    images, labels = pictures(4), torch.tensor([0, 1, 2, 3])
    order = [[0, 1], [2, 3], [3, 0], [1, 2]] * 3
    surrogate, _ = objective(sigmoid_net(seed=2).double(), images, labels, order, 0.02)
    values = [float(surrogate(row(images, alpha), NONE)[0]) for alpha in (0.0, 0.5, 1.0)]
    assert values[1] < min(values[0], values[2]) / 2


@pytest.mark.parametrize("build", [sigmoid_net, relu_net])
def test_the_derivatives_are_those_of_the_values(build: Any) -> None:
    """By small steps of each unknown, in double precision; differences agree with the exact ones."""
    images, labels = pictures(2), torch.tensor([0, 1])
    surrogate, _ = objective(build().double(), images, labels, [[0], [1], [0, 1]], 0.3)
    at = row(pictures(2, seed=3), 0.4)
    gradient = surrogate(at, NONE)[1][0]
    for index in (5, 70, at.shape[1] - 1):
        step = torch.zeros_like(at)
        step[0, index] = 1e-6
        slope = (surrogate(at + step, NONE)[0] - surrogate(at - step, NONE)[0]) / 2e-6
        torch.testing.assert_close(gradient[index], slope[0], rtol=1e-4, atol=1e-8)
    values, differenced = SurrogateDifferencedMatching(surrogate)(at, NONE)
    torch.testing.assert_close(values, surrogate(at, NONE)[0])
    torch.testing.assert_close(differenced[0, -1], gradient[-1], rtol=1e-3, atol=1e-7)
    assert F.cosine_similarity(differenced[0], gradient, dim=0) > 1 - 1e-5
    assert agrees(surrogate, at, lambda exact: SurrogateDifferencedMatching(exact))  # type: ignore[arg-type]


def test_differences_keep_the_prior_that_compares_statistics_at_the_global_model() -> None:
    layers = nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.Sigmoid(), nn.Flatten(), nn.Linear(600, CLASSES)
    model = seeded(nn.Sequential(*layers), 0.2).double().train()
    plain, moves = problem(model, pictures(2), torch.tensor([0, 1]), [[0, 1]] * 4, 0.3)
    private = attackable(model, train_mode=True)
    sent = PriorInput({"1": (torch.zeros(1, 6).double(), torch.ones(1, 6).double())}, {})
    prior = StatisticsPrior(private, 1.0)
    exact, without = (
        SurrogateGradientMatching(replace(plain, model=private, prior=one, observed=sent), moves)
        for one in (prior, None)
    )
    guess = pictures(2, seed=3)
    at = row(guess, 0.4)
    values, gradients = exact(at, NONE)
    of_one = tree_map(lambda all_trials: all_trials[0], sent)
    expected = prior(normalised(guess).double(), of_one)
    assert expected > 0.01
    torch.testing.assert_close(values - without(at, NONE)[0], expected[None])
    found, differenced = SurrogateDifferencedMatching(exact)(at, NONE)
    torch.testing.assert_close(found, values)
    assert F.cosine_similarity(differenced, gradients) > 1 - 1e-5


def test_each_trial_has_its_own_line() -> None:
    images, labels = pictures(2), torch.tensor([0, 1])
    pair = [problem(sigmoid_net().double(), images, labels, [[0], [1]], rate) for rate in (0.1, 2.0)]
    (first, _), _ = pair
    targets = {n: torch.cat([one.targets[n] for one, _ in pair]) for n in first.targets}
    moves = {n: torch.cat([move[n] for _, move in pair]) for n in first.targets}
    both = SurrogateGradientMatching(replace(first, targets=targets, labels=labels.expand(2, -1)), moves)
    rows = torch.cat([row(pictures(2, seed=3), 0.7)] * 2)
    for evaluate in (both, SurrogateDifferencedMatching(both)):
        values = evaluate(rows, torch.tensor([0, 1]))[0]
        for at, one in enumerate(pair):
            torch.testing.assert_close(values[at], SurrogateGradientMatching(*one)(rows[:1], NONE)[0][0])
        torch.testing.assert_close(evaluate(rows[1:], torch.tensor([1]))[0][0], values[1])


@pytest.mark.long
def test_of_a_linear_model_one_image_is_found_after_any_number_of_steps() -> None:
    """Every step's gradient is the outer product of the same image with some vector, whatever the rate and the batches were."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(144, CLASSES)).double()
    images = pictures(1)
    seen = trained(model, images, torch.tensor([2]), [[0]] * 12, 0.4)
    attack = SurrogateMatching(**{**FEW, "iterations": 600})
    assert mean_psnr(attack, seen, images) > 30
    assert mean_psnr(attack, replace(seen, learning_rate=None, local_steps=1), images) > 30


@pytest.mark.long
@pytest.mark.parametrize("seed", [2, 3])
def test_it_sees_more_of_two_epochs_than_the_mean_gradient_does(seed: int) -> None:
    images, labels = pictures(4, seed=seed - 2), torch.tensor([0, 1, 2, 3])
    seen = trained(sigmoid_net(seed=seed).double(), images, labels, [[0, 1], [2, 3], [3, 0], [1, 2]] * 3, 0.1)
    found = mean_psnr(SurrogateMatching(**FEW), seen, images)
    plain = mean_psnr(GradientInversion(max_unrolled_steps=0, **FEW), seen, images)
    assert found > plain + 2
    # Neither the rate nor the steps are asked for.
    told_less = replace(seen, learning_rate=None, local_steps=1, batch_size=4)
    assert mean_psnr(SurrogateMatching(**FEW), told_less, images) == pytest.approx(found, abs=1)


@pytest.mark.long
def test_fresh_noise_in_place_of_the_update_shows_nothing() -> None:
    images, labels = pictures(2), torch.tensor([0, 1])
    seen = trained(sigmoid_net().double(), images, labels, [[0, 1]] * 3, 0.5)
    generator = torch.Generator().manual_seed(1)
    noise = {n: v.std() * torch.randn(v.shape, generator=generator, dtype=v.dtype) for n, v in seen.update.items()}
    found = mean_psnr(SurrogateMatching(**FEW), replace(seen, update=noise), images)
    grey = score(null_baselines(images, images.mean(0))["grey"], images)["psnr"]
    assert found < sum(grey) / len(grey) + 1


@pytest.mark.long
def test_the_guess_says_where_alpha_ended_within_its_range() -> None:
    images, labels = pictures(2), torch.tensor([0, 1])
    seen = trained(sigmoid_net().double(), images, labels, [[0, 1]] * 6, 0.05)
    guess = SurrogateMatching(**FEW)(seen, generators(1)[0])
    assert not guess.failure
    assert 0 <= guess.diagnostics["alpha"] <= 1
    assert guess.diagnostics["alpha"] != 0.5


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"alpha": 1.5}, "alpha"),
        ({"labels": "joint"}, "labels"),
        ({"cost": "l2"}, "cost"),
        ({"max_unrolled_steps": 4}, "max_unrolled_steps"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        SurrogateMatching(**changes)


def test_an_update_that_lacks_a_weight_is_a_failed_guess() -> None:
    images, labels = pictures(1), torch.tensor([0])
    seen = trained(sigmoid_net().double(), images, labels, [[0]] * 2)
    kept = dict(list(seen.update.items())[1:])
    guess = SurrogateMatching(**FEW)(replace(seen, update=kept), generators(1)[0])
    assert "lacks" in guess.failure


def of_kind(kind: type, seen: ClientUpdate) -> ClientUpdate:
    found: ClientUpdate = kind(**vars(seen))
    return found


def test_a_one_step_probe_is_matched_at_the_global_model_wherever_alpha_starts() -> None:
    """The gradient was taken there, and that is known: what it finds is what plain matching finds."""
    images, labels = pictures(2), torch.tensor([0, 1])
    probe = of_kind(Probe, trained(sigmoid_net().double(), images, labels, [[0, 1]], 2.0))
    few = {**FEW, "iterations": 100}
    plain = mean_psnr(GradientInversion(max_unrolled_steps=0, **few), probe, images)
    guess = SurrogateMatching(alpha=1.0, **few)(probe, generators(1)[0])
    found = score(guess, images)["psnr"]
    assert guess.diagnostics["alpha"] == 0
    assert sum(found) / len(found) == pytest.approx(plain, abs=1)
    assert plain > 20


def test_a_probe_beside_a_whole_round_keeps_its_own_line() -> None:
    images, labels, model = pictures(2), torch.tensor([0, 1]), sigmoid_net().double()
    pair = [
        of_kind(Probe, trained(model, images, labels, [[0, 1]], 2.0)),
        of_kind(TrainingUpdate, trained(model, images, labels, [[0, 1]] * 6, 0.5)),
    ]
    pair[1] = replace(pair[1], model=pair[0].model)
    probe, update = SurrogateMatching(**{**FEW, "iterations": 30}).attack_many(pair, generators(2))
    assert probe.diagnostics["alpha"] == 0
    assert 0 < update.diagnostics["alpha"] <= 1
