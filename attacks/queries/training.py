"""What attacks share that learn from features of auxiliary images: who is held out, which features they are, and the steps."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from attacks.base import AttackError, Knowledge
from attacks.queries.sender import QuerySender
from attacks.refinement.restoration import HOLDOUT
from defenses.base import DefenseError

MIN_EXAMPLES = 2 * HOLDOUT
STATIC, RETRAINED = "static", "retrained"
TRAININGS = (STATIC, RETRAINED)
"""On unprotected features, as if there were no defences; or on what the clients' own algorithm makes of them."""
AT_ONCE = 64
"""Images whose features are computed together."""


def query_sender_of(knowledge: Knowledge) -> QuerySender:
    """What makes features of auxiliary images.

    Raises:
        AttackError: Where clients send no features to be answered.
    """
    if knowledge.query_sender is None:
        raise AttackError("there is no client half to attack: this is for edge-cloud inference and split learning")
    return knowledge.query_sender


def split_rows(knowledge: Knowledge, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Rows of auxiliary examples to learn from, and one in eight that is held out, drawn at random.

    Raises:
        AttackError: When there are fewer than 16.
    """
    count = len(knowledge.auxiliary.images)
    if count < MIN_EXAMPLES:
        raise AttackError(f"{count} auxiliary examples are too few to learn from; at least {MIN_EXAMPLES} are needed")
    order = torch.randperm(count, generator=generator)
    return order[count // HOLDOUT :], order[: count // HOLDOUT]


def features_of(sender: QuerySender, training: str, images: Tensor, generator: torch.Generator) -> Tensor:
    """Features (B, ...) of clean images (B, C, H, W) in [0, 1], on the client half's device; without gradient.

    Args:
        sender: The clients' sending side.
        training: One of ``TRAININGS``; "retrained" draws every defence afresh.
        images: At most a batch, which a defence may mix.
        generator: Of the defences.

    Raises:
        AttackError: When the defences refuse such images.
    """
    weight = next(sender.client_model.parameters(), None)
    images = images if weight is None else images.to(weight.device)
    try:
        with torch.no_grad():
            return sender.features(images) if training == STATIC else sender.send(images, generator)[0]
    except DefenseError as error:
        raise AttackError(f"the defences refuse auxiliary images: {error}") from error


def in_batches(compute: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    """``compute`` of all rows (N,), ``AT_ONCE`` at a time: its results one below the other."""
    return torch.cat([compute(some) for some in torch.split(rows, AT_ONCE)])


def train_network(
    network: nn.Module,
    loss: Callable[[Tensor], Tensor],
    rows: Tensor,
    generator: torch.Generator,
    *,
    iterations: int,
    batch_size: int,
    learning_rate: float,
) -> None:
    """Adam on the loss of batches of rows, drawn without replacement within a batch; the network is frozen in eval mode after it.

    Raises:
        AttackError: When the loss becomes NaN or infinite.
    """
    optimizer = torch.optim.Adam(network.parameters(), learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, iterations)
    # Dropout draws globally: from a stream of its own, that the caller's state neither decides nor notices.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(torch.randint(1 << 62, (), generator=generator)))
        network.train()
        for _ in range(iterations):
            value = loss(rows[torch.randperm(len(rows), generator=generator)[:batch_size]])
            if not torch.isfinite(value):
                raise AttackError("the training diverged; lower the learning rate")
            optimizer.zero_grad()
            value.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
    network.eval().requires_grad_(False)
