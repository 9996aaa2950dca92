"""Reading received tokens: where in the image each came from, whether it is the image's own, and what it shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacks.base import AttackError

HOLDOUT = 8
"""One auxiliary image in so many is kept out of the training."""
HEADS = 4

Send = Callable[[Tensor, torch.Generator], tuple[Tensor, Tensor]]
"""Images (B, C, H, W) -> tokens (B, N, D) and where each came from; ``attacks.smashed.Sender.send_with_order``."""


def to_patches(images: Tensor, patch_size: int) -> Tensor:
    """Cuts images (B, C, H, W) into patches (B, N, C * p * p), row by row."""
    return F.unfold(images, patch_size, stride=patch_size).transpose(1, 2)


def from_patches(patches: Tensor, patch_size: int, shape: tuple[int, ...]) -> Tensor:
    """The inverse of ``to_patches``; ``shape`` ends with the height and the width of the images."""
    return F.fold(patches.transpose(1, 2), (shape[-2], shape[-1]), patch_size, stride=patch_size)


def infer_order(scores: Tensor) -> Tensor:
    """The bijection of slots to positions with the highest sum of scores: (B, N, N) -> (B, N) int64 on the CPU.

    Args:
        scores: Of image b, slot s at position n; log-probabilities give the most probable order of independent slots.
    """
    # SciPy is slow to load, and most runs solve no puzzle.
    from scipy.optimize import linear_sum_assignment

    rows = [linear_sum_assignment(-image)[1] for image in scores.detach().double().cpu().numpy()]
    return torch.stack([torch.from_numpy(row) for row in rows])


def place(values: Tensor, positions: Tensor) -> Tensor:
    """Moves what is in slot s of (B, N, ...) to position ``positions[b, s]``."""
    placed = torch.empty_like(values)
    images = torch.arange(len(values)).unsqueeze(1)
    placed[images, positions] = values
    return placed


@dataclass(frozen=True)
class Reading:
    """What a ``TokenReader`` makes of received tokens.

    Attributes:
        positions: (B, N, N), log-probability of each position for each slot.
        native: (B, N), log-odds that the token is of the image whose row it is in.
        patches: (B, N, P), expected pixels in [0, 1], in the order of ``to_patches``.
    """

    positions: Tensor
    native: Tensor
    patches: Tensor


class TokenReader(nn.Module):
    """A small transformer without position embedding over the N received tokens of an image, with three heads.

    Tokens enter standardised, and compressed by asinh: spectra span many orders of magnitude. Pixels are an affine function
    of the token, fitted by ridge regression, plus what the transformer adds to it.

    Attributes:
        diagnostics: On held-out images, see ``train_reader``.
    """

    def __init__(self, features: Tensor, patches: Tensor, width: int, depth: int) -> None:
        """Args:
        features: (M, N, D) received tokens, for statistics.
        patches: (M, N, P), what they show.
        width: A multiple of 4.
        depth: Transformer blocks.
        """
        from timm.models.vision_transformer import Block

        super().__init__()
        self.diagnostics: dict[str, float] = {}
        tokens, pixels = features.flatten(0, 1), patches.flatten(0, 1)
        self.register_buffer("mean", tokens.mean(0))
        self.register_buffer("std", tokens.std(0).clamp_min(1e-6))
        self.register_buffer("scale", tokens.abs().median().clamp_min(1e-6))
        self.entry = nn.Linear(2 * tokens.shape[1], width)
        self.blocks = nn.Sequential(*(Block(width, HEADS, mlp_ratio=2.0, qkv_bias=True) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.positions = nn.Linear(width, features.shape[1])
        self.native = nn.Linear(width, 1)
        self.patches = nn.Sequential(nn.Linear(2 * width, 2 * width), nn.GELU(), nn.Linear(2 * width, pixels.shape[1]))
        nn.init.zeros_(self.patches[2].weight)
        nn.init.zeros_(self.patches[2].bias)
        self.to(features)
        solution = _ridge(self.standardise(tokens), pixels)
        self.affine = nn.Linear(tokens.shape[1], pixels.shape[1]).to(features)
        with torch.no_grad():
            self.affine.weight.copy_(solution[:-1].T)
            self.affine.bias.copy_(solution[-1])

    def standardise(self, features: Tensor) -> Tensor:
        """Zero mean and unit variance per entry of a token."""
        return (features - self.mean) / self.std

    def forward(self, features: Tensor) -> Reading:
        """Reads (B, N, D) tokens."""
        standard = self.standardise(features)
        entry = self.entry(torch.cat([standard, (features / self.scale).asinh()], -1))
        known = self.norm(self.blocks(entry))
        patches = self.affine(standard) + self.patches(torch.cat([entry, known], -1))
        return Reading(self.positions(known).log_softmax(-1), self.native(known).squeeze(-1), patches)


def train_reader(
    send: Send,
    images: Tensor,
    patch_size: int,
    generator: torch.Generator,
    *,
    iterations: int,
    width: int = 64,
    batch_size: int = 32,
    learning_rate: float = 3e-3,
    depth: int = 2,
) -> TokenReader:
    """Trains a reader on auxiliary images that are sent afresh at every step; deterministic given the generator.

    One image in eight is held out, and the reader's diagnostics are of those: ``position_accuracy`` (slots whose position
    is right after the optimal assignment; chance is 1 / N), ``native_accuracy`` (tokens rightly called own or foreign) and
    ``patch_mse`` (of pixels).

    Args:
        send: Draws the randomness of the defences afresh.
        images: (M, C, H, W) in [0, 1], at least 16.
        patch_size: Side of the patch that one token stands for.
        generator: Source of all randomness.
        iterations: Steps of AdamW, with a learning rate that warms up and falls to zero.
        width: Of the transformer; a multiple of 4.
        batch_size: Images per step, at most all of them, and the batch that a defence shuffles over.
        learning_rate: The largest.
        depth: Transformer blocks.

    Raises:
        AttackError: With fewer than 16 images.
    """
    if len(images) < 2 * HOLDOUT:
        raise AttackError(f"learning to read tokens takes {2 * HOLDOUT} auxiliary images or more, not {len(images)}")
    shuffled = images[torch.randperm(len(images), generator=generator).to(images.device)]
    held, kept = shuffled[: len(images) // HOLDOUT], shuffled[len(images) // HOLDOUT :]
    first = kept[: 16 * batch_size]
    features, contents, _ = _example(send, first, patch_size, generator)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(torch.randint(1 << 62, (), generator=generator)))
        reader = TokenReader(features, contents, width, depth)
    optimizer = torch.optim.AdamW(reader.parameters(), learning_rate, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, learning_rate, max(iterations, 2), pct_start=0.1)
    spread = contents.var()
    for _ in range(iterations):
        chosen = torch.randperm(len(kept), generator=generator)[:batch_size].to(kept.device)
        features, contents, order = _example(send, kept[chosen], patch_size, generator)
        reading, places = reader(features), _places(order)
        loss = F.nll_loss(reading.positions.flatten(0, 1), places[0].flatten().to(features.device))
        loss = loss + F.binary_cross_entropy_with_logits(reading.native, places[1].to(features))
        loss = loss + (reading.patches - contents).square().mean() / spread
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(reader.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    reader.eval().requires_grad_(False)
    reader.diagnostics = _judge(reader, send, held, patch_size, generator)
    return reader


def _example(
    send: Send, images: Tensor, patch_size: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Received tokens (B, N, D), what each shows (B, N, P), and the order (B, N)."""
    with torch.no_grad():
        features, order = send(images, generator)
    return features, to_patches(images, patch_size).flatten(0, 1)[order.to(images.device)].to(features), order


