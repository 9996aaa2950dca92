"""Principal components of features against NumPy's singular values, and the limits of projections."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import defenses.smashed.feature_pca
from defenses import DefenseError, FeaturePCA, FitContext
from defenses.random_draws import generator_for
from defenses.smashed.feature_pca import principal_components

SHAPE = (4, 3, 5)


def features(count: int = 12, seed: int = 0) -> Tensor:
    """With columns of very different variance, around a mean that is far from zero."""
    spread = torch.logspace(1, -2, 60, dtype=torch.float64).view(SHAPE)
    return 5 + spread * torch.randn(count, *SHAPE, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def fitted(components: int, rows: Tensor) -> FeaturePCA:
    """Fitted to features as they are: the client half returns its images."""
    context = FitContext(
        nn.Identity(), nn.Identity(), None, rows, torch.zeros(len(rows)), torch.zeros(4, dtype=torch.float64)
    )
    return FeaturePCA(components=components).fit(context, generator_for("fit"))


def error(defense: FeaturePCA, rows: Tensor) -> float:
    return float((defense.protect_features(rows, generator_for(0)) - rows).square().mean())


@pytest.mark.parametrize("components", [1, 4, 11])
def test_the_reconstruction_is_that_of_numpys_svd(components: int):
    rows = features()
    flat = rows.flatten(1).numpy()
    mean = flat.mean(0)
    left, values, right = np.linalg.svd(flat - mean, full_matrices=False)
    expected = (left[:, :components] * values[:components]) @ right[:components] + mean
    restored = fitted(components, rows).protect_features(rows, generator_for(0))
    np.testing.assert_allclose(restored.flatten(1), expected, rtol=1e-9, atol=1e-9)


def test_components_are_numpys_whatever_the_blocks(monkeypatch: pytest.MonkeyPatch):
    rows = features().flatten(1)
    whole = principal_components(rows, 6)
    right = np.linalg.svd((rows - rows.mean(0)).numpy(), full_matrices=False)[2][:6]
    np.testing.assert_allclose(np.abs((whole[1].numpy() * right).sum(1)), 1, rtol=1e-9)
    monkeypatch.setattr(defenses.smashed.feature_pca, "_COLUMNS", 7)
    for first, second in zip(whole, principal_components(rows, 6), strict=True):
        torch.testing.assert_close(first, second, rtol=1e-9, atol=1e-9)


def test_components_are_orthonormal_and_the_latent_is_uncorrelated_by_falling_variance():
    rows, defense = features(40), fitted(10, features(40))
    basis = defense.state()["basis"].flatten(1)
    torch.testing.assert_close(basis @ basis.T, torch.eye(10, dtype=torch.float64), rtol=0, atol=1e-9)
    covariance = torch.cov(defense.encode(rows).T)
    variances = covariance.diagonal()
    torch.testing.assert_close(covariance, torch.diag(variances), rtol=0, atol=1e-9 * float(variances[0]))
    assert (variances.diff() < 0).all()


def test_the_error_never_rises_with_components_and_vanishes_at_full_rank():
    rows, others = features(), features(50, seed=1)
    defenses_by_rank = [fitted(k, rows) for k in range(1, 12)]
    for given in (rows, others):
        errors = [error(defense, given) for defense in defenses_by_rank]
        assert all(after <= before for before, after in itertools.pairwise(errors))
    assert error(defenses_by_rank[-1], rows) < 1e-20
    assert error(defenses_by_rank[-1], others) > 1e-3, "what the fit set does not span is lost"


def test_protecting_twice_is_protecting_once():
    defense, rows = fitted(3, features()), features(5, seed=2)
    once = defense.protect_features(rows, generator_for(0))
    torch.testing.assert_close(defense.protect_features(once, generator_for(0)), once)


def test_a_sweep_over_components_needs_one_fit():
    rows = features()
    widest = fitted(9, rows)
    for components in (1, 5, 9):
        narrow = widest.truncated(components)
        assert narrow == FeaturePCA(components=components)
        for name, tensor in fitted(components, rows).state().items():
            torch.testing.assert_close(narrow.state()[name], tensor)
    with pytest.raises(ValueError, match="components is 10; allowed: at most 9"):
        widest.truncated(10)
    with pytest.raises(DefenseError, match="is not fitted"):
        FeaturePCA(components=4).truncated(2)


@pytest.mark.parametrize(
    ("rows", "components", "message"),
    [
        (features(12), 12, "components is 12; allowed: at most 11, the rank of the centred features of 12 images"),
        (features(3).repeat(4, 1, 1, 1), 3, "components is 3; allowed: at most 2"),
        (features(1), 1, "allowed: at most 0, .* of 1 images"),
        (torch.ones(5, *SHAPE), 1, "allowed: at most 0, .* of 5 images"),
        (features(12), 61, "4 x 3 x 5 features have at most 60 components"),
    ],
)
def test_components_that_the_data_do_not_have_are_refused(rows: Tensor, components: int, message: str):
    with pytest.raises(DefenseError, match=message):
        fitted(components, rows)


def test_single_precision_is_good_enough_behind_a_large_mean():
    rows = 1000 + features().float()
    defense = fitted(11, rows)
    assert error(defense, rows) < 1e-5  # of a variance of about 10, around 1000
    protected = defense.protect_features(rows.bfloat16(), generator_for(0))
    assert protected.dtype == torch.bfloat16
    assert torch.equal(protected, defense.protect_features(rows.bfloat16().float(), generator_for(0)).bfloat16())
