"""Shadow models: models that the server trains like a client, on auxiliary records whose membership it knows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attacks.base import Knowledge
from attacks.normalisation import normalise
from attacks.observations import AttackError
from defenses.base import Batch
from defenses.checks import MOST_EXAMPLES, checked_field, is_whole

FEWEST = 2
"""Members, and as many non-members: fewer are no training set."""


@dataclass(frozen=True)
class Shadow:
    """One shadow model and the auxiliary records that it was trained on.

    Attributes:
        model: In eval mode.
        members: Positions (M,) of its training records among the auxiliary data.
        others: Positions (M,) of as many records that it was not trained on.
        seed: Seed of its weights and of its training.
    """

    model: nn.Module
    members: Tensor
    others: Tensor
    seed: int


def members_field() -> int:
    """A field with the number of training records of each shadow model; 0: half of the auxiliary data."""
    return checked_field(
        0,
        lambda count: is_whole(count) and (count == 0 or FEWEST <= count <= MOST_EXAMPLES),
        f"0, or a whole number from {FEWEST} to {MOST_EXAMPLES}",
    )


def train_shadows(
    owner: Any, knowledge: Knowledge, count: int, num_members: int, generator: torch.Generator
) -> Iterator[Shadow]:
    """Train shadow models as a client trains its model, defences included, each on its own random auxiliary records.

    Args:
        owner: The attack, for the error.
        knowledge: Auxiliary data, defences and the training procedure.
        count: Number of shadow models.
        num_members: Training records of each; 0: half of the auxiliary data.
        generator: Draws records and seeds.

    Raises:
        AttackError: When there are fewer auxiliary records than members and as many non-members.
    """
    plain, total = knowledge.auxiliary, len(knowledge.auxiliary)
    members = num_members or total // 2
    if total < (least := 2 * max(members, FEWEST)):
        raise AttackError(f"{owner} needs {least} auxiliary examples and has {total}")
    for _ in range(count):
        order = torch.randperm(total, generator=generator)
        inside, outside = order[:members], order[members : 2 * members]
        seed = int(torch.randint(2**31, (), generator=generator))
        model = knowledge.train(Batch(plain.images[inside], plain.targets[inside]), seed).eval()
        yield Shadow(model, inside, outside, seed)


def shown(knowledge: Knowledge, positions: Tensor, seed: int) -> Tensor:
    """Auxiliary images as a model in use sees them: protected if the defences act at inference, and normalised, (N, C, H, W)."""
    plain, pipeline = knowledge.auxiliary, knowledge.pipeline
    batch = Batch(plain.images[positions], plain.targets[positions])
    if pipeline.at_inference:
        batch = pipeline.protect_test(batch, ("shadow-model", seed))
    return normalise(batch.images, knowledge)


def true_classes(knowledge: Knowledge) -> Tensor:
    """Classes (N,) of the auxiliary records on the CPU, of the originals: a defence may soften what it returns."""
    return knowledge.auxiliary.targets.argmax(1).cpu()
