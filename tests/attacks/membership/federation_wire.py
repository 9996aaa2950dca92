"""A small federation whose clients remember their digits, as its server sees it."""

from __future__ import annotations

import copy
from functools import cache

import torch
from torch import Tensor, nn

from attacks.observations import ClientUpdate, UpdateHistory
from attacks.scoring.roc import auc_interval
from tests.attacks.membership.remembering import Trainer, digits, network, normalise, observe, overfit

CLIENTS, EACH, ROUNDS = 5, 40, 3
Records = tuple[Tensor, Tensor]


def records(start: int, count: int) -> Records:
    images, labels = digits()
    return images[start : start + count], labels[start : start + count]


def shares() -> list[Records]:
    """The clients' digits."""
    return [records(at * EACH, EACH) for at in range(CLIENTS)]


def others() -> Records:
    """Digits of no client."""
    return records(1000, 600)


def fresh() -> Records:
    """Digits of no client either, which a control takes for members."""
    return records(2000, CLIENTS * EACH)


def histories(train: Trainer = overfit) -> list[UpdateHistory]:
    """The rounds as seen of each client."""
    start, rounds = network(0), list[list[ClientUpdate]]()
    for _ in range(ROUNDS):
        sent = [observe(start, train, *share) for share in shares()]
        rounds.append(sent)
        start = moved(start, sent)
    return [
        UpdateHistory(tuple(sent[at] for sent in rounds), tuple(tuple(sent[:at] + sent[at + 1 :]) for sent in rounds))
        for at in range(CLIENTS)
    ]


@cache
def seen() -> list[UpdateHistory]:
    """``histories`` of clients that remember their digits."""
    return histories()


def moved(model: nn.Module, sent: list[ClientUpdate]) -> nn.Module:
    """The next global model."""
    model = copy.deepcopy(model)
    with torch.no_grad():
        for name, value in model.named_parameters():
            value += torch.stack([one.update[name] for one in sent]).mean(0)
    return model


def scored(attack, of: list[UpdateHistory], inside: list[Records]) -> tuple[Tensor, Tensor]:
    """Scores of what passes for members, and of ``others``, over all clients."""
    tests = [attack(one, torch.Generator()) for one in of]
    assert not any(test.failure for test in tests)
    members = torch.cat([test.scores(normalise(i), c) for test, (i, c) in zip(tests, inside, strict=True)])
    images, classes = others()
    parts = zip(tests, images.chunk(CLIENTS), classes.chunk(CLIENTS), strict=True)
    return members, torch.cat([test.scores(normalise(i), c) for test, i, c in parts])


def interval(attack, of: list[UpdateHistory], inside: list[Records]) -> tuple[float, float]:
    """95 % interval of the AUC."""
    return auc_interval(*scored(attack, of, inside))
