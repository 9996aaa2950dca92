"""All attacks on membership against the update of one client whose model remembers its digits.

400 members, 1,000 auxiliary digits that the client does not hold, 2,200 other digits as non-members. As a control the attacks also
judge 400 digits that no model was trained on, as if they were members: their AUC must be near 0.5. Every shadow model has 400
members. Online attacks have 16 shadow models, so that each of 3,000 digits in question is in two; the others have 8. A fifth of the
labels is drawn at random.

    python benchmarks/membership/one_update.py --seeds 0 1
    python benchmarks/membership/one_update.py --seeds 0 1 --only Online
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Iterator
from typing import Any

import torch
from remembering import RATE, STEPS, cells, overfit, perceptron, seeded, shuffled, table
from remembering import normalised as seen_by_model
from torch import nn
from torch.nn import functional as F

from attacks import (
    RMIA,
    ClientUpdate,
    Knowledge,
    LiRA,
    LossThreshold,
    OnlineLiRA,
    OnlineRMIA,
    QuantileRegression,
    ShadowModels,
)
from clients.data.datasets import load_dataset
from defenses import Batch, Pipeline

MEMBERS, AUXILIARY, SHADOWS, ONLINE_SHADOWS = 400, 1000, 8, 16


def rows(seed: int, only: str = "") -> Iterator[tuple[str, ...]]:
    """Two rows for each attack whose name begins with ``only``: its members, and records that no model was trained on."""
    images, classes = shuffled(seed)
    sizes = [MEMBERS, MEMBERS, AUXILIARY, len(classes) - 2 * MEMBERS - AUXILIARY]
    members, fresh, auxiliary, others = zip(images.split(sizes), classes.split(sizes), strict=True)
    data, start = load_dataset("mnist-5k"), perceptron(seed)
    local, old = overfit(copy.deepcopy(start), *members), dict(start.named_parameters())
    update = {name: (value - old[name]).detach() for name, value in local.named_parameters()}
    mean, std = tuple(data.mean), tuple(data.std)
    seen = ClientUpdate(start, update, (1, 28, 28), mean, std, MEMBERS, MEMBERS, STEPS, RATE)

    trained: dict[tuple[int, float], nn.Module] = {}

    def train(batch: Batch, number: int) -> nn.Module:
        # Attacks that draw from equal generators train the same shadow models: one training serves all of them.
        key = number, float(batch.images.double().sum())
        if key not in trained:
            trained[key] = overfit(perceptron(number), batch.images, batch.targets.argmax(1))
        return trained[key]

    known = Knowledge(Batch(auxiliary[0], F.one_hot(auxiliary[1], 10).float()), Pipeline(()), mean, std, train)
    given: dict[str, Any] = {"num_shadows": SHADOWS, "num_members": MEMBERS}
    kinds = ("each", "fixed", "shrunk")
    attacks = [
        LossThreshold(),
        QuantileRegression(),
        QuantileRegression(relabelled=0),
        ShadowModels(**given),
        RMIA(**given),
    ]
    attacks += [LiRA(**given, variance=kind) for kind in kinds]
    attacks += [OnlineRMIA(ONLINE_SHADOWS), *(OnlineLiRA(ONLINE_SHADOWS, variance=kind) for kind in kinds)]
    judged = (members, fresh, others)
    plain = Batch(torch.cat([one[0] for one in judged]), F.one_hot(torch.cat([one[1] for one in judged]), 10).float())
    for attack in (one for one in attacks if type(one).__name__.startswith(only)):
        test = attack.fit(known, seeded(seed))(seen, seeded(seed))
        scored = test.scores_among(plain, seen_by_model(plain.images), train, MEMBERS)
        parts = scored.split([len(one[1]) for one in judged])
        for kind, scores in zip(("members", "never trained on"), parts[:2], strict=True):
            yield f"`{attack}`", kind, *cells(scores, parts[2]), str(seed)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--only", default="", help="first letters of the attacks' names")
    given = parser.parse_args()
    header = ("attack", "records", "AUC", "TPR at 1 % FPR", "TPR at 0.1 % FPR", "seed")
    print(table(header, [row for seed in given.seeds for row in rows(seed, given.only)]))


if __name__ == "__main__":
    main()
