"""Patch, batch and spectral shuffling beside the functions of their authors' repository, on the same permutations."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from released_checkouts import checkout
from released_rows import Row, close, equal
from torch import Tensor, nn

from defenses.smashed.patch_shuffle import BatchShuffle, PatchShuffle, shuffled_within_images
from defenses.smashed.spectral_shuffle import SpectralShuffle, from_spectrum, patch_side, spectrum, to_planes, to_tokens

SHARES = (0.0, 0.15, 0.25, 0.4, 0.5, 0.75, 1.0)
SHAPES = ((4, 196, 8), (5, 49, 6), (2, 16, 3))
SEEDS = range(5)
SIDE = 224
"""Pixels of an image."""


def features(shape: tuple[int, int, int], seed: int) -> Tensor:
    """Tokens (B, N, D)."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def torch_with(**supplied: Any) -> SimpleNamespace:
    """The package torch with other functions under some names."""
    return SimpleNamespace(**{**vars(torch), **supplied})


@dataclass(frozen=True)
class Draws:
    """Draws that give the released shuffle wanted permutations; it permutes a batch of B images with N tokens three times.

    The released function sorts uniform numbers for the first order of each image, permutes the pooled tokens, permutes each image
    once more, and undoes the first order at last. So its last permutation must be the wanted one after the first order.

    Attributes:
        own: (B, N), the first order of each image.
        pool: The order of the pooled tokens.
        final: (B, N), the last order of each image.
    """

    own: Tensor
    pool: Tensor
    final: Tensor

    @classmethod
    def of_batch_shuffle(cls, shape: tuple[int, int, int], native: int, seed: int) -> Draws:
        """What ``BatchShuffle`` draws from a seed, K being ``native``."""
        images, tokens, _ = shape
        generator, first = torch.Generator().manual_seed(seed), tokens * torch.arange(images).unsqueeze(1)
        own = shuffled_within_images(images, tokens, generator) - first
        pool = torch.randperm(images * (tokens - native), generator=generator)
        return cls(own, pool, shuffled_within_images(images, tokens, generator) - first)

    @classmethod
    def of_one_order(cls, order: Tensor) -> Draws:
        """One permutation (B, N) of each image, without a pool."""
        return cls(torch.arange(order.shape[1]).expand_as(order), torch.zeros(0, dtype=torch.long), order)

    def applied(self, module: Any) -> Any:
        """A patch of the random functions of a module of the checkout."""
        drawn = iter([self.pool, *self.final.gather(1, self.own)])
        own = self.own.argsort(1).double()
        return mock.patch.object(module, "torch", torch_with(rand=lambda _: own, randperm=lambda _: next(drawn)))


def shuffles(folder: Path) -> Iterator[Row]:
    """Patch shuffling and batch shuffling, bit for bit."""
    with checkout(folder) as modules:
        released = modules("utilsenc")
        patch, batch, kept = [], [], []
        for seed in SEEDS:
            for shape in SHAPES:
                tokens = features(shape, seed)
                generator = torch.Generator().manual_seed(seed)
                order = shuffled_within_images(shape[0], shape[1], generator) % shape[1]
                with mock.patch.object(released, "torch", torch_with(randperm=mock.Mock(side_effect=list(order)))):
                    theirs = released.PatchShuffle(tokens.clone())
                ours = PatchShuffle().protect_features(tokens, torch.Generator().manual_seed(seed))
                patch.append((True, torch.equal(ours, theirs)))
                torch.manual_seed(seed)
                kept.append((sorted_tokens(ours), sorted_tokens(released.PatchShuffle(tokens.clone()))))
                for k in SHARES:
                    defense = BatchShuffle(k=k)
                    with Draws.of_batch_shuffle(shape, defense.num_native(shape[1]), seed).applied(released):
                        theirs = released.BatchPatchPartialShuffle(tokens.clone(), k)
                    ours = defense.protect_features(tokens, torch.Generator().manual_seed(seed))
                    batch.append((True, torch.equal(ours, theirs)))
    sizes = ", ".join(f"{b} x {n} x {d}" for b, n, d in SHAPES)
    yield equal("patch shuffle, same permutation, bit for bit", f"{sizes}; {len(SEEDS)} seeds", patch)
    yield equal("tokens of each image as a multiset, each side by its own draws", f"{sizes}; {len(SEEDS)} seeds", kept)
    yield equal(
        "batch shuffle with the final shuffle, same permutations, bit for bit",
        f"{sizes}; {len(SEEDS)} seeds; k = {', '.join(map(str, SHARES))}", batch,
        note="Algorithm 2 of the paper has no final shuffle.",
    )  # fmt: skip


def sorted_tokens(tokens: Tensor) -> list[list[list[float]]]:
    """The tokens of each image in an order that depends on their values alone."""
    return [sorted(image.tolist()) for image in tokens]


