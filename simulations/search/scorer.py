"""Scores of policies on the images, noise, semi-trained model and batches that all policies of a search share."""

import hashlib
import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attacks.normalisation import normalise
from clients.data.card import DataCard
from clients.data.images import ImageDataset, MissingDataError, to_float
from clients.models.classifiers import build_model
from clients.task.task import load_weights
from clients.training.evaluation import device
from defenses.base import Batch
from defenses.images.ats import Policy, transform_images
from defenses.random_draws import generator_for
from defenses.tensors import Tensors, on_cpu
from simulations.search.scores import (
    ExampleGradients,
    accuracy_score,
    privacy_score,
    similarity_curves,
)
from simulations.search.settings import Search
from simulations.settings.errors import ConfigError
from strategies.training.central_training import DivergedError, train_alone

ACCURACY_BATCHES, ACCURACY_IMAGES = 10, 128
"""Batches of S_acc, each with an initialisation of its own, and images of each at most, all of different classes."""
PATH_STEPS = 20
"""Points of each image's path, K."""
HIGHEST_IDENTITY = 0.99
"""Mean GradSim of untransformed images above which all gradients point one way: every policy would score the same."""
HIGHEST_LOSS = 2.0
"""Times that of a guess by chance: up to here a model may be one that has hardly learned yet."""
CHUNK = 256
"""Images that are read at once; a data set may not fit into memory."""


class DegenerateModelError(ConfigError):
    """A semi-trained model on which scores mean nothing; the same settings train the same one again."""


class Scores(NamedTuple):
    """The scores of a policy.

    Attributes:
        accuracy: S_acc, the mean over batches and initialisations.
        privacy: S_pri, the mean over images; None below the threshold.
    """

    accuracy: float
    privacy: float | None = None


class Scorer:
    """Score policies by the weights of a semi-trained model; a policy has the same score in every process and order."""

    def __init__(self, search: Search, weights: Tensors) -> None:
        self.search, self.plan = search, search.plan()
        data = self.plan.load_data()
        self.card, images = DataCard.of(data), data.train.images
        model = load_weights(self.plan.build_model(), weights).to(device())
        self.gradients = ExampleGradients(model)
        _, scored = positions(search, data)
        self.clean = to_float(images[scored])
        self.targets = F.one_hot(data.train.labels[scored], data.num_classes).float().to(device())
        noise = torch.rand(self.clean.shape, generator=generator_for("search", search.seed, "noise"))
        self.noise = normalise(noise.to(device()), self.card)
        self._batches = [(to_float(images[rows]), seed) for rows, seed in accuracy_batches(search, data)]

    def __call__(self, policy: Policy, least: float | None) -> Scores:
        """Score a policy; the empty one transforms nothing. S_pri is not computed for an S_acc below ``least``.

        Raises:
            DegenerateModelError: For scores that are not finite, or where the identity's gradients vanish or are all alike.
        """
        accuracy = self.accuracy(policy)
        if least is not None and accuracy < least:
            return Scores(accuracy)
        curves = self.curves(policy)
        privacy, similarity = float(privacy_score(curves).mean()), float(curves.mean())
        if not (math.isfinite(accuracy) and math.isfinite(privacy)):
            raise _degenerate(self.search, "its gradients are not finite")
        if not policy and (similarity == 0 or similarity > HIGHEST_IDENTITY):
            what = "vanish" if similarity == 0 else "are all alike"
            raise _degenerate(
                self.search, f"its gradients {what} (GradSim of untransformed images is {similarity:.4f} on average)"
            )
        return Scores(accuracy, privacy)

    def accuracy(self, policy: Policy) -> float:
        """S_acc: the mean over batches of different classes, each with an initialisation of its own."""
        scores = []
        for at, (batch, seed) in enumerate(self._batches):
            images = transformed(self.search, batch, policy, "accuracy", at)
            model = build_model(
                self.plan.model, num_classes=self.card.num_classes, input_shape=self.card.input_shape, width=self.plan.width,
                norm=self.plan.norm, seed=seed,
            )  # fmt: skip
            scores.append(accuracy_score(model.to(device()), normalise(images.to(device()), self.card)))
        return sum(scores) / len(scores)

    def curves(self, policy: Policy) -> Tensor:
        """(images, ``PATH_STEPS``): GradSim on each image's path."""
        protected = self.protected(policy)
        return similarity_curves(self.gradients, protected, self.noise, self.targets, PATH_STEPS).cpu()

    def protected(self, policy: Policy) -> Tensor:
        """T(x) of the images of S_pri, normalised."""
        return normalise(transformed(self.search, self.clean, policy, "privacy", 0).to(device()), self.card)


def transformed(search: Search, images: Tensor, policy: Policy, *key: str | int) -> Tensor:
    """Images (B, C, H, W) in [0, 1] under a policy; signs depend on the key alone: policies of one length have the same draws."""
    if not policy:
        return images
    generator = generator_for("search", search.seed, *key)
    return transform_images(images, (policy,), generator)


