"""Attacks on membership over the rounds of a federation, against their formulas and where they must and must not work."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.nn import functional as F

from attacks import AttackError, FedMIA, GradientAlignment, LossTrajectory, UpdateHistory
from attacks.local_model import local_model
from attacks.membership.federation.base import spread
from attacks.membership.federation.round_signals import RoundsTest, tail
from attacks.membership.federation.signals import ObservedRound, record_gradients, signals
from clients.models.classifiers import build_model
from clients.scoring.guesses import guess_tensors, read_guesses
from tests.attacks.membership import federation_wire as wire
from tests.attacks.membership.federation_wire import CLIENTS, EACH, ROUNDS, seen
from tests.attacks.membership.remembering import network, normalise

ATTACKS = (
    FedMIA(),
    FedMIA(signal="loss"),
    LossTrajectory(),
    LossTrajectory(signal="loss"),
    GradientAlignment(),
    GradientAlignment(signal="product"),
    GradientAlignment(signal="difference"),
)
IMAGES, CLASSES = wire.records(0, 12)


def slow_signal(update, kind, image, label):
    """One record, one update, by autograd in double precision."""
    model, local = (
        local_model(replace(update, update={n: 0 * u for n, u in update.update.items()})),
        local_model(update),
    )
    model, local = model.double().requires_grad_(True), local.double()
    image, label = normalise(image[None]).double(), label[None]
    loss, after = F.cross_entropy(model(image), label), F.cross_entropy(local(image), label)
    if kind in ("loss", "drop"):
        return (-after if kind == "loss" else loss - after).item()
    names = [name for name, _ in model.named_parameters()]
    found = torch.autograd.grad(loss, list(model.parameters()))
    g, d = torch.cat([one.flatten() for one in found]), -torch.cat([update.update[n].flatten().double() for n in names])
    if kind == "product":
        return float(g @ d)
    if kind == "cosine":
        return float(F.cosine_similarity(g, d, dim=0, eps=0))
    return float(d.square().sum() - (d - g).square().sum())  # as in the code of Zhu et al. 2025


@pytest.mark.parametrize("kind", ["loss", "drop", "cosine", "product", "difference"])
def test_signals_are_those_of_single_records(kind: str) -> None:
    history = seen()[1]
    test = FedMIA().attack_one(history, torch.Generator())
    found = signals(test.rounds[1], kind, network(7), normalise(IMAGES), CLASSES)
    updates = [history.updates[1], *history.others[1]]
    expected = [[slow_signal(one, kind, i, c) for i, c in zip(IMAGES, CLASSES, strict=True)] for one in updates]
    assert found.shape == (CLIENTS, len(IMAGES))
    torch.testing.assert_close(found, torch.tensor(expected).double(), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("signal", ["cosine", "loss"])
def test_fedmia_is_the_mean_cumulative_probability_of_the_published_code(signal: str) -> None:
    history = seen()[0]
    shown = normalise(IMAGES)
    found = FedMIA(signal=signal)(history, torch.Generator()).scores(shown, CLASSES)
    expected = 0.0
    for update, others in zip(history.updates, history.others, strict=True):
        judged = [
            [slow_signal(one, signal, i, c) for i, c in zip(IMAGES, CLASSES, strict=True)] for one in (update, *others)
        ]
        own, outside = torch.tensor(judged[0]).numpy(), torch.tensor(judged[1:]).numpy()
        expected = expected + stats.norm.cdf(own, outside.mean(axis=0), (outside.var(axis=0) + 1e-8) ** 0.5) / ROUNDS
    torch.testing.assert_close(found + 1, torch.as_tensor(expected).double(), rtol=1e-3, atol=1e-4)


def test_records_far_above_all_other_clients_keep_their_order() -> None:
    """Cumulative probabilities would all round to 1."""
    flat = torch.nn.Linear(1, 2, bias=False)
    weights = {"weight": torch.zeros(2, 1)}
    updates = {"weight": torch.tensor([[[5.0], [-5.0]], [[0.2], [-0.2]], [[-0.2], [0.2]]])}
    test = RoundsTest(flat, rounds=(ObservedRound(weights, updates),), signal="loss", compared=True)
    scores = test.scores(torch.tensor([[0.10], [0.11], [0.12]]), torch.zeros(3, dtype=torch.int64))
    assert scores[2] < scores[1] < scores[0] < 0  # 18 to 19 standard deviations
    assert 1 + scores[2] == 1


def test_cosines_of_other_clients_far_above_the_others_are_left_out() -> None:
    """As the published code does; of ten signals none lies so far from the mean, whatever it is."""
    draw = np.random.default_rng(0)
    found = draw.normal(0, 0.1, (13, 200))
    found[1, ::2] += 1
    judged = torch.from_numpy(found)
    for count in (13, 12, 11):
        expected = []
        for own, *others in found[:count].T:
            kept = [one for one in others if one < np.mean(others) + 3 * np.std(others)]
            assert (len(kept) < len(others)) <= (count > 11)
            expected.append(stats.norm.cdf(own, np.mean(kept), (np.var(kept) + 1e-8) ** 0.5) - 1)
        np.testing.assert_allclose(tail(judged[:count], drops_outliers=True), expected, rtol=1e-6)
        assert (tail(judged[:count]) - tail(judged[:count], drops_outliers=True)).abs().max() > 0.1 or count == 11
    assert tail(torch.full((12, 3), 0.1).double(), drops_outliers=True).tolist() == [-0.5] * 3


def test_outliers_are_dropped_of_cosines_unless_they_are_kept() -> None:
    for attack, drops in ((FedMIA(), True), (FedMIA(outliers="kept"), False), (FedMIA(signal="loss"), False)):
        test = attack(seen()[0], torch.Generator())
        ((again, _),) = read_guesses("membership", guess_tensors(test, 0, None), 1, network(99))
        assert test.drops_outliers == again.drops_outliers == drops
    many = torch.cat([torch.tensor([[0.3, -0.3]]), torch.randn(13, 2) / 100, torch.tensor([[3.0, -3.0]])])[:, :, None]
    one = ObservedRound({"weight": torch.zeros(2, 1)}, {"weight": many})
    image, label = torch.tensor([[0.1]]), torch.tensor([0])
    kept, dropped = (
        RoundsTest(nn.Linear(1, 2, bias=False), rounds=(one,), signal="product", compared=True, drops_outliers=drops)
        for drops in (False, True)
    )
    assert float(dropped.scores(image, label)) > -0.01 > float(kept.scores(image, label))


@pytest.mark.parametrize("attack", ATTACKS, ids=repr)
def test_clients_that_remember_their_digits_are_found_out(attack) -> None:
    low, _ = wire.interval(attack, seen(), wire.shares())
    assert low > 0.55


@pytest.mark.parametrize("attack", ATTACKS, ids=repr)
def test_is_at_chance_on_records_that_no_client_was_trained_on(attack) -> None:
    images, classes = wire.fresh()
    low, high = wire.interval(attack, seen(), list(zip(images.split(EACH), classes.split(EACH), strict=True)))
    assert low < 0.5 < high


def test_another_client_s_members_are_not_the_attacked_client_s() -> None:
    """FedMIA scores them below records of no client."""
    shifted = wire.shares()[1:] + wire.shares()[:1]
    _, high = wire.interval(FedMIA(), seen(), shifted)
    assert high < 0.5


@pytest.mark.parametrize("attack", ATTACKS, ids=repr)
def test_a_test_crosses_the_wire_as_tensors(attack) -> None:
    guess = attack(seen()[0], torch.Generator())
    assert guess.diagnostics["rounds-used"] == ROUNDS
    assert guess.diagnostics.get("other-clients") == (CLIENTS - 1 if isinstance(attack, FedMIA) else None)
    tensors = pickle.loads(pickle.dumps(guess_tensors(guess, 0, None)))
    model = network(99)
    ((again, _),) = read_guesses("membership", tensors, 1, model)
    shown = normalise(IMAGES)
    assert torch.equal(again.scores(shown, CLASSES), guess.scores(shown, CLASSES))
    untouched = network(99).state_dict()
    assert all(torch.equal(value, untouched[key]) for key, value in model.state_dict().items())
    failed = attack.failed(seen()[0], "why")
    ((none, _),) = read_guesses("membership", guess_tensors(failed, 0, None), 1, model)
    assert none.failure
    for lost in (failed, none):
        with pytest.raises(AttackError, match="scores no record"):
            lost.scores(shown, CLASSES)


def test_tensors_that_do_not_fit_are_refused() -> None:
    tensors = FedMIA(most_rounds=2)(seen()[0], torch.Generator()).to_tensors()
    first = next(key for key in tensors if key.startswith("rounds/0/updates/"))
    weight = first.replace("updates", "weights")
    three = torch.tensor([2, 1, 1])
    bad = {
        "settings": [
            {k: v for k, v in tensors.items() if k != "rounds/settings"},
            tensors | {"rounds/settings": three.float()},
        ],
        "allowed: 0 to 4": [
            tensors | {"rounds/settings": torch.tensor([9, 1, 0])},
            tensors | {"rounds/settings": three * 2},
        ],
        "without a gap": [tensors | {"rounds/7/weights/x": three}, {"rounds/settings": three}],
        "missing or unknown": [{k: v for k, v in tensors.items() if k != one} for one in (first, weight)],
        "names no part": [tensors | {"rounds/0/other/x": three}],
        "different numbers": [tensors | {first: tensors[first][:-1]}, tensors | {first: torch.tensor(0.0)}],
        "shape": [tensors | {first: torch.ones(CLIENTS, 3)}, tensors | {weight: torch.ones(3)}],
        "NaN": [tensors | {one: torch.full_like(tensors[one], torch.nan)} for one in (first, weight)],
        "no other client": [
            {k: v[:1] if "/updates/" in k else v for k, v in tensors.items()},
        ],
    }
    for message, cases in bad.items():
        for case in cases:
            with pytest.raises(AttackError, match=message):
                RoundsTest.from_tensors(case, network(0))


def test_one_round_or_one_client_is_too_little() -> None:
    history = seen()[0]
    once = UpdateHistory(history.updates[:1], history.others[:1])
    assert LossTrajectory()(once, torch.Generator()).failure.startswith("does not apply: 1 of 2 rounds")
    assert not FedMIA()(once, torch.Generator()).failure
    assert not GradientAlignment()(once, torch.Generator()).failure
    for alone in (UpdateHistory(history.updates), UpdateHistory(history.updates, ((),) * ROUNDS)):
        assert FedMIA()(alone, torch.Generator()).failure.startswith("does not apply: no other client's update")
        assert not LossTrajectory()(alone, torch.Generator()).failure
        assert not GradientAlignment()(alone, torch.Generator()).failure


def test_updates_that_do_not_fit_are_left_out() -> None:
    history = seen()[0]
    bad = replace(history.updates[0], update={})
    partly = UpdateHistory(
        (bad, *history.updates[1:]), (history.others[0], (bad, *history.others[1][1:]), *history.others[2:])
    )
    test = FedMIA()(partly, torch.Generator())
    assert not test.failure
    assert [one.num_clients for one in test.rounds] == [CLIENTS - 1, CLIENTS]
    few = FedMIA(most_others=2)(partly, torch.Generator())
    assert [one.num_clients for one in few.rounds] == [3, 3], "an unusable update takes no place"
    assert FedMIA()(replace(history, updates=(bad,) * ROUNDS), torch.Generator()).failure


def test_a_test_is_no_larger_than_its_settings() -> None:
    test = FedMIA(most_rounds=2, most_others=3)(seen()[0], torch.Generator())
    assert [one.num_clients for one in test.rounds] == [4, 4]
    assert all(one.num_clients == 1 for one in GradientAlignment()(seen()[0], torch.Generator()).rounds)
    last = seen()[0].updates[-1].model
    assert torch.equal(test.rounds[-1].weights["1.weight"], dict(last.named_parameters())["1.weight"])
    assert spread(10, 3) == [3, 6, 9]
    assert spread(3, 10) == [0, 1, 2]
    assert all(
        spread(n, most)[-1] == n - 1 and len({*spread(n, most)}) == most for n in range(5, 40) for most in range(1, 5)
    )


@pytest.mark.parametrize("name", ["cnn", "resnet20", "vit_lite"])
def test_models_of_this_package_have_gradients_of_single_records(name: str) -> None:
    model = build_model(name, num_classes=10, input_shape=(3, 32, 32), norm="batch").eval()
    images, classes = torch.randn(2, 3, 32, 32), torch.tensor([1, 2])
    found = torch.cat([gradients * factors[:, None] for gradients, factors in record_gradients(model, images, classes)])
    for row, image, label in zip(found, images, classes, strict=True):
        loss = F.cross_entropy(model(image[None]), label[None])
        expected = torch.cat([one.flatten() for one in torch.autograd.grad(loss, list(model.parameters()))])
        assert float((row - expected).norm()) < 1e-3 * float(expected.norm())


class Branching(nn.Module):
    """Reads a value of its input, which no vectorised gradient can."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(784, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layer(images.flatten(1) * (1.0 if float(images.detach().sum()) > 0 else 2.0))


