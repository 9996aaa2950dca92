"""Training the network that reads tokens (``positions``) on auxiliary images, which it sends as a client would."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacks.assignment import assigned
from attacks.observations import AttackError
from attacks.refinement.restoration import HOLDOUT
from attacks.sender import Sender
from attacks.smashed.tokens.positions import TokenReader, to_patches
from defenses.random_draws import drawing_from

POOL = 512
"""Tokens of a training batch that are compared with each other at most: time and memory grow with the square."""
LEARNING_RATE = 3e-3
"""The largest."""


def train_reader(
    sender: Sender,
    images: Tensor,
    generator: torch.Generator,
    *,
    iterations: int,
    width: int = 64,
    batch_size: int = 32,
    shows_patches: bool = True,
) -> TokenReader:
    """Trains a reader on 16 auxiliary images (M, C, H, W) in [0, 1] or more, sent afresh at every step; deterministic.

    The loss is the sum of the cross-entropies of positions and of neighbours and of the relative squared error of pixels.
    Tokens count by the contrast of their patch, because flat ones are interchangeable; all the same without ``shows_patches``, as
    for spectra, whose tokens do not stand for the patch at their position.

    One image in eight is held out, and the reader's diagnostics are of those: ``position_accuracy`` (tokens whose position
    is right, after the optimal assignment of positions alone; chance is 1 / N), ``order_accuracy`` (the same of image and
    position together, after ``solve``), ``patch_mse`` (of pixels) and ``trust`` (see ``TokenReader``).
    """
    if len(images) < 2 * HOLDOUT:
        raise AttackError(f"training needs at least {2 * HOLDOUT} auxiliary images, got {len(images)}")
    shuffled = images[torch.randperm(len(images), generator=generator).to(images.device)]
    held, kept = shuffled[: len(images) // HOLDOUT], shuffled[len(images) // HOLDOUT :]
    first = Example.of(sender, kept[:512], generator)
    with drawing_from(generator):
        reader = TokenReader(first.features, first.contents, sender.edge.grid, width, kept_share(first.order))
    reader.mean_patches.copy_(to_patches(kept[:512], sender.edge.patch_size).mean(0))
    if reader.kept_share < 1:
        batch_size = min(batch_size, max(2, POOL // reader.positions.out_features))
    optimizer = torch.optim.AdamW(reader.parameters(), LEARNING_RATE, weight_decay=1e-2)
    # The rate rises for a tenth of the way, which must be longer than one step.
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, max(iterations, 11), pct_start=0.1)
    for _ in range(iterations):
        chosen = torch.randperm(len(kept), generator=generator)[:batch_size].to(kept.device)
        loss = _loss(reader, Example.of(sender, kept[chosen], generator), shows_patches)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(reader.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    reader.eval().requires_grad_(False)
    _judge(reader, sender, held[:batch_size], generator)
    return reader


@dataclass(frozen=True)
class Example:
    """One transmission of auxiliary images.

    Attributes:
        features: (B, N, D), received tokens.
        contents: (B, N, P), what each shows.
        order: (B, N), where each came from.
    """

    features: Tensor
    contents: Tensor
    order: Tensor

    @classmethod
    def of(cls, sender: Sender, images: Tensor, generator: torch.Generator) -> Example:
        """Sends images (B, C, H, W) in [0, 1]."""
        features, order = sender.send_with_order(images, generator)
        order = order.to(features.device)
        return cls(features, to_patches(images, sender.edge.patch_size).to(features).flatten(0, 1)[order], order)


def kept_share(order: Tensor) -> float:
    """An estimate of the share of tokens that do not change rows, from an order (B, N).

    The others are dealt out to all B rows: (share in the row of their image - 1 / B) / (1 - 1 / B).
    """
    batch, num_tokens = order.shape
    rows = torch.arange(batch, device=order.device).unsqueeze(1)
    native = float((order // num_tokens == rows).double().mean())
    return max(native - 1 / batch, 0.0) / (1 - 1 / batch)


def _loss(reader: TokenReader, example: Example, shows_patches: bool) -> Tensor:
    reading, num_tokens = reader(example.features), example.order.shape[1]
    weight = example.contents.std(-1) + 0.02 if shows_patches else torch.ones_like(example.order, dtype=torch.float32)
    weight = weight / weight.mean()
    wrong = F.nll_loss(reading.positions.flatten(0, 1), (example.order % num_tokens).flatten(), reduction="none")
    loss = (wrong.view_as(weight) * weight).mean()

    group, order = reading, example.order - num_tokens * torch.arange(len(weight), device=weight.device).unsqueeze(1)
    if reader.kept_share < 1:
        group, order, weight = reading.pooled(), example.order.view(1, -1), weight.view(1, -1)
    apart = F.nll_loss(
        group.neighbours().flatten(0, 2), _neighbours(order, reader.grid).flatten(), ignore_index=-1, reduction="none"
    )
    loss = loss + (apart.view(len(order), 2, -1) * weight.unsqueeze(1)).mean()
    if shows_patches:
        loss = loss + (reading.patches - example.contents).square().mean() / example.contents.var().clamp_min(1e-12)
    return loss


def _neighbours(order: Tensor, grid: tuple[int, int]) -> Tensor:
    """The slots of the right and of the lower neighbour of the token in every slot: (G, M) -> (G, 2, M); -1 if none."""
    rows, columns = grid
    slots = order.argsort(1)
    neighbours = []
    for step, exists in ((1, order % columns < columns - 1), (columns, order % (rows * columns) // columns < rows - 1)):
        beside = torch.where(exists, order + step, 0)
        neighbours.append(torch.where(exists, slots.gather(1, beside), -1))
    return torch.stack(neighbours, 1)


def _judge(reader: TokenReader, sender: Sender, images: Tensor, generator: torch.Generator) -> None:
    """Sets the reader's diagnostics and its trust by images that it has not seen."""
    example = Example.of(sender, images, generator)
    reading, num_tokens = reader(example.features), example.order.shape[1]
    alone, guessed, order = assigned(-reading.positions), reader.order(reading), example.order.cpu()
    truth = to_patches(images, sender.edge.patch_size).to(example.features) - reader.mean_patches
    guess = reader.assemble(reading, guessed) - reader.mean_patches
    # The factor of least squared error: 0 for random positions and 1 for the right ones. From 1/2 on, what was placed beats the
    # mean image as it is, and is left sharp.
    trust = float((guess * truth).sum() / guess.square().sum().clamp_min(1e-12))
    reader.trust = 1.0 if trust >= 0.5 else max(trust, 0.0)
    reader.diagnostics = {
        "position_accuracy": float((alone == order % num_tokens).double().mean()),
        "order_accuracy": float((guessed == order).double().mean()),
        "patch_mse": float((reading.patches - example.contents).square().mean()),
        "trust": trust,
    }
