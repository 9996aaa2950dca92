r"""What SiloBN costs: one training of a network with BatchNorm, judged with three kinds of running averages.

In train mode no layer reads running averages, so that weights learn the same with and without ``SiloBN()``: one federated training
(FedAvg over simulated clients, every client in every round) serves all three. Each client judges the final model on its own test
share with three averages: those that FedAvg makes, those of its own training images (``SiloBN``), and the initial ones. A server
without data has the initial ones under ``SiloBN``. Clients hold examples at random (``random``) or of few classes each
(``classes``); test shares are drawn at random in both.

    uv run python benchmarks/inversion/local_averages.py --seeds 0 1

With ``--cells`` it attacks one-step probes in train mode whose running averages the client kept, with the cells and measures of
``peer_strength.py``. ``--epochs`` trains the network first, on half of the training images that are not used in the attack; the
other half are the server's images for ``missing_statistics="proxy"``. Each attack, cell and seed appends a line to ``--out``.
Settings are chosen with ``--auxiliary``, on images of the training split. Without ``--attacks`` it measures how near the stand-ins
are to the statistics of images (``KeptCell.distances``).

    uv run --with piq==0.8.0 python benchmarks/inversion/local_averages.py --cells convnet:train:photos:1 --epochs 10 --attacks \
        "InvertingGradients(total_variation=1.0)" "InvertingGradients(total_variation=1.0, missing_statistics='proxy')"
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from peer_strength import MEAN, Cell, colours, ours
from torch import Tensor
from torch.nn import functional as F

from attacks.base import Knowledge
from attacks.gradient.trial_gradients.batch_statistics import batch_norms, call_with_statistics, statistics_distance
from attacks.gradient.trial_gradients.matching import attackable
from attacks.gradient.trial_gradients.missing_statistics import (
    PROXY,
    RUNNING,
    proxy_statistics,
    running_statistics,
)
from attacks.local_model import shared_tensors
from attacks.normalisation import denormalise, normalise
from attacks.spec import parse_attacks
from clients.data.datasets import load_dataset, to_float
from clients.federated.client import LocalClient
from clients.federated.plan import FederatedPlan
from clients.task.local_data import LocalData
from defenses.base import Batch
from defenses.pipeline import Pipeline
from defenses.updates.local_statistics import is_statistic

PLAN = FederatedPlan(
    scenario="federated", dataset="mnist-5k", data_dir="", download=False, image_size=0, train_limit=0, test_limit=0,
    model="convnet", width=4, norm="batch", pipeline="", seed=0, rounds=1, local_epochs=1, batch_size=16, learning_rate=0.1,
    momentum=0.0, weight_decay=0.0, probe_targets=1, probe_images=1,
)  # fmt: skip
CLIENTS = 4
ACCURACY = "test-accuracy-original"


def shares(split: str, seed: int, examples: int) -> list[list[int]]:
    """Training examples of each client."""
    labels = torch.as_tensor(load_dataset(PLAN.dataset).train.labels)
    drawn = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))[: CLIENTS * examples]
    if split == "classes":
        drawn = drawn[labels[drawn].argsort(stable=True)]
    return [part.tolist() for part in drawn.split(examples)]


def judged(clients: list[LocalClient], weights: Mapping[str, Tensor]) -> float:
    """Mean accuracy over clients, whose test shares have one size."""
    return sum(client.evaluate(weights)[ACCURACY] for client in clients) / len(clients)


def accuracies(split: str, seed: int, rounds: int, examples: int, tested: int) -> dict[str, float]:
    """Kind of running averages -> mean accuracy after the last round."""
    plan = replace(PLAN, seed=seed, rounds=rounds)
    parts = shares(split, seed, examples)
    tests = [range(at * tested, (at + 1) * tested) for at in range(CLIENTS)]

    def clients(pipeline: str, server_round: int) -> list[LocalClient]:
        mine = replace(plan, pipeline=pipeline).at(server_round)
        return [LocalClient(LocalData(mine, at, parts[at], tests[at])) for at in range(CLIENTS)]

    initial = {name: tensor.clone() for name, tensor in shared_tensors(plan.build_model()).items()}
    weights = dict(initial)
    for server_round in range(1, rounds + 1):
        updates = [client.train(weights, {}).updates[0] for client in clients("", server_round)]
        mean = {name: torch.stack([update[name] for update in updates]).mean(0) for name in weights}
        weights = {name: weight + mean[name] for name, weight in weights.items()}
    unmoved = {name: initial[name] if is_statistic(name) else weight for name, weight in weights.items()}
    return {
        "averaged": judged(clients("", rounds), weights),
        "own": judged(clients("SiloBN()", rounds), unmoved),
        "initial": judged(clients("", rounds), unmoved),
    }


class KeptCell(Cell):
    """A cell whose clients keep their running averages, at a network that was trained for some epochs.

    Args:
        name: One of ``CELLS``, in train mode.
        seed: Of weights and images.
        images: How many are attacked, a multiple of the batch.
        auxiliary: They are of the training split.
        epochs: Of SGD on half of the other training images, before the attack; 0: weights as torch draws them.
    """

    def __init__(self, name: str, seed: int, images: int, auxiliary: bool, epochs: int) -> None:
        super().__init__(name, seed, images, auxiliary, averages=False)
        data, draw = load_dataset(name.split(":")[2]).train, torch.Generator().manual_seed(seed)
        order = torch.randperm(len(data), generator=draw)
        if auxiliary:
            order = order[images + len(self.others) :]  # The order of ``Cell``, which attacks the first.
        self.learned, own = (Batch(colours(to_float(data.images[rows])), F.one_hot(data.labels[rows]).float())
                        for rows in (order[::2], order[1::2]))  # fmt: skip
        self.knowledge = Knowledge(own, Pipeline(), tuple(self.mean), tuple(self.std), lambda *_: self.model)
        mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (self.mean, self.std))
        optimizer = torch.optim.SGD(self.model.parameters(), 0.05, momentum=0.9)
        for _ in range(epochs):
            for rows in torch.randperm(len(self.learned), generator=draw).split(16):
                optimizer.zero_grad()
                F.cross_entropy(
                    self.model((self.learned.images[rows] - mean) / std), self.learned.targets[rows]
                ).backward()
                optimizer.step()
        with torch.no_grad():
            self.model.eval()
            found = self.model((own.images - mean) / std).argmax(1)
            self.model.train()
        self.accuracy = float((found == own.targets.argmax(1)).double().mean())
        self.seen = [self._observed(*one) for one in self.batches]

    def guessed(self, text: str, iterations: int, seed: int) -> list[Tensor]:
        """Guesses (b, 3, H, W) of each update, by an attack that has learned from the server's images."""
        attack = replace(parse_attacks(text)[0], labels="known").fit(
            self.knowledge, torch.Generator().manual_seed(seed)
        )
        return ours(attack, self, iterations, seed)

    def distances(self, seed: int) -> dict[str, dict[str, list[float]]]:
        """Stand-in -> images -> ``statistics_distance`` of these from the stand-in, a value for each batch.

        The client's images ("own"), images of the other half of the training images ("others"), the mean image, and the normal
        noise at which an inversion starts. A stand-in can guide an inversion if the client's images are nearer to it than noise.
        """
        one, size = self.seen[0], self.seen[0].num_examples
        model, layers = attackable(self.model, train_mode=True), list(batch_norms(self.model))
        state = {name: value.detach() for name, value in model.named_parameters()}, dict(model.named_buffers())
        draw = torch.Generator().manual_seed(seed)
        noise = [denormalise(torch.randn(truth.shape, generator=draw), one) for truth, _ in self.batches]
        images = {
            "own": [truth for truth, _ in self.batches],
            "others": list(self.learned.images[: len(self.batches) * size].split(size)),
            "mean image": [self.mean_image.expand(size, -1, -1, -1)],
            "noise": noise,
        }
        with torch.no_grad():
            entered = {
                name: [call_with_statistics(model, *state, normalise(batch, one))[1] for batch in some]
                for name, some in images.items()
            }
        stand_ins = {
            RUNNING: running_statistics(one, layers),
            PROXY: proxy_statistics(one, model, self.knowledge.auxiliary.images, layers),
        }
        return {
            what: {name: [float(statistics_distance(known, each)) for each in some] for name, some in entered.items()}
            for what, known in stand_ins.items()
            if known
        }


