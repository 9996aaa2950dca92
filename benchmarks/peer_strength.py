"""Gradient inversion beside the package breaching 0.1.2 at equal wall time: what each recovers of the same updates.

A cell is a network, how it normalises, a data set and a batch. Both methods get the same one-step updates of the same weights, the
labels, and the same seconds: their speed is measured on the cell first, and decides how many iterations each may take. Everything
else is what each publishes: ``InvertingGradients()`` here, ``attack=invertinggradients`` there, whose schedules stretch over their
iterations. Each image is scored once, paired by the smallest total error within its batch: PSNR, SSIM, HaarPSI (piq), and whether
it is nearest to its guess among 100 images. A line for each method and cell is appended to ``--out``, so that a long study can be
stopped and taken up again; without ``--cells`` the tables of what is there are printed.

    uv run --with breaching==0.1.2 --with piq==0.8.0 python benchmarks/peer_strength.py --cells convnet:group:photos:1 --seeds 0 1 2
    python benchmarks/peer_strength.py

Grey images are given as three equal channels, as breaching's total variation takes no other number.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import os
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from audit_tables import table
from scipy import stats
from torch import Tensor, nn
from torch.nn import functional as F

from attacks.base import ClientUpdate, Reconstruction
from attacks.gradient.presets import InvertingGradients
from attacks.image_measures import psnr, ssim
from attacks.scoring.metrics import optimal_assignment, retrieved
from clients.data.datasets import load_dataset, to_float
from clients.models.classifiers import build_model

WIDTHS = {"cnn": 0, "convnet": 16, "resnet20": 0}
MODES = {"cnn": ("none",), "convnet": ("eval", "train", "group"), "resnet20": ("eval", "train", "group")}
"""Network -> how it normalises: BatchNorm in eval or train mode, or GroupNorm."""
DATASETS = ("photos", "fashion-mnist")
BATCHES = (1, 4, 8)
CELLS = [
    f"{model}:{mode}:{data}:{batch}"
    for model in MODES
    for mode, data, batch in itertools.product(MODES[model], DATASETS, BATCHES)
]
CANDIDATES, LEARNING_RATE, FIRST = 100, 0.1, 8
"""Images of a line-up; of the clients' one step; iterations by which speed is measured."""
MEASURES = ("psnr", "ssim", "haarpsi", "picked")
OURS, THEIRS, MEAN = "InvertingGradients()", "breaching", "mean image"


class Cell:
    """The updates of one cell and seed, and what is behind them.

    Args:
        name: One of ``CELLS``.
        seed: Of weights and images.
        images: How many are attacked, a multiple of the batch.
    """

    def __init__(self, name: str, seed: int, images: int) -> None:
        kind, self.mode, dataset, batch = name.split(":")
        data = load_dataset(dataset)
        shape = (3, *data.input_shape[1:])
        self.mean, self.std = (tuple(v * 3 if len(v) == 1 else v) for v in (list(data.mean), list(data.std)))
        norm = "group" if self.mode in ("group", "none") else "batch"
        self.model = build_model(
            kind, num_classes=data.num_classes, input_shape=shape, width=WIDTHS[kind], norm=norm, seed=seed
        ).train(self.mode == "train")
        order = torch.randperm(len(data.test), generator=torch.Generator().manual_seed(seed))
        self.truth = colours(to_float(data.test.images[order[:images]]))
        self.others = colours(to_float(data.test.images[order[images : images + CANDIDATES - 1]]))
        self.mean_image = colours(to_float(data.train.images)).mean(0)
        labels = data.test.labels[order[:images]]
        self.batches = list(zip(self.truth.split(int(batch)), labels.split(int(batch)), strict=True))
        self.seen = [self._observed(*one) for one in self.batches]
        self.num_classes = data.num_classes

    def _observed(self, images: Tensor, labels: Tensor) -> ClientUpdate:
        mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (self.mean, self.std))
        # Running averages would move in train mode, and are not what is attacked.
        buffers = {name: value.clone() for name, value in self.model.state_dict().items()}
        loss = F.cross_entropy(self.model((images - mean) / std), labels)
        gradient = torch.autograd.grad(loss, list(self.model.parameters()))
        self.model.load_state_dict(buffers)
        names = [name for name, _ in self.model.named_parameters()]
        return ClientUpdate(
            self.model,
            {name: -LEARNING_RATE * value for name, value in zip(names, gradient, strict=True)},
            (images.shape[1], images.shape[2], images.shape[3]),
            self.mean,
            self.std,
            num_examples=len(images),
            batch_size=len(images),
            local_steps=1,
            learning_rate=LEARNING_RATE,
            labels=labels,
            train_mode=self.mode == "train",
        )

    def scores(self, guesses: Sequence[Tensor]) -> dict[str, list[float]]:
        """Of guesses (b, 3, H, W) for each batch: ``MEASURES``, a value for each image."""
        found: dict[str, list[float]] = defaultdict(list)
        for guess, (truth, _) in zip(guesses, self.batches, strict=True):
            rows, columns = optimal_assignment(guess, truth)
            mine, own = guess[rows].float(), truth[columns]
            found["psnr"] += psnr(mine, own).clamp(max=50).tolist()
            found["ssim"] += ssim(mine, own).tolist()
            found["haarpsi"] += perceptual(mine, own)
            line_up = torch.cat([truth, self.others[: CANDIDATES - len(truth)]])
            found["picked"] += retrieved(mine, line_up, columns)
        return dict(found)


