"""What a client would send: undefended updates of tiny networks on synthetic pictures."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attacks.observations import ClientUpdate

MEAN, STD = (0.4,), (0.3,)
CLASSES = 5
SIDE = 12


def pictures(count: int, side: int = SIDE, channels: int = 1, seed: int = 0) -> Tensor:
    """Smooth random pictures in [0, 1]: (count, channels, side, side)."""
    coarse = torch.rand(count, channels, 4, 4, generator=torch.Generator().manual_seed(seed))
    return F.interpolate(coarse, (side, side), mode="bicubic").clamp(0, 1)


def drawings(count: int, seed: int = 0, side: int = 20) -> Tensor:
    """(count, 1, side, side): three rectangles of some grey on black, whose differences are sparse as those of digits are."""
    draw, images = np.random.default_rng(seed), torch.zeros(count, 1, side, side)
    for image in images:
        for _ in range(3):
            top, left = draw.integers(0, side - 4, 2)
            height, width = draw.integers(3, side // 2, 2)
            image[0, top : top + height, left : left + width] = float(draw.uniform(0.3, 1.0))
    return images


def classes(count: int, seed: int = 0) -> Tensor:
    return torch.randint(CLASSES, (count,), generator=torch.Generator().manual_seed(seed))


def seeded(model: nn.Module, half_width: float = 0.5, seed: int = 0) -> nn.Module:
    """Redraws all weights uniformly, as in Zhu et al. 2019."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_((torch.rand(parameter.shape, generator=generator) * 2 - 1) * half_width)
    return model


def sigmoid_net(seed: int = 0) -> nn.Module:
    """A small relative of the LeNet of Zhu et al. 2019 for (1, 12, 12) images."""
    layers = [nn.Conv2d(1, 8, 5, 2, 2), nn.Sigmoid(), nn.Conv2d(8, 8, 5, 1, 2), nn.Sigmoid()]
    return seeded(nn.Sequential(*layers, nn.Flatten(), nn.Linear(8 * 36, CLASSES)), seed=seed)


def linear_net(seed: int = 0) -> nn.Module:
    return seeded(nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, CLASSES)), 0.1, seed)


def relu_net(width: int = 40, seed: int = 0) -> nn.Module:
    """A linear layer that sees the pixels, a ReLU and the head; weights as torch initialises them."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, width), nn.ReLU(), nn.Linear(width, CLASSES))


class PatchNet(nn.Module):
    """A vision transformer of one block, normalised before its attention as in ViT; the class token's position comes first."""

    def __init__(
        self, channels: int = 1, side: int = SIDE, patch: int = 4, width: int = 24, num_classes: int = CLASSES
    ) -> None:
        super().__init__()
        self.project = nn.Conv2d(channels, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(0.02 * torch.randn(1, (side // patch) ** 2 + 1, width))
        self.before, self.behind = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.head = nn.Linear(width, num_classes)

    def embed(self, images: Tensor) -> Tensor:
        """Images (B, C, H, W) to tokens (B, 1 + T, D), the class token first."""
        patches = self.project(images).flatten(2).mT
        return torch.cat([self.token.expand(len(images), -1, -1), patches], 1) + self.positions

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.embed(images)
        seen = self.before(tokens)
        tokens = tokens + self.attention(seen, seen, seen, need_weights=False)[0]
        logits: Tensor = self.head(self.behind(tokens)[:, 0])
        return logits


def patch_net(seed: int = 0, **changes: int) -> PatchNet:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return PatchNet(**changes)


def observe(model: nn.Module, images: Tensor, labels: Tensor, **changes: Any) -> ClientUpdate:
    """One SGD step of a client on ``images`` (B, C, H, W) in [0, 1], in the mode that ``model`` is in."""
    weight = next(model.parameters())
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (MEAN, STD))
    loss = F.cross_entropy(model(((images - mean) / std).to(weight)), labels)
    gradient = torch.autograd.grad(loss, list(model.parameters()))
    rate = 0.1
    update = {name: -rate * g for (name, _), g in zip(model.named_parameters(), gradient, strict=True)}
    seen = ClientUpdate(
        model, update, tuple(images.shape[1:]), MEAN, STD, len(images), len(images), 1, rate, labels=labels,
        train_mode=model.training,
    )  # fmt: skip
    return replace(seen, **changes)


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def untrained(*_: Any) -> nn.Module:
    """Trains for attacks that must not ask for it."""
    raise AssertionError("this attack trains no model of the clients'")


def generators(count: int, seed: int = 0) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(1000 * seed + i) for i in range(count)]
