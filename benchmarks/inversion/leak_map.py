r"""A map of what leaks: gradient inversion of one small network and its variants, by batch size and local steps.

A cell is a network (a row of ``leak_networks.NETWORKS``) and a column: the images of the client, and whether the update is of one
step on all of them or of a round. A round is two passes over the client's images in shuffled batches of half of them (of one
image: both steps on that image). Networks are at initialisation, and images are 32 x 32 photographs of the test split. The server
knows the labels but not the order of a round's batches. The attack is the same everywhere (``--attack``). The map has the
mean gain in PSNR above the mean image of the training split, and the share of recognisable images. Recognisable is meant as in the
report (``attacks.metrics.images.is_recognisable``), among 100 candidates of any class.

A line for each cell and seed is appended to ``--out``, column after column, so that a long study can be stopped and taken up
again. Table and picture are of the lines that have the given attack, iterations, images and split. Without ``--columns``, nothing
is measured.

    OMP_NUM_THREADS=1 python benchmarks/inversion/leak_map.py --columns all --out leak_map.jsonl
    python benchmarks/inversion/leak_map.py --out leak_map.jsonl --picture docs/images/leak_map.png

Settings are chosen on images of the training split (``--auxiliary``).
"""

from __future__ import annotations

import argparse
import copy
import itertools
import logging
from pathlib import Path
from typing import Any

import torch
from leak_networks import NETWORKS, Network
from leak_picture import draw, printed
from paired_guesses import CANDIDATES, PairedGuesses
from peer_strength import LEARNING_RATE, ours, timed
from studies import add_lines, lines_of
from torch import Tensor, nn
from torch.nn import functional as F

from attacks.image_measures import correlation, psnr
from attacks.local_model import shared_tensors
from attacks.metrics.images import is_recognisable
from attacks.observations import ClientUpdate
from clients.data.datasets import load_dataset
from clients.data.images import to_float

COLUMNS = {
    "1": (1, False),
    "4": (4, False),
    "1 round": (1, True),
    "16": (16, False),
    "4 round": (4, True),
    "8": (8, False),
    "32": (32, False),
    "16 round": (16, True),
}
"""Column of the map -> images of a client, and whether it trains for a round; in the order in which they are measured."""
IMAGES = {1: 11, 4: 12, 8: 16, 16: 16, 32: 32}
"""Images of a client -> images attacked for each seed."""
EPOCHS = 2
"""Passes of a round, in batches of half of the images."""
ATTACK = "InvertingGradients(total_variation=0.1, prior_decay=False, max_images=32)"
ITERATIONS = 200


