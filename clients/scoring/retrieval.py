"""Candidate images for retrieval: the client looks among them for the one nearest to a guess."""

from __future__ import annotations

import itertools

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attacks.guesses import Reconstruction
from attacks.metrics.images import RETRIEVAL, RETRIEVAL_CHANCE
from attacks.metrics.names import Scores
from attacks.scoring.metrics import retrieved, squared_errors
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
        self._images: list[NDArray[np.float32]] = []
        self._means = np.zeros((max(2 * len(images), 64), PARTS))
        for image in images:
            self.adds(image)

    def __contains__(self, image: Tensor) -> bool:
        """Whether it is one of them."""
        return self._holds(pixels := _pixels(image), _means(pixels))

    def adds(self, image: Tensor) -> bool:
        """Keep an image, and return whether it is a new one."""
        pixels = _pixels(image)
        means, count = _means(pixels), len(self._images)
        if self._holds(pixels, means):
            return False
        if count == len(self._means):
            self._means = np.concatenate([self._means, np.zeros_like(self._means)])
        self._means[count] = means
        self._images.append(pixels)
        return True

    def _holds(self, pixels: NDArray[np.float32], means: NDArray[np.float64]) -> bool:
        # Means of parts differ by no more than values do, and tell nearly all images apart without a look at every value.
        apart = np.abs(self._means[: len(self._images)] - means).max(1)
        near = np.flatnonzero(apart < HALF_A_GREY + ROUNDING)
        return any(np.abs(self._images[at] - pixels).max() < HALF_A_GREY for at in near)


def _pixels(image: Tensor) -> NDArray[np.float32]:
    found: NDArray[np.float32] = image.detach().float().numpy().ravel()
    return found


def _means(pixels: NDArray[np.float32]) -> NDArray[np.float64]:
    """(PARTS,) means of equal runs of the values, 0 for each part that is none."""
    parts = min(PARTS, len(pixels))
    starts = np.arange(parts) * len(pixels) // parts
    means = np.zeros(PARTS)
    sums = np.add.reduceat(pixels, starts, dtype=np.float64)
    means[:parts] = sums / np.diff(np.append(starts, len(pixels)))
    return means


CANDIDATES = 100
"""Candidates of retrieval: the attacked image and 99 others of the client, where it has so many."""
EQUAL = 1e-10
"""Mean squared error up to which two images count as equal; scores end there, too (``MAX_PSNR``)."""
CHUNK = 128
"""Images that are read at once."""
MARGIN = 0.25
"""Of a whole round, where a guess is free to be of any of many images, the error of the true one must be below this share of the
error of the nearest other (6 dB). Of 130 images and 30 others some image of the 130 is nearest to four null guesses of five."""


def other_images(data: LocalData, truth: Probed, target: int, wanted: int | None = None) -> Tensor:
    """Draw 99 images for each attacked one from the client's own data: (M, C, H, W) in [0, 1].

    None is an attacked image, by its place in the client's data, nor repeats one of those or another before any crop, as far as
    one could see. They come from the part of the data that the attacked ones are of, and from the other part when that does not
    suffice; of a client with few images there are fewer. They are the same in every round and under every defence. Where the
    attacked images are cropped and mirrored, so are these, by draws of their own: else a black border would tell a view from the
    others.

    Args:
        data: The client's examples.
        truth: The images behind one observation.
        target: Number of the observation.
        wanted: How many; by default 99 for each attacked image.
    """
    wanted = (CANDIDATES - 1) * len(truth.positions) if wanted is None else wanted
    generator = generator_for(*data.key("line-up", target))
    parts = [
        torch.randperm(data.num_train, generator=generator),
        data.num_train + torch.randperm(data.num_test, generator=generator),
    ]
    # Attacked are test images where they are what is sent, or where the server holds the training images.
    order = torch.cat(parts[::-1] if (truth.positions >= data.num_train).all() else parts)
    order = order[~torch.isin(order, truth.positions)]
    known = KnownImages(data.own_images(truth.positions))
    found: list[Tensor] = []
    images = (image for at in range(0, len(order), CHUNK) for image in data.own_images(order[at : at + CHUNK]))
    for image in itertools.takewhile(lambda _: len(found) < wanted, images):
        if known.adds(image):
            found.append(image)
    if not found:
        return truth.original.images[:0].cpu()
    others = torch.stack(found)
    if not shows_views(data, truth):
        return others
    return data.augmented(Batch(others, torch.zeros(len(others), 1)), data.key("line-up", target, "views")).images


