"""Defences that protect an image once: of every example alone, of blocks of examples, of a whole share."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from clients.secrets.draws import digest_of
from clients.task.batches import join, local_batch
from clients.task.task import Plan
from defenses.base import Batch
from defenses.pipeline import Pipeline
from defenses.random_draws import Key

BLOCK = 8
"""Examples that share the draws of a defence that protects an image once. A client whose share does not fit into memory protects no
more than the blocks that a batch touches; with one example in a block, defences would take five times as long."""


@functools.lru_cache(maxsize=32)
def protected_share(plan: Plan, indices: tuple[int, ...], key: Key) -> Batch:
    """All examples of a share, block by block. Cached, as every process computes the same."""
    part, pipeline, num_classes = plan.load_data().train, plan.defenses(), plan.data_card().num_classes
    blocks = [torch.tensor(indices[at : at + BLOCK]) for at in range(0, len(indices), BLOCK)]
    plain = (local_batch(part, block, num_classes) for block in blocks)
    return join([protected_together(pipeline, block, (*key, at)) for at, block in enumerate(plain)])


def protected_each(protect: Callable[[Batch, Key], Batch], stages: str, batch: Batch, key: Key) -> Batch:
    """Every example protected as if it were the only one, under draws that its content names."""
    alone = (Batch(batch.images[at : at + 1], batch.targets[at : at + 1]) for at in range(len(batch)))
    return join([protect(one, (*key, digest_of(one, stages))) for one in alone]) if len(batch) else batch


def protected_together(pipeline: Pipeline, batch: Batch, key: Key) -> Batch:
    """A batch after the once-only defences, under draws that its content names."""
    return pipeline.protect_once(batch, (*key, digest_of(batch, pipeline.once))) if pipeline.once else batch
