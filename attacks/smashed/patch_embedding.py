"""Patch embeddings as affine maps of one patch each, and their inverse by least squares."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attacks.normalisation import Normalisation, denormalise
from attacks.observations import AttackError
from attacks.sender import ClientHalf
from attacks.smashed.tokens.positions import from_patches


def patch_embedding(edge: ClientHalf, shape: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
    """The client half's embedding as an affine map of a normalised patch: token = patch @ weight (P, D) + offset (D,).

    Patches are in the order of ``to_patches``, of images of shape (C, H, W).
    """
    size = edge.patch_size
    length, num_tokens = shape[0] * size**2, edge.grid[0] * edge.grid[1]
    # Image k shows basis patch k everywhere; the last one is zero.
    basis = torch.cat([torch.eye(length), torch.zeros(1, length)]).unsqueeze(1).expand(-1, num_tokens, -1)
    probe = torch.rand(2, num_tokens, length, generator=torch.Generator().manual_seed(0))
    parameter = next(edge.parameters(), basis) if isinstance(edge, nn.Module) else basis
    basis, probe = basis.to(parameter), probe.to(parameter)
    with torch.no_grad():
        tokens = edge.embed(from_patches(basis, size, shape))[:, 0]
        weight, offset = tokens[:-1] - tokens[-1], tokens[-1]
        expected = probe.to(weight) @ weight + offset
        error = (edge.embed(from_patches(probe, size, shape)) - expected).abs().max()
    if error > 1e-3 * expected.abs().max():
        raise AttackError("the client half's embedding is not an affine map of single patches")
    return weight, offset


def patches_of_tokens(tokens: Tensor, edge: ClientHalf, shape: tuple[int, int, int]) -> Tensor:
    """Normalised patches (B, N, P) whose embedding comes closest to tokens (B, N, D) in the sense of least squares."""
    weight, offset = patch_embedding(edge, shape)
    patches: Tensor = (tokens - offset) @ torch.linalg.pinv(weight)
    return patches


def images_of_patches(patches: Tensor, edge: ClientHalf, shape: tuple[int, int, int], known: Normalisation) -> Tensor:
    """Images (B, C, H, W) in [0, 1] of normalised patches (B, N, P)."""
    return denormalise(from_patches(patches, edge.patch_size, shape), known).clamp(0, 1)
