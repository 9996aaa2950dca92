"""Gradient inversion beside the package breaching 0.1.2: image-iterations per second, PSNR and peak memory.

Same model, targets and settings for both: signed Adam 0.1 with step decay, cosine distance, total variation, box, known
labels, batch 1, eval mode. breaching attacks one target after the other, fedveil all of them together; both may use ``--threads``
threads. The floor is one forward and backward pass of the model on all targets in one batch.

    uv run --with breaching==0.1.2 python benchmarks/attack_speed.py
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

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attacks.base import ClientUpdate
from attacks.gradient.inversion import GradientInversion
from attacks.image_measures import psnr
from clients.data.datasets import load_dataset, to_float
from clients.models.classifiers import build_model

CASES: dict[str, tuple[str, int, int, int, float | None]] = {
    "lenet": ("lenet", 0, 16, 200, 4.0),
    "resnet20": ("resnet20", 1, 8, 50, 3.0),
    "convnet": ("convnet", 16, 8, 50, 3.0),
    "convnet-64": ("convnet", 64, 8, 10, None),
}
"""Case -> model, width, targets, iterations, goal (ratio of image-iterations per second). The last one shows where arithmetic
alone fills the processor: two passes in place of one that is differentiated twice save 2 of 7 convolutions, and no more."""
DATASET = "photos"  # breaching's total variation takes three channels only.
TOTAL_VARIATION = 1e-2
LEARNING_RATE = 0.1


def observe(model: nn.Module, name: str, count: int) -> tuple[list[ClientUpdate], Tensor]:
    """One-step updates of ``count`` test images spread over the classes, and the images in [0, 1]."""
    data = load_dataset(name)
    chosen = torch.linspace(0, len(data.test) - 1, count).long()
    images, labels = to_float(data.test.images[chosen]), data.test.labels[chosen]
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (data.mean, data.std))
    seen = []
    for image, label in zip(images, labels, strict=True):
        loss = F.cross_entropy(model(((image - mean) / std)[None]), label[None])
        gradient = torch.autograd.grad(loss, list(model.parameters()))
        names = [parameter for parameter, _ in model.named_parameters()]
        update = {key: -LEARNING_RATE * value for key, value in zip(names, gradient, strict=True)}
        shape = (image.shape[0], image.shape[1], image.shape[2])
        seen.append(
            ClientUpdate(
                model,
                update,
                shape,
                tuple(data.mean),
                tuple(data.std),
                num_examples=1,
                batch_size=1,
                local_steps=1,
                learning_rate=LEARNING_RATE,
                labels=label[None],
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
        payload = [{"parameters": parameters, "buffers": list(one.model.buffers()), "metadata": metadata}]
        gradient = one.gradient()
        shared = [
            {
                "gradients": [gradient[name] for name, _ in one.model.named_parameters()],
                "buffers": None,
                "metadata": {"num_data_points": 1, "labels": one.labels, "local_hyperparams": None},
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


def forward_backward(model: nn.Module, seen: list[ClientUpdate]) -> float:
    """Median seconds of one forward and backward pass on all targets together, gradients of weights and images."""
    images = torch.rand(len(seen), *seen[0].input_shape, requires_grad=True)
    labels = torch.cat([one.labels for one in seen if one.labels is not None])
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
    logging.disable(logging.INFO)
    print(f"{platform.processor() or platform.machine()}, {options.threads} threads, torch {torch.__version__}")
    for case in options.cases:
        name, width, count, iterations, goal = CASES[case]
        iterations = options.iterations or iterations
        model = build_model(name, num_classes=10, input_shape=load_dataset(DATASET).input_shape, width=width).eval()
        seen, truth = observe(model, DATASET, count)
        run_fedveil(seen[:1], 2)
        run_breaching(seen[:1], 2)
        times, floors = [], []
        for _ in range(options.repeats):
            ours, images = timed(lambda seen=seen, n=iterations: run_fedveil(seen, n))  # type: ignore[misc]
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
            theirs, other = timed(lambda seen=seen, n=iterations: run_breaching(seen, n))  # type: ignore[misc]
            times.append((ours, theirs))
            floors.append(forward_backward(model, seen) * iterations)
        work = count * iterations
        ratios = sorted(theirs / ours for ours, theirs in times)
        quality = [psnr(guess, truth).mean().item() for guess in (images, other)]
        print(
            f"{case} ({DATASET}, {count} targets, {iterations} iterations, {options.repeats} repeats): "
            f"fedveil {work / statistics.median(ours for ours, _ in times):.1f}, "
            f"breaching {work / statistics.median(theirs for _, theirs in times):.1f} image-iterations/s, "
            f"ratio {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}; goal {goal or 'none'}); "
            f"PSNR {quality[0]:.2f} / {quality[1]:.2f} dB; "
            f"{statistics.median(ours / floor for (ours, _), floor in zip(times, floors, strict=True)):.1f} x a forward and "
            f"backward pass; peak memory so far {peak:.2f} GiB",
            flush=True,
        )


if __name__ == "__main__":
    main()
