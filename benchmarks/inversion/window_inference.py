"""How well VisualMixer's windows are inferred from shuffled images, and what that is worth to attacks that undo the shuffle.

Windows come from: ``again`` is Algorithm 1 run on the guess, ``inferred`` what the attacks do, ``size 4`` and the like one
size everywhere, ``known`` the true windows: an upper bound. Guesses are the shuffled image itself (``exact``), the same with white
noise, and what gradient inversion finds from a one-step update of a network at initialisation (``inverted``, with its PSNR).

Attacked images are test images, auxiliary ones are training images. Means over images with their 95 % interval (t); the interval
says nothing about another seed, which has its own row. Seeds choose images, shuffles and weights.

    python benchmarks/inversion/window_inference.py --seeds 0 1
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterator

import torch
from attack_strength import interval, no_training, seeded
from paired_guesses import capped_psnr
from torch import Tensor
from torch.nn import functional as F

from attacks.base import Knowledge
from attacks.gradient.presets import InvertingGradients
from attacks.observations import ClientUpdate
from attacks.refinement.shredder import Jigsaw, Shredder
from attacks.refinement.unshuffle import Piece, Unshuffle, WindowMean, Windows, grid
from clients.data.datasets import load_dataset, to_float
from clients.models.classifiers import build_model
from defenses import VisualMixer
from defenses.base import Batch
from defenses.images.visual_mixer_windows import Level, window_sides
from defenses.pipeline import Pipeline

CASES: dict[str, tuple[str, VisualMixer]] = {
    "photos": ("cnn", VisualMixer(window_lower=2, window_upper=16)),
    "photos-4": ("cnn", VisualMixer(window_lower=4, window_upper=16)),
    "digits": ("lenet", VisualMixer(window_lower=2, window_upper=16, first_regions="nearest")),
}
"""Case -> network that is inverted, and the defence; the part of the name before "-" is the data."""
DATA = {"photos": "photos", "digits": "mnist-5k"}
GUESSES = ("exact", "noise 0.05", "inverted")
AUXILIARY, RATE = 400, 0.1


def inverted(images: Tensor, labels: Tensor, name: str, dataset: str, iterations: int, seed: int) -> Tensor:
    """What gradient inversion makes of one-step updates on single images, labels known."""
    data = load_dataset(dataset)
    model = build_model(name, num_classes=10, input_shape=data.input_shape, seed=seed).eval()
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (data.mean, data.std))
    seen = []
    for image, label in zip(images, labels, strict=True):
        loss = F.cross_entropy(model(((image - mean) / std)[None]), label[None])
        gradient = torch.autograd.grad(loss, list(model.parameters()))
        update = {key: -RATE * g for (key, _), g in zip(model.named_parameters(), gradient, strict=True)}
        one = ClientUpdate(
            model, update, data.input_shape, tuple(data.mean), tuple(data.std), 1, 1, 1, RATE,
            labels=label[None], train_mode=False,
        )  # fmt: skip
        seen.append(one)
    guesses = InvertingGradients(iterations=iterations).attack_many(seen, [seeded(at) for at in range(len(seen))])
    return torch.cat([guess.images for guess in guesses])


def sides_of(levels: list[Level], images: Tensor) -> Tensor:
    """Side of each pixel's window, (B, H, W)."""
    return window_sides(levels, *images.shape[-2:])


def study(case: str, seed: int, count: int, iterations: int, kinds: list[str]) -> Iterator[tuple[str, ...]]:
    """One row for each guess and source of windows."""
    (network, defense), dataset = CASES[case], DATA[case.split("-")[0]]
    data = load_dataset(dataset)
    order = torch.randperm(len(data.test), generator=seeded(seed))[:count]
    truth, labels = to_float(data.test.images[order]), data.test.labels[order]
    own = torch.randperm(len(data.train), generator=seeded(seed))[:AUXILIARY]
    auxiliary = Batch(to_float(data.train.images[own]), torch.ones(len(own), 1))
    pipeline = Pipeline((defense,))
    shuffled = pipeline.protect_once(Batch(truth, torch.ones(count, 1)), ("client", seed)).images
    true = defense.partition(truth)
    knowledge = Knowledge(auxiliary, pipeline, (0.5,), (0.3,), no_training)
    attacks: list[Unshuffle] = [attack.fit(knowledge, seeded(seed)) for attack in (WindowMean(), Shredder(), Jigsaw())]
    noise = torch.randn(shuffled.shape, generator=seeded(seed + 1))
    for name in kinds:
        guess = shuffled
        if name == "inverted":
            guess = inverted(shuffled, labels, network, dataset, iterations, seed)
        elif name != "exact":
            guess = (shuffled + 0.05 * noise).clamp(0, 1)
        quality = f"{name} ({interval(capped_psnr(guess, shuffled))} dB)" if name == "inverted" else name
        sources = {"again": defense.partition(guess), "inferred": attacks[0]._inferred(guess)[0], "known": true}
        sources |= {f"size {size}": grid(guess, size) for size in defense.sizes(*truth.shape[-2:])[1:]}
        for source, levels in sources.items():
            right = (sides_of(levels, guess) == sides_of(true, guess)).float().mean((1, 2))
            scores = []
            for attack in attacks:
                ((images, _),) = attack._solve([Piece(guess, Windows(levels), seeded(seed))])
                scores.append(interval(capped_psnr(images, truth)))
            yield quality, source, str(count), interval(100 * right), *scores


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1], help="of images, shuffles and weights")
    parser.add_argument("--images", type=int, default=16)
    parser.add_argument("--iterations", type=int, default=600, help="of the inversion")
    parser.add_argument("--guesses", nargs="*", default=list(GUESSES), choices=list(GUESSES))
    options = parser.parse_args()
    torch.set_num_threads(1)
    write = functools.partial(print, flush=True)
    header = (
        "guess",
        "windows",
        "n",
        "pixels with the right window, %",
        "WindowMean, dB",
        "Shredder, dB",
        "Jigsaw, dB",
    )
    write(f"| {' | '.join(header)} | seed |\n|{'---|' * (len(header) + 1)}")
    for case in options.cases:
        write(f"| `{CASES[case][1]}`, {DATA[case.split('-')[0]]} |{' |' * len(header)}")
        for seed in options.seeds:
            for row in study(case, seed, options.images, options.iterations, options.guesses):
                write(f"| {' | '.join(row)} | {seed} |")


if __name__ == "__main__":
    main()
