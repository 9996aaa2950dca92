"""Gradient inversion beside the package breaching 0.1.2: image-iterations per second, PSNR and peak memory.

Same model, targets and settings for both: signed Adam 0.1 with step decay, cosine distance, total variation, box, known
labels, eval mode; a target is the update of one image, of a batch, or of several local steps, which both unroll. breaching attacks
one target after the other, fedveil all of them together; both may use ``--threads`` threads. The floor is one forward and backward
pass of the model on all images in one batch.

    uv run --with breaching==0.1.2 python benchmarks/inversion/attack_speed.py
"""

from __future__ import annotations

import argparse
import logging
import os
import platform
import resource
import statistics
import time
import warnings
from collections.abc import Callable
from copy import deepcopy
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attacks.gradient.inversion import GradientInversion
from attacks.image_measures import psnr
from attacks.observations import ClientUpdate
from clients.data.datasets import load_dataset, to_float
from clients.models.classifiers import build_model


class Case(NamedTuple):
    """What is attacked.

    Attributes:
        model: Name of the classifier.
        width: Of it; 0 for the default.
        targets: Updates that are attacked.
        batch: Images of a local step.
        steps: Local steps of an update; more than one have the same number of images each.
        iterations: Of each attack.
        goal: Ratio of image-iterations per second, or None.
    """

    model: str
    width: int
    targets: int
    batch: int
    steps: int
    iterations: int
    goal: float | None = None


CASES = {
    "lenet": Case("lenet", 0, 16, 1, 1, 200, 6.0),
    "resnet20": Case("resnet20", 1, 8, 1, 1, 50, 4.0),
    "convnet": Case("convnet", 16, 8, 1, 1, 50, 3.0),
    "convnet-64": Case("convnet", 64, 8, 1, 1, 10, 1.5),
    "resnet20, batch of 8": Case("resnet20", 1, 2, 8, 1, 25),
    "convnet, batch of 8": Case("convnet", 16, 2, 8, 1, 25),
    "lenet, 4 steps": Case("lenet", 0, 8, 1, 4, 50),
    "convnet, 4 steps": Case("convnet", 16, 4, 1, 4, 10),
}
DATASET = "photos"  # breaching's total variation takes three channels only.
TOTAL_VARIATION = 1e-2
LEARNING_RATE = 0.1


def observe(
    model: nn.Module, dataset: str, count: int, batch: int = 1, steps: int = 1
) -> tuple[list[ClientUpdate], Tensor]:
    """``count`` updates of ``steps`` local steps on test images spread over the classes, and the images in [0, 1]."""
    data = load_dataset(dataset)
    each = batch * steps
    chosen = torch.linspace(0, len(data.test) - 1, count * each).long()
    images, labels = to_float(data.test.images[chosen]), data.test.labels[chosen]
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (data.mean, data.std))
    seen = []
    for own, classes in zip(images.split(each), labels.split(each), strict=True):
        local = deepcopy(model)
        optimizer = torch.optim.SGD(local.parameters(), LEARNING_RATE)
        for part, targets in zip(own.split(batch), classes.split(batch), strict=True):
            optimizer.zero_grad()
            F.cross_entropy(local((part - mean) / std), targets).backward()
            optimizer.step()
        start = dict(model.named_parameters())
        update = {name: (value - start[name]).detach() for name, value in local.named_parameters()}
        seen.append(
            ClientUpdate(
                model,
                update,
                (own.shape[1], own.shape[2], own.shape[3]),
                tuple(data.mean),
                tuple(data.std),
                num_examples=each,
                batch_size=batch,
                local_steps=steps,
                learning_rate=LEARNING_RATE,
                labels=classes,
                train_mode=False,
            )
        )
    return seen, images


def run_fedveil(seen: list[ClientUpdate], iterations: int) -> Tensor:
    """Images in [0, 1] of all targets, attacked together."""
    attack = GradientInversion(iterations=iterations, total_variation=TOTAL_VARIATION)
    generators = [torch.Generator().manual_seed(at) for at in range(len(seen))]
    return torch.cat([guess.images for guess in attack.attack_many(seen, generators)])


