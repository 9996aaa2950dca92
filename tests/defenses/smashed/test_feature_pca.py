"""Principal components of features against NumPy's singular values, and the limits of projections."""

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


def test_the_reconstruction_and_components_are_those_of_numpys_svd(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = features()
    flat = rows.flatten(1).numpy()
    mean = flat.mean(0)
    left, values, right = np.linalg.svd(flat - mean, full_matrices=False)
    for k in (1, 4, 11):
        expected = (left[:, :k] * values[:k]) @ right[:k] + mean
        restored = fitted(k, rows).protect_features(rows, generator_for(0))
        np.testing.assert_allclose(restored.flatten(1), expected, rtol=1e-9, atol=1e-9)
    whole = principal_components(rows.flatten(1), 6)
    np.testing.assert_allclose(np.abs((whole[1].numpy() * right[:6]).sum(1)), 1, rtol=1e-9)
    monkeypatch.setattr(defenses.smashed.feature_pca, "_COLUMNS", 7)  # whatever the blocks
    for first, second in zip(whole, principal_components(rows.flatten(1), 6), strict=True):
        torch.testing.assert_close(first, second, rtol=1e-9, atol=1e-9)


def test_components_that_the_data_do_not_have_are_refused() -> None:
    for rows, components, message in (
        (features(12), 12, "components is 12; allowed: at most 11, the rank of the centred features of 12 images"),
        (features(3).repeat(4, 1, 1, 1), 3, "components is 3; allowed: at most 2"),
        (features(1), 1, "allowed: at most 0, .* of 1 images"),
        (torch.ones(5, *SHAPE), 1, "allowed: at most 0, .* of 5 images"),
        (features(12), 61, "4 x 3 x 5 features have at most 60 components"),
    ):
        with pytest.raises(DefenseError, match=message):
            fitted(components, rows)


@pytest.mark.numeric
def test_single_precision_is_good_enough_behind_a_large_mean() -> None:
    rows = 1000 + features().float()
    defense = fitted(11, rows)
    assert (defense.protect_features(rows, generator_for(0)) - rows).square().mean() < 1e-5  # of a variance of about 10
    protected = defense.protect_features(rows.bfloat16(), generator_for(0))
    assert torch.equal(protected, defense.protect_features(rows.bfloat16().float(), generator_for(0)).bfloat16())
