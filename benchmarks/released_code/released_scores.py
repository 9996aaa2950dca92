"""The two scores of ATS beside those of its authors' search script, on the same images, models and noise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from released_checkouts import Importer
from released_rows import Row, close, largest
from released_transforms import NOT_ROUNDED, ReleasedTransforms, apply_policy, random_policies, to_images
from torch import Tensor, nn
from torch.nn import functional as F

from attacks.normalisation import normalise
from clients.data.datasets import load_dataset
from clients.models.classifiers import build_model
from clients.task.task import load_weights
from defenses.images.ats import Policy
from simulations.search.scorer import positions, semi_train
from simulations.search.scores import (
    ExampleGradients,
    accuracy_score,
    privacy_score,
    similarity_curves,
)
from simulations.search.settings import Search

CLASSES = 10
STEPS = 20
"""K of Eq. 7, which the released script fixes."""
WIDTHS = {"cnn": 0, "resnet20": 1, "convnet": 8}
"""Of the classifiers; the last two have BatchNorm."""
COMMAND = ("--mode=aug", "--aug_list=3-1-7", "--arch=ConvNet", "--data=cifar100", "--epochs=1")
"""What the search script must be given to be imported."""
IMAGES, BATCH, BATCHES = 3, 24, 3
POLICIES, MEANS_OVER = 8, 8


def model_of(name: str, seed: int) -> nn.Module:
    """A classifier of ``WIDTHS`` for 32 x 32 photographs, in eval mode and double precision."""
    shape = (3, 32, 32)
    model = build_model(name, num_classes=CLASSES, input_shape=shape, width=WIDTHS[name], norm="batch", seed=seed)
    return model.double().eval()


class ReleasedScores:
    """The functions of the released search script.

    Args:
        modules: Imports from a checkout of ATS that is open with ``COMMAND``.
    """

    def __init__(self, modules: Importer) -> None:
        self._script = modules("benchmark.search_transform_attack")
        self._script.setup = {"device": torch.device("cpu"), "dtype": torch.float64}
        constants = modules("inversefed").consts
        self.loss = modules("inversefed.data.loss").Classification()
        self.card = SimpleNamespace(mean=tuple(constants.cifar10_mean), std=tuple(constants.cifar10_std))

    def privacy(self, model: nn.Module, image: Tensor, label: int, seed: int) -> tuple[float, Tensor]:
        """S_pri of a normalised image (C, H, W), and the noise (1, C, H, W), normalised, that it starts from."""
        torch.manual_seed(seed)
        noise = normalise(torch.rand(1, *image.shape).double(), self.card)
        torch.manual_seed(seed)
        return float(self._script.reconstruct(0, model, self.loss, None, _loader([(image, label)]))), noise

    def accuracy(self, model: nn.Module, images: Tensor, labels: Sequence[int]) -> float:
        """S_acc of normalised images (N, C, H, W), of which the script leaves out those of a class that it has met."""
        pairs = list(zip(images, labels, strict=True))
        found = self._script.accuracy_metric(list(range(len(pairs))), model, self.loss, None, _loader(pairs))
        return float(np.real(found))


def _loader(pairs: list[tuple[Tensor, int]]) -> Any:
    return SimpleNamespace(dataset=pairs)


def _images(policy: Policy, signs: Tensor, card: Any, at: int, count: int) -> Tensor:
    """Protected photographs (count, C, H, W), normalised: those from ``at`` on in a fixed random order."""
    photos = load_dataset("photos").train.images
    order = torch.randperm(len(photos), generator=torch.Generator().manual_seed(1))[at : at + count]
    return normalise(apply_policy(photos[order].double() / 255, policy, signs), card)


def privacy(modules: Importer) -> Iterator[Row]:
    """S_pri by the released function, and ours."""
    released = ReleasedScores(modules)
    ours, theirs = list[Tensor](), list[float]()
    chosen = [((), torch.zeros(0)), *random_policies(POLICIES - 1)]
    for name in WIDTHS:
        model = model_of(name, 0)
        gradients = ExampleGradients(model)
        for number, (policy, signs) in enumerate(chosen):
            images = _images(policy, signs, released.card, number * IMAGES, IMAGES)
            for at, image in enumerate(images):
                score, noise = released.privacy(model, image, at, seed=number * IMAGES + at)
                curves = _curves(gradients, image, noise, at)
                theirs.append(score)
                ours.append(privacy_score(curves)[0])
    inputs = f"{', '.join(WIDTHS)}; {len(chosen)} policies, {IMAGES} images each"
    yield close("S_pri, released", inputs, torch.stack(ours), torch.tensor(theirs, dtype=torch.float64), 1e-8)


def _curves(gradients: ExampleGradients, image: Tensor, noise: Tensor, label: int, classes: int = CLASSES) -> Tensor:
    target = F.one_hot(torch.tensor([label]), classes).double()
    return similarity_curves(gradients, image[None], noise, target, STEPS)


def privacy_of_policies(modules: Importer) -> Iterator[Row]:
    """S_pri of policies on a semi-trained model, where each side applies its own transforms, as a search does."""
    released, transforms = ReleasedScores(modules), ReleasedTransforms(modules)
    search = Search(dataset="photos", model="resnet20", images=MEANS_OVER, semi_epochs=10, seed=0)
    model = load_weights(search.plan().build_model(), semi_train(search)).double().eval()
    data = search.plan().load_data()
    _, scored = positions(search, data)
    gradients, found = ExampleGradients(model), []
    for policy, signs in random_policies(POLICIES):
        pairs = []
        for at, position in enumerate(scored):
            levels, label = data.train.images[position].permute(1, 2, 0).numpy(), int(data.train.labels[position])
            theirs = to_images(transforms(levels, policy, signs.tolist())[None]).double()
            ours = apply_policy(to_images(levels[None]).double(), policy, signs)
            score, noise = released.privacy(model, normalise(theirs, released.card)[0], label, seed=at)
            curves = _curves(gradients, normalise(ours, released.card)[0], noise, label, data.num_classes)
            pairs.append((float(privacy_score(curves)[0]), score))
        found.append(np.mean(pairs, axis=0))
    mine, their = torch.tensor(np.array(found)).T
    spread = float(their.std())
    yield close(
        "S_pri of policies, each side by its own transforms",
        f"semi-trained resnet20; {POLICIES} random policies, {MEANS_OVER} images each", mine, their, 1e-3,
        f"{NOT_ROUNDED} The standard deviation of these policies' scores is {spread:.2g}; a quarter of it is allowed.",
        most=spread / 4,
    )  # fmt: skip


def accuracy(modules: Importer) -> Iterator[Row]:
    """S_acc: the released sum over eigenvalues, and our mean, times the number of images."""
    released = ReleasedScores(modules)
    labels = [at % CLASSES for at in range(BATCH)]
    ours, theirs = list[float](), list[float]()
    chosen = [((), torch.zeros(0)), *random_policies(POLICIES - 1)]
    for name in WIDTHS:
        for batch in range(BATCHES):
            model = model_of(name, batch)
            for policy, signs in chosen:
                images = _images(policy, signs, released.card, batch * BATCH, BATCH)
                theirs.append(released.accuracy(model, images.clone(), labels))
                ours.append(CLASSES * accuracy_score(model, images[:CLASSES]))
    inputs = f"{', '.join(WIDTHS)}; {len(chosen)} policies, {BATCHES} batches of {BATCH} images with {CLASSES} classes"
    mine, their = (torch.tensor(values, dtype=torch.float64) for values in (ours, theirs))
    yield close(
        "S_acc, the sum over eigenvalues", inputs, mine / their, torch.ones_like(their), 1e-8, unit=" (relative)",
        note=f"The released code leaves out images of a class that the batch already has: {CLASSES} of {BATCH} remain.",
    )  # fmt: skip
    apart = mine / CLASSES - their
    times = largest(mine / their, torch.ones_like(their))
    yield Row(
        "S_acc as the search prints it", inputs, f"{float(apart.min()):.1f} to {float(apart.max()):.1f}",
        float(apart.abs().max()) < 1e-8,
        "Ours is the mean over the images of a batch, so that a threshold does not depend on their number; Eq. 10 has the 1/N too.",
        explained=times <= 1e-8,
    )  # fmt: skip
