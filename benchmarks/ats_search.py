"""Scoring a policy for ATS: batched passes beside a loop over images and steps, and beside the passes that cannot be avoided.

All three do the same arithmetic on the same images with ``--threads`` threads, in turn, ``--repeats`` times. The floor is one
forward pass and one backward pass by all weights, of every point of every image's way, in the best of a few batch sizes: gradients
of single examples cost no less, as each weight's gradient is a sum over them.

    uv run python benchmarks/ats_search.py
"""

from __future__ import annotations

import argparse
import platform
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from simulations.search.scorer import Scorer, semi_train
from simulations.search.settings import Search

POLICIES = ((3, 1, 7), (43, 18, 18), (19, 1, 18))
"""The paper's two for ResNet20, and its random one."""
PAPERS_CANDIDATES = 1500


def loop(scorer: Scorer, protected: Tensor) -> Tensor:
    """S_pri image by image and step by step: two gradients and a cosine at each."""
    model, steps = scorer.gradients.model, scorer.search.path_steps
    parameters = list(model.parameters())

    def gradient(image: Tensor, target: Tensor) -> Tensor:
        found = torch.autograd.grad(F.cross_entropy(model(image[None]), target[None]), parameters)
        return torch.cat([g.flatten() for g in found])

    scores = []
    for end, start, target in zip(protected, scorer.noise, scorer.targets, strict=True):
        wanted = gradient(end, target)
        ways = (torch.lerp(start, end, j / steps) for j in range(steps))
        scores.append(sum(F.cosine_similarity(gradient(x, target), wanted, 0) for x in ways) / steps)
    return torch.stack(scores)  # type: ignore[arg-type]


def floor(model: nn.Module, count: int, images: Tensor, targets: Tensor) -> float:
    """Seconds of forward and backward passes of ``count`` images."""
    parameters = list(model.parameters())

    def passes(size: int, total: int) -> float:
        batch = images[:1].expand(size, -1, -1, -1).contiguous(), targets[:1].expand(size, -1)
        begin = time.perf_counter()
        for _ in range(max(total // size, 1)):
            torch.autograd.grad(F.cross_entropy(model(batch[0]), batch[1]), parameters)
        return (time.perf_counter() - begin) / (max(total // size, 1) * size)

    return count * min(passes(size, 4 * size) for size in (16, 32, 64, 128))


def timed(function: Callable[..., Any], *given: Any) -> tuple[float, Any]:
    """Seconds, and the result."""
    begin = time.perf_counter()
    result = function(*given)
    return time.perf_counter() - begin, result


def lines(chosen: argparse.Namespace) -> Iterator[str]:
    """The table."""
    search = Search(
        dataset="photos", model=chosen.model, width=chosen.width, semi_epochs=2, images=chosen.images, path_steps=chosen.steps
    )  # fmt: skip
    scorer = Scorer(search, semi_train(search))
    points = chosen.images * chosen.steps
    ratios, ours, bases = [], [], []
    yield "| policy | loop, s | batched, s | ratio | floor, s | batched / floor | largest difference of an image's S_pri |"
    yield "|---|---|---|---|---|---|---|"
    scorer.curves(())  # what policies share is made once
    for _ in range(chosen.repeats):
        for policy in POLICIES:
            fast, curves = timed(scorer.curves, policy)
            protected = scorer.protected(policy)
            slow, expected = timed(loop, scorer, protected)
            least = floor(scorer.gradients.model, points, scorer.noise, scorer.targets)
            worst = float((curves.mean(1) - expected.cpu()).abs().max())
            ratios.append(slow / fast)
            ours.append(fast)
            bases.append(least)
            name = "-".join(map(str, policy))
            yield f"| {name} | {slow:.1f} | {fast:.2f} | {slow / fast:.1f} | {least:.2f} | {fast / least:.2f} | {worst:.1e} |"
    accuracy = statistics.mean(timed(scorer.accuracy, policy)[0] for policy in POLICIES)
    whole = statistics.mean(ours) + accuracy
    yield ""
    yield f"ratio {statistics.mean(ratios):.1f} ({min(ratios):.1f} to {max(ratios):.1f}); {accuracy:.2f} s more for S_acc"
    yield f"peak memory of this process {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB"
    yield f"{PAPERS_CANDIDATES} policies with both scores: {PAPERS_CANDIDATES * whole / 3600:.1f} h on {chosen.threads} threads"


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet20")
    parser.add_argument("--width", type=int, default=0)
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=1)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    print(f"{chosen.model}, width {chosen.width or 'default'}, {chosen.images} images, {chosen.steps} steps,")
    print(f"{chosen.threads} threads,", end=" ")
    print(f"torch {torch.__version__}, {platform.processor() or platform.machine()}\n")
    for line in lines(chosen):
        print(line, flush=True)


if __name__ == "__main__":
    main()