def colours(images: Tensor) -> Tensor:
    """(N, 3, H, W) of (N, C, H, W)."""
    return images.expand(-1, 3, -1, -1) if images.shape[1] == 1 else images


def perceptual(guess: Tensor, truth: Tensor) -> list[float]:
    """HaarPSI of each pair, 0 to 1 (Reisenhofer et al. 2018)."""
    import piq  # type: ignore[import-not-found]

    values: list[float] = piq.haarpsi(guess.clamp(0, 1), truth, reduction="none").tolist()
    return values


def ours(cell: Cell, iterations: int, seed: int) -> list[Tensor]:
    """All updates together."""
    attack = InvertingGradients(iterations=iterations, labels="known")
    generators = [torch.Generator().manual_seed(1000 * seed + at) for at in range(len(cell.seen))]
    guesses: list[Reconstruction] = attack.attack_many(cell.seen, generators)
    return [guess.images for guess in guesses]


def theirs(cell: Cell, iterations: int, seed: int) -> list[Tensor]:
    """One update after the other, as breaching works."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import breaching  # type: ignore[import-not-found]
        from omegaconf import OmegaConf, open_dict  # type: ignore[import-not-found]
    settings = breaching.get_config(overrides=["attack=invertinggradients"]).attack
    with open_dict(settings):
        settings.optim.max_iterations = iterations
        settings.optim.callback = iterations + 1
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (cell.mean, cell.std))
    found = []
    for at, one in enumerate(cell.seen):
        torch.manual_seed(1000 * seed + at)
        about = {"modality": "vision", "shape": list(one.input_shape), "mean": list(one.mean), "std": list(one.std)}
        metadata = OmegaConf.create({**about, "classes": cell.num_classes, "task": "classification"})
        attacker = breaching.attacks.prepare_attack(one.model, nn.CrossEntropyLoss(), settings)
        # Without buffers it attacks a network in train mode.
        buffers = None if one.train_mode else list(one.model.buffers())
        parameters = [parameter.detach() for parameter in one.model.parameters()]
        gradient = one.gradient()
        told = {"num_data_points": one.num_examples, "labels": one.labels, "local_hyperparams": None}
        shared = {
            "gradients": [gradient[n] for n, _ in one.model.named_parameters()],
            "buffers": None,
            "metadata": told,
        }
        payload = {"parameters": parameters, "buffers": buffers, "metadata": metadata}
        result, _ = attacker.reconstruct([payload], [shared], {})
        found.append((result["data"].detach() * std + mean).clamp(0, 1))
    return found


METHODS: dict[str, Callable[[Cell, int, int], list[Tensor]]] = {OURS: ours, THEIRS: theirs}


def timed(method: Callable[[], list[Tensor]]) -> tuple[float, list[Tensor]]:
    """Wall time and result."""
    start = time.perf_counter()
    result = method()
    return time.perf_counter() - start, result


def study(name: str, seed: int, images: int, seconds: float) -> Iterator[dict[str, Any]]:
    """A line for the mean image and for each method, which gets ``seconds`` for each image."""
    cell = Cell(name, seed, images)
    about = {"cell": name, "seed": seed, "n": images}
    guess = [cell.mean_image.expand_as(truth) for truth, _ in cell.batches]
    yield {**about, "method": MEAN, "iterations": 0, "seconds": 0.0, **cell.scores(guess)}
    for method, run in METHODS.items():
        run(cell, 2, seed)  # Whatever is made at the first call is made by now.
        first, _ = timed(lambda run=run: run(cell, FIRST, seed))  # type: ignore[misc]
        iterations = max(FIRST, round(seconds * images * FIRST / first))
        took, guesses = timed(lambda run=run, n=iterations: run(cell, n, seed))  # type: ignore[misc]
        yield {**about, "method": method, "iterations": iterations, "seconds": took, **cell.scores(guesses)}


def mean_and_reach(values: Sequence[float]) -> tuple[float, float]:
    """Mean, and half of its 95 % interval over images (t)."""
    tensor = torch.tensor(values, dtype=torch.float64)
    reach = stats.t.ppf(0.975, len(values) - 1) * tensor.std().item() / len(values) ** 0.5 if len(values) > 1 else 0.0
    return tensor.mean().item(), reach


def shown(lines: Sequence[dict[str, Any]]) -> str:
    """A table of all cells; seeds are other weights and other images, and are put together."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        groups[line["cell"], line["method"]].append(line)
    body = []
    for name in dict.fromkeys(line["cell"] for line in lines):
        scores = {
            method: {key: [v for one in groups[name, method] for v in one[key]] for key in MEASURES}
            for method in (OURS, THEIRS, MEAN)
        }
        if not all(scores[method]["psnr"] for method in METHODS):
            continue
        gaps = [a - b for a, b in zip(scores[OURS]["psnr"], scores[THEIRS]["psnr"], strict=True)]
        for method in (OURS, THEIRS, MEAN):
            mine, values = groups[name, method], scores[method]
            body.append(
                [
                    name,
                    method,
                    str(len(values["psnr"])),
                    str(len({one["seed"] for one in mine})),
                    f"{sum(one['iterations'] for one in mine) / len(mine):.0f}",
                    f"{sum(one['seconds'] for one in mine) / sum(one['n'] for one in mine):.1f}",
                    *("{:.2f} ± {:.2f}".format(*mean_and_reach(values[key])) for key in MEASURES[:3]),
                    f"{sum(values['picked']):.0f} of {len(values['picked'])}",
                    "{:+.2f} ± {:.2f}".format(*mean_and_reach(gaps)) if method == OURS else "",
                ]
            )
    header = ["cell", "method", "n", "seeds", "iterations", "s/image", "PSNR, dB", "SSIM", "HaarPSI", "picked out"]
    return table([*header, "dB above breaching"], body)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", nargs="*", default=[], metavar="NETWORK:NORM:DATA:BATCH", help="or: all")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0])
    parser.add_argument("--images", type=int, default=32, help="attacked in each cell; a multiple of the batch")
    parser.add_argument("--seconds", type=float, default=10.0, help="for each image and method")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, default=Path("peer_strength.jsonl"))
    options = parser.parse_args()
    cells = CELLS if options.cells == ["all"] else options.cells
    if unknown := sorted(set(cells) - set(CELLS)):
        parser.error(f"unknown cells {', '.join(unknown)}; allowed: all, or {', '.join(CELLS)}")
    if odd := [name for name in cells if options.images % int(name.rsplit(":", 1)[1])]:
        parser.error(f"--images {options.images} is no multiple of the batch of {', '.join(odd)}")
    torch.set_num_threads(options.threads)
    logging.disable(logging.INFO)
    lines = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    done = {(line["cell"], line["seed"]) for line in lines if line["method"] == list(METHODS)[-1]}
    for name, seed in itertools.product(cells, options.seeds):
        if (name, seed) in done:
            continue
        for line in study(name, seed, options.images, options.seconds):
            lines.append(line)
            with options.out.open("a") as file:
                file.write(json.dumps(line) + "\n")
    print(shown(lines))


if __name__ == "__main__":
    main()