def test_a_model_without_gradients_of_single_records_is_refused() -> None:
    model = Branching()
    update = {name: torch.ones_like(value) for name, value in model.named_parameters()}
    one = replace(seen()[0].updates[0], model=model, update={k: v.detach() for k, v in update.items()})
    history = UpdateHistory((one, one), ((one,), (one,)))
    reason = FedMIA()(history, torch.Generator()).failure
    assert reason.startswith("does not apply: Branching has no gradients of single records")
    assert not FedMIA(signal="loss")(history, torch.Generator()).failure


def test_statistics_of_batch_norm_are_part_of_a_client_s_model() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 10))
    update = {name: 0.01 * torch.randn(value.shape) for name, value in model.named_parameters()}
    update |= {"2.running_mean": torch.ones(6), "2.running_var": torch.full((6,), -2.0)}
    one = replace(seen()[0].updates[0], model=model, update=update)
    test = LossTrajectory(signal="loss")(UpdateHistory((one, one)), torch.Generator())
    with torch.no_grad():
        expected = -F.cross_entropy(local_model(one)(normalise(IMAGES)), CLASSES, reduction="none")
    torch.testing.assert_close(test.scores(normalise(IMAGES), CLASSES).float(), expected, rtol=1e-4, atol=1e-4)
    assert torch.isfinite(
        GradientAlignment()(UpdateHistory((one,)), torch.Generator()).scores(normalise(IMAGES), CLASSES)
    ).all()


def test_a_gradient_keeps_its_direction_where_the_probability_rounds_to_one() -> None:
    weights = {"weight": 40 * torch.eye(2)}
    updates = {"weight": torch.tensor([[[1.0, 0.3], [-0.2, -1.0]]])}
    one = ObservedRound(weights, updates)
    image, label = torch.tensor([[3.0, 0.0]]), torch.tensor([0])
    found = signals(one, "cosine", torch.nn.Linear(2, 2, bias=False), image, label)
    # The gradient of the loss is (p - 1) x for the true class, (1 - p) x for the other.
    g, d = torch.tensor([-3.0, 0, 3.0, 0]), -updates["weight"].flatten()
    assert float(found) == pytest.approx(float(F.cosine_similarity(g, d, dim=0)), abs=1e-6)
