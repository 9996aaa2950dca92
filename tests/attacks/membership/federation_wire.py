"""A small federation whose clients remember their digits, as its server sees it."""

from __future__ import annotations

import copy
from functools import cache

import torch
from torch import nn

from attacks.observations import ClientUpdate, UpdateHistory
from attacks.scoring.roc import auc_interval
from tests.attacks.membership.remembering import Records, digits, network, normalise, observe, overfit, seeded

CLIENTS, EACH, ROUNDS = 5, 40, 3


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


@cache
def seen() -> list[UpdateHistory]:
    """The rounds as seen of each client; all clients remember their digits."""
    start, rounds = network(0), list[list[ClientUpdate]]()
    for _ in range(ROUNDS):
        sent = [observe(start, overfit, *share) for share in shares()]
        rounds.append(sent)
        start = moved(start, sent)
    return [
        UpdateHistory(tuple(sent[at] for sent in rounds), tuple(tuple(sent[:at] + sent[at + 1 :]) for sent in rounds))
        for at in range(CLIENTS)
    ]


def moved(model: nn.Module, sent: list[ClientUpdate]) -> nn.Module:
    """The next global model."""
    model = copy.deepcopy(model)
    with torch.no_grad():
        for name, value in model.named_parameters():
            value += torch.stack([one.update[name] for one in sent]).mean(0)
    return model


def interval(attack, inside: list[Records]) -> tuple[float, float]:
    """95 % interval of the AUC of what passes for members of each client against ``others``."""
    tests = [attack(one, seeded()) for one in seen()]
    assert not any(test.failure for test in tests)
    outside = zip(*(part.chunk(CLIENTS) for part in others()), strict=True)
    members, strangers = (
        torch.cat([test.scores(normalise(i), c) for test, (i, c) in zip(tests, each, strict=True)])
        for each in (inside, outside)
    )
    return auc_interval(members, strangers)
