"""Costs, measures, labels and local training beside the code of inverting gradients, and beside ATS's copy of it.

All in double precision, so that nothing depends on the order of a sum.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from released_checkouts import Importer
from released_rows import Row, close, equal
from torch import Tensor, nn
from torch.nn import functional as F

from attacks.gradient.costs import COSTS
from attacks.gradient.labels import infer_labels
from attacks.gradient.trial_gradients.local_steps import LocalSGD, local_orders, logits_of, simulated_training
from attacks.image_measures import psnr, total_variation
from attacks.normalisation import normalise
from clients.data.datasets import load_dataset
from clients.models.classifiers import build_model

CLASSES, SHAPE = 10, (3, 32, 32)
CARD = SimpleNamespace(mean=(0.4914, 0.4822, 0.4465), std=(0.247, 0.2435, 0.2616))
COST_NAMES = {"cosine": "sim", "l2": "l2", "l1": "l1"}
INDICES = {"def": "all", "first4": "the first 4", "last5": "the last 5", "top10": "the 10 largest"}
WEIGHTS = ("linear", "exp")
"""Of tensors, by their place: the released names, as above."""
EXACT = 1e-8


class Case(NamedTuple):
    """One photograph, a model, and the gradient that was sent."""

    model: nn.Module
    image: Tensor
    label: Tensor
    gradient: tuple[Tensor, ...]


def model_of(seed: int, name: str = "cnn") -> nn.Module:
    """A classifier in eval mode and double precision."""
    model = build_model(name, num_classes=CLASSES, input_shape=SHAPE, norm="batch", seed=seed)
    return model.double().eval()


def photographs(count: int) -> Tensor:
    """(count, C, H, W), normalised, in a fixed random order."""
    photos = load_dataset("photos").train.images
    order = torch.randperm(len(photos), generator=torch.Generator().manual_seed(2))[:count]
    return normalise(photos[order].double() / 255, CARD)


def gradient_of(model: nn.Module, images: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
    """Of the mean cross-entropy, by all parameters."""
    return torch.autograd.grad(F.cross_entropy(model(images), labels), list(model.parameters()))


def cases(count: int, name: str = "cnn") -> list[Case]:
    """Photographs with classes in turn, each with a model of its own."""
    found = []
    for seed, image in enumerate(photographs(count)):
        model, label = model_of(seed, name), torch.tensor([seed % CLASSES])
        found.append(Case(model, image[None], label, gradient_of(model, image[None], label)))
    return found


def costs(modules: Importer) -> Iterator[Row]:
    """Distances of two gradients: all, some tensors, and weighted tensors."""
    released = modules("inversefed.reconstruction_algorithms").reconstruction_costs
    pairs = [
        (one.gradient, other.gradient)
        for one, other in zip(cases(6, "resnet20"), cases(7, "resnet20")[1:], strict=True)
    ]
    for name in COST_NAMES:
        chosen, weighted = [(indices, "equal") for indices in INDICES], [("def", weights) for weights in WEIGHTS]
        yield _costs(released, name, f"{', '.join(INDICES.values())} tensors", chosen, pairs)
        yield _costs(
            released, name, f"tensors with {' and '.join(WEIGHTS)} weights", weighted, pairs,
            "No setting here has these weights; the tensors were scaled before our cost saw them.",
        )  # fmt: skip


def _costs(
    released: Any, name: str, what: str, variants: list[tuple[str, str]],
    pairs: list[tuple[tuple[Tensor, ...], tuple[Tensor, ...]]], note: str = "",
) -> Row:  # fmt: skip
    ours, theirs = [], []
    for indices, weights in variants:
        for trial, target in pairs:
            ours += _ours(name, trial, target, indices, weights)
            theirs += [released([trial], target, COST_NAMES[name], indices, weights)] * 2
    ratio, inputs = (
        torch.stack(ours) / torch.stack(theirs),
        f"{len(pairs)} pairs of gradients of resnet20 for each choice",
    )
    return close(f"cost {name}: {what}", inputs, ratio, torch.ones_like(ratio), EXACT, note=note, unit=" (relative)")


def _ours(name: str, trial: tuple[Tensor, ...], target: tuple[Tensor, ...], indices: str, weights: str) -> list[Tensor]:
    """Our cost of the tensors that the released code would choose, scaled so that each has its weight; and by its closed form."""
    count, cost = len(target), COSTS[name]
    assert cost.closed_form is not None
    chosen = {"def": range(count), "first4": range(4), "last5": range(count - 5, count)}.get(indices)
    if chosen is None:
        chosen = torch.stack([one.norm() for one in target]).topk(10).indices.tolist()
    falling = torch.arange(count, 0, -1).double()
    each = {"equal": torch.ones(count).double(), "linear": falling / count, "exp": (falling - count).exp()}[weights]
    scale = each if name == "l1" else each.sqrt()
    one, other = ({str(i): scale[i] * gradient[i] for i in chosen} for gradient in (trial, target))
    values, _ = cost.closed_form(_flat(one.values())[None], _flat(other.values())[None])
    return [cost.distance(one, other), values[0]]


def measures(modules: Importer) -> Iterator[Row]:
    """Total variation and PSNR."""
    metrics = modules("inversefed.metrics")
    one, other = torch.rand(2, 8, *SHAPE, generator=torch.Generator().manual_seed(0)).double()
    inputs = "8 pairs of random images"
    yield close("total variation", inputs, total_variation(one).mean(), metrics.total_variation(one), EXACT)
    yield close(
        "PSNR", inputs, psnr(one, other).mean(), torch.tensor(metrics.psnr(one, other)).double(), 1e-5, unit=" dB"
    )


def labels(modules: Importer) -> Iterator[Row]:
    """The class of one image from its gradient; the released function keeps it to itself, so that its attack is stopped there."""
    algorithms = modules("inversefed.reconstruction_algorithms")
    pairs, right = [], [0, 0]
    for name in ("cnn", "resnet20"):
        for case in cases(20, name):
            machine = algorithms.GradientReconstructor(case.model, mean_std(), dict(algorithms.DEFAULT_CONFIG), 1)
            seen = []
            machine._run_trial = lambda x, _, labels, seen=seen, **__: (seen.append(labels), (x.detach(), labels))[1]
            machine._score_trial = lambda *_: torch.tensor(0.0)
            machine.reconstruct(case.gradient, None, SHAPE)
            if seen[0] is None:
                yield Row(
                    "label of one image",
                    "",
                    "the released code has the inference switched off",
                    False,
                    'It searches for the label with the image (labels="joint" here).',
                    explained=True,
                )
                return
            names = [name for name, _ in case.model.named_parameters()]
            ours = int(infer_labels(dict(zip(names, case.gradient, strict=True)), case.model, 1)[0])
            pairs.append((ours, int(seen[0])))
            right = [right[0] + (ours == int(case.label)), right[1] + (int(seen[0]) == int(case.label))]
    note = f"Right: ours {right[0]}, released {right[1]}, of {len(pairs)}."
    yield equal("label of one image from its gradient", "cnn, resnet20; 20 models and images each", pairs, note=note)


def mean_std() -> tuple[Tensor, ...]:
    """Of the normalisation, (C, 1, 1) each, as the released attack takes them."""
    return tuple(torch.tensor(values).double().view(-1, 1, 1) for values in (CARD.mean, CARD.std))


def local_training(modules: Importer) -> Iterator[Row]:
    """The update of several local steps."""
    released = modules("inversefed.reconstruction_algorithms").loss_steps
    for batch in (0, 2):
        found = []
        for seed in range(3):
            model, images = model_of(seed), photographs(6)
            targets = torch.arange(6) % CLASSES
            theirs = released(model, images, targets, lr=0.05, local_steps=3, use_updates=True, batch_size=batch)
            weights = {name: value.detach() for name, value in model.named_parameters()}
            order = local_orders(6, batch or 6, 3, torch.Generator().manual_seed(0)) if batch else [list(range(6))] * 3
            soft = F.one_hot(targets, CLASSES).double()
            network = logits_of(model, dict(model.named_buffers()))
            ours = simulated_training(network, weights, images, soft, order, LocalSGD(0.05))
            found.append((_flat(ours.values()), _flat(theirs)))
        mine, their = (torch.stack(values) for values in zip(*found, strict=True))
        yield close(
            f"update of 3 local steps, {'batches of 2' if batch else 'full batches'}", "cnn; 3 models, 6 images", mine, their, EXACT
        )  # fmt: skip


def _flat(tensors: Any) -> Tensor:
    return torch.cat([one.detach().flatten() for one in tensors])
