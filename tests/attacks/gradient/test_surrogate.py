"""Matching whole rounds at a surrogate model: the objective and its derivatives against torch's autograd through the interpolated
weights, and what it finds without being told how clients trained.
"""

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_map

from attacks.gradient import surrogate
from attacks.gradient.inversion import GradientInversion
from attacks.gradient.trial_gradients.batch_statistics import StatisticsPrior
from attacks.gradient.trial_gradients.finite_difference import agrees
from attacks.gradient.trial_gradients.matching import MatchingProblem, attackable
from attacks.observations import ClientUpdate, Probe, TrainingUpdate
from clients.models.classifiers import build_model
from defenses.tensors import Update
from tests.attacks.gradient.clients import COSTS, mean_psnr, normalised, trained
from tests.attacks.wire import CLASSES, generators, pictures, seeded, sigmoid_net

FEW: dict[str, Any] = {"iterations": 300, "total_variation": 0.0, "prior_decay": False, "labels": "known"}
NONE = torch.tensor([0])
PAIR, FOUR = torch.tensor([0, 1]), torch.tensor([0, 1, 2, 3])


def problem(model: nn.Module, seen: ClientUpdate) -> tuple[MatchingProblem, Update]:
    targets = {name: value[None] for name, value in seen.gradient().items()}
    shape = (seen.num_examples, *seen.input_shape)
    matched = MatchingProblem(attackable(model, False), shape, CLASSES, targets, seen.labels[None], COSTS["cosine"], 0)
    return matched, {name: seen.update[name][None].to(targets[name]) for name in targets}


def objective(model: nn.Module, seen: ClientUpdate) -> surrogate.SurrogateGradientMatching:
    return surrogate.SurrogateGradientMatching(*problem(model, seen))


def row(images: Tensor, alpha: float) -> Tensor:
    return torch.cat([normalised(images).flatten(), torch.tensor([alpha / surrogate.ALPHA_UNIT])]).double()[None]


# Relative error of the derivative by alpha. A difference along the weights has about the root of the precision left; measured
# 2e-6 to 4e-3 in single precision, where it is the largest, on lenet.
TOLERANCE = {
    ("exact", torch.float64): 1e-10, ("differenced", torch.float64): 1e-5, ("exact", torch.float32): 1e-4,
    ("differenced", torch.float32): 2e-2,
}  # fmt: skip


def network(name: str, dtype: torch.dtype = torch.float64) -> nn.Module:
    return build_model(name, num_classes=CLASSES, input_shape=(1, 28, 28), seed=1).to(dtype).eval()


def oracle(model: nn.Module, seen: ClientUpdate, alpha: float) -> tuple[float, Tensor, float]:
    """1 - cosine of the gradient at w_alpha and of w_0 - w_T, and its derivatives by the pixels and by alpha."""
    pixels = normalised(pictures(4, side=28, seed=5)).double().requires_grad_()
    at = torch.tensor(alpha, dtype=torch.float64, requires_grad=True)
    start = {name: weight.detach() for name, weight in model.named_parameters()}
    move = {name: seen.update[name].double() for name in start}
    between = {name: (1 - at) * start[name] + at * (start[name] + move[name]) for name in start}
    loss = F.cross_entropy(torch.func.functional_call(model, between, (pixels,)), FOUR)
    gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(between.values()), create_graph=True)])
    sent = torch.cat([-move[name].flatten() for name in start])
    distance = 1 - (gradient @ sent) / (gradient.norm() * sent.norm())
    by_pixels, by_alpha = torch.autograd.grad(distance, [pixels, at])
    return float(distance.detach()), by_pixels, float(by_alpha)


@pytest.mark.numeric
def test_values_and_derivatives_are_those_of_autograd_on_the_whole_line() -> None:
    for (name, alpha), dtype in itertools.product(
        (("cnn", 0.0), ("lenet", 0.3), ("mlp", 0.8)), (torch.float64, torch.float32)
    ):
        model = network(name, dtype)
        seen = trained(model, pictures(4, side=28), FOUR, [[0, 1], [2, 3]] * 6, 0.1)
        exact = objective(model, seen)
        value, by_pixels, by_alpha = oracle(network(name), seen, alpha)
        at = row(pictures(4, side=28, seed=5), alpha).to(dtype)
        for kind, evaluate in (("exact", exact), ("differenced", surrogate.SurrogateDifferencedMatching(exact))):
            case = f"{name}, {kind}, {dtype}, alpha {alpha}"
            found, gradient = evaluate(at, NONE)
            assert float(found) == pytest.approx(value, abs=1e-12 if dtype == torch.float64 else 1e-5), case
            slope, pulls = float(gradient[0, -1]) / surrogate.ALPHA_UNIT, gradient[0, :-1].double()
            assert slope == pytest.approx(by_alpha, rel=TOLERANCE[kind, dtype]), case
            assert F.cosine_similarity(pulls, by_pixels.flatten(), dim=0) > 1 - 1e-4, case
            assert float(pulls.norm() / by_pixels.norm()) == pytest.approx(1, rel=1e-2), case


