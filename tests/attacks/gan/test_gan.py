"""GAN attacks on the models that clients send."""

import pickle
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from attacks.base import Knowledge
from attacks.gan.class_gan import ClassGAN
from attacks.gan.multitask_gan import MultitaskGAN
from attacks.local_model import local_model
from attacks.networks.generator import ImageGenerator, random_shift
from attacks.observations import AttackError, ClientUpdate, UpdateHistory
from attacks.scoring.oracle import train_oracle
from attacks.scoring.representatives import score_representatives
from clients.data.datasets import load_dataset, to_float
from defenses.base import Batch
from defenses.pipeline import Pipeline
from tests.attacks.wire import classes, generators, observe, pictures, sigmoid_net

TINY = {"iterations": 4, "batch_size": 6, "latent": 8, "width": 4, "images_per_class": 2}


@cache
def digits():
    """Every second pixel of some digits, (2000, 1, 14, 14): what is tested here does not need all of them."""
    train = load_dataset("mnist-5k").train
    order = torch.randperm(len(train.images), generator=torch.Generator().manual_seed(0))[:2000]
    return F.avg_pool2d(to_float(train.images)[order], 2), train.labels[order]


def auxiliary():
    images, labels = digits()
    return Batch(images[:600], F.one_hot(labels[:600], 10).float())


@cache
def history():
    """Two rounds of a client that trains a small network on 800 digits."""
    images, labels = (part[600:1400] for part in digits())
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(1, 8, 5, 2, 2), nn.Tanh(), nn.Flatten(), nn.Linear(8 * 49, 32), nn.Tanh(), nn.Linear(32, 10)
        )
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


def small(seed=0, **changes):
    """One round of one step on four synthetic pictures, five classes."""
    return UpdateHistory((observe(sigmoid_net(seed=5), pictures(4, seed=seed), classes(4, seed=seed), **changes),))


def knowing(images):
    targets = torch.eye(5)[torch.arange(len(images)) % 5]
    return Knowledge(Batch(images, targets), Pipeline(), (0.4,), (0.3,), lambda batch, seed: nn.Identity())


def attacks():
    multitask = MultitaskGAN(**TINY, representative_iterations=3).fit(knowing(pictures(20, seed=9)), generators(1)[0])
    return [ClassGAN(**TINY), multitask]


@cache
def judge():
    return train_oracle(auxiliary(), seed=0, epochs=4)


def scored(guess):
    images, labels = digits()
    return score_representatives(guess, images[600:1400], labels[600:1400], judge().classify(guess.images))


