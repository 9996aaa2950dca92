"""The descent of white-box inversions, where the answer is known, and how far a search reports to be."""

import pytest
import torch
from torch import Tensor

from attacks.descent import StepRule, minimise, watched
from attacks.observations import AttackError
from attacks.spec import parse_attacks
from tests.attacks.wire import linear_net, observe, pictures


def test_each_image_keeps_its_own_best_iterate() -> None:
    """One image starts at its minimum and can only leave it, the other has a way to go."""
    target = torch.tensor([[0.5, 0.5], [3.0, -2.0]])
    seen: list[Tensor] = []

    def objective(images: Tensor) -> Tensor:
        seen.append(images.detach().clone())
        return (images - target).square().sum(1)

    best, lowest = minimise(objective, torch.full((2, 2), 0.5), 40, StepRule(0.3))
    values = torch.stack([(one - target).square().sum(1) for one in seen])
    assert torch.equal(lowest, values.min(0).values)
    assert torch.equal(best, torch.stack([seen[int(at)][row] for row, at in enumerate(values.argmin(0))]))
    assert lowest[0] == 0
    assert lowest[1] < 0.1


def test_one_number_for_all_images_keeps_them_together() -> None:
    # A step far beyond the minimum: the start is the best.
    start, rule = torch.full((2, 1), 0.5), StepRule(0.9, in_range=True)
    best, lowest = minimise(lambda x: (x - 0.51).square().sum(), start, 2, rule)
    assert best.flatten().tolist() == [0.5, 0.5]
    assert float(lowest) == pytest.approx(2e-4, rel=1e-3)


def test_a_step_is_that_of_adam_and_no_longer_than_its_rule() -> None:
    """The first step of Adam is the learning rate, against the sign of the gradient, where epsilon is small beside it."""
    for rule, first, third in (
        (StepRule(0.3), [0.2, 0.8], [-0.4, 1.4]),
        # Rates 0.3 (1 + cos(pi k / 4)) / 2, and never outside of [0, 1].
        (StepRule(0.3, in_range=True), [0.2, 0.8], [0.0, 1.0]),
        # Where epsilon is as large as the gradient, the step is half as long.
        (StepRule(0.3, epsilon=4.0), [0.35, 0.65], None),
    ):
        iterates: list[Tensor] = []

        def objective(images: Tensor, iterates: list[Tensor] = iterates) -> Tensor:
            iterates.append(images.detach().clone())
            return (images * torch.tensor([4.0, -4.0])).sum(1)

        minimise(objective, torch.full((1, 2), 0.5), 4, rule)
        torch.testing.assert_close(iterates[1], torch.tensor([first]), atol=1e-5, rtol=0)
        if third is not None:
            torch.testing.assert_close(iterates[3], torch.tensor([third]), atol=1e-4, rtol=0)


def test_an_objective_that_was_never_finite_is_an_error_and_a_late_one_is_not() -> None:
    with pytest.raises(AttackError, match="never finite"):
        minimise(lambda x: x.sum(1) * torch.tensor([1.0, float("nan")]), torch.ones(2, 3), 2, StepRule(0.1))
    calls = []

    def breaking(images: Tensor) -> Tensor:
        calls.append(1)
        return images.sum(1) * (1.0 if len(calls) < 3 else float("nan"))

    best, _ = minimise(breaking, torch.ones(1, 3), 5, StepRule(0.1))
    torch.testing.assert_close(best, torch.full((1, 3), 0.9), atol=1e-4, rtol=0)


def test_every_search_reports_each_of_its_steps_to_its_own_context() -> None:
    observation = observe(linear_net(), pictures(1), torch.tensor([2]))
    for text, steps, never_ends_early in (
        ("InvertingGradients(iterations=12, restarts=1)", 12, True),
        ("DLG(iterations=3, restarts=1)", 3, False),
        ("AdamL2(iterations=5, restarts=1)", 5, True),
    ):
        (attack,) = parse_attacks(text)
        heard: list[tuple[int, int]] = []
        with watched(lambda done, total, heard=heard: heard.append((done, total))):
            watched_guess = attack(observation, torch.Generator().manual_seed(0))
        assert heard == [(step, steps) for step in range(1, len(heard) + 1)]
        assert 1 <= len(heard) <= steps
        assert len(heard) == steps or not never_ends_early
        alone = attack(observation, torch.Generator().manual_seed(0))
        assert torch.equal(watched_guess.images, alone.images)


def test_an_image_does_not_depend_on_its_company() -> None:
    start, target = torch.zeros(3, 4), torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    rule = StepRule(0.1, epsilon=0.1)  # with which a step grows with the gradient
    together, _ = minimise(lambda x: (x - target).pow(4).sum(1), start, 30, rule)
    alone, _ = minimise(lambda x: (x - target[1:2]).pow(4).sum(1), start[:1], 30, rule)
    torch.testing.assert_close(together[1:2], alone)