def attacked(options: argparse.Namespace) -> None:
    """Append a line for the mean image and each attack, of each cell and seed."""
    for name, seed in itertools.product(options.cells, options.seeds):
        cell = KeptCell(name, seed, options.images, options.auxiliary, options.epochs)
        about = {"cell": name, "seed": seed, "n": options.images, "epochs": options.epochs, "accuracy": cell.accuracy,
                 "auxiliary": options.auxiliary, "iterations": options.iterations}  # fmt: skip
        if not options.attacks:
            with options.out.open("a") as file:
                file.write(json.dumps({**about, "distances": cell.distances(seed)}) + "\n")
            continue
        for text in [MEAN, *options.attacks]:
            mean = [cell.mean_image.expand_as(truth) for truth, _ in cell.batches]
            found = mean if text == MEAN else cell.guessed(text, options.iterations, seed)
            with options.out.open("a") as file:
                file.write(json.dumps({**about, "method": text, **cell.scores(found)}) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--examples", type=int, default=300, help="of each client")
    parser.add_argument("--tested", type=int, default=150, help="test examples of each client")
    parser.add_argument("--out", type=Path, default=Path("local_averages.jsonl"))
    parser.add_argument(
        "--cells", nargs="*", default=[], metavar="NETWORK:train:DATA:BATCH", help="attack these instead"
    )
    parser.add_argument("--attacks", nargs="*", default=[], metavar="ATTACK")
    parser.add_argument("--epochs", type=int, default=0, help="of training before the attack")
    parser.add_argument("--images", type=int, default=16, help="attacked for each cell and seed")
    parser.add_argument("--iterations", type=int, default=300)
    parser.add_argument(
        "--auxiliary", action="store_true", help="attack images of the training split, to choose settings by"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.cells:
        attacked(options)
    for seed, split in itertools.product(options.seeds, () if options.cells else ("random", "classes")):
        found = accuracies(split, seed, options.rounds, options.examples, options.tested)
        with options.out.open("a") as file:
            file.write(json.dumps({"split": split, "seed": seed, "rounds": options.rounds, **found}) + "\n")
        print(f"{split}, seed {seed}: " + ", ".join(f"{name} {100 * value:.1f} %" for name, value in found.items()))


if __name__ == "__main__":
    logging.disable(logging.INFO)
    main()
