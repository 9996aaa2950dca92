from __future__ import annotations

import pytest
import torch

from attacks.smashed.tokens.positions import to_patches
from attacks.smashed.tokens.puzzle import border_costs, filled, improved, joined_parts, ratios_of, solved, total
from clients.data.packaged import photograph

GRID = (6, 6)


def square(name: str, top: int, left: int, size: int = 16) -> torch.Tensor:
    side = GRID[0] * size
    pixels = torch.from_numpy(photograph(name).copy()).permute(2, 0, 1).float() / 255
    return pixels[None, :, top : top + side, left : left + side]


def shuffled(patches: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    order = torch.randperm(len(patches), generator=torch.Generator().manual_seed(0))
    return patches[order], order


@pytest.mark.parametrize(("name", "top", "left"), [("astronaut", 0, 150), ("coffee", 100, 200), ("cat", 60, 120)])
def test_a_photograph_is_put_together(name, top, left):
    patches, order = shuffled(to_patches(square(name, top, left), 16)[0])
    board = solved(border_costs(patches, 16), GRID)
    assert board.shape == (1, *GRID)
    assert (order[board.flatten()] == torch.arange(36)).sum() >= 30


def test_two_photographs_in_one_puzzle_are_told_apart():
    whole = torch.cat([to_patches(square("astronaut", 0, 150), 16)[0], to_patches(square("coffee", 100, 200), 16)[0]])
    patches, order = shuffled(whole)
    boards = solved(border_costs(patches, 16), GRID, images=2)
    assert sorted(boards.flatten().tolist()) == list(range(72))
    assert all((order[board.flatten()] // 36).bincount(minlength=2).max() >= 33 for board in boards)


def test_noise_is_put_together_at_chance():
    patches, order = shuffled(torch.rand(36, 3 * 64, generator=torch.Generator().manual_seed(1)))
    board = solved(border_costs(patches, 8), GRID)
    assert sorted(board.flatten().tolist()) == list(range(36))
    assert (order[board.flatten()] == torch.arange(36)).sum() <= 5


def test_costs_of_pairs_are_those_of_the_formula():
    patches = torch.rand(5, 3 * 16, generator=torch.Generator().manual_seed(2))
    costs = border_costs(patches, 4)
    cells = patches.view(5, 3, 4, 4).double() * 255
    eye = torch.eye(3, dtype=torch.float64)

    def one_way(last, before, first):
        steps = (last - before).T
        centred = torch.cat([steps, eye, -eye, torch.zeros(1, 3, dtype=torch.float64)])
        across = (first - last).T - steps.mean(0)
        return (across @ torch.linalg.inv(centred.T.cov() + 1e-3 * eye) * across).sum()

    a, b = cells[1], cells[3]
    beside = one_way(a[:, :, -1], a[:, :, -2], b[:, :, 0]) + one_way(b[:, :, 0], b[:, :, 1], a[:, :, -1])
    below = one_way(a[:, -1], a[:, -2], b[:, 0]) + one_way(b[:, 0], b[:, 1], a[:, -1])
    assert costs[0, 1, 3] == pytest.approx(float(beside.sqrt()))
    assert costs[1, 1, 3] == pytest.approx(float(below.sqrt()))


def ideal() -> torch.Tensor:
    """Ratios of patches whose true order is 0 to 35, 0.1 for true neighbours and 1 for others."""
    ratios = torch.ones(2, 36, 36, dtype=torch.float64)
    cells = torch.arange(36).view(GRID)
    ratios[0][cells[:, :-1], cells[:, 1:]] = 0.1
    ratios[1][cells[:-1], cells[1:]] = 0.1
    return ratios


def test_free_cells_and_wrong_cells_are_put_right():
    ratios, true = ideal(), torch.arange(36).view(1, *GRID)
    holes = true.clone()
    holes[0, 2:4, 2:4], holes[0, 5, 5] = -1, -1
    assert torch.equal(filled(holes, ratios), true)
    wrong = true.clone()
    wrong[0, 0, 0], wrong[0, 3, 3], wrong[0, 5, 1] = 21, 31, 0
    assert total(wrong, ratios) > total(true, ratios)
    assert torch.equal(improved(wrong, ratios), true)
    assert torch.equal(improved(true.roll(2, 2), ratios), true)


def test_parts_fit_into_the_frame():
    parts = joined_parts(ratios_of(ideal()), (3, 6))
    assert sorted(patch for part in parts for patch in part) == list(range(36))
    assert all(max(row for row, _ in part.values()) - min(row for row, _ in part.values()) < 3 for part in parts)
    assert max(map(len, parts)) > 1


def test_single_patches_and_single_pixels():
    assert solved(border_costs(torch.rand(1, 12), 2), (1, 1)).tolist() == [[[0]]]
    assert sorted(solved(border_costs(torch.rand(6, 1), 1), (2, 3)).flatten().tolist()) == list(range(6))
