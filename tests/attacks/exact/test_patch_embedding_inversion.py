"""Pixels from the gradients of a patch projection and of the position embedding behind it."""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models import VisionTransformer as TorchvisionTransformer

from attacks.exact.patch_embedding_inversion import PatchEmbeddingInversion, solved_patches
from attacks.guesses import Reconstruction
from attacks.image_measures import mse
from attacks.observations import ClientUpdate
from tests.attacks.exact.solving import assert_refused, stream
from tests.attacks.wire import CLASSES, MEAN, STD, PatchNet, classes, observe, patch_net, pictures

ATTACK = PatchEmbeddingInversion()
SIDE, PATCH = 24, 8


def guess_of(seen: ClientUpdate) -> Reconstruction:
    return ATTACK(seen, stream())


@cache
def timms(**changes: Any) -> nn.Module:
    given: dict[str, Any] = {"img_size": SIDE, "patch_size": PATCH, "embed_dim": 32, "depth": 2, "num_heads": 2}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return VisionTransformer(**given, num_classes=CLASSES, **changes)


@pytest.mark.numeric
def test_the_image_and_the_label_of_real_transformers_are_exact() -> None:
    image, label = pictures(1, SIDE, 3, seed=3), classes(1, seed=4)
    torch.manual_seed(1)
    torchvisions = TorchvisionTransformer(SIDE, PATCH, 2, 2, 32, 48, num_classes=CLASSES)
    nn.init.normal_(torchvisions.heads.head.weight, std=0.02)  # type: ignore[union-attr,arg-type]
    for model in (
        torchvisions, timms(), timms(class_token=False, global_pool="avg"), timms(no_embed_class=True, reg_tokens=3),
        timms(init_values=1e-5),
    ):  # fmt: skip
        guess = guess_of(observe(model, image, label))
        assert not guess.failure
        torch.testing.assert_close(guess.images, image, atol=1e-3, rtol=0)
        assert torch.equal(guess.labels, label)
        assert guess.diagnostics["gradient_distance"] < 1e-8
        assert guess.diagnostics["residual"] < 1e-5


class LinearPatches(PatchNet):
    """A linear layer on patches that are cut out by the network, and positions in a table without a class token's row."""

    def __init__(self) -> None:
        super().__init__(channels=2)
        self.project = nn.Linear(32, 24)  # type: ignore[assignment]
        del self.positions
        self.table = nn.Embedding(9, 24)

    def embed(self, images: Tensor) -> Tensor:
        patches = self.project(F.unfold(images, 4, stride=4).mT) + self.table(torch.arange(9))
        return torch.cat([self.token.expand(len(images), -1, -1), patches], 1)


class MapOfPositions(PatchNet):
    """Overlapping patches beyond the border of the image, and positions in the shape of the convolution's map."""

    def __init__(self) -> None:
        super().__init__(channels=2)
        self.project = nn.Conv2d(2, 24, 6, 4, 1, bias=False)
        self.positions = nn.Parameter(torch.zeros(24, 3, 3))

    def embed(self, images: Tensor) -> Tensor:
        patches = (self.project(images) + self.positions).flatten(2).mT
        return torch.cat([self.token.expand(len(images), -1, -1), patches], 1)


@pytest.mark.numeric
def test_layers_are_found_by_what_they_do() -> None:
    torch.manual_seed(3)
    for kind, channels in ((LinearPatches, 2), (MapOfPositions, 2)):
        image = pictures(1, channels=channels, seed=3)
        guess = guess_of(observe(kind(), image, classes(1)))
        assert not guess.failure, kind
        torch.testing.assert_close(guess.images, image, atol=1e-2, rtol=0)
    # Neither weight decay nor an unknown learning rate hinders.
    model, image = patch_net(), pictures(1, seed=3)
    seen = observe(model, image, classes(1))
    decayed = {name: seen.update[name] - 0.1 * 0.01 * value.detach() for name, value in model.named_parameters()}
    for one in (replace(seen, learning_rate=None), replace(seen, update=decayed, weight_decay=0.01)):
        torch.testing.assert_close(guess_of(one).images, image, atol=1e-2, rtol=0)


