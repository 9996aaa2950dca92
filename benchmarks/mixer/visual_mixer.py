"""Cost of VisualMixer on 224 x 224 x 3 images, beside a plain loop, a training step and a copy, measured in turn.

Every round times all four on the same batch, so that what else runs on the machine hits them alike; ratios are taken
within a round, and the median over rounds is printed with the smallest and largest.

    python benchmarks/mixer/visual_mixer.py --batch-size 16 --rounds 5 --threads 1
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
import torchvision

from defenses.base import Batch
from defenses.images.visual_mixer import VisualMixer
from defenses.random_draws import generator_for
from tests.defenses.images.visual_mixer_reference import reference_visual_mixer

CONFIGURATIONS = (VisualMixer(), VisualMixer(window_lower=4, window_upper=32), VisualMixer(window_lower=8))
SPEEDUP_GOAL, SHARE_GOAL = 10.0, 0.05


def natural_images(count: int, size: int) -> torch.Tensor:
    """Smooth fields with noise on one half, so that regions differ in VFE as in photographs: (count, 3, size, size)."""
    generator = generator_for("benchmark images")
    coarse = torch.rand(count, 3, size // 16, size // 16, generator=generator)
    smooth = F.interpolate(coarse, size=(size, size), mode="bicubic", align_corners=False)
    noise = torch.randn(count, 3, size, size, generator=generator)
    noise[..., : size // 2] *= 0.1
    return (smooth + 0.1 * noise).clamp(0, 1)


def seconds(action: Callable[[], object], at_least: float = 0.0) -> float:
    """Mean wall time of one call, over as many calls as take ``at_least`` seconds."""
    calls, start = 0, time.perf_counter()
    while calls == 0 or time.perf_counter() - start < at_least:
        action()
        calls += 1
    return (time.perf_counter() - start) / calls


def training_step(images: torch.Tensor) -> Callable[[], object]:
    """One forward, backward and SGD step of a ResNet-18 on ``images``."""
    model = torchvision.models.resnet18()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    labels = torch.randint(1000, (len(images),), generator=generator_for("benchmark labels"))

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return step


def spread(values: list[float], unit: str = "", scale: float = 1.0) -> str:
    """Median, smallest and largest value as text."""
    middle, low, high = (scale * f(values) for f in (statistics.median, min, max))
    return f"{middle:8.3f}{unit} ({low:.3f} to {high:.3f})"


def compare(defense: VisualMixer, images: torch.Tensor, loop_images: int, rounds: int) -> bool:
    """Prints one configuration's costs; returns whether both goals are met."""
    batch, step, generator = Batch(images, torch.ones(len(images), 1)), training_step(images), generator_for("shuffle")
    few = images[:loop_images]
    actions: dict[str, tuple[Callable[[], object], int, float]] = {  # What, images per call, seconds to repeat it for.
        "copy": (images.clone, len(images), 0.2),
        "VisualMixer": (lambda: defense.protect_batch(batch, generator), len(images), 0.5),
        "plain loop": (
            lambda: reference_visual_mixer(few, generator, defense.window_lower, defense.window_upper),
            len(few),
            0.0,
        ),
        "ResNet-18 step": (step, len(images), 0.0),
    }
    per_image: dict[str, list[float]] = {name: [] for name in actions}
    for turn in range(rounds + 1):
        for name, (action, count, at_least) in actions.items():
            cost = seconds(action, at_least) / count
            if turn > 0:  # The first round warms up.
                per_image[name].append(cost)
    mixer = per_image["VisualMixer"]
    ratios = {name: [a / b for a, b in zip(per_image[name], mixer, strict=True)] for name in actions}
    speedup, share = ratios["plain loop"], [1 / ratio for ratio in ratios["ResNet-18 step"]]
    windows = ", ".join(f"{size}: {int(active.sum()) // len(images)}" for size, active in defense.partition(images))
    print(f"\n{defense}   windows per image by size: {windows}")
    for name, costs in per_image.items():
        print(f"  {name:15s} {spread(costs, ' ms per image', 1e3)}")
    print(f"  plain loop / VisualMixer       {spread(speedup, 'x')}   goal: at least {SPEEDUP_GOAL:g}x")
    print(f"  VisualMixer / ResNet-18 step   {spread(share, ' %', 100)}   goal: at most {100 * SHARE_GOAL:g} %")
    print(f"  VisualMixer / copy             {spread([1 / ratio for ratio in ratios['copy']], 'x')}   floor: 1x")
    return statistics.median(speedup) >= SPEEDUP_GOAL and statistics.median(share) <= SHARE_GOAL


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument(
        "--loop-images", type=int, default=2, help="images of the batch that the plain loop is timed on"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help="threads of PyTorch, for all four alike")
    parser.add_argument("--size", type=int, default=224)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    images = natural_images(arguments.batch_size, arguments.size)
    print(
        f"{arguments.batch_size} images of {arguments.size} x {arguments.size} x 3, float32, "
        f"{arguments.threads} thread(s), {arguments.rounds} rounds, PyTorch {torch.__version__}; "
        "median (smallest to largest)"
    )
    met = [compare(defense, images, arguments.loop_images, arguments.rounds) for defense in CONFIGURATIONS]
    print(f"\ngoals met in {sum(met)} of {len(met)} configurations")


if __name__ == "__main__":
    main()