def run_breaching(seen: list[ClientUpdate], iterations: int) -> Tensor:
    """Images in [0, 1] of all targets, attacked one after the other."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import breaching  # type: ignore[import-not-found]
        from omegaconf import OmegaConf, open_dict  # type: ignore[import-not-found]
    settings = breaching.get_config(overrides=["attack=invertinggradients"]).attack
    with open_dict(settings):
        settings.optim.max_iterations = iterations
        settings.optim.callback = iterations + 1
        settings.regularization.total_variation.scale = TOTAL_VARIATION
    found = []
    for at, one in enumerate(seen):
        torch.manual_seed(at)
        metadata = OmegaConf.create(
            {
                "modality": "vision",
                "shape": list(one.input_shape),
                "mean": list(one.mean),
                "std": list(one.std),
                "classes": 10,
                "task": "classification",
            }
        )
        attacker = breaching.attacks.prepare_attack(one.model, nn.CrossEntropyLoss(), settings)
        parameters = [parameter.detach() for parameter in one.model.parameters()]
        local, sent = None, one.gradient()
        if one.local_steps > 1:
            assert one.labels is not None
            batches = list(one.labels.split(one.batch_size))
            local = {"lr": LEARNING_RATE, "steps": one.local_steps, "data_per_step": one.batch_size, "labels": batches}
            sent = one.update
        payload = [{"parameters": parameters, "buffers": list(one.model.buffers()), "metadata": metadata}]
        shared = [
            {
                "gradients": [sent[name] for name, _ in one.model.named_parameters()],
                "buffers": None,
                "metadata": {"num_data_points": one.num_examples, "labels": one.labels, "local_hyperparams": local},
            }
        ]
        result, _ = attacker.reconstruct(payload, shared, {})
        mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (one.mean, one.std))
        found.append((result["data"].detach() * std + mean).clamp(0, 1))
    return torch.cat(found)


def timed(action: Callable[[], Tensor]) -> tuple[float, Tensor]:
    """Wall time and result."""
    start = time.perf_counter()
    result = action()
    return time.perf_counter() - start, result


def forward_backward(model: nn.Module, truth: Tensor) -> float:
    """Median seconds of one forward and backward pass on all images together, gradients of weights and images."""
    images = torch.rand_like(truth).requires_grad_()
    labels = torch.zeros(len(truth), dtype=torch.long)
    times = []
    for _ in range(20):
        start = time.perf_counter()
        torch.autograd.grad(F.cross_entropy(model(images), labels), [*model.parameters(), images])
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--iterations", type=int, default=0, help="of each attack; 0: as many as the case says")
    parser.add_argument("--repeats", type=int, default=3, help="of both, one after the other; medians are printed")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"{platform.processor() or platform.machine()}, {options.threads} threads, torch {torch.__version__}")
    for name in options.cases:
        case = CASES[name]
        iterations = options.iterations or case.iterations
        shape = load_dataset(DATASET).input_shape
        model = build_model(case.model, num_classes=10, input_shape=shape, width=case.width).eval()
        seen, truth = observe(model, DATASET, case.targets, case.batch, case.steps)
        run_fedveil(seen[:1], 2)
        run_breaching(seen[:1], 2)
        times, floors = [], []
        for _ in range(options.repeats):
            ours, images = timed(lambda seen=seen, n=iterations: run_fedveil(seen, n))  # type: ignore[misc]
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
            theirs, other = timed(lambda seen=seen, n=iterations: run_breaching(seen, n))  # type: ignore[misc]
            times.append((ours, theirs))
            floors.append(forward_backward(model, truth) * iterations)
        work = len(truth) * iterations
        ratios = sorted(theirs / ours for ours, theirs in times)
        quality = [psnr(guess, truth).mean().item() for guess in (images, other)]
        print(
            f"{name} ({DATASET}, {case.targets} targets, {iterations} iterations, {options.repeats} repeats): "
            f"fedveil {work / statistics.median(ours for ours, _ in times):.1f}, "
            f"breaching {work / statistics.median(theirs for _, theirs in times):.1f} image-iterations/s, "
            f"ratio {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}; goal {case.goal or 'none'}); "
            f"PSNR {quality[0]:.2f} / {quality[1]:.2f} dB; "
            f"{statistics.median(ours / floor for (ours, _), floor in zip(times, floors, strict=True)):.1f} x a forward and "
            f"backward pass; peak memory so far {peak:.2f} GiB",
            flush=True,
        )


if __name__ == "__main__":
    logging.disable(logging.INFO)
    main()
