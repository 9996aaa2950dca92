"""All attacks on membership against the update of one client whose model remembers its digits.

400 members, 1,000 auxiliary digits that the client does not hold, 2,200 other digits as non-members. As a control the attacks also
judge 400 digits that no model was trained on, as if they were members: their AUC must be near 0.5. Every shadow model has 400
members. A fifth of the labels is drawn at random.

    python benchmarks/membership/one_update.py --seeds 0 1
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Iterator
from typing import Any

from remembering import RATE, STEPS, cells, overfit, perceptron, seeded, shuffled, table
from remembering import normalised as seen_by_model
from torch import nn
from torch.nn import functional as F

from attacks import RMIA, ClientUpdate, Knowledge, LiRA, LossThreshold, ShadowModels
from clients.data.datasets import load_dataset
from defenses import Batch, Pipeline

MEMBERS, AUXILIARY, SHADOWS = 400, 1000, 8


def rows(seed: int) -> Iterator[tuple[str, ...]]:
    """Two rows for each attack: its members, and records that no model was trained on."""
    images, classes = shuffled(seed)
    sizes = [MEMBERS, MEMBERS, AUXILIARY, len(classes) - 2 * MEMBERS - AUXILIARY]
    members, fresh, auxiliary, others = zip(images.split(sizes), classes.split(sizes), strict=True)
    data, start = load_dataset("mnist-5k"), perceptron(seed)
    local, old = overfit(copy.deepcopy(start), *members), dict(start.named_parameters())
    update = {name: (value - old[name]).detach() for name, value in local.named_parameters()}
    mean, std = tuple(data.mean), tuple(data.std)
    seen = ClientUpdate(start, update, (1, 28, 28), mean, std, MEMBERS, MEMBERS, STEPS, RATE)

    trained: dict[int, nn.Module] = {}

    def train(batch: Batch, number: int) -> nn.Module:
        # Attacks that draw from equal generators train the same shadow models: one training serves all of them.
        if number not in trained:
            trained[number] = overfit(perceptron(number), batch.images, batch.targets.argmax(1))
        return trained[number]

    known = Knowledge(Batch(auxiliary[0], F.one_hot(auxiliary[1], 10).float()), Pipeline(()), mean, std, train)
    given: dict[str, Any] = {"num_shadows": SHADOWS, "num_members": MEMBERS}
    attacks = [LossThreshold(), ShadowModels(**given), RMIA(**given)]
    attacks += [LiRA(**given, variance=kind) for kind in ("each", "fixed", "shrunk")]
    for attack in attacks:
        test = attack.fit(known, seeded(seed))(seen, seeded(seed))
        scored = [test.scores(seen_by_model(one[0]), one[1]) for one in (members, fresh, others)]
        for kind, scores in zip(("members", "never trained on"), scored[:2], strict=True):
            yield f"`{attack}`", kind, *cells(scores, scored[2]), str(seed)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    header = ("attack", "records", "AUC", "TPR at 1 % FPR", "TPR at 0.1 % FPR", "seed")
    print(table(header, [row for seed in parser.parse_args().seeds for row in rows(seed)]))


if __name__ == "__main__":
    main()
