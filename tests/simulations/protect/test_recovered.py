"""The rules by which recovered pictures and identified copies are counted, against cases whose answer is known."""

from __future__ import annotations

import torch

from simulations.protect.recovered import count_recovered, identified


def pictures(count: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(count, 3, 16, 16, generator=torch.Generator().manual_seed(seed))


def test_pictures_themselves_are_recovered_and_those_of_others_are_not() -> None:
    truth, others = pictures(4), pictures(50, seed=1)
    assert count_recovered(truth, truth, others) == 4
    assert count_recovered(truth.roll(1, 0), truth, others) == 0
    assert count_recovered(others[:4], truth, others) == 0
    half = torch.cat([truth[:2], others[:2]])
    assert count_recovered(half, truth, others) == 2


def test_a_guess_that_is_no_better_than_a_null_baseline_recovers_nothing() -> None:
    """It identifies every picture: it is the mean of the others, a little towards the picture."""
    truth, others = pictures(4), pictures(50, seed=1)
    mean = others.mean(0)
    assert count_recovered(mean + 0.1 * (truth - mean), truth, others) == 0
    assert count_recovered(mean + 0.9 * (truth - mean), truth, others) == 4


def test_without_other_pictures_the_null_baseline_is_grey() -> None:
    truth = pictures(3)
    assert count_recovered(truth, truth, truth[:0]) == 3
    assert count_recovered(torch.full_like(truth, 0.5), truth, truth[:0]) == 0


def test_a_copy_is_identified_by_its_layout_and_not_by_its_colours() -> None:
    originals = pictures(9)
    assert identified(originals, originals) == [True] * 9
    assert identified(originals.flip(3), originals) == [False] * 9
    assert identified(originals.rot90(1, (2, 3)), originals) == [False] * 9
    assert identified(originals.roll(1, 0), originals) == [False] * 9
    colours = originals.mean((2, 3), keepdim=True).expand_as(originals)
    assert not any(identified(colours, originals)), "a tie with the turned views is no identification"
    assert identified(originals[4:5], originals, torch.tensor([4])) == [True]
