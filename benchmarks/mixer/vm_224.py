"""VisualMixer at 224 pixels, the size of the paper's images: what copies show, and what attacks recover from them.

Squares of ten photographs (``photo_squares``). Half of the photographs are attacked; the server learns from squares of the others,
so that no attacked photograph is known to it. Printed for each pair of bounds and seed, counts with exact 95 % intervals:

- The copies' PSNR, and that of the attacks' guesses, with the images recovered by the rule of the report.
- Copies identified among 100 squares (``recovered.count_identified``). The same of 100 enlarged faces.
- Copies that a pretrained network answers as it answers the picture (EfficientNet-Lite0).

    python benchmarks/mixer/vm_224.py --seeds 0 1 --out runs/vm_224.jsonl
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.append(str(Path(__file__).resolve().parents[1]))  # for scripts of the folder above

from audit_tables import table
from photo_squares import SIDE, Squares, faces, squares
from recovered import count_identified, count_recovered
from seeded_results import Results
from upload_restoration import fitted, restored

from attacks.image_measures import psnr
from attacks.metrics.images import MAX_PSNR
from attacks.refinement.base import Refinement
from attacks.refinement.restoration import LearnedRestorer
from attacks.refinement.shredder import Shredder
from attacks.refinement.unshuffle import WindowMean
from attacks.scoring.roc import binomial_interval
from clients.models.classifiers import build_model
from clients.models.packaged_weights import PACKAGED, normalisation
from clients.models.pretrained_classifier import load_classifier
from defenses.base import Batch
from defenses.images.visual_mixer import VisualMixer
from defenses.pipeline import Pipeline
from defenses.random_draws import generator_for
from simulations.protect.copies import protect_image
from strategies.audit.score_rows import mean_and_interval

WINDOWS = ((8, 16), (8, 56), (16, 64))
CANDIDATES = 100
NETWORK = "efficientnet-lite0"
FIRST = 5


def protected(images: Tensor, pipeline: Pipeline, seed: int) -> Tensor:
    """Copies of images (N, C, H, W) as ``fedveil protect`` makes them, each from a draw of its own."""
    return torch.stack([protect_image(pipeline, image, f"vm-224 {seed}") for image in images])


def network() -> nn.Module:
    """EfficientNet-Lite0 with its packaged weights, in eval mode: normalised images (B, 3, 224, 224) -> logits of ImageNet."""
    known = PACKAGED[NETWORK]
    model = build_model(known.model, num_classes=1000, input_shape=(3, SIDE, SIDE), norm="batch")
    load_classifier(model, str(known.path()))
    return model.eval()


@torch.no_grad()
def first_answers(model: nn.Module, images: Tensor) -> Tensor:
    """The classes with the ``FIRST`` largest logits of images (N, C, 224, 224) in [0, 1], largest first: (N, ``FIRST``)."""
    mean, std = (torch.tensor(one).view(3, 1, 1) for one in normalisation(NETWORK, 3))
    found: Tensor = model((images.expand(-1, 3, -1, -1) - mean) / std).topk(FIRST).indices
    return found


def agreement(originals: Tensor, copies: Tensor) -> dict[str, Any]:
    """Copies with the first answer of their picture as their first, or among their ``FIRST``; both (N, ``FIRST``).

    "other_pictures" is the share of all pairs of a copy and another picture with one first answer.
    """
    own, count = originals[:, 0], len(originals)
    first, among = (int((found == own[:, None]).any(1).sum()) for found in (copies[:, :1], copies))
    other = (int((copies[:, :1] == own).sum()) - first) / (count * (count - 1))
    return {"compared": count, "first": first, "among_5": among, "other_pictures": other}


def scores(guess: Tensor, own: Squares) -> dict[str, Any]:
    """PSNR of a guess of the attacked squares, with its interval over them, and how many it recovers."""
    found = mean_and_interval(psnr(guess, own.attacked).clamp(max=MAX_PSNR).tolist())
    half = None if found["ci_low"] is None else found["value"] - found["ci_low"]
    return {"psnr": found["value"], "half": half, "recovered": count_recovered(guess, own.attacked, own.others)}


def attacked(pipeline: Pipeline, seed: int, attack: Refinement | None, count: int) -> dict[str, Any]:
    """Scores of one attack, or of the copies as they are, on the attacked squares under one seed."""
    own, stream = squares(seed, count), generator_for("vm-224", repr(attack), seed)
    copies, begun = protected(own.attacked, pipeline, seed), time.monotonic()
    auxiliary = Batch(own.others, torch.ones(len(own.others), 1))
    guess = restored(fitted(attack, pipeline, auxiliary, stream), copies, stream) if attack else copies
    seconds = round(time.monotonic() - begun)
    return {"n": len(own.attacked), "others": len(own.others), "seconds": seconds, **scores(guess, own)}


def shown(pipeline: Pipeline, seed: int, count: int) -> dict[str, Any]:
    """What copies show without an attack: identified squares and faces, and the network's answers."""
    own = squares(seed, count)
    seen = torch.cat([own.whole, own.quarters])
    missing = CANDIDATES - len(seen)
    many = torch.cat([seen, own.finer[torch.arange(missing) * len(own.finer) // missing]])
    made = protected(many, pipeline, seed)
    small = faces()
    found: dict[str, Any] = {"candidates": len(many), "identified": count_identified(made, many)}
    found |= {"faces": len(small), "identified-faces": count_identified(protected(small, pipeline, seed), small)}
    model = network()
    answers = [torch.cat([first_answers(model, part) for part in of[: len(seen)].split(16)]) for of in (many, made)]
    return found | {"answers": agreement(*answers)}


def rate(number: int, of: int) -> str:
    """A count with its exact interval."""
    interval = binomial_interval(number, of)
    return f"{number} of {of} ({interval.low:.0%} to {interval.high:.0%})"


def decibels(found: Mapping[str, Any]) -> str:
    """Mean PSNR and half of its interval."""
    return f"{found['psnr']:.1f} ± {found['half']:.1f}" if found["half"] is not None else f"{found['psnr']:.1f}"


def main() -> None:
    """Prints two tables: what attacks recover, and what copies show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--seeds", type=int, nargs="+", default=[0, 1])
    add("--windows", type=int, nargs=2, action="append", help="bounds, again for further pairs (default: the three)")
    add("--squares", type=int, default=20, help="attacked squares, at most 20")
    add("--sweeps", type=int, default=1000, help="of Shredder; 0 leaves it out")
    add("--iterations", type=int, default=200, help="of LearnedRestorer; 0 leaves it out")
    add("--batch-size", type=int, default=8, help="of LearnedRestorer")
    add("--out", type=Path, default=Path("runs/vm_224.jsonl"), help="a killed study goes on from this file")
    chosen = parser.parse_args()
    attacks: list[Refinement | None] = [None, WindowMean()]
    if chosen.sweeps:
        attacks.append(Shredder(sweeps=chosen.sweeps))
    if chosen.iterations:
        attacks.append(LearnedRestorer(iterations=chosen.iterations, batch_size=chosen.batch_size))
    results = Results(chosen.out, "vm_224", {"squares": chosen.squares})
    recovered, visible = [], []
    for lower, upper in chosen.windows or WINDOWS:
        defense = VisualMixer(window_lower=lower, window_upper=upper)
        pipeline, sizes = Pipeline((defense,)), defense.sizes(SIDE, SIDE)
        for seed in chosen.seeds:
            about = [f"({lower}, {upper}): {', '.join(map(str, sizes[1:] or sizes))}", str(seed)]
            for attack in attacks:
                compute = partial(attacked, pipeline, seed, attack, chosen.squares)
                one = results.known(seed, f"{pipeline}, {attack}", compute)
                print(*about, attack, one, file=sys.stderr, flush=True)
                recovered.append([*about, str(attack or "the copy"), decibels(one), rate(one["recovered"], one["n"])])
            one = results.known(seed, f"{pipeline}, shown", partial(shown, pipeline, seed, chosen.squares))
            answers = one["answers"]
            both = (
                rate(one[key], one[of]) for key, of in (("identified", "candidates"), ("identified-faces", "faces"))
            )
            counts = (rate(answers[key], answers["compared"]) for key in ("first", "among_5"))
            visible.append([*about, *both, *counts, f"{answers['other_pictures']:.0%}"])
    print(table(["bounds: windows, pixels", "seed", "guess", "PSNR, dB", "recovered"], recovered))
    print()
    heads = ["identified", "faces identified", "first answer kept", "among five", "first answer of another"]
    print(table(["bounds: windows, pixels", "seed", *heads], visible))


if __name__ == "__main__":
    main()