def laws(folder: Path) -> Iterator[Row]:
    """What of batch shuffling follows without the same draws: K, and how many own tokens an image is sent with."""
    with checkout(folder) as modules:
        released = modules("utilsenc")
        counts, asked = [], []
        for tokens in (16, 49, 64, 100, 196):
            for percent in range(1, 100):
                k, row = percent / 100, torch.arange(2 * tokens).float().view(2, tokens, 1)
                defense = BatchShuffle(k=k)
                asked.append((k, tokens, defense.num_native(tokens), _native(released, row, k)))
        shape, k = (4, 49, 1), 0.4
        row = torch.arange(shape[0] * shape[1]).float().view(shape)
        for seed in range(400):
            torch.manual_seed(seed)
            ours = BatchShuffle(k=k).protect_features(row, torch.Generator().manual_seed(seed))
            counts.append((_own(ours), _own(released.BatchPatchPartialShuffle(row.clone(), k))))
    more = [(k, tokens) for k, tokens, ours, theirs in asked if ours != theirs]
    few = "; ".join(f"k = {k}, N = {tokens}" for k, tokens in more[:3])
    yield equal(
        "K, the number of an image's own tokens that stay", "k = 0.01 to 0.99; N = 16, 49, 64, 100, 196",
        [(ours, theirs) for *_, ours, theirs in asked],
        f"The released code cuts k N after rounding errors, which lose a token ({few}).",
        explained=all(ours == round(100 * k) * n // 100 and theirs == int(n * k) for k, n, ours, theirs in asked),
    )  # fmt: skip
    native = BatchShuffle(k=k).num_native(shape[1])
    expected = native + (shape[1] - native) / shape[0]
    ours_mean, theirs_mean = torch.tensor(counts).double().mean(0).tolist()
    yield Row(
        "own tokens in a sent image, each side by its own draws", f"B = {shape[0]}, N = {shape[1]}, k = {k}; 400 batches",
        f"ours {ours_mean:.2f}, released {theirs_mean:.2f}; expected {expected:.2f}",
        max(abs(ours_mean - expected), abs(theirs_mean - expected)) < 0.3,
    )  # fmt: skip


def _native(released: Any, tokens: Tensor, k: float) -> int:
    """K of the released function: what remains of an image where the pool is dealt out in reverse."""
    seen = list[int]()

    def randperm(count: int) -> Tensor:
        seen.append(count)
        return torch.arange(count)

    with mock.patch.object(released, "torch", torch_with(randperm=randperm)):
        released.BatchPatchPartialShuffle(tokens.clone(), k)
    return tokens.shape[1] - seen[0] // tokens.shape[0]


def _own(sent: Tensor) -> float:
    """Mean number of own tokens of the images, where token i of image j has the value j N + i."""
    images = torch.arange(len(sent)).view(-1, 1, 1)
    return float((sent.div(sent.shape[1], rounding_mode="floor") == images).double().sum((1, 2)).mean())


class _Recorder(nn.Module):
    """Keeps what it is called with, and returns tokens of the ViT's length."""

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, N, 1536) -> zeros (B, N, 768)."""
        self.seen = tokens.detach().clone()
        return tokens.new_zeros(*tokens.shape[:2], 768)


def spectral(folder: Path) -> Iterator[Row]:
    """The client half of PS+, from embedded tokens to shuffled spectral patches."""
    if importlib.util.find_spec("einops") is None:
        yield Row("Spectral shuffle (PS+)", "", "did not run: the package einops is not installed", agrees=False)
        return
    with checkout(folder / "SpectralShuffling") as modules:
        module = modules("model")
        tokens = features((2, 196, 768), 0)
        model = _vision_transformer(tokens)
        with mock.patch.object(module.timm, "create_model", return_value=model):
            edge = module.t2t_pretrain(k=1)
        edge.MLP = recorder = _Recorder()
        order = SpectralShuffle().order(2, 196, torch.Generator().manual_seed(0)) % 196
        with Draws.of_one_order(order).applied(module.utilsenc):
            edge(torch.zeros(2, 3, SIDE, SIDE))
        theirs = recorder.seen
        ours = SpectralShuffle().protect_features(tokens, torch.Generator().manual_seed(0))
        size = patch_side(768)
        planes = to_planes(tokens, size)
        there = edge.FFT(planes)
        back = module.ToTime()(there)
    scale = float(theirs.abs().max())
    yield close(
        "spectral shuffle (PS+): layout, spectrum, patches, same permutation", "2 x 196 x 768 tokens", ours / scale,
        theirs / scale, 1e-6, unit=" of the largest value",
    )  # fmt: skip
    yield close(
        "spectrum of the laid-out tokens", "2 x 3 x 224 x 224", spectrum(planes) / scale, there / scale, 1e-6,
        unit=" of the largest value",
    )  # fmt: skip
    yield close("spectrum and back", "2 x 3 x 224 x 224", from_spectrum(there), back, 1e-5)
    restored = to_planes(to_tokens(there, size), size)
    yield equal(
        "layout of tokens with six planes and back", "2 x 6 x 224 x 224", [(True, torch.equal(restored, there))]
    )


def _vision_transformer(tokens: Tensor) -> nn.Module:
    """In place of a pretrained ViT: its embedding gives ``tokens``, and nothing follows the client half."""
    model = nn.Module()
    model.patch_embed = _Constant(tokens)
    model.cls_token = nn.Parameter(torch.zeros(1, 1, tokens.shape[-1]))
    model.blocks, model.norm, model.head = nn.Identity(), nn.Identity(), nn.Identity()
    return model


class _Constant(nn.Module):
    def __init__(self, value: Tensor) -> None:
        super().__init__()
        self.value = value

    def forward(self, _: Tensor) -> Tensor:
        return self.value
