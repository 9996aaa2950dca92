"""Candidate images: a guess identifies its image where it correlates most with that one among others of the same class."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from attacks.metrics.images import IDENTIFIED, IDENTIFIED_CHANCE
from attacks.metrics.names import Scores
from attacks.scoring.metrics import correlations, retrieved
from clients.scoring.image_scores import Pairs
from clients.task.local_data import LocalData
from clients.task.truths import Probed
from defenses.base import Batch
from defenses.random_draws import generator_for

HALF_A_GREY = 0.5 / 255
"""No value of the same image read in two ways differs by so much: normalising and undoing it leaves float errors alone."""
PARTS, ROUNDING = 8, 1e-6


class KnownImages:
    """Images (C, H, W) in [0, 1] of one shape, each kept once; the first ones are ``images`` (N, C, H, W)."""

    def __init__(self, images: Tensor) -> None:
        self._images: list[Tensor] = []
        self._means = torch.zeros(max(2 * len(images), 64), PARTS, dtype=torch.float64)
        for image in images:
            self.adds(image)

    def __contains__(self, image: Tensor) -> bool:
        """Whether it is one of them."""
        return self._holds(image, _means(image))

    def adds(self, image: Tensor) -> bool:
        """Keep an image, and return whether it is a new one."""
        means, count = _means(image), len(self._images)
        if self._holds(image, means):
            return False
        if count == len(self._means):
            self._means = torch.cat([self._means, torch.zeros_like(self._means)])
        self._means[count] = means
        self._images.append(image.detach().float())
        return True

    def _holds(self, image: Tensor, means: Tensor) -> bool:
        # Means of parts differ by no more than values do, and tell nearly all images apart without a look at every value.
        apart = (self._means[: len(self._images)] - means).abs().amax(1)
        near = (apart < HALF_A_GREY + ROUNDING).nonzero()[:, 0].tolist()
        return any(float((self._images[at] - image).abs().max()) < HALF_A_GREY for at in near)


def _means(image: Tensor) -> Tensor:
    """(PARTS,) means of equal runs of the values."""
    return F.adaptive_avg_pool1d(image.detach().double().reshape(1, -1), PARTS)[0]


CANDIDATES = 100
"""Candidates for each attacked image: itself and 99 others of its class, where the client has so many."""
COPY = 1 - 1e-9
"""Correlation from which on two images count as copies: no contrast tells them apart."""
MOST_CHANCE = 0.05
"""Mean chance of a null guess up to which a whole round is judged as a batch is."""
MARGIN = 0.25
"""Of a whole round with too few others, the distance of a guess to its image (1 - correlation) must be below this share of that to
the nearest other. Of 130 images and 30 others some image of the 130 is nearest to four null guesses of five."""


@dataclass(frozen=True)
class Known:
    """Images (N, C, H, W) in [0, 1] and their classes (N,) int64: one class for all where the data have no single class."""

    images: Tensor
    classes: Tensor


def attacked_images(data: LocalData, truth: Probed) -> Known:
    """The originals behind one observation."""
    return Known(truth.original.images.detach().cpu(), _classes(data, truth.positions))


def _classes(data: LocalData, positions: Tensor) -> Tensor:
    if not data.task.plan.objective.one_class:
        return torch.zeros_like(positions)
    return torch.cat([data.train_labels(), data.test_labels()])[positions]


def other_images(data: LocalData, truth: Probed, target: int, each: int = CANDIDATES - 1) -> Known:
    """Draw other images of the classes of the attacked ones from the client's own data, ``each`` for every attacked image.

    None is an attacked image, by its place in the client's data. They come from the part of the data that the attacked ones are
    of, and from the other part when that does not suffice; of a class with few images there are fewer. Within a class and a part
    the attacked images and these are exchangeable: a copy of an attacked image may be among them. They are the same in every
    round and under every defence. Where the attacked images are cropped and mirrored, so are these, by draws of their own: else a
    black border would tell a view from the others.
    ``target`` is the number of the observation.
    """
    generator = generator_for(*data.key("line-up", target))
    parts = [
        torch.randperm(data.num_train, generator=generator),
        data.num_train + torch.randperm(data.num_test, generator=generator),
    ]
    # Attacked are test images where they are what is sent, or where the server holds the training images.
    order = torch.cat(parts[::-1] if (truth.positions >= data.num_train).all() else parts)
    order = order[~torch.isin(order, truth.positions)]
    classes, attacked = _classes(data, order), _classes(data, truth.positions)
    order = torch.cat([order[classes == cls][: each * int((attacked == cls).sum())] for cls in torch.unique(attacked)])
    others = data.own_images(order)
    if len(order) and shows_views(data, truth):
        others = data.augmented(Batch(others, torch.zeros(len(order), 1)), data.key("line-up", target, "views")).images
    return Known(others, _classes(data, order))


def shows_views(data: LocalData, truth: Probed) -> bool:
    """Whether the attacked images are crops and mirror images: training images where the task asks for it, test images never."""
    return data.task.plan.augments and bool((truth.positions < data.num_train).all())


def identified(
    guess: Tensor, pairs: Pairs, own: Known, others: Known, *, paired: bool, whole_round: bool = False
) -> Scores:
    """Whether each guess identifies its own image among candidates, with the chance of a null guess that knows the class.

    If messages keep the rows of images (``paired``), the candidates of each guess are its own image and 99 others of its class.
    Otherwise the assignment lets a guess choose among the B images behind the observation. Then all of them and all others are
    candidates. Of b images of a class and m others of it, the one that correlates most with a null guess is any with the same
    probability, as all are exchangeable: the guess identifies one of the b with at most b / (b + m), whichever is assigned to it.
    Copies of the attacked image are no competitors; k copies have k times its chance. A sum over clients has more guesses than
    images: each image has as many chances as there are guesses for it.

    ``guess`` is (M, C, H, W) in [0, 1], and ``pairs`` are indices into guess and own images, as the other scores use them. With
    ``whole_round``, a round with too few others for a chance of ``MOST_CHANCE`` is judged by ``identified_in_round``.

    Returns:
        ``IDENTIFIED``, 1 or 0 for each pair, and ``IDENTIFIED_CHANCE``, for each the highest chance of a null guess. An image
        without others of its class is not identified: a single candidate is always found.
    """
    rows, columns = pairs
    images, classes = torch.cat([own.images, others.images]), torch.cat([own.classes, others.classes])
    same = classes[columns][:, None] == classes
    compared = _blocks(columns, classes, len(own.images)) if paired else torch.ones_like(same)
    copies = correlations(own.images[columns], images) > COPY
    copies[torch.arange(len(columns)), columns] = True
    attacked = same[:, : len(own.images)].sum(1).where(torch.tensor(not paired), 1)
    chances = (copies & same & compared).sum(1).double() * attacked / (same & compared).sum(1)
    if not paired:
        chances = (chances * max(1.0, len(guess) / len(own.images))).clamp(max=1.0)
    if whole_round and len(chances) and chances.mean() > MOST_CHANCE:
        return identified_in_round(guess, pairs, own, others)
    hits = torch.tensor(retrieved(guess[rows], images, columns, compared & ~copies)) * (chances < 1)
    return _scores(hits, chances)


def _blocks(columns: Tensor, classes: Tensor, attacked: int) -> Tensor:
    """(P, K): the own image of each pair, and up to 99 others of its class, other ones for each as far as they go round."""
    mask = torch.zeros(len(columns), len(classes), dtype=torch.bool)
    mask[torch.arange(len(columns)), columns] = True
    for kind in torch.unique(classes[columns]):
        rows = (classes[columns] == kind).nonzero()
        mine = attacked + (classes[attacked:] == kind).nonzero()[:, 0]
        size = min(CANDIDATES - 1, len(mine))
        at = torch.arange(len(rows))[:, None] * size + torch.arange(size)
        mask[rows, mine[at % max(len(mine), 1)]] = True
    return mask


def identified_in_round(guess: Tensor, pairs: Pairs, own: Known, others: Known) -> Scores:
    """Whether each guess of an image of a whole round is far nearer to its own image than to any other of its class.

    A client that trains on most of its images has too few others to make up for the choice among the B. Instead the distance
    1 - correlation of the guess to its image must be less than ``MARGIN`` times that to the nearest other. The chance of a null
    guess is measured: every other image in turn is a guess, which may choose the nearest of its class in the round and is compared
    with the rest of its class, as that of an attacker that knows what such images look like. With h of M such guesses found, the
    chance is (h + 1) / (M + 1).

    Arguments and result are as of ``identified``.
    """
    rows, columns = pairs
    if len(others.images) < 2:
        return _scores(torch.zeros(len(rows)), torch.ones(len(rows)))
    mine = correlations(guess[rows], own.images)[torch.arange(len(rows)), columns]
    alike = own.classes[columns][:, None] == others.classes
    hits = _far_nearer(mine, correlations(guess[rows], others.images), alike)
    chosen = correlations(others.images, own.images).where(others.classes[:, None] == own.classes, -1.0).amax(1)
    rest = (others.classes[:, None] == others.classes).fill_diagonal_(fill_value=False)
    blind = _far_nearer(chosen, correlations(others.images, others.images), rest)
    chance = (float(blind.sum()) + 1) / (len(blind) + 1)
    return _scores(hits, torch.full((len(rows),), chance, dtype=torch.float64))


def _far_nearer(mine: Tensor, others: Tensor, alike: Tensor) -> Tensor:
    """Whether the correlations (M,) leave less distance than those (M, K) with other images, where these are ``alike``."""
    nearest = 1 - others.where(alike, -1.0).amax(1)
    return ((1 - mine < MARGIN * nearest) & alike.any(1)).float()


def _scores(hits: Tensor, chances: Tensor) -> Scores:
    return {IDENTIFIED.of("original"): hits.tolist(), IDENTIFIED_CHANCE.of(): IDENTIFIED_CHANCE.cut(chances.tolist())}
