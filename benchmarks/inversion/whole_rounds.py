r"""Gradient inversion of whole rounds: what attacks with a stated budget recover of a client's update of several local steps.

A case is a network, how it normalises, a data set, the images of a client, its local epochs, the images of a batch and its learning
rate: ``convnet:train:photos:1:4:1:0.01`` is a client with one photograph that takes four steps on it. Networks of the leak map
(``leak_networks.py``) are named as there: ``width 64:none:photos:4:2:2:0.05``. In train mode the update carries the running
averages, as a client sends them. The attacks know the labels, the recipe, and the order of a client with one batch an epoch.

Every image is scored once, paired by the smallest total error among the images of its client: PSNR, SSIM, and whether it is nearest
to its guess among 100 images ("identified"). It counts as recovered if it is, and if its PSNR lies 3 dB or more above the mean
image. "As in a round" is the stricter rule by which the report identifies images of a round (``retrieval_from_round``).

A line for each method, case and seed is appended to ``--out``, so that a study can be stopped and taken up again; without
``--cases`` the table of what is there is printed. Seconds are the processor's, on one thread. ``--attacks`` may also name
``FlatSurrogateMatching`` (``inversion_variants.py``).

    uv run python benchmarks/inversion/whole_rounds.py --cases convnet:train:photos:1:4:1:0.01 --seeds 0 1 --images 16 \
        --attacks "SurrogateMatching(total_variation=0.1, batch_norm_prior=10.0)"
    uv run python benchmarks/inversion/whole_rounds.py

Settings are chosen on images of the training split (``--auxiliary``), never on those that are compared.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).resolve().parents[1]))  # for a script of the folder above

from audit_tables import table
from inversion_variants import FlatSurrogateMatching
from leak_networks import NETWORKS
from paired_guesses import CANDIDATES, PairedGuesses
from peer_strength import MEAN, Cell, mean_and_reach, ours, timed
from torch import Tensor, nn
from torch.nn import functional as F

from attacks.gradient.trial_gradients.local_steps import local_orders
from attacks.guesses import Reconstruction
from attacks.image_measures import psnr, ssim
from attacks.metrics.images import RETRIEVAL, RETRIEVAL_CHANCE
from attacks.observations import TrainingUpdate
from attacks.registry import ATTACKS
from clients.models.library import Shape
from clients.scoring.retrieval import retrieval_from_round
from defenses.spec import parse_statements

MEASURES = ("psnr", "ssim", "identified", "recovered", "of_round")
NAMES = {**ATTACKS, "FlatSurrogateMatching": FlatSurrogateMatching}
"""Of attacks."""
ABOVE = 3.0
"""Decibels above the mean image from which an identified image counts as recovered.