def test_differences_agree_and_keep_the_prior_that_compares_statistics_at_the_global_model() -> None:
    layers = nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.Sigmoid(), nn.Flatten(), nn.Linear(600, CLASSES)
    model = seeded(nn.Sequential(*layers), 0.2).double().eval()
    plain, moves = problem(model, trained(model, pictures(2), PAIR, [[0, 1]] * 4, 0.3))
    private = attackable(model, train_mode=True)
    sent = {"1": (torch.zeros(1, 6).double(), torch.ones(1, 6).double())}
    prior = StatisticsPrior(private, 1.0)
    exact, without = (
        surrogate.SurrogateGradientMatching(replace(plain, model=private, prior=one, observed=sent), moves)
        for one in (prior, None)
    )
    at = row(pictures(2, seed=3), 0.4)
    values, gradients = exact(at, NONE)
    expected = prior(normalised(pictures(2, seed=3)).double(), tree_map(lambda all_trials: all_trials[0], sent))
    assert expected > 0.01
    torch.testing.assert_close(values - without(at, NONE)[0], expected[None])
    found, differenced = surrogate.SurrogateDifferencedMatching(exact)(at, NONE)
    torch.testing.assert_close(found, values)
    assert F.cosine_similarity(differenced, gradients) > 1 - 1e-5
    assert agrees(without, at, lambda one: surrogate.SurrogateDifferencedMatching(one))  # type: ignore[arg-type]


def test_each_trial_has_its_own_line() -> None:
    model, labels = sigmoid_net().double(), PAIR
    pair = [problem(model, trained(model, pictures(2), labels, [[0], [1]], rate)) for rate in (0.1, 2.0)]
    first = pair[0][0]
    targets, moves = ({n: torch.cat([get(one)[n] for one in pair]) for n in first.targets}
                      for get in (lambda one: one[0].targets, lambda one: one[1]))  # fmt: skip
    both = surrogate.SurrogateGradientMatching(replace(first, targets=targets, labels=labels.expand(2, -1)), moves)
    rows = torch.cat([row(pictures(2, seed=3), 0.7)] * 2)
    for evaluate in (both, surrogate.SurrogateDifferencedMatching(both)):
        values = evaluate(rows, torch.tensor([0, 1]))[0]
        for at, one in enumerate(pair):
            torch.testing.assert_close(values[at], surrogate.SurrogateGradientMatching(*one)(rows[:1], NONE)[0][0])
        torch.testing.assert_close(evaluate(rows[1:], torch.tensor([1]))[0][0], values[1])


@pytest.mark.long
@pytest.mark.numeric
def test_it_sees_more_of_two_epochs_than_the_mean_gradient_does() -> None:
    images, order = pictures(4), [[0, 1], [2, 3], [3, 0], [1, 2]] * 3
    seen = trained(sigmoid_net(seed=2).double(), images, FOUR, order, 0.1)
    found = mean_psnr(surrogate.SurrogateMatching(**FEW), [seen], images)
    assert found > mean_psnr(GradientInversion(max_unrolled_steps=0, **FEW), [seen], images) + 2


def test_a_probe_beside_a_whole_round_keeps_its_own_line_and_alpha_stays_in_its_range() -> None:
    model = sigmoid_net().double()
    probe, update = (trained(model, pictures(2), PAIR, [[0, 1]] * steps, rate) for steps, rate in ((1, 2.0), (6, 0.5)))
    pair = [Probe(**vars(probe)), TrainingUpdate(**vars(update))]
    guesses = surrogate.SurrogateMatching(**{**FEW, "iterations": 30}).attack_many(pair, generators(2))
    assert not any(guess.failure for guess in guesses)
    assert guesses[0].diagnostics["alpha"] == 0
    assert 0 < guesses[1].diagnostics["alpha"] <= 1
    assert guesses[1].diagnostics["alpha"] != 0.5
    lacking = replace(pair[1], update=dict(list(pair[1].update.items())[1:]))
    assert "lacks" in surrogate.SurrogateMatching(**FEW)(lacking, generators(1)[0]).failure
