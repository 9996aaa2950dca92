"""Counts of recovered and of identified pictures."""

import torch
from recovered import count_identified, count_recovered


def pictures(count: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(count, 3, 64, 64, generator=torch.Generator().manual_seed(seed))


def test_pictures_are_recovered_where_a_guess_is_better_than_a_null_baseline() -> None:
    truth, others = pictures(4), pictures(50, seed=1)
    mean = others.mean(0)
    for guess, expected in (
        (truth, 4), (truth.roll(1, 0), 0), (others[:4], 0), (torch.cat([truth[:2], others[:2]]), 2),
        # It identifies every picture: it is the mean of the others, a little towards the picture.
        (mean + 0.1 * (truth - mean), 0), (mean + 0.9 * (truth - mean), 4),
    ):  # fmt: skip
        assert count_recovered(guess, truth, others) == expected
    # Without other pictures the null baseline is grey.
    assert [count_recovered(guess, truth, truth[:0]) for guess in (truth, torch.full_like(truth, 0.5))] == [4, 0]


def test_a_copy_is_identified_by_its_layout_and_not_by_its_colours() -> None:
    originals = pictures(9)
    assert count_identified(originals, originals) == 9
    assert count_identified(originals[:, :1], originals[:, :1]) == 9
    colours = originals.mean((2, 3), keepdim=True).expand_as(originals)
    for other in (originals.flip(3), originals.rot90(1, (2, 3)), originals.roll(1, 0), colours):
        assert count_identified(other, originals) == 0
