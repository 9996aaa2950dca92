"""Attacks on membership that use the rounds and the other clients of a federation, beside attacks on one update.

8 clients hold 100 digits each, a fifth of the labels drawn at random. In each of 8 rounds all of them train for 5 epochs from the
average of the round before. Every client is attacked. LossThreshold, LiRA and RMIA see its last update. The others see all rounds.
FedMIA compares it with the 7 other clients, LiRA and RMIA with 7 shadow models of 100 members each, which train alone for as many
epochs. 1,800 other digits are the non-members, an eighth of them judged at each client. As a control each client judges 50 digits
that no model was trained on, as if they were members: their AUC must be near 0.5. ``--noise`` adds Gaussian noise to every update.

    python benchmarks/membership/federation.py --seeds 0 1
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Iterator
from typing import Any

import torch
from remembering import cells, perceptron, seeded, shuffled, table
from remembering import normalised as seen_by_model
from torch import Tensor, nn
from torch.nn import functional as F

from attacks import (
    RMIA,
    ClientUpdate,
    FedMIA,
    GradientAlignment,
    Knowledge,
    LiRA,
    LossThreshold,
    LossTrajectory,
    UpdateHistory,
)
from clients.data.datasets import load_dataset
from defenses import Batch, Pipeline

CLIENTS, MEMBERS, FRESH, AUXILIARY = 8, 100, 400, 1000
ROUNDS, EPOCHS, BATCH, RATE, MOMENTUM = 8, 5, 20, 0.1, 0.5
STEPS = EPOCHS * MEMBERS // BATCH
Examples = tuple[Tensor, Tensor]


def trained(model: nn.Module, records: Examples, epochs: int, seed: int) -> nn.Module:
    """SGD on random batches, in place."""
    optimizer, generator = torch.optim.SGD(model.parameters(), RATE, momentum=MOMENTUM), seeded(seed)
    for _ in range(epochs):
        for batch in torch.randperm(len(records[1]), generator=generator).split(BATCH):
            optimizer.zero_grad()
            F.cross_entropy(model(seen_by_model(records[0][batch])), records[1][batch]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return model


def federation(shares: list[Examples], seed: int, noise: float) -> list[UpdateHistory]:
    """What the server sees of each client, over all rounds."""
    data, generator = load_dataset("mnist-5k"), seeded(seed)
    mean, std = tuple(data.mean), tuple(data.std)
    start, rounds = perceptron(seed), list[tuple[ClientUpdate, ...]]()
    for at in range(ROUNDS):
        old, sent = {name: value.detach() for name, value in start.named_parameters()}, []
        for number, share in enumerate(shares):
            local = trained(copy.deepcopy(start), share, EPOCHS, (at + 1) * 1000 + number)
            moved = ((name, value.detach() - old[name]) for name, value in local.named_parameters())
            update = {name: one + noise * torch.randn(one.shape, generator=generator) for name, one in moved}
            sent.append(ClientUpdate(start, update, (1, 28, 28), mean, std, MEMBERS, BATCH, STEPS, RATE))
        rounds.append(tuple(sent))
        start = copy.deepcopy(start)
        with torch.no_grad():
            for name, value in start.named_parameters():
                value += torch.stack([one.update[name] for one in sent]).mean(0)
    by_client = list(zip(*rounds, strict=True))
    return [
        UpdateHistory(
            mine, tuple(tuple(one for one in sent if one is not own) for sent, own in zip(rounds, mine, strict=True))
        )
        for mine in by_client
    ]


def rows(seed: int, noise: float) -> Iterator[tuple[str, ...]]:
    """Two rows for each attack: the clients' members, and records that no model was trained on."""
    images, classes = shuffled(seed)
    sizes = [CLIENTS * MEMBERS, FRESH, AUXILIARY, len(classes) - CLIENTS * MEMBERS - FRESH - AUXILIARY]
    members, fresh, auxiliary, others = zip(images.split(sizes), classes.split(sizes), strict=True)
    shares, controls, outside = (
        list(zip(*(part.chunk(CLIENTS) for part in one), strict=True)) for one in (members, fresh, others)
    )
    histories = federation(shares, seed, noise)
    last = histories[0].updates[-1]

    def train(batch: Batch, number: int) -> nn.Module:
        records = batch.images, batch.targets.argmax(1)
        return trained(perceptron(number), records, ROUNDS * EPOCHS, number).eval()

    known = Knowledge(
        Batch(auxiliary[0], F.one_hot(auxiliary[1], 10).float()), Pipeline(()), last.mean, last.std, train
    )
    given: dict[str, Any] = {"num_shadows": CLIENTS - 1, "num_members": MEMBERS}
    attacks: list[Any] = [LossThreshold(), LiRA(**given), RMIA(**given)]
    attacks += [FedMIA(), FedMIA(signal="loss"), LossTrajectory(), LossTrajectory(signal="loss")]
    attacks += [GradientAlignment(signal=signal) for signal in ("cosine", "product", "difference")]
    for attack in attacks:
        fitted, scores = attack.fit(known, seeded(seed)), list[list[Tensor]]()
        for at, history in enumerate(histories):
            test = fitted(history if attack.observes_history else history.updates[-1], seeded(seed))
            assert not test.failure, test.failure
            records = shares[at], controls[at], outside[at]
            scores.append([test.scores(seen_by_model(one[0]), one[1]) for one in records])
        inside, never, rest = (torch.cat(one) for one in zip(*scores, strict=True))
        for kind, found in (("members", inside), ("never trained on", never)):
            yield f"`{attack}`", kind, *cells(found, rest), str(seed)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument(
        "--noise", type=float, default=0.0, help="standard deviation of noise on every value of an update"
    )
    options = parser.parse_args()
    header = ("attack", "records", "AUC", "TPR at 1 % FPR", "TPR at 0.1 % FPR", "seed")
    print(table(header, []), flush=True)
    for row in (row for seed in options.seeds for row in rows(seed, options.noise)):
        print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
