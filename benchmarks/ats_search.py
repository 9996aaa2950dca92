"""Scoring a policy for ATS: batched passes beside a loop over images and steps, and beside the passes that cannot be avoided.

All do the same arithmetic on the same images and have two cores, in turn, ``--repeats`` times for each of three policies:

- loop: image by image and step by step in one process, whose torch has a thread for each core;
- loops side by side: one in each of two processes of one thread, so that two policies are scored at once; seconds of one policy
  are half of what both take;
- batched: as a search does it, also in two processes of one thread;
- floor: one forward pass and one backward pass by all weights, of every point of every image's way, in the best of a few batch
  sizes, in two processes too. Gradients of single examples cost no less in general, as each weight's gradient is a sum over
  them.

    uv run python benchmarks/ats_search.py
"""

from __future__ import annotations

import argparse
import multiprocessing
import platform
import resource
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor

import torch
from torch import Tensor
from torch.nn import functional as F

from simulations.search.scorer import Scorer, semi_train
from simulations.search.settings import Search

POLICIES = ((3, 1, 7), (43, 18, 18), (19, 1, 18))
"""The paper's two for ResNet20, and its random one."""
PAPERS_CANDIDATES = 1500
COLUMNS = (
    "policy", "loop, s", "loops side by side, s", "batched, s", "floor, s", "loop / batched", "side by side / batched",
    "batched / floor", "largest difference of an image's S_pri",
)  # fmt: skip


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


def floor(scorer: Scorer, repeats: int = 4) -> float:
    """Seconds of forward and backward passes of as many images as there are points, from fewer of them."""
    model, images, targets = scorer.gradients.model, scorer.noise, scorer.targets
    parameters = list(model.parameters())

    def passes(size: int) -> float:
        batch = images[:1].expand(size, -1, -1, -1).contiguous(), targets[:1].expand(size, -1)
        begin = time.perf_counter()
        for _ in range(repeats):
            torch.autograd.grad(F.cross_entropy(model(batch[0]), batch[1]), parameters)
        return (time.perf_counter() - begin) / (repeats * size)

    return len(images) * scorer.search.path_steps * min(passes(size) for size in (16, 32, 64, 128))


class Side:
    """A process of one thread that scores, as the workers of a search are."""

    scorer: Scorer

    @classmethod
    def start(cls, search: Search, weights: dict[str, Tensor]) -> None:
        """Makes what policies share."""
        torch.set_num_threads(1)
        cls.scorer = Scorer(search, weights)
        cls.scorer.curves(())

    @classmethod
    def work(cls, what: str, policy: tuple[int, ...]) -> tuple[float, Tensor | None, float]:
        """Seconds, what came out, and the peak memory of the process in GiB."""
        begin = time.perf_counter()
        found: Tensor | None = None
        if what == "floor":
            seconds = floor(cls.scorer)
        else:
            found = (
                loop(cls.scorer, cls.scorer.protected(policy))
                if what == "loop"
                else cls.scorer.curves(policy).whole.mean(1)
            )
            seconds = time.perf_counter() - begin
        return seconds, found, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def both(pool: Executor, what: str, policy: tuple[int, ...]) -> tuple[float, Tensor | None, float]:
    """Of one policy, when each of two processes scores one: seconds, what came out, peak memory of both processes."""
    one, other = (job.result() for job in [pool.submit(Side.work, what, policy) for _ in range(2)])
    return max(one[0], other[0]) / 2, one[1], one[2] + other[2]


def lines(chosen: argparse.Namespace) -> Iterator[str]:
    """The table."""
    search = Search(
        dataset="photos", model=chosen.model, width=chosen.width, semi_epochs=2, learning_rate=0.01, images=chosen.images,
        path_steps=chosen.steps,
    )  # fmt: skip
    weights = semi_train(search)
    scorer = Scorer(search, weights)
    ratios, sides, ours, peak = [], [], [], 0.0
    yield f"| {' | '.join(COLUMNS)} |"
    yield "|---" * len(COLUMNS) + "|"
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, context, initializer=Side.start, initargs=(search, weights)) as pool:
        for what in ("batched", "floor"):
            both(pool, what, POLICIES[0])  # processes start, and what policies share is made
        for policy in POLICIES * chosen.repeats:
            begin = time.perf_counter()
            expected = loop(scorer, scorer.protected(policy))
            slow = time.perf_counter() - begin
            side, _, _ = both(pool, "loop", policy)
            fast, found, memory = both(pool, "batched", policy)
            least, _, _ = both(pool, "floor", policy)
            assert found is not None
            worst = float((found - expected.cpu()).abs().max())
            ratios.append(slow / fast)
            sides.append(side / fast)
            ours.append(fast)
            peak = max(peak, memory)
            name = "-".join(map(str, policy))
            yield (
                f"| {name} | {slow:.1f} | {side:.1f} | {fast:.2f} | {least:.2f} | {slow / fast:.1f} | {side / fast:.1f} | "
                f"{fast / least:.2f} | {worst:.1e} |"
            )
    begin = time.perf_counter()
    for policy in POLICIES:
        scorer.accuracy(policy)
    accuracy = (time.perf_counter() - begin) / len(POLICIES)
    yield f"\nloop / batched {told(ratios)}; side by side / batched {told(sides)}; S_acc {accuracy:.2f} s more"
    yield f"peak memory of the two processes together {peak:.2f} GiB"
    hours = PAPERS_CANDIDATES * (statistics.mean(ours) + accuracy) / 3600
    yield f"{PAPERS_CANDIDATES} policies with both scores: {hours:.1f} h on two cores"


def told(ratios: list[float]) -> str:
    """Mean, smallest and largest."""
    return f"{statistics.mean(ratios):.1f} ({min(ratios):.1f} to {max(ratios):.1f})"


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet20")
    parser.add_argument("--width", type=int, default=0)
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=1)
    chosen = parser.parse_args()
    torch.set_num_threads(2)
    print(f"{chosen.model}, width {chosen.width or 'default'}, {chosen.images} images, {chosen.steps} steps,", end=" ")
    print(f"torch {torch.__version__}, {platform.processor() or platform.machine()}\n")
    for line in lines(chosen):
        print(line, flush=True)


if __name__ == "__main__":
    main()
