"""Checks of a client's reply to an audit before its scores become rows and its pictures files: a client may send anything."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from flwr.app import Message, MetricRecord

from attacks.metrics.images import RETRIEVAL, RETRIEVAL_CHANCE
from attacks.metrics.metric import Values
from attacks.metrics.names import GuessName, Role, Scores, names_of, scores_to_texts
from attacks.metrics.registry import known_metric, metric_of
from attacks.metrics.training import COUNTED
from clients.scoring.audit import ALONE, COUNTS
from clients.task.task import Task
from clients.wire.records import tensors_of, values_of
from clients.wire.texts import shortened

BASELINES = "baselines"
"""The kind of guesses that only clients make."""
LONGEST_NAME = 200
MOST_PICTURES = 1024
"""Of one record; a report shows a few."""
_PICTURE = re.compile(r"(original|protected)-(\d{1,4})")


def fault_in_scores(reply: Message, guessed: str, task: Task) -> str:
    """Reason why a client's reply is no audit of guesses of one kind (or of ``BASELINES``), or ""."""
    found = reply.content.get("metrics")
    if not isinstance(found, MetricRecord):
        return "the answer has no 'metrics'"
    return next(filter(None, (_fault_in_score(name, found, guessed) for name in found)), "") or _fault_in_pictures(
        reply, task
    )


def _fault_in_score(text: str, found: Mapping[str, Any], guessed: str) -> str:
    values = found[text]
    unknown = f"metrics: {shortened(text)} is the name of no score of {guessed}"
    try:
        guess, name = names_of(text)
    except ValueError:
        return unknown
    parts = "".join((*guess, *name))
    expected = (
        guess == COUNTS or guess.role in (Role.NULL_BASELINE, Role.SCALE) if guessed == BASELINES else guess == ALONE
    )
    if len(parts) > LONGEST_NAME or not parts.isprintable() or not expected:
        return unknown
    if not isinstance(values, list) or any(math.isnan(value) for value in values):
        return f"metrics: {shortened(text)} is {shortened(values)}, expected a list of numbers"
    metric = metric_of(name.metric)
    if guess == COUNTS:
        # A defence of another package uses its own names; a registered metric must be one that defences report.
        return unknown if known_metric(name.metric) not in (None, *COUNTED) else ""
    allowed = {Values.HIT: lambda value: value in (0, 1), Values.SHARE: lambda value: 0 <= value <= 1}.get(
        metric.values
    )
    if allowed and not all(map(allowed, values)):
        return f"metrics: {shortened(text)} is {shortened(values)}, expected {metric.values.value}"
    if metric is RETRIEVAL:
        (chance,) = scores_to_texts({guess: {RETRIEVAL_CHANCE.of(): []}})
        chances = found.get(chance)
        if not (isinstance(chances, list) and len(chances) == len(values)):
            return f"metrics: {shortened(text)} comes without as many values of {RETRIEVAL_CHANCE.name}"
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


def scores_of(reply: Message) -> dict[GuessName, Scores]:
    """The scores of a client's reply in which ``fault_in_scores`` found nothing."""
    found: dict[GuessName, Scores] = defaultdict(dict)
    for text, values in values_of(reply, "metrics").items():
        guess, name = names_of(text)
        found[guess][name] = list(values)
    return found