def shows_views(data: LocalData, truth: Probed) -> bool:
    """Whether the attacked images are crops and mirror images: training images where the task asks for it, test images never."""
    return data.task.plan.augments and bool((truth.positions < data.num_train).all())


def retrieval(guess: Reconstruction, pairs: Pairs, truth: Tensor, others: Tensor, *, paired: bool) -> Scores:
    """Whether each guess identifies its own image among candidates.

    If messages keep the rows of images (``paired``), the candidates of each guess are its own image and 99 others. Otherwise the
    assignment lets a guess choose among the B images behind the observation. Then all B images and all 99 B others are
    candidates, so that a null guess has at most the same chance of 1 in 100. A sum over clients has more guesses than images. There
    each image has as many chances as there are guesses, each of at most 1 in all candidates.

    ``pairs`` are indices into guesses and truth (B, C, H, W), as the other scores use them, ``others`` (M, C, H, W) what
    ``other_images`` finds. Returns ``RETRIEVAL``, 1 or 0 for each pair, and ``RETRIEVAL_CHANCE``, for each the highest chance of a
    null guess; nothing where that is 1: the only candidate is always found.
    """
    if not len(others):
        return {}
    images, truth = guess.images.detach().cpu(), truth.cpu()
    if not paired:
        hits = retrieved(images[pairs[0]], torch.cat([truth, others]), pairs[1])
        return _found(hits, max(len(truth), len(images)) / (len(truth) + len(others)))
    hits, size = [], min(CANDIDATES - 1, len(others))
    for place, (row, column) in enumerate(zip(*pairs, strict=True)):
        # Each image has others of its own, as far as they go round.
        mine = others[(torch.arange(size) + place * size) % max(len(others), 1)]
        hits += retrieved(images[row][None], torch.cat([truth[column][None], mine]), torch.tensor([0]))
    return _found(hits, 1 / (1 + size))


def retrieval_from_round(guess: Reconstruction, pairs: Pairs, truth: Tensor, others: Tensor) -> Scores:
    """Whether each guess of an image of a whole round is nearest to its own image among it and at most 99 others.

    No client has 99 others for each image that it trains on, so the choice among the B images cannot be made up for by more
    candidates. Instead the guess must be nearer to its image than ``MARGIN`` times the distance of the nearest other. The
    chance of a null guess is measured: every other image in turn is a guess. It may choose the nearest of the B and is compared
    with the rest, as that of an attacker that knows what such images look like. With h of M such guesses found, the chance is
    (h + 1) / (M + 1), which is never below 1 in 100.

    None of the ``others`` is of the round. Arguments and result are as of ``retrieval``; nothing where there are fewer than two
    others, as one has nothing to be compared with, or where each of them is found blindly.
    """
    if len(others) < 2:
        return {}
    images, count = guess.images.detach().cpu()[pairs[0]], len(others)
    own = (images.double() - truth.cpu()[pairs[1]].double()).square().flatten(1).sum(1).nan_to_num(nan=torch.inf)
    hits = own < MARGIN * _errors(images, others).amin(1)
    between = _errors(others, others).fill_diagonal_(torch.inf)
    blind = _errors(others, truth).amin(1) < MARGIN * between.amin(1)
    return _found(hits.float().tolist(), (int(blind.sum()) + 1) / (count + 1))


def _found(hits: list[float], chance: float) -> Scores:
    if not RETRIEVAL_CHANCE.allows(chance):
        return {}
    return {RETRIEVAL.of("original"): hits, RETRIEVAL_CHANCE.of(): [chance] * len(hits)}


def _errors(guess: Tensor, known: Tensor) -> Tensor:
    """Squared errors (M, K), infinite where an image is not finite; 0 where they are of the size of rounding: equal images."""
    errors = squared_errors(guess, known).nan_to_num(nan=torch.inf)
    return errors.where(errors > EQUAL * guess[0].numel(), 0.0)
