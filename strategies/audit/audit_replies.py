"""Checks of clients' replies to an audit, which may hold anything."""

import math
import re
from collections import defaultdict

from flwr.app import Message, MetricRecord

from attacks.metrics.guesses import LABEL_ACCURACY, MEMBER_SCORE, OTHER_SCORE
from attacks.metrics.images import FLAT_PSNR, IDENTIFIED, IDENTIFIED_CHANCE, JUDGED, PLACE, RECOGNISABLE
from attacks.metrics.metric import ATTRIBUTES, CELLS, LABELS
from attacks.metrics.names import GuessName, Role, ScoreName, Scores, names_of
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
"""Of one kind and target; a report shows a few."""
_BESIDE = (FLAT_PSNR.of(), IDENTIFIED_CHANCE.of(), PLACE.of())
_EXPECTED = {
    "images": (*(metric.of("original") for metric in (*MEASURED, IDENTIFIED)), *_BESIDE),
    "membership": (MEMBER_SCORE.of(), OTHER_SCORE.of()),
    **{kind.name: (ScoreName(*kind.decides),) for kind in (ATTRIBUTES, CELLS, LABELS)},
}
"""Kind of guesses -> scores that all of them have."""
_PICTURE = re.compile(r"(original|protected)-(\d{1,4})-(\d{1,10})")
"""What it shows, the target, and the place of the image among the client's attacked ones."""


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
    if not isinstance(reply.content.get("metrics"), MetricRecord):
        return "the answer has no 'metrics'"
    try:
        by_guess = scores_of(reply)
    except ValueError as error:
        return f"metrics: {error}"
    most = {MEMBER_SCORE.name: dealt[0], OTHER_SCORE.name: dealt[1]}
    faults = (
        _fault_in_score(guess, name, scores, guessed, most.get(name.metric, guesses))
        for guess, scores in by_guess.items()
        for name in scores
    )
    steps = task.plan.local_steps
    known = math.inf not in dealt and not (steps and task.plan.defenses.bounded)  # a Poisson sample's size is secret
    least = {LABEL_ACCURACY.of(): targets, MEMBER_SCORE.of(): 1 if steps else dealt[0], OTHER_SCORE.of(): dealt[1]}
    short = (
        f"metrics: {'/'.join(name)} has too few values, expected {number:g}"
        for name in (_EXPECTED.get(guessed, ()) if guesses and targets else ())
        for number in [least.get(name, min(guesses, *filter(None, dealt))) if known else 1]
        if len(by_guess.get(ALONE, {}).get(name, [])) < number
    )
    return next(filter(None, faults), "") or _fault_in_pictures(reply, task) or next(short, "")


def _fault_in_score(guess: GuessName, name: ScoreName, scores: Scores, guessed: str, most: float) -> str:
    """Reason why one of a guess's ``scores`` is none of guesses of a kind, with at most so many values, or ""."""
    parts, values = (*guess, *name), scores[name]
    text = shortened("/".join(parts))
    unknown = f"metrics: {text} is the name of no score of {guessed}"
    expected = (
        guess == COUNTS or guess.role in (Role.NULL_BASELINE, Role.SCALE) if guessed == BASELINES else guess == ALONE
    )
    if len("".join(parts)) > LONGEST_NAME or not "".join(parts).isprintable() or not expected:
        return unknown
    metric = metric_of(name.metric)
    if not isinstance(values, list) or not all(map(metric.allows, values)):
        return f"metrics: {text} is {shortened(values)}, expected a list of {metric.allowed}"
    if len(values) > (allowed := 1 if guess == COUNTS else most):
        return f"metrics: {text} has {len(values)} values, expected at most {allowed}"
    if guess == COUNTS:
        # A defence of another package uses its own names; a registered metric must be one that defences report.
        return unknown if known_metric(name.metric) not in (None, *COUNTED) else ""
    if metric is RECOGNISABLE:
        return unknown  # the server's own verdict
    for beside in (*JUDGED[1:], *_BESIDE) if metric is IDENTIFIED else ():
        given = scores.get(beside)
        if not (isinstance(given, list) and len(given) == len(values)):
            return f"metrics: {text} comes without as many values of {beside.metric}"
    return ""


def _fault_in_pictures(reply: Message, task: Task) -> str:
    shape, targets = task.plan.data_card().input_shape, task.plan.probe_targets
    pictures = tensors_of(reply, "pictures")
    for name, image in pictures.items():
        named = _PICTURE.fullmatch(name)
        if not named or int(named[2]) >= targets:
            return f"pictures: {shortened(name)} is none of the {targets} targets"
        if not image.is_floating_point() or image.shape != shape:
            return f"pictures: {name} is {image.dtype}{tuple(image.shape)}, expected an image {shape}"
    most = 2 * targets * MOST_PICTURES
    return f"pictures: {len(pictures)} came, expected at most {most}" if len(pictures) > most else ""


def scores_of(reply: Message) -> dict[GuessName, Scores]:
    """The scores of a client's reply, which may be anything until ``fault_in_scores`` finds nothing.

    Raises:
        ValueError: When a name is none of a score.
    """
    by_guess: dict[GuessName, Scores] = defaultdict(dict)
    for text, values in values_of(reply, "metrics").items():
        try:
            guess, name = names_of(text)
        except ValueError:
            raise ValueError(f"{shortened(text)} is the name of no score") from None
        by_guess[guess][name] = values
    return by_guess
