"""Which batches ``Spear`` and ``SpearPlusPlus`` solve exactly, by batch size, width, noise and local steps.

Each line of the results is one update of a new network and a new batch. The networks have ``depth`` linear layers with ReLUs
between them, as torch initialises them. Gradients are in double precision, as in the papers' experiments; ``--single`` sends
differences of models in single precision. Noise is Gaussian with the given standard deviation, relative to the root mean square of
the first layer's gradient. Local steps are steps of plain SGD at ``--rates``, each on the whole batch.

An image is exact from 60 dB and counts as recovered from 30 dB, with guesses and images matched by one optimal assignment; failed
guesses count as neither. Lines that the file of results has already are not computed again.

    python benchmarks/exact/spear_scaling.py results.jsonl --batches 8 16 32 64 --widths 200 1000 --seeds 0 1 2
    python benchmarks/exact/spear_scaling.py results.jsonl --table
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).resolve().parents[1]))  # for a script of the folder above

from spear import Spear
from studies import add_lines, lines_of, table
from torch import Tensor, nn
from torch.nn import functional as F

from attacks import ClientUpdate, SpearPlusPlus, optimal_assignment
from attacks.guesses import Reconstruction, found_nothing
from attacks.image_measures import psnr
from clients.data.datasets import load_dataset
from clients.data.images import to_float

EXACT, RECOVERED = 60.0, 30.0
ATTACKS: dict[str, Any] = {
    "Spear": Spear(),
    "SpearPlusPlus": SpearPlusPlus(),
}
CELL = ("data", "depth", "width", "batch", "noise", "steps", "rate", "single", "attack")


def network(inputs: int, width: int, depth: int, seed: int) -> nn.Sequential:
    """``depth`` linear layers with ReLUs between them and 10 outputs, on flattened images."""
    sizes = [inputs, *[width] * (depth - 1), 10]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = [[nn.Linear(one, other), nn.ReLU()] for one, other in itertools.pairwise(sizes)]
        return nn.Sequential(nn.Flatten(), *itertools.chain(*layers))[:-1].double()


def batch_of(data: str, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Different images (N, C, H, W) in [0, 1], drawn anew with each seed, and their classes."""
    part = load_dataset(data).train
    chosen = torch.randperm(len(part), generator=torch.Generator().manual_seed(seed))[:count]
    return to_float(part.images[chosen]), part.labels[chosen]


def sent(model: nn.Sequential, images: Tensor, labels: Tensor, cell: dict[str, Any]) -> ClientUpdate:
    """The update of ``steps`` steps on the whole batch, with noise."""
    channels = images.shape[1]
    mean, std = (0.5,) * channels, (0.25,) * channels
    weights = {name: value.detach().clone() for name, value in model.named_parameters()}
    before, seen = dict(weights), ((images - 0.5) / 0.25).double()
    for _ in range(cell["steps"]):
        leaves = {name: value.requires_grad_() for name, value in weights.items()}
        loss = F.cross_entropy(torch.func.functional_call(model, leaves, (seen,)), labels)
        slopes = torch.autograd.grad(loss, list(leaves.values()))
        weights = {
            name: (leaves[name] - cell["rate"] * slope).detach() for name, slope in zip(leaves, slopes, strict=True)
        }
    update = {name: (value - before[name]).detach() for name, value in weights.items()}
    scale = cell["noise"] * float(update["1.weight"].detach().square().mean().sqrt())
    generator = torch.Generator().manual_seed(cell["seed"])
    if scale:
        update = {n: u + scale * torch.randn(u.shape, generator=generator, dtype=u.dtype) for n, u in update.items()}
    if cell["single"]:
        model = model.float()
        old = dict(model.named_parameters())
        update = {name: ((before[name] + value).float() - old[name]).detach() for name, value in update.items()}
    shape = (channels, images.shape[2], images.shape[3])
    return ClientUpdate(
        model=model,
        update=update,
        input_shape=shape,
        mean=mean,
        std=std,
        num_examples=len(images),
        batch_size=len(images),
        local_steps=cell["steps"],
        learning_rate=cell["rate"],
    )


