r"""Known batch statistics in gradient inversion: matched, or also put into the forward pass in place of the dummy images' own.

The cells and measures are those of ``peer_strength.py`` in train mode, whose updates carry running averages. Three attacks have the
same objective but for what they do with the statistics that follow from these:

- matched: the dummy images' own normalise them, and their distance to the client's is a prior (``batch_norm_prior``);
- normalised: the client's statistics are constants of the dummy network, which then has no batch statistics. The gradient lacks
  what flows through these, so that it differs from the client's at the true images, too;
- both: constants, and the statistics of what enters each layer are matched beside them.

    uv run python benchmarks/inversion/fixed_statistics.py --cells convnet:train:photos:1 --images 8 --iterations 150

Images are of the training split. A line for each attack, cell and seed is appended to ``--out``; what is there is not run again.
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from peer_strength import MEAN, Cell, mean_and_reach, timed
from torch import Tensor
from whole_rounds import scored

from attacks.gradient.presets import InvertingGradients
from attacks.gradient.trial_gradients.batch_statistics import Statistics, batch_norms, sent_statistics
from attacks.observations import ClientUpdate

VARIANTS = ("matched", "normalised", "both")


@dataclass(frozen=True, repr=False)
class FixedStatistics(InvertingGradients):
    """``InvertingGradients`` on networks that normalise by constants, whose ``known`` statistics it may match, too."""

    known: ClassVar[dict[int, Statistics]] = {}

    def _statistics(self, observation: ClientUpdate) -> Statistics:
        return self.known[id(observation.model)] if self.batch_norm_prior else {}


def fixed(observation: ClientUpdate) -> ClientUpdate:
    """The observation as if the client's network normalised by the statistics that it sent."""
    found, model = sent_statistics(observation), copy.deepcopy(observation.model).eval()
    for name, layer in batch_norms(model).items():
        assert layer.running_mean is not None
        assert layer.running_var is not None
        layer.running_mean.copy_(found[name][0])
        layer.running_var.copy_(found[name][1])
    FixedStatistics.known[id(model)] = found
    return replace(observation, model=model, train_mode=False)


def guesses(variant: str, cell: Cell, prior: float, iterations: int, seed: int) -> list[Tensor]:
    """Images of each update."""
    seen: Sequence[ClientUpdate] = cell.seen if variant == "matched" else [fixed(one) for one in cell.seen]
    kind = InvertingGradients if variant == "matched" else FixedStatistics
    weight = 0.0 if variant == "normalised" else 10.0
    attack = kind(total_variation=prior, iterations=iterations, labels="known", batch_norm_prior=weight)
    found = attack.attack_many(seen, [torch.Generator().manual_seed(1000 * seed + at) for at in range(len(seen))])
    assert not any(guess.failure for guess in found), found[0].failure
    return [guess.images for guess in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", nargs="+", required=True, metavar="NETWORK:train:DATA:BATCH")
    parser.add_argument("--images", type=int, default=8)
    parser.add_argument("--iterations", type=int, default=150)
    parser.add_argument("--seed", type=int, default=10)
    parser.add_argument("--prior", type=float, default=0.1, help="weight of the total variation")
    parser.add_argument("--out", type=Path, default=Path("fixed_statistics.jsonl"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.INFO)
    written = options.out.read_text().split("\n")[:-1] if options.out.exists() else []
    lines: list[dict[str, Any]] = [json.loads(line) for line in written]
    for name in options.cells:
        cell = Cell(name, options.seed, options.images, auxiliary=True, averages=True)
        for variant in VARIANTS:
            about = {"cell": name, "seed": options.seed, "variant": variant, "iterations": options.iterations}
            if any({key: line[key] for key in about} == about for line in lines):
                continue
            run = (variant, cell, options.prior, options.iterations, options.seed)
            took, found = timed(lambda run=run: guesses(*run))  # type: ignore[misc]
            line = {**about, "seconds": took, **scored(cell, found)}
            lines.append(line)
            with options.out.open("a") as file:
                file.write(json.dumps(line) + "\n")
    for line in lines:
        psnr, above = (
            f"{mean:.1f} ± {reach:.1f}" for mean, reach in map(mean_and_reach, (line["psnr"], line["above"]))
        )
        shown = f"{line['cell']} {line['variant']}: {psnr} dB, {above} above the {MEAN}, n = {len(line['psnr'])}"
        print(
            f"{shown}, {sum(line['identified']):.0f} identified, {line['iterations']} iterations, {line['seconds']:.0f} s"
        )


if __name__ == "__main__":
    main()
