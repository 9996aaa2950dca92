"""Gradient inversion beside the package breaching 0.1.2: image-iterations per second, PSNR and peak memory, as a Markdown table.

Same model, targets and settings for both: signed Adam 0.1 with step decay, cosine distance, total variation, box, known
labels, eval mode; a target is the update of one image, of a batch, or of several local steps, which both unroll. breaching attacks
one target after the other, fedveil all of them together; both may use ``--threads`` threads. Where breaching cannot be imported,
its columns are empty. A pass is one forward and backward pass of the model on all images in one batch. "Differenced" says whether
differences stood for second derivatives.

On a card, a few targets are attacked on the processor, too, and by breaching on the card; PSNR is of these. The peak of the card's
memory stands beside what ``attacks.gradient.trial_gradients.memory.trial_bytes`` says. Needs torch and torchvision alone: neither
Flower nor Ray nor Opacus.

    uv run --with breaching==0.1.2 python benchmarks/inversion/attack_speed.py
    python benchmarks/inversion/attack_speed.py --device cuda --targets 64 --repeats 1
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import logging
import os
import platform
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import NamedTuple, TypeVar

import torch
from peer_breaching import THEIRS, reconstructed
from torch import Tensor, nn
from torch.nn import functional as F

from attacks.gradient.inversion import GradientInversion
from attacks.gradient.trial_gradients.memory import trial_bytes
from attacks.image_measures import psnr
from attacks.observations import ClientUpdate
from clients.data.datasets import load_dataset
from clients.data.images import to_float
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
FEW = 4
"""Targets on the processor and of breaching beside a card, which would take too long with all."""
HEADER = (
    "case", "targets", "iterations", "image-iterations/s", "breaching", "ratio (range)", "goal", "x processor", "passes",
    "PSNR, dB", "breaching, dB", "on the processor, dB", "differenced", "peak, GiB", "of the estimate",
)  # fmt: skip
Result = TypeVar("Result")


class Attacked(NamedTuple):
    """Seconds, guesses (N, C, H, W) in [0, 1], whether differences stood for second derivatives, and the peak memory in bytes."""

    seconds: float
    images: Tensor
    differenced: bool
    peak: int


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
        local = copy.deepcopy(model)
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


def waited(device: torch.device, work: Callable[[], Result]) -> tuple[float, Result]:
    """Wall seconds until the device has done the work, and its result."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    result = work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start, result


def by_fedveil(seen: Sequence[ClientUpdate], device: torch.device, iterations: int) -> Attacked:
    """All targets together."""
    model = copy.deepcopy(seen[0].model).to(device)
    there = [replace(one, model=model) for one in seen]
    attack = GradientInversion(iterations=iterations, total_variation=TOTAL_VARIATION, chunk=max(32, len(there)))
    generators = [torch.Generator().manual_seed(at) for at in range(len(there))]
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    seconds, guesses = waited(device, lambda: attack.attack_many(there, generators))
    peak = (
        torch.cuda.max_memory_allocated(device)
        if device.type == "cuda"
        else 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    )
    images = torch.cat([guess.images for guess in guesses])
    return Attacked(seconds, images, bool(guesses[0].diagnostics.get("differenced")), peak)


def by_breaching(seen: Sequence[ClientUpdate], device: torch.device, iterations: int) -> tuple[float, Tensor]:
    """Wall seconds and guesses, of one target after the other."""
    model = copy.deepcopy(seen[0].model).to(device)
    there = [
        replace(
            one,
            model=model,
            update={name: value.to(device) for name, value in one.update.items()},
            labels=None if one.labels is None else one.labels.to(device),
        )
        for one in seen
    ]
    seconds, found = waited(
        device, lambda: reconstructed(THEIRS, there, 10, iterations, total_variation=TOTAL_VARIATION)
    )
    return seconds, torch.cat(found).cpu()


def one_pass(model: nn.Module, truth: Tensor, device: torch.device) -> float:
    """Median seconds of one forward and backward pass on all images together, gradients of weights and images."""
    own = copy.deepcopy(model).to(device)
    images = torch.rand_like(truth, device=device).requires_grad_()
    labels = torch.zeros(len(truth), dtype=torch.long, device=device)

    def run() -> object:
        return torch.autograd.grad(F.cross_entropy(own(images), labels), [*own.parameters(), images])

    return statistics.median(waited(device, run)[0] for _ in range(20))


def line(name: str, targets: int, options: argparse.Namespace) -> list[str]:
    """A line of the table."""
    case, device = CASES[name], torch.device(options.device)
    on_card, targets, iterations = device.type == "cuda", targets or case.targets, options.iterations or case.iterations
    shape = load_dataset(DATASET).input_shape
    model = build_model(case.model, num_classes=10, input_shape=shape, width=case.width).eval()
    seen, truth = observe(model, DATASET, targets, case.batch, case.steps)
    few = seen[:FEW] if on_card else seen
    beside = importlib.util.find_spec("breaching") is not None
    by_fedveil(seen, device, 2)
    if beside:
        by_breaching(few[:1], device, 2)
    rates, peers, passes = [], [], []
    for _ in range(options.repeats):
        ours = by_fedveil(seen, device, iterations)
        rates.append(len(truth) * iterations / ours.seconds)
        passes.append(ours.seconds / iterations / one_pass(model, truth, device))
        if beside:
            seconds, theirs = by_breaching(few, device, iterations)
            peers.append(len(theirs) * iterations / seconds)
    ratios = sorted(one / other for one, other in zip(rates, peers, strict=False))
    here = by_fedveil(few, torch.device("cpu"), iterations) if on_card else None
    compared = truth[: len(few) * case.batch * case.steps]

    def quality(images: Tensor) -> str:
        return f"{psnr(images.cpu()[: len(compared)], compared).mean():.2f}"

    estimate = targets * trial_bytes(model, seen[0].input_shape, case.batch * case.steps)
    return [
        name, str(targets), str(iterations), f"{statistics.median(rates):.1f}",
        f"{statistics.median(peers):.1f}" if peers else "-",
        f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})" if peers else "-",
        str(case.goal or "-"),
        f"{statistics.median(rates) * here.seconds / (len(here.images) * iterations):.1f}" if here else "-",
        f"{statistics.median(passes):.1f}", quality(ours.images), quality(theirs) if peers else "-",
        quality(here.images) if here else "-", "yes" if ours.differenced else "no",
        f"{ours.peak / 2**30:.2f}", f"{ours.peak / estimate:.2f}" if on_card else "-",
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--targets", type=int, nargs="*", default=[0], help="a line for each; 0: as the case says")
    parser.add_argument("--iterations", type=int, default=0, help="of each attack; 0: as many as the case says")
    parser.add_argument("--repeats", type=int, default=3, help="of both, one after the other; medians are printed")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error("there is no CUDA device; --device cpu runs the same on the processor")
    torch.set_num_threads(options.threads)
    card = f"{torch.cuda.get_device_name(options.device)}, " if options.device.startswith("cuda") else ""
    about = f"{card}{platform.processor() or platform.machine()}, {options.threads} threads, torch {torch.__version__}"
    print(f"{about}, {DATASET}, {options.repeats} repeats\n\n| {' | '.join(HEADER)} |\n|{'---|' * len(HEADER)}")
    for name, targets in product(options.cases, options.targets):
        print(f"| {' | '.join(line(name, targets, options))} |", flush=True)


if __name__ == "__main__":
    logging.disable(logging.INFO)
    main()
