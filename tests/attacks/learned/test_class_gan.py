"""``ClassGAN``, on the models that clients send."""

import pickle
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from attacks.learned.class_gan import ClassGAN
from attacks.local_model import local_model
from attacks.observations import ClientUpdate, UpdateHistory
from attacks.scoring.metrics import score_representatives
from attacks.scoring.oracle import train_oracle
from clients.data.datasets import load_dataset
from clients.data.images import to_float
from defenses.base import Batch
from tests.attacks.wire import classes, observe, pictures, sigmoid_net
from tests.attacks.wire import stream as seeded

TINY = {"iterations": 4, "batch_size": 6, "latent": 8, "width": 4, "images_per_class": 2}


@cache
def digits():
    """Every second pixel of some digits, (1400, 1, 14, 14): what is tested here does not need all of them."""
    train = load_dataset("mnist-5k").train
    order = torch.randperm(len(train.images), generator=seeded())[:1400]
    return F.avg_pool2d(to_float(train.images)[order], 2), train.labels[order]


@cache
def history():
    """Two rounds of a client that trains a small network on 800 digits."""
    images, labels = (part[600:1400] for part in digits())
    generator = seeded()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = nn.Conv2d(1, 8, 5, 2, 2), nn.Tanh(), nn.Flatten(), nn.Linear(8 * 49, 32), nn.Tanh(), nn.Linear(32, 10)
        model = nn.Sequential(*layers)
    updates = []
    for _ in range(2):
        start = pickle.loads(pickle.dumps(model))
        optimizer = torch.optim.Adam(model.parameters(), 3e-3)
        for batch in (b for _ in range(5) for b in torch.randperm(800, generator=generator).split(32)):
            loss = F.cross_entropy(model((images[batch] - 0.13) / 0.31), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        after = dict(model.named_parameters())
        update = {name: (after[name] - weight).detach() for name, weight in start.named_parameters()}
        updates.append(ClientUpdate(start, update, (1, 14, 14), (0.13,), (0.31,), 800, 32, 125, 0.1))
    return UpdateHistory(tuple(updates))


def small(seed=0):
    """One round of one step on four synthetic pictures, five classes."""
    return UpdateHistory((observe(sigmoid_net(seed=5), pictures(4, seed=seed), classes(4, seed=seed)),))


@pytest.mark.long
@pytest.mark.numeric
def test_the_received_model_recognises_what_was_drawn_for_it(monkeypatch):
    monkeypatch.setattr("attacks.learned.class_gan.LEARNING_RATE", 4e-3)
    shared = {"iterations": 120, "width": 8, "latent": 16}
    guess = ClassGAN(**shared)(history(), seeded())
    assert not guess.failure
    assert guess.images.shape == (80, 1, 14, 14)
    assert torch.equal(guess.classes, torch.arange(10).repeat_interleave(8))
    with torch.no_grad():
        answers = local_model(history().updates[-1])((guess.images - 0.13) / 0.31).argmax(1)
    agreement = (answers == guess.classes).float().mean().item()
    assert agreement >= 0.8
    assert guess.diagnostics["agreement"] == pytest.approx(agreement)
    # One class counts once: the images of a class look alike. Three updates of noise, 30 classes, chance is 3.
    hits, last, (images, labels) = 0.0, history().updates[-1], digits()
    judge = train_oracle(Batch(images[:600], F.one_hot(labels[:600], 10).float()), seed=0, epochs=4)
    for seed in range(3):
        noise = seeded(seed)
        update = {name: torch.randn(value.shape, generator=noise) for name, value in last.update.items()}
        blind = replace(ClassGAN(**shared), iterations=40)(UpdateHistory((replace(last, update=update),)), noise)
        scores = score_representatives(blind, images[600:1400], labels[600:1400], judge.classify(blind.images))
        hits += sum(scores["recognition"]) / 8
    assert hits < 3 + 3 * (30 * 0.1 * 0.9) ** 0.5


def test_broken_clients_and_rounds_are_left_out():
    good = small(1).updates[0]
    bad = replace(good, update={})
    attack = ClassGAN(**TINY)
    seen = [small(1), UpdateHistory((bad,)), UpdateHistory(()), small(2)]
    guesses = attack.attack_many(seen, [seeded(at) for at in range(4)])
    assert [bool(guess.failure) for guess in guesses] == [False, True, True, False]
    assert torch.equal(guesses[1].images, torch.full((10, 1, 12, 12), 0.5))
    assert len(guesses[2].images) == 0
    assert torch.equal(attack(UpdateHistory((bad, good)), seeded()).images, attack(small(1), seeded()).images)
