"""The inversion engine on a GPU: its tests, and one table of speed, agreement and memory beside the processor and breaching.

Needs torch and torchvision alone: neither Flower nor Ray nor Opacus. ``benchmarks/on_gpu.py`` measures whole audits as well. For
each case of ``attack_speed.py`` it attacks ``--targets`` updates together, on the device and, a few of them, on the processor;
where breaching 0.1.2 can be imported, that attacks a few on the device, too. Printed are image-iterations per second, the ratios,
the time in units of a forward and backward pass, and PSNR on the device and on the processor for the same targets. "differenced"
says whether differences stood for second derivatives (device / processor). The peak of the device's memory stands beside what
``attacks.gradient.trial_gradients.memory.trial_bytes`` says.

    python benchmarks/inversion/engine_on_gpu.py --out on_gpu.md
    python benchmarks/inversion/engine_on_gpu.py --device cpu --targets 4 --iterations 5 --no-tests
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import logging
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import TypeVar

import torch
from attack_speed import CASES, DATASET, TOTAL_VARIATION, observe, run_breaching
from torch import Tensor, nn
from torch.nn import functional as F

from attacks.gradient.inversion import GradientInversion
from attacks.gradient.trial_gradients.memory import trial_bytes
from attacks.guesses import Reconstruction
from attacks.image_measures import psnr
from attacks.observations import ClientUpdate
from clients.data.datasets import load_dataset
from clients.models.classifiers import build_model

TESTS = ("tests/attacks/gradient", "tests/common/test_every_attack.py", "tests/common/test_every_defense.py")
FEW = 4
"""Targets on the processor and of breaching, which would take too long with all."""
GOAL = 20.0
HEADER = (
    *(
        "case",
        "targets",
        "iterations",
        "image-iterations/s",
        "x processor",
        "x breaching",
        "forward and backward passes",
    ),
    *("PSNR, dB", "on the processor", "differenced", "peak, GiB", "of the estimate"),
)
Result = TypeVar("Result")


@dataclass(frozen=True)
class Timed:
    """What an attack took and gave: seconds, guesses, and the most bytes that the device held at once (0 on a processor)."""

    seconds: float
    guesses: list[Reconstruction]
    peak: int

    @property
    def images(self) -> Tensor:
        """(N, C, H, W) in [0, 1]."""
        return torch.cat([guess.images for guess in self.guesses])


def waited(device: torch.device, work: Callable[[], Result]) -> tuple[float, Result]:
    """Seconds until the device has done the work, and its result."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    result = work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start, result


def attacked(seen: Sequence[ClientUpdate], device: torch.device, iterations: int) -> Timed:
    """All of them together, after a warm-up of two iterations."""
    model = copy.deepcopy(seen[0].model).to(device)
    there = [replace(one, model=model) for one in seen]

    def run(count: int) -> list[Reconstruction]:
        attack = GradientInversion(iterations=count, total_variation=TOTAL_VARIATION, labels="known", chunk=len(there))
        return attack.attack_many(there, [torch.Generator().manual_seed(at) for at in range(len(there))])

    run(2)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    seconds, guesses = waited(device, lambda: run(iterations))
    return Timed(seconds, guesses, torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0)


def one_pass(model: nn.Module, truth: Tensor, device: torch.device) -> float:
    """Seconds of a forward and backward pass on all images together, the median of twenty."""
    private = copy.deepcopy(model).to(device)
    images = torch.rand_like(truth, device=device).requires_grad_()
    labels = torch.zeros(len(truth), dtype=torch.long, device=device)

    def run() -> object:
        return torch.autograd.grad(F.cross_entropy(private(images), labels), [*private.parameters(), images])

    return sorted(waited(device, run)[0] for _ in range(20))[10]


def beside_breaching(seen: Sequence[ClientUpdate], device: torch.device, iterations: int) -> float | None:
    """Image-iterations per second of breaching on the device; None where it cannot be imported."""
    if importlib.util.find_spec("breaching") is None:
        return None
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
    run_breaching(there[:1], 2)
    seconds, images = waited(device, lambda: run_breaching(there, iterations))
    return len(images) * iterations / seconds


def line(name: str, device: torch.device, targets: int, iterations: int) -> list[str]:
    """A line of the table."""
    case = CASES[name]
    each = case.batch * case.steps
    iterations = iterations or case.iterations
    shape = load_dataset(DATASET).input_shape
    model = build_model(case.model, num_classes=10, input_shape=shape, width=case.width).eval()
    seen, truth = observe(model, DATASET, targets, case.batch, case.steps)
    there = attacked(seen, device, iterations)
    here = attacked(seen[:FEW], torch.device("cpu"), iterations)
    rate, other = (len(one.images) * iterations / one.seconds for one in (there, here))
    peer = beside_breaching(seen[:FEW], device, iterations)
    estimate = targets * trial_bytes(model, seen[0].input_shape, each)
    return [
        name,
        str(targets),
        str(iterations),
        f"{rate:.1f}",
        f"{rate / other:.1f}",
        "-" if peer is None else f"{rate / peer:.1f}",
        f"{there.seconds / iterations / one_pass(model, truth, device):.1f}",
        f"{psnr(there.images, truth)[: FEW * each].mean():.2f}",
        f"{psnr(here.images, truth[: FEW * each]).mean():.2f}",
        " / ".join("yes" if one.guesses[0].diagnostics.get("differenced") else "no" for one in (there, here)),
        f"{there.peak / 2**30:.2f}" if there.peak else "-",
        f"{there.peak / estimate:.2f}" if there.peak else "-",
    ]


def tested() -> str:
    """Last line of pytest about what needs no Flower."""
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS],
        capture_output=True,
        text=True,
        check=False,
    )
    told = run.stdout.strip().splitlines()
    return told[-1] if told else f"pytest did not run: {run.stderr.strip()[-500:]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--targets", type=int, nargs="*", default=[64], help="each number gives a line of a case")
    parser.add_argument("--iterations", type=int, default=0, help="of each attack; 0: as many as the case says")
    parser.add_argument("--no-tests", action="store_true")
    parser.add_argument("--out", type=Path, help="Markdown file for the same")
    options = parser.parse_args()
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        parser.error("there is no CUDA device; --device cpu runs the same on the processor")
    about = torch.cuda.get_device_name(device) if device.type == "cuda" else "no GPU"
    text = [
        f"{about}; {torch.get_num_threads()} threads of the processor; torch {torch.__version__}; "
        f"goal {GOAL:.0f} x the processor at 64 targets, no peak above its estimate"
    ]
    if not options.no_tests:
        text.append(f"Tests: {tested()}")
    text += ["", "| " + " | ".join(HEADER) + " |", "|" + "---|" * len(HEADER)]
    print("\n".join(text), flush=True)
    for case, targets in product(options.cases, options.targets):
        text.append("| " + " | ".join(line(case, device, targets, options.iterations)) + " |")
        print(text[-1], flush=True)
    if options.out:
        options.out.write_text("\n".join(text) + "\n")


if __name__ == "__main__":
    logging.disable(logging.INFO)
    main()
