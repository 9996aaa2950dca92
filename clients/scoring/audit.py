"""The client's side of the audit: guesses come in, scores go out, private images stay.

The client re-creates the batch of a round from its secret and scores a guess against the *original* images (what the person
loses) and against the *transformed* ones that entered the model (what the gradient leaks).
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from attacks.guesses import Attributes, Cells, Labels, Reconstruction, Representatives
from attacks.membership.loss_threshold import Membership
from attacks.metrics.guesses import ATTRIBUTE_ACCURACY, LABEL_ACCURACY, MEMBER_SCORE, OTHER_SCORE
from attacks.metrics.images import PLACE, RECOGNITION
from attacks.metrics.names import GuessName, Role, ScoreName, Scores
from attacks.metrics.training import COUNTED_IMAGES
from attacks.normalisation import normalise
from attacks.scoring.metrics import score, score_representatives
from attacks.scoring.oracle import Oracle
from clients.scoring.guesses import Guess
from clients.scoring.image_scores import (
    both_references,
    pairs_of,
    paper_scale,
    paper_scores,
    recognition,
    score_both,
    scores_at_many_scales,
    uniform_label_accuracy,
)
from clients.scoring.null_baselines import BlindGuesses, flat_psnr
from clients.scoring.retrieval import CANDIDATES, Known, attacked_images, identified, other_images
from clients.scoring.table_audit import FREQUENT, cell_baselines, cell_scores
from clients.task.batches import CHUNK, chunks
from clients.task.local_data import Client
from clients.task.truths import Probed, Truths
from defenses.tensors import Numbers, Tensors

COUNTS = GuessName(Role.TRAINING)
"""Under it stand the totals of what the defences did."""
MOST_COUNTED = 1000
"""Images of a client, evenly spaced, that are counted at most."""

ALONE = GuessName()
"""The guesses that a message asks about."""

UNIFORM = GuessName(Role.NULL_BASELINE, "uniform")
"""Classes guessed evenly."""
MOST_SHARED = 32
"""Images of a whole round up to which a client shares pictures of them."""
NO_IMAGES = -1
"""Number of guessed images where no attack guesses any."""
BASELINE_IMAGES = 8
"""As many as gradient inversion reconstructs of a larger batch by default."""


@dataclass(frozen=True)
class AuditScores:
    """Scores of each guess, one value per image (labels of an update: one per batch), and the pictures that the client shares."""

    scores: dict[GuessName, Scores]
    pictures: Tensors = field(default_factory=dict)


def audit_guesses(
    client: Client, observation: str, guesses: Sequence[tuple[Guess, Tensor | None]], oracle: Oracle | None = None
) -> AuditScores:
    """Scores one guess per observed update or batch of smashed data.

    Args:
        client: Holds the truth.
        observation: The kind of what is attacked, such as "probe".
        guesses: Each with the classes (B,) that an oracle sees in its images, or None.
        oracle: The oracle itself, which then compares features of the guesses with those of the truth.

    Returns:
        Of ``ALONE``. For reconstructions every image metric against both references, ``flat_psnr``, ``identified``, ``PLACE`` and
        ``LABEL_ACCURACY``, with an oracle ``RECOGNITION``, and with its weights what ``Oracle.compare`` gives. For labels
        ``LABEL_ACCURACY``. For attributes see ``audit_attributes``, for representatives ``score_representatives``, for rows of a
        table ``clients.scoring.table_audit``. For tests of membership ``MEMBER_SCORE`` and ``OTHER_SCORE``, one value per training
        and per test example, of tests that did not fail.

    Raises:
        ValueError: When there are more guesses than observed updates, whose first ones they are about, or their image shape is not
            the data's.
    """
    if attributes := [guess for guess, _ in guesses if isinstance(guess, Attributes)]:
        return audit_attributes(client, observation, attributes)
    known = client.truths(observation)
    if len(guesses) > len(known.views):
        raise ValueError(f"{len(guesses)} guesses for {len(known.views)} observations")
    scores: Scores = defaultdict(list)
    for target, ((guess, recognised), truth) in enumerate(zip(guesses, known.views, strict=False)):
        if isinstance(guess, Membership):
            # A failed test gave no scores: its records would pass for records that were tested alike.
            scored = {} if guess.failure else membership_scores(client, guess)
        elif isinstance(guess, Cells):
            scored = cell_scores(client.data, guess, truth, known.embed)
        elif isinstance(guess, Representatives):
            seen = torch.full_like(guess.classes, -1) if recognised is None else recognised
            named = score_representatives(guess, truth.original.images, truth.original.targets.argmax(1), seen)
            scored = {ScoreName(name): values for name, values in named.items() if values}
        elif isinstance(guess, Reconstruction):
            scored = _image_scores(client, guess, known, target)
            if recognised is not None:
                scored[RECOGNITION.of()] = recognition(guess, recognised, truth.original, paired=known.paired)
            if oracle is not None:
                compared = oracle.compare(guess.images, truth.original.images)
                scored |= {ScoreName(name): values for name, values in compared.items()}
        else:
            assert isinstance(guess, Labels)
            scored = score_both(guess, truth, paired=known.paired)
        if known.pooled:  # of labels of a sum over clients no client can say which are its own
            scored.pop(LABEL_ACCURACY.of(), None)
        _add(scores, scored)
    return AuditScores({ALONE: dict(scores)})


def _image_scores(client: Client, guess: Reconstruction, known: Truths, target: int) -> Scores:
    """What is scored of a reconstruction without an oracle."""
    truth = known.views[target]
    scores = score_both(guess, truth, paired=known.paired)
    scores |= _beside(client, guess, known, target, _others(client, known, target, len(guess.images)))
    if known.in_paper_scale:
        scores |= paper_scores(guess.images, truth.original.images, paper_scale(client.task))
    if known.at_many_scales:
        scores |= scores_at_many_scales(guess.images, truth.original.images)
    return scores


def audit_attributes(client: Client, observation: str, guesses: Sequence[Attributes]) -> AuditScores:
    """``ATTRIBUTE_ACCURACY`` against this client's own values: 1 for every image whose value was guessed, else 0; reads no image.

    ``ValueError`` when there are not as many guesses as observations, or one is not of as many images.
    """
    truths = client.sensitive(observation)
    if len(guesses) != len(truths):
        raise ValueError(f"{len(guesses)} guesses for {len(truths)} observations")
    accuracies = [score(guess, truth)[ATTRIBUTE_ACCURACY.name] for guess, truth in zip(guesses, truths, strict=True)]
    return AuditScores({ALONE: {ATTRIBUTE_ACCURACY.of(): [hit for hits in accuracies for hit in hits]}})


def membership_scores(client: Client, test: Membership) -> Scores:
    """Scores of a membership test for this client's training and test examples, shown to the model as in use.

    With ``local-steps``, an example that earlier rounds used and this one did not is neither member nor other.
    """
    scores: dict[ScoreName, list[Tensor]] = defaultdict(list)
    for metric, positions, read in (
        (MEMBER_SCORE, client.trained_on(), client.data.plain),
        (OTHER_SCORE, torch.arange(client.data.num_test), client.data.test_plain),
    ):
        for piece in chunks(len(positions), CHUNK):
            batch = read(positions[piece])
            shown = client.data.protected_test("membership", batch, metric.name, int(piece[0]))
            images = normalise(shown.images, client.data.card)
            scores[metric.of()].append(test.scores(images, batch.targets.argmax(1)))
    return {metric: torch.cat(pieces).tolist() for metric, pieces in scores.items()}


def audit_baselines(
    client: Client, observation: str, *, pictures: bool, totals: bool = True, images: int = 0
) -> AuditScores:
    """Score null baselines, which use no observation, and the scales; share pictures on request.

    ``images`` is the number of images per observation that attacks guess. Of more images than guesses, the assignment chooses those
    nearest to a guess, and a null baseline must have the same choice. 0: ``BASELINE_IMAGES``, or a probe's if these are more.
    ``NO_IMAGES``: no attack guesses images, and so does no null baseline.

    With ``totals`` also what the input defences did (``defense_totals``, under ``COUNTS``), which is the same in every round.
    """
    known = client.truths(observation)
    if client.data.card.is_table:
        return AuditScores({FREQUENT: cell_baselines(client.data, known)})
    scores: dict[GuessName, Scores] = defaultdict(lambda: defaultdict(list))
    shared: Tensors = {}
    if images != NO_IMAGES:
        _score_null_images(client, known, images or max(client.task.plan.probe_images, BASELINE_IMAGES), scores)
    for target, truth in enumerate(known.views):
        if client.task.plan.objective.one_class and not known.pooled:
            _add(scores[UNIFORM], {LABEL_ACCURACY.of(): uniform_label_accuracy(truth.original, paired=known.paired)})
        if pictures and not known.pooled and (not known.whole_round or _shows_round(client, truth, images)):
            places = _places(client, known, target).long().tolist()
            for kind, batch in (("original", truth.original), ("protected", truth.seen)):
                shared |= {f"{kind}-{target}-{at}": image for at, image in zip(places, batch.images, strict=True)}
    if totals and (found_totals := defense_totals(client)):
        scores[COUNTS] = {ScoreName(name): [float(number)] for name, number in found_totals.items()}
    return AuditScores({name: dict(of) for name, of in scores.items()}, shared)


def _shows_round(client: Client, truth: Probed, images: int) -> bool:
    """Whether a client shares pictures of a whole round: of few images, and which ones it used is no secret."""
    return images != NO_IMAGES and len(truth.positions) <= MOST_SHARED and client.data.draws.notebook is None


def _score_null_images(client: Client, known: Truths, few: int, scores: dict[GuessName, Scores]) -> None:
    """Add the scores of ``few`` guessed images of each observation, of every null baseline and scale."""
    blind = BlindGuesses(client.data, known.views, slice(few))
    for target, truth in enumerate(known.views):
        others = _others(client, known, target)
        for name, guesses in blind.of(truth).items():
            scored = both_references(guesses, truth, paired=known.paired)
            scored |= _beside(client, guesses[0], known, target, others)
            if known.at_many_scales:
                scored |= scores_at_many_scales(guesses[0].images, truth.original.images)
            _add(scores[name], scored)


def defense_totals(client: Client) -> Numbers:
    """Effect of the input defences on ``COUNTED_IMAGES`` of this client's training images; see ``InputDefense.totals``.

    Each is a sum over many images. The draws are not those of training, so that they reveal nothing about these.
    """
    chosen = torch.linspace(0, client.data.num_train - 1, min(client.data.num_train, MOST_COUNTED)).long()
    totals: Numbers = defaultdict(float)
    for at, piece in enumerate(chunks(len(chosen), CHUNK)):
        sums = client.pipeline.totals(client.data.plain(chosen[piece]), (*client.data.key("counts"), at))
        for name, number in sums.items():
            totals[name] += number
    return {**totals, COUNTED_IMAGES.name: len(chosen)} if totals else {}


def _others(client: Client, known: Truths, target: int, guesses: int = 1) -> Known:
    """Of a sum over clients 100 candidates for each guess, as each may be the one that the assignment picks for an image."""
    truth, each = known.views[target], CANDIDATES - 1
    if known.pooled:
        each = math.ceil(CANDIDATES * max(1.0, guesses / len(truth.positions))) - 1
    return other_images(client.data, truth, target, each)


def _beside(client: Client, guess: Reconstruction, known: Truths, target: int, others: Known) -> Scores:
    """What the verdicts on each single image need beside its pixel scores."""
    truth = known.views[target]
    pairs = pairs_of(guess.images, truth.original.images, paired=known.paired)
    own = attacked_images(client.data, truth)
    scores = identified(guess.images, pairs, own, others, paired=known.paired, whole_round=known.whole_round)
    return scores | flat_psnr(own.images, pairs[1]) | {PLACE.of(): _places(client, known, target)[pairs[1]].tolist()}


def _places(client: Client, known: Truths, target: int) -> Tensor:
    """Numbers (B,) of the images of an observation: the report finds the original of a guess, and the same image elsewhere.

    Of the client's attacked images in the order of observations and rows. Of a whole round they are the places in the client's
    data, as each defence may draw other images; a node with a secret counts the images of the round instead, for which of its
    examples a round used is part of its secret.
    """
    truth = known.views[target]
    if known.whole_round and client.data.draws.notebook is None:
        return truth.positions.double()
    first = sum(len(view.positions) for view in known.views[:target])
    return first + torch.arange(len(truth.positions), dtype=torch.float64)


def _add(scores: Scores, more: Scores) -> None:
    for name, values in more.items():
        scores[name].extend(values)
