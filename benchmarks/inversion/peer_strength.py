r"""Gradient inversion beside the package breaching 0.1.2 at equal time: what each recovers of the same updates.

A cell is a network, how it normalises, a data set and a batch. All methods get the same one-step updates of the same weights
and the labels. In train mode the update carries the running averages, as a client sends them (``--no-averages``: it does not,
and neither method then knows the batch's statistics). Ours take ``--iterations``;
breaching (``attack=invertinggradients`` as it publishes it, but for the number of iterations, over which its schedule
stretches) takes as many as fit into the time of the first of ours, counted by the difference between two short runs. With
``--peers "breaching, matched 0.1"`` breaching uses the sent averages, too (``peer_breaching.py``). Time is
the processor's, on one thread: on an idle machine the clock shows the same. Each image is scored once, paired by the smallest
total error within its batch: PSNR, SSIM, and whether it is nearest to its guess among 100 images. A line for each method, cell
and seed is appended to ``--out``, so that a long study can be stopped and taken up again; without ``--cells`` the tables of what
is there are printed.

    uv run --with breaching==0.1.2 python benchmarks/inversion/peer_strength.py --cells all --seeds 0 1 2 --images 16
    uv run python benchmarks/inversion/peer_strength.py
    python benchmarks/inversion/peer_strength.py --auxiliary --peers --out settings.jsonl --cells \
        convnet:group:photos:1 --attacks "InvertingGradients()" "InvertingGradients(total_variation=0.1, signed=False)"

Grey images are given as three equal channels, as breaching's total variation takes no other number. Settings are chosen on images
of the training split (``--auxiliary``), never on those that are compared.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import math
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from defenses.tensors import ImageShape

sys.path.append(str(Path(__file__).resolve().parents[1]))  # for a script of the folder above

from paired_guesses import CANDIDATES, PairedGuesses
from peer_breaching import THEIRS, parsed, reconstructed
from studies import add_lines, lines_of, mean_and_reach, table
from torch import Tensor, nn
from torch.nn import functional as F

from attacks.gradient.inversion import GradientInversion
from attacks.guesses import Reconstruction
from attacks.image_measures import ssim
from attacks.observations import ClientUpdate
from attacks.spec import parse_attacks
from clients.data.datasets import load_dataset
from clients.data.images import to_float
from clients.models.classifiers import build_model

WIDTHS = {"lenet": 0, "cnn": 0, "convnet": 16, "resnet20": 0}
MODES = {"cnn": ("none",), "convnet": ("eval", "train", "group"), "resnet20": ("eval", "train", "group")}
"""Network -> how it normalises: BatchNorm in eval or train mode, or GroupNorm."""
DATASETS = ("photos", "fashion-mnist")
BATCHES = (1, 4, 8)
CELLS = [
    f"{model}:{mode}:{data}:{batch}"
    for model in MODES
    for mode, data, batch in itertools.product(MODES[model], DATASETS, BATCHES)
]
LEARNING_RATE, SHORT_RUNS = 0.1, (8, 24)
"""Of the clients' one step; iterations between which speed is measured."""
MEASURES = ("psnr", "ssim", "picked")
OURS, MEAN = "InvertingGradients()", "mean image"


