"""Spectral shuffling against NumPy's transform, plane waves, and slow versions of the layout."""

import itertools

import numpy as np
import pytest
import torch

from defenses import DefenseError, SpectralShuffle
from defenses.random_draws import generator_for
from defenses.smashed.spectral_shuffle import from_spectrum, patch_side, spectrum, to_planes, to_tokens
from tests.defenses.images.test_blur import random


def test_the_layout_puts_every_number_where_its_indices_say() -> None:
    sides = {768: 16, 512: 16, 64: 8, 192: 8, 147: 7, 49: 7, 48: 4, 7: 1, 1: 1}
    assert {dim: patch_side(dim) for dim in sides} == sides
    grid, patch, planes = 3, 2, 5
    tokens = random(2, grid**2, patch**2 * planes)
    laid_out = to_planes(tokens, patch)
    assert laid_out.shape == (2, planes, 6, 6)
    for row, column, down, right, plane in itertools.product(*map(range, (grid, grid, patch, patch, planes))):
        token, entry = row * grid + column, (down * patch + right) * planes + plane
        at = laid_out[:, plane, row * patch + down, column * patch + right]
        assert torch.equal(at, tokens[:, token, entry])
    assert torch.equal(to_tokens(laid_out, patch), tokens)
    image = random(2, 3, 12, 12)  # the tokens of a cut image are laid out as that image
    cut = image.unfold(2, 4, 4).unfold(3, 4, 4).permute(0, 2, 3, 4, 5, 1).reshape(2, 9, 48)
    assert torch.equal(to_planes(cut, 4), image)


def test_the_spectrum_is_numpys_and_has_an_inverse() -> None:
    for side in (1, 2, 5, 8):
        planes = random(2, 3, side, side)
        expected = np.fft.fftshift(np.fft.fft2(planes.numpy()), (-2, -1))
        real, imaginary = spectrum(planes).chunk(2, 1)
        torch.testing.assert_close(real, torch.from_numpy(expected.real.copy()), atol=1e-12, rtol=0)
        torch.testing.assert_close(imaginary, torch.from_numpy(expected.imag.copy()), atol=1e-12, rtol=0)
        torch.testing.assert_close(from_spectrum(spectrum(planes)), planes)
        torch.testing.assert_close(from_spectrum(spectrum(planes.float())), planes.float())


def test_undoing_the_order_and_the_spectrum_returns_the_tokens() -> None:
    tokens = random(3, 16, 32).requires_grad_()
    defense = SpectralShuffle()
    sent = defense.protect_features(tokens, generator_for(0))
    order = defense.order(3, 16, generator_for(0))
    assert sent.shape == (3, 16, 64)
    unshuffled = torch.empty_like(sent).flatten(0, 1).index_copy(0, order.flatten(), sent.flatten(0, 1)).view_as(sent)
    assert not torch.equal(unshuffled, sent)
    # 64 numbers alone would be one 8 x 8 patch; what is sent are four planes of the tokens' 4 x 4.
    torch.testing.assert_close(to_tokens(from_spectrum(to_planes(unshuffled, 4)), 4), tokens)
    # The map multiplies inner products by S^2 (Parseval), so the gradient of half the squared norm is S^2 times the tokens.
    (gradient,) = torch.autograd.grad(0.5 * sent.square().sum(), tokens)
    torch.testing.assert_close(gradient, 16**2 * tokens.detach())
    torch.testing.assert_close(sent.square().sum((1, 2)), 16**2 * tokens.square().sum((1, 2)))


def test_tokens_that_make_no_square_are_refused() -> None:
    for num_tokens in (2, 15, 195):
        with pytest.raises(DefenseError, match=f"{num_tokens} is not a square"):
            SpectralShuffle().check_batch(4, num_tokens)
        with pytest.raises(DefenseError, match="is not a square"):
            SpectralShuffle().protect_features(random(1, num_tokens, 4), generator_for(0))