@pytest.mark.numeric
def test_of_more_patches_than_the_width_determines_it_finds_their_projection() -> None:
    """A LayerNorm leaves the tokens' gradients orthogonal to ones: a width of 8 determines 7 directions of 9 patches."""
    image = pictures(1, seed=3)
    seen = observe(patch_net(width=8).double(), image, classes(1))
    guess = guess_of(seen)
    slopes = seen.update["positions"][0, 1:].numpy()
    patches = F.unfold((image.double() - MEAN[0]) / STD[0], 4, stride=4)[0].T.numpy()
    known = slopes @ np.linalg.pinv(slopes, rcond=1e-9) @ patches
    expected = F.fold(torch.from_numpy(known).T[None], 12, 4, stride=4) * STD[0] + MEAN[0]
    torch.testing.assert_close(guess.images, expected.clamp(0, 1).float(), atol=1e-3, rtol=0)
    assert (guess.diagnostics["tokens"], guess.diagnostics["rank"]) == (9, 7)
    assert float(mse(guess.images, image)) < 0.5 * float(mse(torch.full_like(image, MEAN[0]), image))
    assert guess.diagnostics["gradient_distance"] > 1e-9


@pytest.mark.numeric
def test_noise_costs_pixels_and_its_amount_is_estimated() -> None:
    generator = torch.Generator().manual_seed(2)
    slopes, patches = (torch.randn(9, size, generator=generator, dtype=torch.float64) for size in (24, 16))
    slopes *= torch.logspace(0, -3, 9, dtype=torch.float64)[:, None]
    errors = []
    for std in (1e-9, 1e-2, 1e3):
        weight = slopes.T @ patches
        weight = weight + std * torch.randn(weight.shape, generator=generator, dtype=torch.float64)
        numbers: dict[str, float] = {}
        found = solved_patches(slopes, weight, numbers)
        plain = torch.linalg.lstsq(slopes.T, weight).solution
        errors.append((float((found - patches).norm()), float((plain - patches).norm()), numbers["residual"]))
    assert errors[0][0] < 1e-4
    assert errors[1][0] < 0.5 * errors[1][1]
    assert errors[2][0] < 1.5 * float(patches.norm()) < errors[2][1]
    assert errors[0][2] < 1e-6 < errors[1][2] < 0.5 < errors[2][2]


def test_where_it_does_not_apply_it_says_so() -> None:
    image, small, label = pictures(1, SIDE, 3), pictures(1), classes(1)
    # As torchvision starts its transformers: the first update of a client holds nothing but the head's.
    zeros = TorchvisionTransformer(SIDE, PATCH, 1, 2, 32, 48, num_classes=CLASSES)
    fixed = patch_net()
    fixed.positions.requires_grad_(False)
    seen, whole = observe(patch_net(), small, label), observe(timms(), image, label)
    cases = [
        (observe(zeros, image, label), "is zero: it is frozen, or the weights of the head are still zero"),
        (observe(timms(pos_embed="none"), image, label), "no trained position embedding of VisionTransformer is added"),
        (replace(seen, model=fixed), "no trained position embedding"),
        (observe(nn.Sequential(nn.Flatten(), nn.Linear(144, CLASSES)), small, label), "no layer of Sequential sees"),
        (replace(seen, local_steps=4), "4 local steps"),
    ]
    # Fine-tuning of the head: nothing of the two gradients is sent, as zeros or not at all.
    frozen = {n: u if n.startswith("head") else torch.zeros_like(u) for n, u in whole.update.items()}
    left_out = {n: u for n, u in whole.update.items() if n.startswith("head")}
    cases += [
        (replace(whole, update=frozen), "patch projection 'patch_embed.proj.weight' is zero: it is frozen"),
        (replace(whole, update=left_out), "leaves out the patch projection 'patch_embed.proj.weight'"),
    ]
    assert_refused(ATTACK, cases)
