"""Scores of policies on the images, noise, semi-trained model and batches that all policies of a search share."""

from __future__ import annotations

import functools
import math
import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attacks.normalisation import normalise
from clients.data.card import DataCard
from clients.data.images import MissingDataError, to_float
from clients.models.classifiers import build_model
from clients.task.task import load_weights
from clients.training.evaluation import device
from defenses.base import Batch
from defenses.images.ats import Policy, transform_images
from defenses.random_draws import generator_for
from simulations.runtime.own_code_trials import try_dataset, try_model
from simulations.search.gradients import ExampleGradients, Similarities
from simulations.search.pictures import accuracy_batches, score_positions, semi_positions
from simulations.search.scores import accuracy_score, paper_score, released_score, similarity_curves
from simulations.search.settings import RELEASED, Search
from simulations.settings.errors import ConfigError
from strategies.training.central_training import DivergedError, train_alone

MOST_KEPT = 1 << 29
"""Bytes of the gradients at the noise that are kept for all policies; a larger model's are made again for each."""

HIGHEST_IDENTITY = 0.99
"""Mean GradSim of untransformed images above which all gradients point one way: every policy would score the same."""

HIGHEST_LOSS = 2.0
"""Times that of a guess by chance: up to here a model may be one that has hardly learned yet."""

LUCK = 1.645
"""Standard deviations that a guess is better than on average in one case of twenty."""


class DegenerateModelError(ConfigError):
    """A semi-trained model on which scores mean nothing; the same settings train the same one again."""


@dataclass(frozen=True)
class Scores:
    """The scores of a policy.

    Attributes:
        accuracy: S_acc, the mean over batches and initialisations.
        privacy: S_pri by which policies are chosen (``Search.privacy_score``), the mean over images; None below the threshold.
        other: The other of the two privacy scores; None where ``privacy`` is None.
        curve: GradSim at j / K as ``privacy`` takes it, the mean over images; () where ``privacy`` is None.
        deviation: Standard deviation of ``privacy`` over images.
        seconds: Of scoring it.
    """

    accuracy: float
    privacy: float | None = None
    other: float | None = None
    curve: tuple[float, ...] = ()
    deviation: float | None = None
    seconds: float = 0.0


class Scorer:
    """Score policies on one data set; a policy has the same score in every process and order.

    Args:
        search: The settings.
        weights: Of the semi-trained model.
        dataset: Another data set than that of the settings, in ``data_dir``, for a transfer.
    """

    def __init__(self, search: Search, weights: dict[str, Tensor], dataset: str = "", data_dir: str = "") -> None:
        self.search = search
        self.plan = search.plan(dataset, data_dir)
        self.data = self.plan.load_data()
        self.card = DataCard.of(self.data)
        model = load_weights(self.plan.build_model(), weights).to(device())
        self.gradients = ExampleGradients(model)
        positions = score_positions(search, self.data)
        self.clean = to_float(self.data.train.images[positions])
        self.targets = F.one_hot(self.data.train.labels[positions], self.data.num_classes).float().to(device())
        noise = torch.rand(self.clean.shape, generator=generator_for("search", search.seed, "noise"))
        self.noise = normalise(noise.to(device()), self.card)

    def __call__(self, policy: Policy, least: float | None) -> Scores:
        """Scores a policy; the empty one is the identity. S_pri is not worked out for an S_acc below ``least``."""
        start = time.perf_counter()
        accuracy = self.accuracy(policy)
        if least is not None and accuracy < least:
            return Scores(accuracy, seconds=time.perf_counter() - start)
        curves = self.curves(policy)
        found = [(released_score(curves), curves.per_tensor), (paper_score(curves), curves.whole)]
        (each, curve), (others, _) = found if self.search.privacy_score == RELEASED else reversed(found)
        deviation, seconds = float(each.std()) if len(each) > 1 else None, time.perf_counter() - start
        way = tuple(curve.mean(0).tolist())
        return Scores(accuracy, float(each.mean()), float(others.mean()), way, deviation, seconds)

    def accuracy(self, policy: Policy) -> float:
        """S_acc: the mean over batches of different classes, each with an initialisation of its own."""
        found = []
        for at, (batch, seed) in enumerate(self._batches):
            images = self._transformed(batch, policy, ("accuracy", at))
            model = build_model(
                self.plan.model, num_classes=self.card.num_classes, input_shape=self.card.input_shape, width=self.plan.width,
                norm=self.plan.norm, seed=seed,
            )  # fmt: skip
            found.append(accuracy_score(model.to(device()), normalise(images.to(device()), self.card)))
        return sum(found) / len(found)

    def curves(self, policy: Policy) -> Similarities:
        """(images, path-steps) of each measure: GradSim on each image's path, as the mean over draws of the signs."""
        drawn = [
            similarity_curves(
                self.gradients, self.protected(policy, draw), self.noise, self.targets, self.search.path_steps, self._starts
            )
            for draw in range(self.search.signs)
        ]  # fmt: skip
        return Similarities(*(torch.stack(ways).mean(0).cpu() for ways in zip(*drawn, strict=True)))

    def protected(self, policy: Policy, draw: int = 0) -> Tensor:
        """T(x) of the images of S_pri, normalised, with the signs of a draw."""
        return normalise(self._transformed(self.clean, policy, ("privacy", draw)).to(device()), self.card)

    def _transformed(self, images: Tensor, policy: Policy, key: tuple[str, int]) -> Tensor:
        """Signs depend on the place alone, so that policies of the same length are compared on the same draws."""
        if not policy:
            return images
        generator = generator_for("search", self.search.seed, *key)
        return transform_images(images, (policy,), use_prob=False, generator=generator)

    @functools.cached_property
    def _starts(self) -> list[Tensor] | None:
        """The gradients at the noise, which no policy changes; None where they would take too much memory."""
        size = sum(parameter.numel() for parameter in self.gradients.model.parameters()) * len(self.noise) * 4
        return list(self.gradients.of(self.noise, self.targets)) if size <= MOST_KEPT else None

    @functools.cached_property
    def _batches(self) -> list[tuple[Tensor, int]]:
        """(N, C, H, W) images of different classes, and the seed of an initialisation, for each batch of S_acc."""
        images = self.data.train.images
        return [(to_float(images[rows]), seed) for rows, seed in accuracy_batches(self.search, self.data)]