def scored(guess: Reconstruction, images: Tensor) -> dict[str, Any]:
    """Images that are exact and that are recovered, and the median PSNR in dB, at most 100."""
    if found_nothing(guess):
        return {"exact": 0, "recovered": 0, "psnr": None, "failure": guess.failure}
    own, theirs = optimal_assignment(guess.images, images)
    quality = psnr(guess.images[own], images[theirs]).clamp(max=100)
    counts = {"exact": int((quality >= EXACT).sum()), "recovered": int((quality >= RECOVERED).sum())}
    return counts | {"psnr": round(float(quality.median()), 1), "failure": guess.failure}


def measured(cell: dict[str, Any]) -> dict[str, Any]:
    """One line of results."""
    images, labels = batch_of(cell["data"], cell["batch"], cell["seed"])
    model = network(images[0].numel(), cell["width"], cell["depth"], cell["seed"])
    seen = sent(model, images, labels, cell)
    began = time.process_time()
    guess = ATTACKS[cell["attack"]](seen, torch.Generator().manual_seed(cell["seed"]))
    seconds = round(time.process_time() - began, 1)
    shown = {name: round(value, 9) for name, value in guess.diagnostics.items()}
    return cell | scored(guess, images) | {"seconds": seconds, "diagnostics": shown}


def shown(lines: list[dict[str, Any]]) -> str:
    """A Markdown table with a row for each cell over its seeds."""
    cells: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        cells[tuple(line[name] for name in CELL)].append(line)
    rows = []
    for cell, some in sorted(cells.items(), key=lambda pair: tuple(map(str, pair[0][:1])) + pair[0][1:]):
        batch = cell[CELL.index("batch")]
        exact, recovered = (
            f"{sum(one[name] for one in some)} of {batch * len(some)}" for name in ("exact", "recovered")
        )
        whole = f"{sum(one['exact'] == batch for one in some)} of {len(some)}"
        seeds = " ".join(str(one["seed"]) for one in sorted(some, key=lambda one: int(one["seed"])))
        seconds = f"{sum(one['seconds'] for one in some) / len(some):.0f}"
        rows.append([*map(str, cell), seeds, exact, recovered, whole, seconds])
    return table([*CELL, "seeds", "exact", "recovered", "whole batches exact", "seconds"], rows)


def main() -> None:
    """Measure what is missing, or show the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--single", action="store_true")
    for name, kind, default in (
        ("data", str, ["mnist-5k"]),
        ("depths", int, [3]),
        ("widths", int, [1000]),
        ("batches", int, [8, 16, 32, 64]),
        ("noises", float, [0.0]),
        ("steps", int, [1]),
        ("rates", float, [0.01]),
        ("seeds", int, [0, 1, 2]),
        ("attacks", str, list(ATTACKS)),
    ):
        parser.add_argument(f"--{name}", type=kind, nargs="+", default=default)
    given = parser.parse_args()
    known = lines_of(given.results)
    if given.table:
        print(shown(known))
        return
    torch.set_num_threads(1)
    done = {tuple(line[name] for name in (*CELL, "seed")) for line in known}
    sizes = (given.depths, given.widths, given.batches, given.noises, given.steps, given.rates)
    rest = ([given.single], given.attacks, given.seeds)
    for values in itertools.product(given.data, *sizes, *rest):
        if values in done:
            continue
        line = measured(dict(zip((*CELL, "seed"), values, strict=True)))
        add_lines(given.results, [line])
        print(
            {name: line[name] for name in (*CELL, "seed", "exact", "recovered", "psnr", "failure", "seconds")},
            flush=True,
        )


if __name__ == "__main__":
    main()
