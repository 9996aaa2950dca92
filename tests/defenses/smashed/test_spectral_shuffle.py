"""Spectral shuffling against NumPy's transform, plane waves, and slow versions of the layout."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

from defenses import DefenseError, Pipeline, SpectralShuffle
from defenses.random_draws import generator_for
from defenses.smashed.spectral_shuffle import from_spectrum, mirror, patch_side, spectrum, to_planes, to_tokens


def random(*shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


# ---- layout


@pytest.mark.parametrize(
    ("dim", "side", "planes"),
    [(768, 16, 3), (512, 16, 2), (64, 8, 1), (192, 8, 3), (147, 7, 3), (49, 7, 1), (48, 4, 3), (7, 1, 7), (1, 1, 1)],
)
def test_side_of_a_patch(dim: int, side: int, planes: int):
    assert patch_side(dim) == side
    assert dim == planes * side**2


def test_the_layout_puts_every_number_where_its_indices_say():
    grid, patch, planes = 3, 2, 5
    tokens = random(2, grid**2, patch**2 * planes)
    laid_out = to_planes(tokens, patch)
    assert laid_out.shape == (2, planes, 6, 6)
    for row, column, down, right, plane in itertools.product(*map(range, (grid, grid, patch, patch, planes))):
        token, entry = row * grid + column, (down * patch + right) * planes + plane
        at = laid_out[:, plane, row * patch + down, column * patch + right]
        assert torch.equal(at, tokens[:, token, entry])
    assert torch.equal(to_tokens(laid_out, patch), tokens)


def test_the_tokens_of_a_cut_image_are_laid_out_as_that_image():
    image = random(2, 3, 12, 12)
    cut = image.unfold(2, 4, 4).unfold(3, 4, 4).permute(0, 2, 3, 4, 5, 1).reshape(2, 9, 48)
    assert patch_side(48) == 4
    assert torch.equal(to_planes(cut, 4), image)


# ---- spectrum


@pytest.mark.parametrize("side", [1, 2, 5, 8])
def test_the_spectrum_is_numpys(side: int):
    planes = random(2, 3, side, side)
    expected = np.fft.fftshift(np.fft.fft2(planes.numpy()), (-2, -1))
    real, imaginary = spectrum(planes).chunk(2, 1)
    torch.testing.assert_close(real, torch.from_numpy(expected.real.copy()), atol=1e-12, rtol=0)
    torch.testing.assert_close(imaginary, torch.from_numpy(expected.imag.copy()), atol=1e-12, rtol=0)


def test_a_plane_wave_is_two_peaks():
    rows, columns = torch.meshgrid(*2 * [torch.arange(8, dtype=torch.float64)], indexing="ij")
    wave = torch.cos(2 * torch.pi * (2 * rows + 3 * columns) / 8)
    real, imaginary = spectrum(wave[None, None])[0]
    expected = torch.zeros(8, 8, dtype=torch.float64)
    expected[4 + 2, 4 + 3] = expected[4 - 2, 4 - 3] = 8 * 8 / 2
    torch.testing.assert_close(real, expected)
    torch.testing.assert_close(imaginary, torch.zeros_like(expected), atol=1e-12, rtol=0)
    assert (mirror(6, 8), mirror(7, 8)) == (2, 1)


@pytest.mark.parametrize("side", [5, 8])
def test_the_inverse_returns_the_planes_also_in_single_precision(side: int):
    planes = random(2, 3, side, side)
    torch.testing.assert_close(from_spectrum(spectrum(planes)), planes)
    torch.testing.assert_close(from_spectrum(spectrum(planes.float())), planes.float())


@pytest.mark.parametrize("side", [5, 8])
def test_parseval(side: int):
    planes = random(2, 3, side, side)
    energy = spectrum(planes).square().sum((1, 2, 3))
    torch.testing.assert_close(energy, side**2 * planes.square().sum((1, 2, 3)))


@pytest.mark.parametrize("side", [1, 5, 8, 224])
def test_the_mirrored_frequency_is_the_conjugate(side: int):
    indices = torch.arange(side)
    mirrored = mirror(indices, side)
    assert mirrored.tolist() == [mirror(index, side) for index in range(side)]
    assert torch.equal(mirror(mirrored, side), indices)
    if side % 2 == 0:
        assert torch.equal(mirrored, (side - indices) % side)
    real, imaginary = spectrum(random(1, 2, side, side)).chunk(2, 1)
    there = (..., mirrored[:, None], mirrored)
    torch.testing.assert_close(real[there], real, atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(imaginary[there], -imaginary, atol=1e-9, rtol=1e-9)


# ---- defence


def test_undoing_the_order_and_the_spectrum_returns_the_tokens():
    tokens = random(3, 16, 32)
    defense = SpectralShuffle()
    sent = defense.protect_features(tokens, generator_for(0))
    order = defense.order(3, 16, generator_for(0))
    assert sent.shape == (3, 16, 64)
    unshuffled = torch.empty_like(sent).flatten(0, 1).index_copy(0, order.flatten(), sent.flatten(0, 1)).view_as(sent)
    assert not torch.equal(unshuffled, sent)
    # 64 numbers alone would be one 8 x 8 patch; what is sent are four planes of the tokens' 4 x 4.
    torch.testing.assert_close(to_tokens(from_spectrum(to_planes(unshuffled, 4)), 4), tokens)


def test_the_order_hides_neither_energy_nor_values():
    tokens = random(2, 16, 32)
    sent = SpectralShuffle().protect_features(tokens, generator_for(1))
    torch.testing.assert_close(sent.square().sum((1, 2)), 16**2 * tokens.square().sum((1, 2)))
    plain = to_tokens(spectrum(to_planes(tokens, 4)), 4)
    for before, after in zip(plain, sent, strict=True):
        assert sorted(map(tuple, before.tolist())) == sorted(map(tuple, after.tolist()))


def test_gradients_are_those_of_a_linear_map():
    """The map multiplies inner products by S^2, so the gradient of half the squared norm is S^2 times the tokens."""
    tokens = random(2, 16, 32).requires_grad_()
    sent = SpectralShuffle().protect_features(tokens, generator_for(2))
    (gradient,) = torch.autograd.grad(0.5 * sent.square().sum(), tokens)
    torch.testing.assert_close(gradient, 16**2 * tokens.detach())


@pytest.mark.parametrize("num_tokens", [2, 15, 195])
def test_tokens_that_make_no_square_are_refused(num_tokens: int):
    with pytest.raises(DefenseError, match=f"{num_tokens} is not a square"):
        SpectralShuffle().check_batch(4, num_tokens)
    with pytest.raises(DefenseError, match="is not a square"):
        SpectralShuffle().protect_features(random(1, num_tokens, 4), generator_for(0))


def test_what_the_client_half_must_look_like():
    for stage, raw in (("post_embed", False), ("pixel", True)):
        pipeline = Pipeline((SpectralShuffle(stage),))
        assert (pipeline.edge_blocks, pipeline.widening, pipeline.raw_patches) == (0, 2, raw)