class Cell:
    """The updates of one cell and seed, and what is behind them.

    Args:
        name: One of ``CELLS``.
        seed: Of weights and images.
        images: How many are attacked, a multiple of the batch.
        auxiliary: They are of the training split.
        averages: In train mode the update carries the running averages, as a client sends them.
    """

    def __init__(self, name: str, seed: int, images: int, auxiliary: bool, averages: bool) -> None:
        self.averages = averages and name.split(":")[1] == "train"
        kind, self.mode, dataset, batch = name.split(":")
        data = load_dataset(dataset)
        shape = (3, *data.input_shape[1:])
        self.mean, self.std = (tuple(v * 3 if len(v) == 1 else v) for v in (list(data.mean), list(data.std)))
        self.model = self._built(kind, data.num_classes, shape, seed).train(self.mode == "train")
        split = data.train if auxiliary else data.test
        order = torch.randperm(len(split), generator=torch.Generator().manual_seed(seed))
        self.truth = colours(to_float(split.images[order[:images]]))
        self.others = colours(to_float(split.images[order[images : images + CANDIDATES - 1]]))
        self.mean_image = colours(to_float(data.train.images)).mean(0)
        labels = split.labels[order[:images]]
        self.batches = list(zip(self.truth.split(int(batch)), labels.split(int(batch)), strict=True))
        self.seen = [self._observed(*one) for one in self.batches]
        self.num_classes = data.num_classes

    def _built(self, kind: str, num_classes: int, shape: ImageShape, seed: int) -> nn.Module:
        norm = "group" if self.mode in ("group", "none") else "batch"
        return build_model(kind, num_classes=num_classes, input_shape=shape, width=WIDTHS[kind], norm=norm, seed=seed)

    def _observed(self, images: Tensor, labels: Tensor) -> ClientUpdate:
        mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (self.mean, self.std))
        before = {name: value.clone() for name, value in self.model.state_dict().items()}
        loss = F.cross_entropy(self.model((images - mean) / std), labels)
        gradient = torch.autograd.grad(loss, list(self.model.parameters()))
        # Train mode moved the running averages, which a client sends with its weights.
        averages = {
            name: value - before[name] for name, value in self.model.named_buffers() if value.is_floating_point()
        }
        self.model.load_state_dict(before)
        names = [name for name, _ in self.model.named_parameters()]
        update = {name: -LEARNING_RATE * value for name, value in zip(names, gradient, strict=True)}
        return ClientUpdate(
            self.model,
            update | (averages if self.averages else {}),
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
            pairs = PairedGuesses.of(guess, truth)
            found["psnr"] += pairs.psnr().tolist()
            found["ssim"] += ssim(pairs.guess, pairs.truth).tolist()
            found["picked"] += pairs.identified(self.others)
        return dict(found)


def colours(images: Tensor) -> Tensor:
    """(N, 3, H, W) of (N, C, H, W)."""
    return images.expand(-1, 3, -1, -1) if images.shape[1] == 1 else images


def ours(text: str | GradientInversion, cell: Cell, iterations: int, seed: int) -> list[Tensor]:
    """All updates together, by an attack or its text."""
    attack = parse_attacks(text)[0] if isinstance(text, str) else text
    attack = replace(attack, iterations=iterations, labels="known")
    generators = [torch.Generator().manual_seed(1000 * seed + at) for at in range(len(cell.seen))]
    guesses: list[Reconstruction] = attack.attack_many(cell.seen, generators)
    assert not any(guess.failure for guess in guesses), guesses[0].failure
    return [guess.images for guess in guesses]


def timed(method: Callable[[], list[Tensor]]) -> tuple[float, list[Tensor]]:
    """Seconds of the processor, and the result."""
    start = time.process_time()
    result = method()
    return time.process_time() - start, result


def fitting(method: Callable[[int], list[Tensor]], budget: float) -> int:
    """How many iterations take ``budget`` seconds; what every run takes to begin is not counted as theirs."""
    method(2)
    first, second = (timed(lambda number=number: method(number))[0] for number in SHORT_RUNS)  # type: ignore[misc]
    each = (second - first) / (SHORT_RUNS[1] - SHORT_RUNS[0])
    return max(SHORT_RUNS[0], math.ceil(SHORT_RUNS[0] + (budget - first) / each))


def study(cell: Cell, about: dict[str, Any], options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A line for the mean image and for each method."""
    guess = [cell.mean_image.expand_as(truth) for truth, _ in cell.batches]
    yield {**about, "method": MEAN, "iterations": 0, "seconds": 0.0, **cell.scores(guess)}
    seed, budget = about["seed"], 0.0
    for text in options.attacks:
        ours(text, cell, 2, seed)  # Whatever is made at the first call is made by now.
        took, found = timed(lambda text=text: ours(text, cell, options.iterations, seed))  # type: ignore[misc]
        budget = budget or took
        yield {**about, "method": text, "iterations": options.iterations, "seconds": took, **cell.scores(found)}
    for name in options.peers:

        def theirs(iterations: int, name: str = name) -> list[Tensor]:
            return reconstructed(name, cell.seen, cell.num_classes, iterations, seed)

        iterations = fitting(theirs, budget)
        took, found = timed(lambda: theirs(iterations))  # noqa: B023
        yield {**about, "method": name, "iterations": iterations, "seconds": took, **cell.scores(found)}


def shown(lines: Sequence[dict[str, Any]]) -> str:
    """A table of all cells; seeds are other weights and other images, and are put together."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        groups[line["cell"], line["method"]].append(line)
    body = []
    for (name, method), mine in sorted(groups.items(), key=lambda pair: CELLS.index(pair[0][0])):
        values = {key: [v for one in mine for v in one[key]] for key in MEASURES}
        peers = [known for cell, known in groups if cell == name and known.startswith(THEIRS)]
        peer = {line["seed"]: line["psnr"] for line in groups[name, peers[-1]]} if peers else {}
        gaps = [a - b for one in mine for a, b in zip(one["psnr"], peer.get(one["seed"], []), strict=False)]
        body.append(
            [
                name,
                method,
                str(len(values["psnr"])),
                str(len({one["seed"] for one in mine})),
                f"{sum(one['iterations'] for one in mine) / len(mine):.0f}",
                f"{sum(one['seconds'] for one in mine) / sum(one['n'] for one in mine):.1f}",
                *("{:.2f} ± {:.2f}".format(*mean_and_reach(values[key])) for key in MEASURES[:2]),
                f"{sum(values['picked']):.0f} of {len(values['picked'])}",
                "{:+.2f} ± {:.2f}".format(*mean_and_reach(gaps)) if gaps and method not in peers[-1:] else "",
            ]
        )
    header = ["cell", "method", "n", "seeds", "iterations", "s/image", "PSNR, dB", "SSIM", "identified"]
    return table([*header, "dB above the last peer"], body)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", nargs="*", default=[], metavar="NETWORK:NORM:DATA:BATCH", help="or: all")
    parser.add_argument("--attacks", nargs="+", default=[OURS], metavar="ATTACK", help="of ours")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0])
    parser.add_argument(
        "--images", type=int, default=16, help="attacked for each cell and seed; a multiple of the batch"
    )
    parser.add_argument("--iterations", type=int, default=200, help="of ours")
    parser.add_argument("--auxiliary", action="store_true", help="images of the training split, to choose settings by")
    parser.add_argument(
        "--averages", action=argparse.BooleanOptionalAction, default=True, help="train mode: send the running averages"
    )
    parser.add_argument(
        "--peers",
        nargs="*",
        default=[THEIRS],
        metavar="PEER",
        help='such as "breaching, matched 0.1"; see peer_breaching.py',
    )
    parser.add_argument("--out", type=Path, default=Path("peer_strength.jsonl"))
    options = parser.parse_args()
    cells = CELLS if options.cells == ["all"] else options.cells
    if unknown := sorted(set(cells) - set(CELLS)):
        parser.error(f"unknown cells {', '.join(unknown)}; allowed: all, or {', '.join(CELLS)}")
    if odd := [name for name in cells if options.images % int(name.rsplit(":", 1)[1])]:
        parser.error(f"--images {options.images} is no multiple of the batch of {', '.join(odd)}")
    torch.set_num_threads(1)
    lines = lines_of(options.out)
    for one in options.peers:
        parsed(one)
    last = [*options.attacks, *options.peers][-1]
    done = {(line["cell"], line["seed"]) for line in lines if line["method"] == last}
    for name, seed in itertools.product(cells, options.seeds):
        if (name, seed) in done:
            continue
        about = {"cell": name, "seed": seed, "n": options.images, "averages": options.averages}
        # Written together: what was stopped in between is done again.
        lines += (
            new := list(study(Cell(name, seed, options.images, options.auxiliary, options.averages), about, options))
        )
        add_lines(options.out, new)
    print(shown(lines))


if __name__ == "__main__":
    logging.disable(logging.INFO)
    main()
