"""What a client's answer to an audit must hold before its scores are rows and its pictures files: it may send anything."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from flwr.app import Message, MetricRecord

from clients.scoring.audit import COUNTS
from clients.scoring.table_audit import COLUMN
from clients.task.task import Task
from clients.wire.records import tensors_of, values_of
from clients.wire.texts import shortened
from strategies.audit.score_rows import ATTRIBUTE_ACCURACY, CHANCE, MS_SSIM_SUCCESS

BASELINES = "baselines"
"""The kind of guesses that only clients make."""
RETRIEVAL = "retrieval"
HITS = (RETRIEVAL, ATTRIBUTE_ACCURACY, MS_SSIM_SUCCESS)
"""Scores that are 1 or 0, as a column of a table is."""
LONGEST_NAME = 200
MOST_PICTURES = 1024
"""Of one record; a report shows a few."""
_PICTURE = re.compile(r"(original|protected)-(\d{1,4})")


def fault_in_scores(reply: Message, guessed: str, task: Task) -> str:
    """Why a client's answer to an audit cannot be one, or "".

    Args:
        reply: A client's reply that is no error.
        guessed: The kind of the guesses that it was sent, one of ``clients.scoring.guesses.GUESSES``, or ``BASELINES``.
        task: Orders of the round.
    """
    found = reply.content.get("metrics")
    if not isinstance(found, MetricRecord):
        return "the answer has no 'metrics'"
    return next(filter(None, (_fault_in_score(name, found, guessed) for name in found)), "") or _fault_in_pictures(
        reply, task
    )


def _fault_in_score(name: str, found: Mapping[str, Any], guessed: str) -> str:
    values = found[name]
    guess, colon, score = name.rpartition(":")
    if len(name) > LONGEST_NAME or not name.isprintable() or bool(colon) != (guessed == BASELINES):
        return f"metrics: {shortened(name)} is the name of no score of {guessed}"
    if not isinstance(values, list) or any(math.isnan(value) for value in values):
        return f"metrics: {shortened(name)} is {shortened(values)}, expected a list of numbers"
    if guess == COUNTS:
        return ""
    metric = score.removesuffix("-original").removesuffix("-transformed")
    if (metric in HITS or score.startswith(COLUMN)) and not all(value in (0, 1) for value in values):
        return f"metrics: {shortened(name)} is {shortened(values)}, expected ones and zeros"
    if score == CHANCE and not all(0 <= value <= 1 for value in values):
        return f"metrics: {shortened(name)} is {shortened(values)}, expected numbers from 0 to 1"
    chances = found.get(f"{guess}{colon}{CHANCE}")
    if metric == RETRIEVAL and score != CHANCE and not (isinstance(chances, list) and len(chances) == len(values)):
        return f"metrics: {shortened(name)} comes without as many values of {CHANCE}"
    return ""


def _fault_in_pictures(reply: Message, task: Task) -> str:
    shape, targets = task.plan.data_card().input_shape, task.plan.probe_targets
    for name, images in tensors_of(reply, "pictures").items():
        named = _PICTURE.fullmatch(name)
        if not named or int(named[2]) >= targets:
            return f"pictures: {shortened(name)} is none of the {targets} targets"
        if not images.is_floating_point() or images.shape[1:] != shape or not 0 < len(images) <= MOST_PICTURES:
            return f"pictures: {name} is {images.dtype}{tuple(images.shape)}, expected images {shape}"
    return ""


def scores_of(reply: Message, name: str) -> list[float]:
    """The values of one score of an answer; none where it has none of that name."""
    return list(values_of(reply, "metrics").get(name, []))