def positions(search: Search, data: ImageDataset) -> tuple[Tensor, Tensor]:
    """Training images that the semi-trained model learns from, and ``search.images`` others for S_pri.

    Raises:
        ConfigError: When there are too few.
    """
    order = torch.randperm(len(data.train), generator=generator_for("search", search.seed, "images"))
    learned, rest = order.tensor_split([max(1, round(search.semi_share * len(order)))])
    if len(rest) < search.images:
        raise ConfigError(
            f"images is {search.images}, and {len(rest)} of the {len(order)} training images of {data.name} are not the "
            "semi-trained model's; lower images or semi-share"
        )
    return learned, rest[: search.images]


def accuracy_batches(search: Search, data: ImageDataset) -> list[tuple[Tensor, int]]:
    """For each batch of S_acc: training images (n,) of different classes, and the seed of an initialisation."""
    batches, labels = [], data.train.labels
    for at in range(ACCURACY_BATCHES):
        generator = generator_for("search", search.seed, "batch", at)
        order = torch.randperm(len(labels), generator=generator)
        first = {int(labels[position]): int(position) for position in order.flip(0)}
        chosen = torch.tensor(list(first.values())[:ACCURACY_IMAGES])
        batches.append((chosen, int(torch.randint(2**31, (), generator=generator))))
    return batches


def semi_train(search: Search) -> Tensors:
    """Train M^s on a share of the training images, without a policy; returns its weights.

    Raises:
        DegenerateModelError: When a weight is not finite, or the model knows less than one that was never trained.
    """
    plan = search.plan()
    data = plan.load_data()
    learned, _ = positions(search, data)
    images = to_float(data.train.images[learned])
    targets = F.one_hot(data.train.labels[learned], data.num_classes).float()
    try:
        model = train_alone(plan, Batch(images, targets), search.seed)
    except DivergedError as error:
        raise _degenerate(search, "its weights are not finite") from error
    _require_learned(search, model, normalise(images.to(device()), DataCard.of(data)), targets)
    return on_cpu(model.state_dict())


def _require_learned(search: Search, model: nn.Module, images: Tensor, targets: Tensor) -> None:
    """Refuses a model in eval mode that training on these images (N, C, H, W), normalised, has driven away.

    A loss of ln K is that of a guess by chance, about which short trainings may leave a model. The gradients of one that is far
    beyond, and no more often right than by naming the same class for every image, are of its mistakes.
    """
    with torch.no_grad():
        logits = torch.cat([model(part) for part in torch.split(images, search.batch_size)]).double().cpu()
    loss, labels = float(F.cross_entropy(logits, targets.double())), targets.argmax(1)
    right, most = float((logits.argmax(1) == labels).double().mean()), float(targets.mean(0).max())
    by_luck = most + 1.645 * math.sqrt(most * (1 - most) / len(labels))  # a guess is better in one case of twenty
    if not math.isfinite(loss) or (loss > HIGHEST_LOSS * math.log(targets.shape[1]) and right <= by_luck):
        raise _degenerate(
            search,
            f"of the images that it learned from it tells {100 * right:.0f} % (naming always the same class: {100 * most:.0f} %), "
            f"and its loss is {loss:.3g} (a guess by chance: {math.log(targets.shape[1]):.3g})",
        )


def _degenerate(search: Search, why: str) -> DegenerateModelError:
    return DegenerateModelError(
        f"learning-rate is {search.learning_rate:g}, and the semi-trained model cannot score policies: {why}; lower learning-rate, "
        "or change semi-epochs or model"
    )


def check(search: Search) -> str:
    """Raise ``ConfigError``, naming the setting, for what cannot be scored; returns a digest of the data that scores depend on.

    Scores on different images must not be mixed: the digest is of the labels, which decide the choice, of the chosen images, and of
    the normalisation.
    """
    plan = search.plan()
    try:
        data = plan.load_data()
        used = [*positions(search, data), *(rows for rows, _ in accuracy_batches(search, data))]
        if data.num_classes < 2:
            raise ConfigError(f"{plan.dataset} has one class, and S_acc compares images of different ones")
        ExampleGradients(plan.build_model()).verify(data.input_shape, data.num_classes)
    except MissingDataError as error:
        raise ConfigError(str(MissingDataError(error.found))) from error
    except (ValueError, OSError) as error:
        raise ConfigError(str(error)) from error
    digest = hashlib.sha256(repr((data.input_shape, data.num_classes, data.mean, data.std)).encode())
    digest.update(data.train.labels.numpy().tobytes())
    for rows in torch.unique(torch.cat(used)).split(CHUNK):
        digest.update(data.train.images[rows].numpy().tobytes())
    return digest.hexdigest()[:32]
