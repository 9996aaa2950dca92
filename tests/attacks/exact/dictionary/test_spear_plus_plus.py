"""SPEAR++ against SPEAR, beyond it, and where it does not apply."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attacks import AttackError, ClientUpdate, Spear, SpearPlusPlus
from attacks.exact.dictionary.sparse_dictionary import SparseDictionary, orthogonal_dictionary
from attacks.exact.linear_layer import unscaled_gradient
from attacks.exact.sparse_directions import unit
from attacks.normalisation import normalise
from tests.attacks.exact.solving import largest_error, noise_for, sent, smooth, stream, without_bias
from tests.attacks.wire import CLASSES, classes, drawings, observe, pictures, relu_net


def deep(width: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        layers = [nn.Linear(400, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, CLASSES)]
        return nn.Sequential(nn.Flatten(), *layers).double()


def after(steps: int, batch: int, rate: float = 0.01) -> ClientUpdate:
    """The update of several steps of plain SGD on a whole batch."""
    model, images, labels = deep(400), drawings(batch), classes(batch)
    seen = observe(model, images, labels)
    before = {name: value.detach() for name, value in model.named_parameters()}
    weights, inputs = dict(before), normalise(images, seen).double()
    for _ in range(steps):
        leaves = {name: value.clone().requires_grad_() for name, value in weights.items()}
        loss = F.cross_entropy(torch.func.functional_call(model, leaves, (inputs,)), labels)
        slopes = torch.autograd.grad(loss, list(leaves.values()))
        weights = {name: (weights[name] - rate * slope) for name, slope in zip(leaves, slopes, strict=True)}
    update = {name: value - before[name] for name, value in weights.items()}
    return replace(seen, update=update, local_steps=steps, learning_rate=rate)


def test_it_agrees_with_spear_on_small_batches() -> None:
    for batch, width in ((1, 20), (2, 20), (4, 60)):
        seen = sent(batch, width)
        theirs = Spear(max_samples=20_000, max_descents=256)(seen, stream())
        guess = SpearPlusPlus()(seen, stream())
        assert largest_error(guess, theirs.images) < 1e-4
        assert largest_error(guess, pictures(batch, seed=3)) < 1e-4
        assert sorted(guess.labels.tolist()) == sorted(theirs.labels.tolist())
        assert abs(guess.diagnostics["gradient_distance"]) < 1e-6


def test_a_batch_beyond_the_reach_of_samples_is_exact() -> None:
    """The same budget of work: 32 examples need 2^31 samples, and the learning a few starts."""
    batch, model = 32, deep(600)
    seen = observe(model, drawings(batch), classes(batch))
    few = Spear(search="samples", max_samples=20_000)(seen, stream())
    assert "of 32 examples in" in few.failure
    guess = SpearPlusPlus()(seen, stream())
    assert largest_error(guess, drawings(batch)) < 1e-3
    assert guess.diagnostics["starts"] < 20


def test_several_steps_leave_the_inputs_exact() -> None:
    seen = after(5, 8)
    assert "5 local steps" in Spear()(seen, stream()).failure
    guess = SpearPlusPlus()(seen, stream())
    assert largest_error(guess, drawings(8)) < 1e-3
    assert guess.diagnostics["rank"] == 8


@pytest.mark.numeric
def test_noise_that_leaves_the_singular_values_leaves_the_images() -> None:
    seen = observe(deep(600), drawings(6), classes(6))
    size, noise = float(seen.update["1.weight"].square().mean().sqrt()), noise_for(seen)

    def noisy(share: float) -> ClientUpdate:
        return replace(seen, update={n: u + share * size * noise[n] for n, u in seen.update.items()})

    assert Spear()(noisy(0.05), stream()).failure.startswith("does not apply")
    assert largest_error(SpearPlusPlus()(noisy(0.005), stream()), drawings(6)) < 0.1
    assert SpearPlusPlus()(noisy(50.0), stream()).failure.startswith("does not apply")


def test_where_it_does_not_apply_it_says_so() -> None:
    for model, changes, why in (
        (without_bias(), {}, "has no bias"),
        (smooth(), {}, "no ReLU follows layer '1'"),
        (relu_net(9), {}, "too few for 4 examples"),
        (relu_net(60), {"local_steps": 3, "weight_decay": 0.1}, "weight decay of several local steps"),
    ):
        guess = SpearPlusPlus()(observe(model, pictures(4), classes(4), **changes), stream())
        assert guess.failure.startswith("does not apply")
        assert why in guess.failure
    # Too few directions: the failure says how many were found.
    assert "of 14 examples in" in SpearPlusPlus(max_starts=1)(sent(14, 60), stream()).failure
    seen = observe(relu_net(60), pictures(2), classes(2), weight_decay=0.1)
    assert unscaled_gradient(seen).keys() == seen.update.keys()
    with pytest.raises(AttackError, match="several local steps"):
        unscaled_gradient(replace(seen, local_steps=2))


# ---- learning of sparse dictionaries against dictionaries that are known


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


@pytest.mark.numeric
def test_a_known_dictionary_is_found_up_to_order_and_scale_and_dense_columns_are_not_taken_for_one() -> None:
    for rows, columns in ((300, 10), (800, 30)):
        known = sparse(rows, columns, 0.5, seed=1)
        mixing = torch.randn(columns, 2 * columns, generator=stream(2), dtype=torch.float64)
        search, left = learned(known, mixing)
        assert found_of(known, search, left) == columns
    known = torch.randn(300, 10, generator=stream(1), dtype=torch.float64)
    search, _ = learned(known, torch.eye(10, dtype=torch.float64))
    assert len(search.sure()) == 0


@pytest.mark.numeric
def test_columns_with_most_zeros_in_common_are_told_apart() -> None:
    """Two columns that differ in 6 % of their zeros: their sums have nearly as many, and one row of chance more."""
    known = sparse(600, 12, 0.5, seed=3)
    generator = stream(4)
    for one, other in ((0, 1), (2, 3)):
        on = (known[:, one] != 0) ^ (torch.rand(600, generator=generator) < 0.06)
        known[:, other] = on * (known[:, one] + 0.5 * torch.randn(600, generator=generator, dtype=torch.float64))
    search, left = learned(known, torch.eye(12, dtype=torch.float64), starts=8)
    assert found_of(known, search, left) == 12


@pytest.mark.numeric
def test_the_orthogonal_dictionary_of_independent_columns_is_the_identity_up_to_order() -> None:
    """From the best of a few starts: one can end at a saddle, half way between two columns."""
    rows = torch.linalg.qr(sparse(20_000, 6, 0.3, seed=5))[0]
    starts = [torch.linalg.qr(torch.randn(6, 6, generator=stream(at), dtype=torch.float64))[0] for at in range(4)]
    largest = max((orthogonal_dictionary(rows, one).abs().max(1) for one in starts), key=lambda one: one.values.min())
    assert sorted(largest.indices.tolist()) == list(range(6))
    assert float(largest.values.min()) > 0.99


@pytest.mark.numeric
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
