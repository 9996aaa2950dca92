"""Distances between gradients: closed forms against autograd, and a cost of another package through a whole attack."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from attacks import GradientInversion, Reconstruction
from attacks.gradient.costs import COSTS, Cost, cosine_distance, largest, masked_cosine_distance
from attacks.gradient.trial_gradients.finite_difference import DifferencedMatching, agrees
from attacks.gradient.trial_gradients.matching import GradientMatching, MatchingProblem, attackable
from attacks.scoring.metrics import score
from defenses.base import Update
from tests.attacks.wire import CLASSES, classes, generators, observe, pictures, sigmoid_net

TRIALS, SHAPES = 3, {"weight": (4, 5), "bias": (4,), "scale": ()}
ENTRIES = sum(torch.Size(shape).numel() for shape in SHAPES.values())


def layerwise_cosine(dummy: Update, target: Update) -> Tensor:
    """Mean of the cosine distances of the layers, which no concatenated vector tells apart."""
    distances = [1 - F.cosine_similarity(dummy[name].flatten(), target[name].flatten(), 0) for name in dummy]
    return torch.stack(distances).mean()


def huber(dummy: Update, target: Update) -> Tensor:
    return torch.stack([F.huber_loss(dummy[name], target[name], reduction="sum", delta=0.01) for name in dummy]).sum()


@dataclass(frozen=True, repr=False)
class ForeignInversion(GradientInversion):
    """What another package would write."""

    costs: ClassVar[Mapping[str, Cost]] = {
        **COSTS,
        "layers": Cost(layerwise_cosine, scale_free=True),
        "huber": Cost(huber),
    }

    cost: str = "layers"


EVERY = dict(ForeignInversion.costs)


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def named(row: Tensor) -> Update:
    parts = torch.split(row, [torch.Size(shape).numel() for shape in SHAPES.values()], -1)
    return {name: part.reshape(shape) for (name, shape), part in zip(SHAPES.items(), parts, strict=True)}


def gradients() -> tuple[Tensor, Tensor]:
    """Dummies and targets (TRIALS, ENTRIES); the targets have pruned entries."""
    target = random(TRIALS, ENTRIES, seed=2)
    return random(TRIALS, ENTRIES, seed=1), target * (random(TRIALS, ENTRIES, seed=3) > -0.5)


@pytest.mark.parametrize("name", list(EVERY))
def test_values_and_gradients_are_those_of_plain_autograd(name: str) -> None:
    """One trial at a time, without ``torch.func``: closed forms and what stands in for them."""
    dummy, target = gradients()
    values, found = EVERY[name].with_gradient(dummy, target, named)
    for row in range(TRIALS):
        one = dummy[row].clone().requires_grad_()
        value = EVERY[name].distance(named(one), named(target[row]))
        (expected,) = torch.autograd.grad(value, one)
        assert values[row].item() == pytest.approx(value.item(), rel=1e-12)
        torch.testing.assert_close(found[row], expected)


@pytest.mark.parametrize("name", [name for name, cost in COSTS.items() if cost.closed_form])
def test_a_closed_form_changes_nothing(name: str) -> None:
    dummy, target = gradients()
    for given, expected in zip(
        COSTS[name].with_gradient(dummy, target, named),
        replace(COSTS[name], closed_form=None).with_gradient(dummy, target, named),
        strict=True,
    ):
        torch.testing.assert_close(given, expected)


@pytest.mark.parametrize("name", [name for name, cost in COSTS.items() if cost.closed_form])
def test_long_rows_lose_no_digits(name: str) -> None:
    """A wide network has three million entries: added one after the other, float32 keeps four digits of their squares."""
    entries = 3_000_000
    generator = torch.Generator().manual_seed(0)
    target = torch.randn(2, entries, generator=generator) + 1
    dummy = target + 0.1 * torch.randn(2, entries, generator=generator)
    closed_form = COSTS[name].closed_form
    assert closed_form is not None
    values, _ = closed_form(dummy, target)
    expected, _ = closed_form(dummy.double(), target.double())
    tolerance = 2e-6 * (1 if COSTS[name].scale_free else expected.max().item())
    torch.testing.assert_close(values.double(), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", list(EVERY))
def test_what_is_said_of_the_scale_is_true(name: str) -> None:
    dummy, target = (named(rows[0]) for rows in gradients())
    for scaled in (({key: 3 * value for key, value in dummy.items()}, target), (dummy, named(3 * gradients()[1][0]))):
        same = torch.allclose(EVERY[name].distance(dummy, target), EVERY[name].distance(*scaled))
        assert same == EVERY[name].scale_free


def test_partial_matching_compares_the_largest_entries_of_each_parameter() -> None:
    """Parameters of unequal scale, one of a single entry; three of ten entries are 0.3."""
    target = {
        "weight": torch.tensor([[9.0, -1.0, 2.0, -8.0, 3.0], [1.0, 7.0, 0.5, 4.0, 2.0]]),
        "scale": torch.tensor(0.01),
    }
    dummy = {"weight": torch.arange(1.0, 11.0).view(2, 5), "scale": torch.tensor(-2.0)}
    chosen = ({"kept": torch.tensor([1.0, 4.0, 7.0, -2.0])}, {"kept": torch.tensor([9.0, -8.0, 7.0, 0.01])})
    assert largest(0.3).distance(dummy, target).item() == pytest.approx(cosine_distance(*chosen).item(), rel=1e-6)


def test_partial_matching_leaves_the_other_entries_free() -> None:
    target = {"weight": torch.tensor([5.0, -4.0, 1.0, 0.0])}
    dummy = {"weight": torch.tensor([10.0, -8.0, 77.0, -99.0], requires_grad=True)}
    distance = largest(0.5).distance(dummy, target)
    assert distance.item() == pytest.approx(0, abs=1e-6)
    dummy = {"weight": torch.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)}
    (pull,) = torch.autograd.grad(largest(0.5).distance(dummy, target), dummy["weight"])
    assert (pull != 0).tolist() == [True, True, False, False]


def test_all_entries_are_those_that_pruning_left() -> None:
    dummy, target = (named(rows[0]) for rows in gradients())
    assert any(bool((value == 0).any()) for value in target.values())
    torch.testing.assert_close(largest(1.0).distance(dummy, target), masked_cosine_distance(dummy, target))


@pytest.mark.parametrize("name", ["layers", "huber"])
def test_the_difference_is_the_derivative_of_a_foreign_cost(name: str) -> None:
    model = sigmoid_net().double()
    targets = {n: 0.1 * random(2, *p.shape, seed=at) for at, (n, p) in enumerate(model.named_parameters())}
    labels = torch.tensor([[0], [1]])
    exact = GradientMatching(
        MatchingProblem(attackable(model, False), (1, 1, 12, 12), CLASSES, targets, labels, EVERY[name], 0.1)
    )
    rows, trials = random(2, 144, seed=9), torch.arange(2)
    losses, expected = exact(rows, trials)
    values, found = DifferencedMatching(exact)(rows, trials)
    torch.testing.assert_close(values, losses)
    assert ((found - expected).norm(dim=1) / expected.norm(dim=1)).max() < 1e-4
    assert agrees(exact, rows)


@pytest.mark.long
@pytest.mark.parametrize("second_order", ["exact", "auto"])
@pytest.mark.parametrize("name", ["layers", "huber"])
def test_a_foreign_cost_inverts(name: str, second_order: str) -> None:
    """Two images, one each, far beyond what an unrelated picture scores (about 12 dB)."""
    images, labels = pictures(2), classes(2)
    model = sigmoid_net().double()
    seen = [observe(model, images[at : at + 1], labels[at : at + 1]) for at in range(2)]
    attack = ForeignInversion(
        cost=name, optimizer="lbfgs", signed=False, learning_rate=1.0, line_search=True, step_decay=False, iterations=300,
        total_variation=0.0, second_order=second_order,
    )  # fmt: skip
    for at, guess in enumerate(attack.attack_many(seen, generators(2))):
        assert guess.diagnostics["differenced"] == (second_order == "auto")
        assert psnr(guess, images[at : at + 1]) > 30


def psnr(guess: Reconstruction, truth: Tensor) -> float:
    return score(guess, truth)["psnr"][0]


def test_only_a_cost_that_ignores_the_scale_goes_on_without_a_learning_rate() -> None:
    seen = observe(sigmoid_net(), pictures(1), classes(1))
    # The wrong sign, as of a trained model: no rate explains it.
    backwards = {name: -value for name, value in seen.update.items()}
    unknown = replace(seen, update=backwards, learning_rate=None)
    failures = {name: ForeignInversion(cost=name, iterations=3)(unknown, generators(1)[0]).failure for name in EVERY}
    assert {name for name, failure in failures.items() if not failure} == {
        "cosine",
        "masked-cosine",
        "largest-cosine",
        "layers",
    }
    assert all("estimate failed" in failures[name] for name in ("l1", "l2", "huber"))


def test_an_unknown_cost_lists_those_of_the_class() -> None:
    with pytest.raises(ValueError, match=r"masked-cosine \| cosine \| largest-cosine \| l2 \| l1$"):
        GradientInversion(cost="layers")
    with pytest.raises(ValueError, match=r"cosine \| largest-cosine \| l2 \| l1 \| layers \| huber$"):
        ForeignInversion(cost="cosines")
