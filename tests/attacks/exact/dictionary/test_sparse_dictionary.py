"""Learning of sparse dictionaries against dictionaries that are known."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attacks.exact.dictionary.sparse_dictionary import SparseDictionary, orthogonal_dictionary
from attacks.exact.sparse_directions import unit


def stream(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def sparse(rows: int, columns: int, share: float, seed: int) -> Tensor:
    """(rows, columns) with independent normal entries, of which each is zero with probability 1 - ``share``."""
    generator = stream(seed)
    values = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    return values * (torch.rand(rows, columns, generator=generator) < share)


def found_of(known: Tensor, search: SparseDictionary, left: Tensor) -> int:
    """How many of the true columns (m, R) are among the directions found, up to sign and scale."""
    truth = unit((left.T @ known).T)
    close = (search.sure() @ truth.T).abs() > 1 - 1e-9
    assert int(close.sum()) == len(search.sure()), "a direction is no column"
    return int(close.any(0).sum())


def learned(known: Tensor, mixing: Tensor, starts: int = 4) -> tuple[SparseDictionary, Tensor]:
    """A search in the column space of ``known`` (m, R) @ ``mixing`` (R, N)."""
    left = torch.linalg.svd(known @ mixing, full_matrices=False)[0][:, : known.shape[1]]
    search = SparseDictionary(left, 1e-14)
    for seed in range(starts):
        if len(search.sure()) < search.rank:
            search.learn(stream(seed))
    return search, left


@pytest.mark.parametrize(("rows", "columns"), [(300, 10), (800, 30), (1500, 50)])
def test_a_known_dictionary_is_found_up_to_order_and_scale(rows: int, columns: int) -> None:
    known = sparse(rows, columns, 0.5, seed=1)
    mixing = torch.randn(columns, 2 * columns, generator=stream(2), dtype=torch.float64)
    search, left = learned(known, mixing)
    assert found_of(known, search, left) == columns


def test_dense_columns_are_not_taken_for_sparse_ones() -> None:
    known = torch.randn(300, 10, generator=stream(1), dtype=torch.float64)
    search, _ = learned(known, torch.eye(10, dtype=torch.float64))
    assert len(search.sure()) == 0


def test_columns_with_most_zeros_in_common_are_told_apart() -> None:
    """Two columns that differ in 6 % of their zeros: their sums have nearly as many, and one row of chance more."""
    known = sparse(600, 12, 0.5, seed=3)
    generator = stream(4)
    for one, other in ((0, 1), (2, 3)):
        on = (known[:, one] != 0) ^ (torch.rand(600, generator=generator) < 0.06)
        known[:, other] = on * (known[:, one] + 0.5 * torch.randn(600, generator=generator, dtype=torch.float64))
    search, left = learned(known, torch.eye(12, dtype=torch.float64), starts=8)
    assert found_of(known, search, left) == 12


def test_the_orthogonal_dictionary_of_independent_columns_is_the_identity_up_to_order() -> None:
    """From the best of a few starts: one can end at a saddle, half way between two columns."""
    rows = torch.linalg.qr(sparse(20_000, 6, 0.3, seed=5))[0]
    starts = [torch.linalg.qr(torch.randn(6, 6, generator=stream(at), dtype=torch.float64))[0] for at in range(4)]
    largest = max((orthogonal_dictionary(rows, one).abs().max(1) for one in starts), key=lambda one: one.values.min())
    assert sorted(largest.indices.tolist()) == list(range(6))
    assert float(largest.values.min()) > 0.99


def test_noise_moves_directions_little() -> None:
    known = sparse(1000, 10, 0.5, seed=7)
    mixing = torch.randn(10, 100, generator=stream(8), dtype=torch.float64)
    noisy = known @ mixing + 0.1 * torch.randn(1000, 100, generator=stream(9), dtype=torch.float64)
    left, values, _ = torch.linalg.svd(noisy, full_matrices=False)
    search = SparseDictionary(left[:, :10], float(values[10] / values[9]))
    for seed in range(4):
        search.learn(stream(seed))
    truth = unit((left[:, :10].T @ known).T)
    assert len(search.sure()) == 10
    assert float((search.sure() @ truth.T).abs().max(1).values.min()) > 0.999