class Cell:
    """The updates of one cell and seed, and what is behind them.

    Args:
        network: Its architecture.
        column: A name in ``COLUMNS``.
        seed: Of weights, images and the order of a round.
        images: Number of attacked images, a multiple of the client's.
        auxiliary: The images are of the training split.
    """

    def __init__(self, network: Network, column: str, seed: int, images: int, auxiliary: bool = False) -> None:
        self.network = network
        count, self.is_round = COLUMNS[column]
        self.card = load_dataset("photos")
        self.model = network.build(self.card.input_shape, self.card.num_classes, seed)
        if network.measured:
            measure(self.model, self.normalised(to_float(self.card.train.images)))
        self.model.train(network.train_mode)
        split = self.card.train if auxiliary else self.card.test
        draws = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(split), generator=draws)
        self.truth = to_float(split.images[order[:images]])
        self.others = to_float(split.images[order[images : images + CANDIDATES - 1]])
        self.mean_image = to_float(self.card.train.images).mean(0)
        clients = zip(self.truth.split(count), split.labels[order[:images]].split(count), strict=True)
        self.seen = [self._observed(*client, draws) for client in clients]

    def normalised(self, images: Tensor) -> Tensor:
        """As they enter the network."""
        mean, std = (torch.tensor(list(values)).view(-1, 1, 1) for values in (self.card.mean, self.card.std))
        return (images - mean) / std

    def _observed(self, images: Tensor, labels: Tensor, draws: torch.Generator) -> ClientUpdate:
        """The update that a client sends after plain SGD on its images (b, C, H, W) in [0, 1]."""
        size = max(1, len(images) // 2) if self.is_round else len(images)
        client = copy.deepcopy(self.model)
        optimizer = torch.optim.SGD(client.parameters(), LEARNING_RATE)
        inputs, steps = self.normalised(images), 0
        for _ in range(EPOCHS if self.is_round else 1):
            for chosen in torch.randperm(len(images), generator=draws).split(size):
                optimizer.zero_grad()
                F.cross_entropy(client(inputs[chosen]), labels[chosen]).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                steps += 1
        before, parameters = shared_tensors(self.model), dict(self.model.named_parameters())
        update = {
            name: value - before[name]
            for name, value in shared_tensors(client).items()
            if name in parameters or self.network.averages
        }
        shape, mean, std = self.card.input_shape, tuple(self.card.mean), tuple(self.card.std)
        known = {"learning_rate": LEARNING_RATE, "labels": labels, "train_mode": self.network.train_mode}
        return ClientUpdate(self.model, update, shape, mean, std, len(images), size, steps, **known)

    def scores(self, guesses: list[Tensor]) -> dict[str, list[float]]:
        """Of guesses (b, C, H, W) for each client, paired by the smallest total error: a value for each true image."""
        found: dict[str, list[float]] = {"psnr": [], "mean": [], "identified": [], "recognisable": []}
        for guess, truth in zip(guesses, self.truth.split(len(guesses[0])), strict=True):
            pairs = PairedGuesses.of(guess, truth)
            flat = psnr(truth.mean((2, 3), keepdim=True).expand_as(truth), truth)
            judged = psnr(pairs.guess, pairs.truth), flat, correlation(pairs.guess, pairs.truth)
            identified = pairs.identified(self.others)
            found["psnr"] += pairs.psnr().tolist()
            found["mean"] += psnr(self.mean_image.expand_as(truth), truth).tolist()
            found["identified"] += identified
            found["recognisable"] += map(float, map(is_recognisable, identified, *(one.tolist() for one in judged)))
        return found


def measure(model: nn.Module, inputs: Tensor) -> None:
    """Set the running averages of BatchNorm to those of normalised images (N, C, H, W), in place."""
    layers = [layer for layer in model.modules() if isinstance(layer, nn.BatchNorm2d)]
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.momentum = 1.0
    with torch.no_grad():
        model.train()(inputs)
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum


def study(name: str, column: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """The line of one cell and seed."""
    images = images_of(column, options)
    cell = Cell(NETWORKS[name], column, seed, images, options.auxiliary)
    took, guesses = timed(lambda: ours(options.attack, cell, options.iterations, seed))  # type: ignore[arg-type]
    about = {"network": name, "column": column, "seed": seed, "n": images, "attack": options.attack}
    settings = {"iterations": options.iterations, "auxiliary": options.auxiliary}
    return {**about, **settings, "seconds": took, **cell.scores(guesses)}


def images_of(column: str, options: argparse.Namespace) -> int:
    """Images that are attacked for each seed of a column."""
    return int(options.images or IMAGES[COLUMNS[column][0]])


def is_of(line: dict[str, Any], options: argparse.Namespace) -> bool:
    """Whether a line was measured with these settings."""
    found = (line["attack"], line["iterations"], line["n"], line["auxiliary"])
    return found == (options.attack, options.iterations, images_of(line["column"], options), options.auxiliary)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--columns", nargs="*", default=[], choices=["all", *COLUMNS], help="images of a client")
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=list(NETWORKS), metavar="NETWORK")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--images", type=int, default=0, help="for each cell and seed; 0: 11 to 32, by the column")
    parser.add_argument("--iterations", type=int, default=ITERATIONS)
    parser.add_argument("--attack", default=ATTACK)
    parser.add_argument("--auxiliary", action="store_true", help="images of the training split, to choose settings by")
    parser.add_argument("--out", type=Path, default=Path("leak_map.jsonl"))
    parser.add_argument("--picture", type=Path, help="where to save the map as PNG")
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines = [line for line in lines_of(options.out) if is_of(line, options)]
    done = {(line["network"], line["column"], line["seed"]) for line in lines}
    columns = list(COLUMNS) if "all" in options.columns else options.columns
    for column, seed, name in itertools.product(columns, options.seeds, options.networks):
        if (name, column, seed) in done:
            continue
        lines.append(study(name, column, seed, options))
        add_lines(options.out, lines[-1:])
    shown = sorted(COLUMNS, key=lambda column: (COLUMNS[column][1], COLUMNS[column][0]))
    print(printed(lines, list(NETWORKS), shown))
    if options.picture:
        draw(lines, list(NETWORKS), shown, options.picture)


if __name__ == "__main__":
    logging.disable(logging.INFO)
    main()