The report (``recovery.is_recovered``) compares with the better of the mean image and a grey one, so that it may count fewer.
"""
UNTIL_NAMED = {"averages": True, "auxiliary": False}
"""Settings of lines that do not name them."""


class Rounds(Cell):
    """The updates of one case and seed, and what is behind them.

    Args:
        case: See above.
        seed: Of weights and images.
        images: How many are attacked, a multiple of the images of a client.
        auxiliary: They are of the training split.
        averages: In train mode the update carries the running averages.
    """

    def __init__(self, case: str, seed: int, images: int, auxiliary: bool, averages: bool = True) -> None:
        *cell, epochs, batch, rate = case.split(":")
        self.epochs, self.batch, self.rate = int(epochs), int(batch), float(rate)
        self.orders = torch.Generator().manual_seed(1000 + seed)  # Not that of the attack's guess.
        super().__init__(":".join(cell), seed, images, auxiliary, averages)

    def _built(self, kind: str, num_classes: int, shape: Shape, seed: int) -> nn.Module:
        if kind in NETWORKS:
            return NETWORKS[kind].build(shape, num_classes, seed)
        return super()._built(kind, num_classes, shape, seed)

    def _observed(self, images: Tensor, labels: Tensor) -> TrainingUpdate:
        mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (self.mean, self.std))
        before = {name: value.clone() for name, value in self.model.state_dict().items()}
        optimizer = torch.optim.SGD(self.model.parameters(), lr=self.rate)
        steps = self.epochs * -(-len(images) // self.batch)
        for batch in local_orders(len(images), self.batch, steps, self.orders):
            optimizer.zero_grad()
            F.cross_entropy(self.model((images[batch] - mean) / std), labels[batch]).backward()
            optimizer.step()
        after = {name: value.clone() for name, value in self.model.state_dict().items()}
        self.model.load_state_dict(before)
        self.model.zero_grad()
        sent = [name for name, _ in self.model.named_parameters()]
        sent += [name for name, value in self.model.named_buffers() if self.averages and value.is_floating_point()]
        return TrainingUpdate(
            self.model,
            {name: after[name] - before[name] for name in sent},
            (images.shape[1], images.shape[2], images.shape[3]),
            self.mean,
            self.std,
            num_examples=len(images),
            batch_size=self.batch,
            local_steps=steps,
            learning_rate=self.rate,
            labels=labels,
            train_mode=self.mode == "train",
        )

    def scores(self, guesses: Sequence[Tensor]) -> dict[str, list[float]]:
        """See ``scored``."""
        return scored(self, guesses)


def scored(cell: Cell, guesses: Sequence[Tensor]) -> dict[str, list[float]]:
    """Of guesses (b, 3, H, W) for each client: ``MEASURES``, dB above the mean image and the chance of ``of_round``, by image."""
    found: dict[str, list[float]] = defaultdict(list)
    others = cell.others[: CANDIDATES - 1]
    for guess, (truth, _) in zip(guesses, cell.batches, strict=True):
        pairs = PairedGuesses.of(guess, truth)
        reached, identified = pairs.psnr(), pairs.identified(cell.others)
        above = reached - psnr(cell.mean_image.expand_as(pairs.truth), pairs.truth)
        found["psnr"] += reached.tolist()
        found["above"] += above.tolist()
        found["ssim"] += ssim(pairs.guess, pairs.truth).tolist()
        found["identified"] += identified
        # The report's rule of a round: nearer than half the distance of the nearest of 99 others.
        of_round = retrieval_from_round(
            Reconstruction(pairs.guess, truth.new_zeros(0)),
            (torch.arange(len(pairs.places)), pairs.places),
            truth,
            others,
        )
        found["of_round"] += of_round[RETRIEVAL.of("original")]
        found["chance"] += of_round[RETRIEVAL_CHANCE.of()]
        found["recovered"] += [
            float(one and gain >= ABOVE) for one, gain in zip(identified, above.tolist(), strict=True)
        ]
    return dict(found)


def study(cell: Rounds, about: dict[str, Any], options: argparse.Namespace, done: set[str]) -> Iterator[dict[str, Any]]:
    """A line for the mean image and for each method that is not done."""
    if MEAN not in done:
        guess = [cell.mean_image.expand_as(truth) for truth, _ in cell.batches]
        yield {**about, "method": MEAN, "iterations": 0, "seconds": 0.0, **cell.scores(guess)}
    for text in options.attacks:
        name = f"{text}, {options.iterations}"
        if name not in done:
            attack = parse_statements(text, NAMES, "attack")[0][0]
            took, found = timed(lambda one=attack: ours(one, cell, options.iterations, about["seed"]))  # type: ignore[misc]
            yield {**about, "method": name, "iterations": options.iterations, "seconds": took, **cell.scores(found)}


def shown(lines: Sequence[dict[str, Any]]) -> str:
    """A table of all cases; seeds are other weights and other images, and are put together, with the gain of each beside."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        named = UNTIL_NAMED | line
        case = f"{named['case']}{'' if named['averages'] else ', no averages'}"
        groups[f"{case}{', training split' if named['auxiliary'] else ''}", named["method"]].append(line)
    body = []
    for (case, method), mine in sorted(groups.items()):
        values = {key: [v for one in mine for v in one.get(key, [])] for key in (*MEASURES, "above")}
        gains = ["{:+.1f} ± {:.1f}".format(*mean_and_reach(one["above"])) for one in mine]
        body.append(
            [
                case,
                method,
                str(len(values["psnr"])),
                "{:.1f} ± {:.1f}".format(*mean_and_reach(values["psnr"])),
                "{:+.1f} ± {:.1f}".format(*mean_and_reach(values["above"])),
                "; ".join(gains),
                f"{sum(values['ssim']) / len(values['ssim']):.2f}",
                *(f"{sum(found):.0f} of {len(found)}" if found else "-" for found in map(values.get, MEASURES[2:])),
                f"{sum(one['seconds'] for one in mine) / sum(one['n'] // one['client'] for one in mine):.0f}",
            ]
        )
    header = ["case", "method", "n", "PSNR, dB", "above the mean image, dB", "of each seed", "SSIM"]
    return table([*header, "identified", "recovered", "as in a round", "s/client"], body)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="*", default=[], metavar="NETWORK:NORM:DATA:IMAGES:EPOCHS:BATCH:RATE")
    parser.add_argument("--attacks", nargs="+", default=["SurrogateMatching()"], metavar="ATTACK")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0])
    parser.add_argument("--images", type=int, default=16, help="attacked for each case and seed")
    parser.add_argument("--iterations", type=int, default=400)
    parser.add_argument("--auxiliary", action="store_true", help="images of the training split, to choose settings by")
    parser.add_argument(
        "--averages", action=argparse.BooleanOptionalAction, default=True, help="train mode: send the running averages"
    )
    parser.add_argument("--out", type=Path, default=Path("whole_rounds.jsonl"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    written = options.out.read_text().split("\n")[:-1] if options.out.exists() else []
    lines = [json.loads(line) for line in written]
    for case, seed in itertools.product(options.cases, options.seeds):
        client = int(case.split(":")[3])
        if options.images % client:
            parser.error(f"--images {options.images} is no multiple of the {client} images of a client of {case}")
        about = {"case": case, "seed": seed, "n": options.images, "client": client, "averages": options.averages}
        about["auxiliary"] = options.auxiliary
        done = {line["method"] for line in lines if {key: (UNTIL_NAMED | line)[key] for key in about} == about}
        for line in study(
            Rounds(case, seed, options.images, options.auxiliary, options.averages), about, options, done
        ):
            lines.append(line)
            with options.out.open("a") as file:
                file.write(json.dumps(line) + "\n")
    print(shown(lines))


if __name__ == "__main__":
    logging.disable(logging.INFO)
    main()
