"""Checks of clients' replies to an audit, which may hold anything."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from flwr.app import Message, MetricRecord

from attacks.metrics.guesses import LABEL_ACCURACY, MEMBER_SCORE, OTHER_SCORE
from attacks.metrics.images import FLAT_PSNR, IDENTIFIED, IDENTIFIED_CHANCE, JUDGED, PLACE, RECOGNISABLE
from attacks.metrics.metric import ATTRIBUTES, CELLS, LABELS
from attacks.metrics.names import GuessName, Role, ScoreName, Scores, names_of, scores_to_texts
from attacks.metrics.registry import MEASURED, known_metric, metric_of
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
_BESIDE = (FLAT_PSNR.of(), IDENTIFIED_CHANCE.of(), PLACE.of())
_EXPECTED = {
    "images": (*(one.of("original") for one in (*MEASURED, IDENTIFIED)), *_BESIDE),
    "membership": (MEMBER_SCORE.of(), OTHER_SCORE.of()),
    **{one.name: (ScoreName(*one.decides),) for one in (ATTRIBUTES, CELLS, LABELS)},
}
"""Kind of guesses -> scores that all of them have."""
_PICTURE = re.compile(r"(original|protected)-(\d{1,4})")


def fault_in_scores(
    reply: Message,
    guessed: str,
    task: Task,
    guesses: float = math.inf,
    dealt: tuple[float, float] = (math.inf, math.inf),
    targets: int = 0,
) -> str:
    """Reason why a client's reply is no audit of guesses of one kind (or of ``BASELINES``), or "".

    ``guesses`` is the most values of one score, ``dealt`` the most members and the most others of a test of membership.
    Of ``targets`` observations no expected score may be missing; 0: any may be.
    """
    found = reply.content.get("metrics")
    if not isinstance(found, MetricRecord):
        return "the answer has no 'metrics'"
    most = {MEMBER_SCORE.name: dealt[0], OTHER_SCORE.name: dealt[1]}
    faults = (_fault_in_score(name, found, guessed, guesses, most) for name in found)
    steps = task.plan.local_steps
    known = math.inf not in dealt and not (steps and task.plan.defenses.bounded)  # a Poisson sample's size is secret
    least = {LABEL_ACCURACY.of(): targets, MEMBER_SCORE.of(): 1 if steps else dealt[0], OTHER_SCORE.of(): dealt[1]}
    short = (
        f"metrics: {'/'.join(name)} has too few values, expected {number:g}"
        for name in (_EXPECTED.get(guessed, ()) if guesses and targets else ())
        for number in [least.get(name, min(guesses, *filter(None, dealt))) if known else 1]
        if len(scores_of(reply).get(ALONE, {}).get(name, [])) < number
    )
    return next(filter(None, faults), "") or _fault_in_pictures(reply, task) or next(short, "")


def _fault_in_score(
    text: str, found: Mapping[str, Any], guessed: str, guesses: float, most: Mapping[str, float]
) -> str:
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
    metric = metric_of(name.metric)
    if not isinstance(values, list) or not all(map(metric.allows, values)):
        return f"metrics: {shortened(text)} is {shortened(values)}, expected a list of {metric.allowed}"
    if len(values) > (allowed := 1 if guess == COUNTS else most.get(name.metric, guesses)):
        return f"metrics: {shortened(text)} has {len(values)} values, expected at most {allowed}"
    if guess == COUNTS:
        # A defence of another package uses its own names; a registered metric must be one that defences report.
        return unknown if known_metric(name.metric) not in (None, *COUNTED) else ""
    if metric is RECOGNISABLE:
        return unknown  # the server's own verdict
    if metric is IDENTIFIED:
        for beside in (*JUDGED[1:], *_BESIDE):
            (other,) = scores_to_texts({guess: {beside: []}})
            given = found.get(other)
            if not (isinstance(given, list) and len(given) == len(values)):
                return f"metrics: {shortened(text)} comes without as many values of {beside.metric}"
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