def mean(values):
    return sum(values) / len(values)


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 13, 10), (1, 3, 3)])
def test_generator_draws_images_of_the_asked_shape(shape):
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first, again = (ImageGenerator(7, 3, shape, 4, torch.Generator().manual_seed(2)) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    images = first.draw(torch.tensor([0, 1, 2, 0]), torch.Generator().manual_seed(3))
    assert images.shape == (4, *shape)
    assert images.min() >= 0
    assert images.max() <= 1
    assert torch.equal(images, again.draw(torch.tensor([0, 1, 2, 0]), torch.Generator().manual_seed(3)))


def test_shift_moves_and_repeats_the_border():
    image = torch.arange(16.0).view(1, 1, 4, 4)
    moved = {tuple(random_shift(image, 1, torch.Generator().manual_seed(i)).flatten().tolist()) for i in range(200)}
    assert len(moved) == 9
    assert tuple(image.flatten().tolist()) in moved
    assert random_shift(image, 0, torch.Generator()) is image


@pytest.mark.long
def test_the_received_model_recognises_what_was_drawn_for_it():
    guess = ClassGAN(iterations=150, width=8, latent=16, learning_rate=5e-3)(history(), generators(1)[0])
    assert not guess.failure
    assert guess.images.shape == (80, 1, 14, 14)
    assert torch.equal(guess.classes, torch.arange(10).repeat_interleave(8))
    with torch.no_grad():
        answers = local_model(history().updates[-1])((guess.images - 0.13) / 0.31).argmax(1)
    agreement = (answers == guess.classes).float().mean().item()
    assert agreement >= 0.9
    assert guess.diagnostics["agreement"] == pytest.approx(agreement)


def test_an_update_of_noise_draws_nothing_that_can_be_recognised():
    """One class counts once: the images of a class look alike. Three updates, 30 classes, chance is 3."""
    hits = 0.0
    for seed in range(3):
        noise = torch.Generator().manual_seed(seed)
        last = history().updates[-1]
        update = {name: torch.randn(value.shape, generator=noise) for name, value in last.update.items()}
        guess = ClassGAN(iterations=40, width=8, latent=16, learning_rate=5e-3)(
            UpdateHistory((replace(last, update=update),)), noise
        )
        hits += sum(scored(guess)["recognition"]) / 8
    assert hits < 3 + 3 * (30 * 0.1 * 0.9) ** 0.5


@pytest.mark.long
def test_auxiliary_images_bring_the_guess_closer_to_the_class_means():
    shared = {"iterations": 100, "width": 8, "latent": 16, "learning_rate": 3e-3}
    knowledge = replace(knowing(pictures(4)), auxiliary=auxiliary())
    multitask = MultitaskGAN(**shared, representative_iterations=3).fit(knowledge, generators(1)[0])
    with_data = scored(multitask(history(), generators(1)[0]))
    without = scored(ClassGAN(**shared)(history(), generators(1)[0]))
    assert mean(with_data["class-mean-psnr"]) > mean(without["class-mean-psnr"]) + 1


@pytest.mark.parametrize("attack", attacks(), ids=repr)
def test_repeats_itself_and_leaves_the_observation_alone(attack):
    seen = [small(1), small(2)]
    before = [value.clone() for value in seen[0].updates[0].model.state_dict().values()]
    state = torch.get_rng_state()
    first = attack.attack_many(seen, generators(2))
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(3)
    again = attack.attack_many(seen, generators(2))
    for a, b in zip(first, again, strict=True):
        assert not a.failure
        assert torch.equal(a.images, b.images)
    assert not torch.equal(first[0].images, first[1].images)
    model = seen[0].updates[0].model
    assert all(torch.equal(a, b) for a, b in zip(before, model.state_dict().values(), strict=True))
    assert all(p.grad is None and p.requires_grad for p in model.parameters())


@pytest.mark.parametrize("attack", attacks(), ids=repr)
def test_a_broken_client_gets_grey_images_and_the_others_go_on(attack):
    broken = UpdateHistory((replace(small().updates[0], update={}),))
    guesses = attack.attack_many([small(1), broken, UpdateHistory(()), small(2)], generators(4))
    assert [bool(guess.failure) for guess in guesses] == [False, True, True, False]
    assert torch.equal(guesses[1].images, torch.full((10, 1, 12, 12), 0.5))
    assert torch.equal(guesses[1].classes, torch.arange(5).repeat_interleave(2))
    assert len(guesses[2].images) == 0


@pytest.mark.parametrize("attack", attacks(), ids=repr)
def test_a_broken_round_is_left_out(attack):
    good = small(1).updates[0]
    both = UpdateHistory((replace(good, update={}), good))
    assert torch.equal(attack(both, generators(1)[0]).images, attack(UpdateHistory((good,)), generators(1)[0]).images)


def batch_norm_history():
    """A client that trains a network with BatchNorm on four pictures for one step, and sends its statistics as well."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        start = nn.Sequential(nn.Conv2d(1, 4, 5, 2, 2), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))
    client = pickle.loads(pickle.dumps(start))
    seen = observe(client, pictures(4), classes(4))
    buffers = dict(start.named_buffers())
    sent = {n: v - buffers[n] for n, v in client.named_buffers() if v.is_floating_point()}
    assert all(moved.any() for moved in sent.values())
    return UpdateHistory((replace(seen, model=start, update=seen.update | sent),))


@pytest.mark.parametrize("attack", attacks(), ids=repr)
def test_batch_norm_statistics_in_the_update_are_part_of_the_model(attack):
    seen = batch_norm_history()
    guess = attack(seen, generators(1)[0])
    assert not guess.failure
    assert guess.images.shape == (10, 1, 12, 12)
    last = seen.updates[-1]
    parameters = {name: last.update[name] for name, _ in last.model.named_parameters()}
    without = attack(UpdateHistory((replace(last, update=parameters),)), generators(1)[0])
    assert not torch.equal(guess.images, without.images)


@pytest.mark.parametrize("attack", attacks(), ids=repr)
def test_named_classes_only(attack):
    guess = replace(attack, classes=(3, 1))(small(), generators(1)[0])
    assert guess.classes.tolist() == [3, 3, 1, 1]
    assert "class 7" in replace(attack, classes=(7,))(small(), generators(1)[0]).failure


def test_multitask_needs_auxiliary_images_of_the_right_shape():
    attack = MultitaskGAN(**TINY)
    with pytest.raises(AttackError, match="auxiliary"):
        attack(small(), generators(1)[0])
    with pytest.raises(AttackError, match="at least 2"):
        attack.fit(knowing(pictures(1)), generators(1)[0])
    fitted = attack.fit(knowing(pictures(4, side=8)), generators(1)[0])
    assert "auxiliary images are" in fitted(small(), generators(1)[0]).failure
    assert fitted == attack


def test_identity_uses_representatives_of_every_client():
    attack = attacks()[1]
    seen = [small(1), small(2)]
    guess = attack.attack_many(seen, generators(2))[0]
    assert guess.diagnostics["representatives"] == 4
    without = replace(attack, identity=0.0).attack_many(seen, generators(2))[0]
    assert without.diagnostics["representatives"] == 0
    assert not torch.equal(guess.images, without.images)


@pytest.mark.parametrize(
    "wrong",
    [
        {"iterations": 0},
        {"batch_size": 1},
        {"learning_rate": 0.0},
        {"classes": (1, 1)},
        {"classes": (-1,)},
        {"images_per_class": 1.5},
    ],
)
@pytest.mark.parametrize("cls", [ClassGAN, MultitaskGAN])
def test_refuses_bad_values(cls, wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        cls(**wrong)