def semi_train(search: Search, dataset: str = "", data_dir: str = "") -> dict[str, Tensor]:
    """Train M^s on a share of the training images, without a policy; returns its weights.

    Raises:
        DegenerateModelError: When a weight is not finite, or the model knows less than one that was never trained.
    """
    plan = search.plan(dataset, data_dir)
    data = plan.load_data()
    positions = semi_positions(search, data)
    images = to_float(data.train.images[positions])
    targets = F.one_hot(data.train.labels[positions], data.num_classes).float()
    try:
        model = train_alone(plan, Batch(images, targets), search.seed)
    except DivergedError as error:
        raise _degenerate(search, "its weights are not finite") from error
    _require_learned(search, model, normalise(images.to(device()), DataCard.of(data)), targets)
    return {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}


def _require_learned(search: Search, model: nn.Module, images: Tensor, targets: Tensor) -> None:
    """Refuses a model in eval mode that training on these images (N, C, H, W), normalised, has driven away.

    A loss of ln K is that of a guess by chance, about which short trainings may leave a model. The gradients of one that is far
    beyond, and no more often right than by naming the same class for every image, are of its mistakes.
    """
    with torch.no_grad():
        logits = torch.cat([model(part) for part in torch.split(images, search.batch_size)]).double().cpu()
    loss, labels = float(F.cross_entropy(logits, targets.double())), targets.argmax(1)
    right, most = float((logits.argmax(1) == labels).double().mean()), float(targets.mean(0).max())
    by_luck = most + LUCK * math.sqrt(most * (1 - most) / len(labels))
    if not math.isfinite(loss) or (loss > HIGHEST_LOSS * math.log(targets.shape[1]) and right <= by_luck):
        raise _degenerate(
            search,
            f"of the images that it learned from it tells {100 * right:.0f} % (naming always the same class: {100 * most:.0f} %), "
            f"and its loss is {loss:.3g} (a guess by chance: {math.log(targets.shape[1]):.3g})",
        )


def require_meaning(search: Search, policy: Policy, scores: Scores) -> None:
    """Raise ``DegenerateModelError`` for scores that are not finite, or where the identity's gradients vanish or are all alike."""
    if scores.privacy is None:
        return
    if not all(math.isfinite(value) for value in (scores.accuracy, scores.privacy, scores.other or 0.0)):
        raise _degenerate(search, "its gradients are not finite")
    mean = sum(scores.curve) / len(scores.curve)
    if not policy and (mean == 0 or mean > HIGHEST_IDENTITY):
        what = "its gradients vanish" if mean == 0 else "its gradients are all alike"
        raise _degenerate(search, f"{what} (GradSim of untransformed images is {mean:.4f} on average)")


def _degenerate(search: Search, why: str) -> DegenerateModelError:
    return DegenerateModelError(
        f"learning-rate is {search.learning_rate:g}, and the semi-trained model cannot score policies: {why}; lower learning-rate, "
        "or change semi-epochs or model"
    )


def check(search: Search) -> None:
    """Raise ``ConfigError``, naming the setting, for what cannot be scored, before anything is trained."""
    for dataset, folder in (("", ""), (search.transfer_to, search.transfer_dir))[: 1 + bool(search.transfer_to)]:
        try:
            plan = search.plan(dataset, folder)
            try_dataset("transfer-to" if dataset else "dataset", plan.dataset)
            data = plan.load_data()
            try_model("model", plan.model, data.num_classes, data.input_shape, plan.width, plan.norm)
            score_positions(search, data)
            if data.num_classes < 2:
                raise ConfigError(f"{plan.dataset} has one class, and S_acc compares images of different ones")
            ExampleGradients(plan.build_model()).verify(DataCard.of(data).input_shape, data.num_classes)
        except MissingDataError as error:
            raise ConfigError(str(MissingDataError(error.found, "transfer-dir" if dataset else "data-dir"))) from error
        except (ValueError, OSError) as error:
            raise ConfigError(str(error)) from error