def _places(order: Tensor) -> tuple[Tensor, Tensor]:
    """Of each slot: the position that its token had in its image, and whether that is the image of this row."""
    num_tokens = order.shape[1]
    return order % num_tokens, order // num_tokens == torch.arange(len(order)).unsqueeze(1)


def _judge(
    reader: TokenReader, send: Send, images: Tensor, patch_size: int, generator: torch.Generator
) -> dict[str, float]:
    features, contents, order = _example(send, images, patch_size, generator)
    reading, (positions, native) = reader(features), _places(order)
    return {
        "position_accuracy": float((infer_order(reading.positions) == positions).double().mean()),
        "native_accuracy": float(((reading.native > 0).cpu() == native).double().mean()),
        "patch_mse": float((reading.patches - contents).square().mean()),
    }


def _ridge(inputs: Tensor, outputs: Tensor) -> Tensor:
    """Affine least squares with a slight penalty: (M, D), (M, P) -> (D + 1, P), the offset last."""
    design = torch.cat([inputs, torch.ones_like(inputs[:, :1])], 1).double()
    penalty = 1e-6 * len(inputs) * torch.eye(design.shape[1], dtype=torch.float64, device=inputs.device)
    return torch.linalg.solve(design.T @ design + penalty, design.T @ outputs.double()).to(inputs)
