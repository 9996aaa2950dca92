"""Pictures of an audit: images that clients share, and the guesses beside them."""

import math
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from flwr.app import Message
from torch import Tensor

from attacks.metrics.images import PLACE
from clients.scoring.audit import ALONE
from clients.task.task import Task
from strategies.audit.audit_replies import scores_of
from strategies.audit.jobs import AttackJob, Outcome, Recorder, attack_card
from strategies.audit.score_rows import PICTURED, recognisable
from strategies.audit.threat_card import ThreatCard


def keep_pictures(
    recorder: Recorder,
    task: Task,
    images: Tensor,
    card: ThreatCard,
    *,
    scores: Sequence[Mapping[str, float | None]] = (),
    numbers: Sequence[int] = (),
    **fields: Any,
) -> None:
    """Keep images (B, C, H, W) in [0, 1] with what they show; ``fields`` are further entries of the index of pictures.

    Each has one of the ``numbers``, by default in order; a guess shares it with the original that it is compared with.
    """
    # What the guess was made from, as its rows say: pictures of one round may come from several kinds of observation.
    seen: dict[str, Any] = {"observation": card.observation}
    if card.rounds_observed is not None:
        seen["rounds_observed"] = card.rounds_observed
    seen |= {"rung": card.rung} if card.rung else {}
    for at, image in enumerate(images):
        own = scores[at] if scores else {}
        number = numbers[at] if numbers else at
        recorder.picture(task, image, image_number=number, **{"psnr": None, **own}, **seen, **fields)


def keep_guesses(
    recorder: Recorder,
    job: AttackJob,
    outcome: Outcome,
    guesses: Mapping[int, list[tuple[int, Any]]],
    replies: Mapping[int, Message],
) -> None:
    """Keep the images that an attack guessed, with the scores and the places (``PLACE``) that the clients gave them.

    ``guesses`` map a client to (target, guess) for each of its observations, ``replies`` to its answer to the audit; guesses of
    clients without one are left out.
    """
    for partition, theirs in guesses.items():
        if partition not in replies:
            continue
        scores_alone = scores_of(replies[partition]).get(ALONE, {})
        shown = {key: scores_alone.get(name, []) for key, name in PICTURED.items()}
        shown["recognisable"] = recognisable(scores_alone) or []
        # Of more guesses than images, only the client knows which ones it scored: these keep their order.
        number = sum(len(guess.images) for _, guess in theirs)
        each = {key: iter(values) for key, values in shown.items() if len(values) == number}
        places = scores_alone.get(PLACE.of(), [])
        numbers = map(int, places if len(places) == number else ())
        role = attack_card(job, outcome.attack).role
        for target, guess in theirs:
            scores = [{key: _finite(next(values, None)) for key, values in each.items()} for _ in guess.images]
            keep_pictures(
                recorder, job.task, guess.images, job.card, attack=repr(outcome.attack), role=role, client=partition,
                target=target, kind="reconstruction", scores=scores, numbers=list(islice(numbers, len(guess.images))),
            )  # fmt: skip


def _finite(value: float | None) -> float | None:
    """A client may report anything, and the index of pictures is JSON, which has no infinity."""
    return value if value is not None and math.isfinite(value) else None
