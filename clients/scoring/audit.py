"""The client's side of the audit: guesses come in, scores go out, private images stay.

The client re-creates the batch of a round from its secret and scores a guess against the *original* images (what the person
loses) and against the *transformed* ones that entered the model (what the gradient leaks).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from attacks.guesses import Attributes, Cells, Reconstruction, Representatives
from attacks.membership.loss_threshold import Membership
from attacks.normalisation import normalise
from attacks.scoring.metrics import score
from attacks.scoring.oracle import Oracle
from attacks.scoring.representatives import score_representatives
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
from clients.scoring.null_baselines import BlindGuesses, NullImages
from clients.scoring.retrieval import CANDIDATES, other_images, retrieval, retrieval_from_round
from clients.scoring.table_audit import cell_baselines, cell_scores
from clients.task.batches import CHUNK, chunks
from clients.task.client import Client
from clients.task.truths import Probed, Truths

COUNTS, MOST_COUNTED = "counts", 1000
"""What stands before the names of totals among the scores; images of a client, evenly spaced, that are counted at most."""

LABELS = "label-accuracy"

BASELINE_IMAGES = 8
"""As many as gradient inversion reconstructs of a larger batch by default."""


@dataclass(frozen=True)
class Audited:
    """Scores by name, one value per image (labels of an update: one per batch), and the pictures that the client shares."""

    scores: dict[str, list[float]]
    pictures: dict[str, Tensor] = field(default_factory=dict)


def audit_guesses(
    client: Client,
    observation: str,
    guesses: Sequence[tuple[Guess, Tensor | None]],
    oracle: Oracle | None = None,
) -> Audited:
    """Scores one guess per observed update or batch of smashed data.

    Args:
        client: Holds the truth.
        observation: The kind of what is attacked, such as "probe".
        guesses: Each with the classes (B,) that an oracle sees in its images, or None.
        oracle: The oracle itself, which then compares features of the guesses with those of the truth.

    Returns:
        For reconstructions "psnr-original", "psnr-transformed" and the like, "psnr-null" and "psnr-flat" (see ``null_psnr``),
        "retrieval-original" with "retrieval-chance" (see
        ``clients.scoring.retrieval``), "label-accuracy", and "recognition" where there is an oracle, with "feature-similarity" and
        "identification" where it came along; for labels "label-accuracy"; for attributes see ``audit_attributes``; for
        representatives see ``score_representatives``; for tests of membership "member-score" and "other-score", one per training
        and per test example, of tests that did not fail; for rows of a table see ``clients.scoring.table_audit``.

    Raises:
        ValueError: When the number of guesses is not the number of observed updates, or their image shape is not the data's.
    """
    if attributes := [guess for guess, _ in guesses if isinstance(guess, Attributes)]:
        return audit_attributes(client, observation, attributes)
    known = client.truths(observation)
    if len(guesses) != len(known.views):
        raise ValueError(f"{len(guesses)} guesses for {len(known.views)} observations")
    scores: dict[str, list[float]] = defaultdict(list)
    of_images = any(isinstance(guess, Reconstruction) for guess, _ in guesses)
    nulls = NullImages(client.data, known.views) if of_images else None
    for target, ((guess, recognised), truth) in enumerate(zip(guesses, known.views, strict=True)):
        if isinstance(guess, Membership):
            # A test that failed judged nobody: its records would pass for records that were judged alike.
            if guess.failure:
                continue
            _add(scores, "", membership_scores(client, guess))
        elif isinstance(guess, Cells):
            _add(scores, "", cell_scores(client.data, guess, truth, known.embed))
        elif isinstance(guess, Representatives):
            seen = torch.full_like(guess.classes, -1) if recognised is None else recognised
            classes = truth.original.targets.argmax(1)
            found = score_representatives(guess, truth.original.images, classes, seen)
            _add(scores, "", {name: values for name, values in found.items() if values})
        elif not isinstance(guess, Attributes):
            paired = known.paired
            found = score_both(guess, truth, paired=paired)
            _add(scores, "", {name: values for name, values in found.items() if not (known.pooled and name == LABELS)})
            if isinstance(guess, Reconstruction):
                others = _others(client, known, target, len(guess.images))
                _add(scores, "", _retrieval(guess, truth, others, known))
            if isinstance(guess, Reconstruction) and nulls is not None:
                _add(scores, "", nulls.scores(truth.original.images, _columns(guess, truth, known)))
            if isinstance(guess, Reconstruction) and known.in_paper_scale:
                _add(scores, "", paper_scores(guess.images, truth.original.images, paper_scale(client.task)))
            if isinstance(guess, Reconstruction) and known.at_many_scales:
                _add(scores, "", scores_at_many_scales(guess.images, truth.original.images))
            if isinstance(guess, Reconstruction) and recognised is not None:
                scores["recognition"].extend(recognition(guess, recognised, truth.original, paired=paired))
            if isinstance(guess, Reconstruction) and oracle is not None:
                _add(scores, "", oracle.compare(guess.images, truth.original.images))
    return Audited(dict(scores))


def audit_attributes(client: Client, observation: str, guesses: Sequence[Attributes]) -> Audited:
    """Scores guesses of a sensitive attribute against this client's own values; reads no image.

    Returns:
        "attribute-accuracy": 1 for every image whose value was guessed, else 0.

    Raises:
        ValueError: When there are not as many guesses as observations, or one is not of as many images.
    """
    truths = client.sensitive(observation)
    if len(guesses) != len(truths):
        raise ValueError(f"{len(guesses)} guesses for {len(truths)} observations")
    found = [score(guess, truth)["attribute-accuracy"] for guess, truth in zip(guesses, truths, strict=True)]
    return Audited({"attribute-accuracy": [hit for hits in found for hit in hits]})


def membership_scores(client: Client, test: Membership) -> dict[str, list[float]]:
    """A test's scores of this client's training examples and of its test examples, shown to the model as in use.

    With ``local-steps``, an example that earlier rounds used and this one did not is neither member nor other.
    """
    found = {}
    members = client.trained_on()
    for name, positions, read in (
        ("member-score", members, client.data.plain),
        ("other-score", torch.arange(client.data.num_test), client.data.test_plain),
    ):
        scores = []
        for piece in chunks(len(positions), CHUNK):
            batch = read(positions[piece])
            shown = client.data.protected_test("membership", batch, name, int(piece[0]))
            scores.append(test.scores(normalise(shown.images, client.data.card), batch.targets.argmax(1)))
        found[name] = torch.cat(scores).tolist()
    return found


def audit_baselines(
    client: Client, observation: str, *, pictures: bool, totals: bool = True, images: int = 0
) -> Audited:
    """Scores of guesses that used no observation at all, and of the scales; shares pictures if asked.

    ``images`` are as many of each observation as attacks guess: of more images than are guessed, the assignment picks those that
    are nearest to a guess, and a blind guess must have the same choice. 0: ``BASELINE_IMAGES``, or a probe's if these are more.

    With ``totals`` also what the input defences did (``defense_totals``), which is the same in every round.

    Names are "baseline:grey:psnr-original", "scale:class-mean:psnr-original" and the like; see ``BlindGuesses``.
    """
    known = client.truths(observation)
    if client.data.card.is_table:
        return Audited(cell_baselines(client.data, known))
    few = images or max(client.task.plan.probe_images, BASELINE_IMAGES)
    blind, nulls = BlindGuesses(client.data, known.views, slice(few)), NullImages(client.data, known.views)
    scores: dict[str, list[float]] = defaultdict(list)
    shared: dict[str, Tensor] = {}
    for target, truth in enumerate(known.views):
        others = _others(client, known, target)
        for name, guesses in blind.of(truth).items():
            found = both_references(guesses, truth, paired=known.paired)
            found |= _retrieval(guesses[0], truth, others, known)
            found |= nulls.scores(truth.original.images, _columns(guesses[0], truth, known))
            if known.at_many_scales:
                found |= scores_at_many_scales(guesses[0].images, truth.original.images)
            _add(scores, f"{name}:", found)
        if client.task.plan.objective.one_class and not known.pooled:
            scores["baseline:uniform:label-accuracy"].extend(
                uniform_label_accuracy(truth.original, paired=known.paired)
            )
        if pictures and not known.whole_round and not known.pooled:
            shared |= {f"original-{target}": truth.original.images, f"protected-{target}": truth.seen.images}
    if totals:
        scores |= {f"{COUNTS}:{name}": [float(number)] for name, number in defense_totals(client).items()}
    return Audited(dict(scores), shared)


def defense_totals(client: Client) -> dict[str, float]:
    """What the input defences do to this client's training images, "counted-images" of them; see ``InputDefense.totals``.

    Each is a sum over many images. The draws are not those of training, so that they tell nothing about these.
    """
    chosen = torch.linspace(0, client.data.num_train - 1, min(client.data.num_train, MOST_COUNTED)).long()
    totals: dict[str, float] = defaultdict(float)
    for at, piece in enumerate(chunks(len(chosen), CHUNK)):
        found = client.pipeline.totals(client.data.plain(chosen[piece]), (*client.data.key("counts"), at))
        for name, number in found.items():
            totals[name] += number
    return {**totals, "counted-images": len(chosen)} if totals else {}


def _others(client: Client, known: Truths, target: int, guesses: int = 1) -> Tensor:
    """Of a sum over clients 100 candidates for each guess, as each may be the one that the assignment picks for an image."""
    truth = known.views[target]
    wanted = CANDIDATES - 1 if known.whole_round else None
    if known.pooled:
        wanted = CANDIDATES * max(guesses, len(truth.positions)) - len(truth.positions)
    return other_images(client.data, truth, target, wanted)


def _retrieval(guess: Reconstruction, truth: Probed, others: Tensor, known: Truths) -> dict[str, list[float]]:
    images = truth.original.images
    pairs = pairs_of(guess.images, images, paired=known.paired)
    if known.whole_round:
        return retrieval_from_round(guess, pairs, images, others)
    return retrieval(guess, pairs, images, others, paired=known.paired)


def _columns(guess: Reconstruction, truth: Probed, known: Truths) -> Tensor:
    """Which true image each guess is compared with."""
    return pairs_of(guess.images, truth.original.images, paired=known.paired)[1]


def _add(scores: dict[str, list[float]], prefix: str, more: dict[str, list[float]]) -> None:
    for name, values in more.items():
        scores[prefix + name].extend(values)
