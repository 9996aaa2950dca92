"""Attacks on membership over the rounds of a federation, against their formulas and where they must and must not work."""

import copy
import pickle
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.nn import functional as F

from attacks import AttackError, ClientUpdate, FedMIA, GradientAlignment, LossTrajectory, UpdateHistory
from attacks.local_model import local_model
from attacks.membership.federation.fedmia import spread
from attacks.membership.federation.round_signals import ObservedRound, RoundsTest, record_gradients, signals, tail
from attacks.scoring.roc import auc_interval
from clients.models.classifiers import build_model
from clients.scoring.guesses import guess_tensors, read_guesses
from tests.attacks.limits import assert_limits
from tests.attacks.membership.remembering import Records, digits, network, normalise, observe, overfit, seeded

CLIENTS, EACH, ROUNDS = 5, 40, 3

ATTACKS = (FedMIA(), FedMIA(signal="loss"), LossTrajectory(), GradientAlignment())


def records(start: int, count: int) -> Records:
    images, labels = digits()
    return images[start : start + count], labels[start : start + count]


def shares(start: int = 0) -> list[Records]:
    """The clients' digits, or as many from another ``start``."""
    return [records(start + at * EACH, EACH) for at in range(CLIENTS)]


@cache
def seen() -> list[UpdateHistory]:
    """The rounds as seen of each client; all clients remember their digits."""
    start, rounds = network(0), list[list[ClientUpdate]]()
    for _ in range(ROUNDS):
        sent = [observe(start, overfit, *share) for share in shares()]
        rounds.append(sent)
        start = moved(start, sent)
    others = [tuple(tuple(sent[:at] + sent[at + 1 :]) for sent in rounds) for at in range(CLIENTS)]
    return [UpdateHistory(tuple(sent[at] for sent in rounds), others[at]) for at in range(CLIENTS)]


def moved(model: nn.Module, sent: list[ClientUpdate]) -> nn.Module:
    """The next global model."""
    model = copy.deepcopy(model)
    with torch.no_grad():
        for name, value in model.named_parameters():
            value += torch.stack([one.update[name] for one in sent]).mean(0)
    return model


def interval(attack, inside: list[Records]) -> tuple[float, float]:
    """95 % interval of the AUC of what passes for members of each client against digits of no client."""
    tests = [attack(one, seeded()) for one in seen()]
    assert not any(test.failure for test in tests)
    outside = zip(*(part.chunk(CLIENTS) for part in records(1000, 300)), strict=True)
    pairs = [zip(tests, each, strict=True) for each in (inside, outside)]
    return auc_interval(*(torch.cat([test.scores(normalise(i), c) for test, (i, c) in each]) for each in pairs))


IMAGES, CLASSES = records(0, 12)


def slow_signals(updates, kind) -> torch.Tensor:
    """Of each update and record alone, by autograd in double precision."""
    return torch.tensor(
        [[slow_signal(one, kind, i, c) for i, c in zip(IMAGES, CLASSES, strict=True)] for one in updates]
    ).double()


def slow_signal(update, kind, image, label) -> float:
    still = replace(update, update={name: 0 * value for name, value in update.update.items()})
    model, local = (local_model(one).double() for one in (still, update))
    model.requires_grad_(True)
    image, label = normalise(image[None]).double(), label[None]
    loss, after = F.cross_entropy(model(image), label), F.cross_entropy(local(image), label)
    if kind in ("loss", "drop"):
        return (-after if kind == "loss" else loss - after).item()
    names = [name for name, _ in model.named_parameters()]
    found = torch.autograd.grad(loss, list(model.parameters()))
    g, d = torch.cat([one.flatten() for one in found]), -torch.cat([update.update[n].flatten().double() for n in names])
    return float(F.cosine_similarity(g, d, dim=0, eps=0))


def test_signals_are_those_of_single_records_by_autograd() -> None:
    history = seen()[1]
    test = FedMIA().attack_one(history, seeded())
    for kind in ("loss", "drop", "cosine"):
        found = signals(test.rounds[1], kind, network(7), normalise(IMAGES), CLASSES)
        expected = slow_signals([history.updates[1], *history.others[1]], kind)
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5, msg=kind)


def test_fedmia_is_the_mean_cumulative_probability_of_the_published_code() -> None:
    history = seen()[0]
    for signal in ("cosine", "loss"):
        found = FedMIA(signal=signal)(history, seeded()).scores(normalise(IMAGES), CLASSES)
        expected = 0.0
        for update, others in zip(history.updates, history.others, strict=True):
            own, *outside = slow_signals((update, *others), signal).numpy()
            mean, variance = np.mean(outside, axis=0), np.var(outside, axis=0)
            expected = expected + stats.norm.cdf(own, mean, (variance + 1e-8) ** 0.5) / ROUNDS
        torch.testing.assert_close(found + 1, torch.as_tensor(expected).double(), rtol=1e-3, atol=1e-4)


def test_records_far_above_all_other_clients_keep_their_order() -> None:
    """Cumulative probabilities would all round to 1."""
    updates = {"weight": torch.tensor([[[5.0], [-5.0]], [[0.2], [-0.2]], [[-0.2], [0.2]]])}
    one = ObservedRound({"weight": torch.zeros(2, 1)}, updates)
    test = RoundsTest(nn.Linear(1, 2, bias=False), rounds=(one,), signal="loss", compared=True)
    scores = test.scores(torch.tensor([[0.10], [0.11], [0.12]]), torch.zeros(3, dtype=torch.int64))
    assert scores[2] < scores[1] < scores[0] < 0  # 18 to 19 standard deviations
    assert 1 + scores[2] == 1


def test_cosines_of_other_clients_far_above_the_others_are_left_out() -> None:
    """As the published code does; of ten signals none lies so far from the mean, whatever it is."""
    found = np.random.default_rng(0).normal(0, 0.1, (13, 200))
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
    model, image = nn.Linear(100, 2, bias=False), torch.randn(1, 100, generator=seeded())
    sent = torch.randn(22, 2, 100, generator=seeded()) / 100
    sent[-1] = torch.cat([image, -image]) / 10  # of a client that holds the record
    one, record = ObservedRound({"weight": torch.zeros(2, 100)}, {"weight": sent}), (image, torch.tensor([0]))
    for signal, left_out in (("loss", False), ("cosine", True)):
        scores = RoundsTest(model, rounds=(one,), signal=signal, compared=True).scores(*record)
        found = [tail(signals(one, signal, model, *record), drops_outliers=drops) for drops in (left_out, not left_out)]
        assert torch.equal(scores, found[0])
        assert not torch.equal(*found)


@pytest.mark.numeric
def test_clients_that_remember_their_digits_are_found_out_and_strangers_are_not() -> None:
    for attack in ATTACKS:
        low, _ = interval(attack, shares())
        assert low > 0.55, attack
        low, high = interval(attack, shares(2000))
        middle = (low + high) / 2
        assert abs(middle - 0.5) < high - low, attack  # of 95 %: half its width is two standard deviations
    # FedMIA scores the members of another client below records of no client.
    _, high = interval(FedMIA(), shares()[1:] + shares()[:1])
    assert high < 0.5


def test_a_test_crosses_the_wire_as_tensors() -> None:
    shown, untouched = normalise(IMAGES), network(99).state_dict()
    for attack in ATTACKS:
        guess, model = attack(seen()[0], seeded()), network(99)
        assert guess.diagnostics["rounds-used"] == ROUNDS
        assert guess.diagnostics.get("other-clients") == (CLIENTS - 1 if isinstance(attack, FedMIA) else None)
        tensors = pickle.loads(pickle.dumps(guess_tensors(guess, 0, None)))
        ((again, _),) = read_guesses("membership", tensors, 1, model)
        assert torch.equal(again.scores(shown, CLASSES), guess.scores(shown, CLASSES)), attack
        assert all(torch.equal(value, untouched[key]) for key, value in model.state_dict().items()), attack
        failed = attack.failed(seen()[0], "why")
        ((none, _),) = read_guesses("membership", guess_tensors(failed, 0, None), 1, model)
        assert none.failure
        for lost in (failed, none):
            with pytest.raises(AttackError, match="scores no record"):
                lost.scores(shown, CLASSES)


def test_tensors_that_do_not_fit_are_refused() -> None:
    tensors = FedMIA(most_rounds=2)(seen()[0], seeded()).to_tensors()
    first = next(key for key in tensors if key.startswith("rounds/0/updates/"))
    weight, three = first.replace("updates", "weights"), torch.tensor([2, 1])

    def without(key: str) -> dict[str, torch.Tensor]:
        return {name: value for name, value in tensors.items() if name != key}

    for case, message in (
        (tensors | {"rounds/settings": three.float()}, "settings"),
        (tensors | {"rounds/settings": torch.tensor([9, 1])}, "allowed: 0 to 2"),
        (tensors | {"rounds/7/weights/x": three}, "without a gap"),
        (without(first), "missing or unknown"),
        (tensors | {"rounds/0/other/x": three}, "names no part"),
        (tensors | {first: tensors[first][:-1]}, "different numbers"),
        (tensors | {first: torch.ones(CLIENTS, 3)}, "shape"),
        *((tensors | {one: torch.full_like(tensors[one], torch.nan)}, "NaN") for one in (first, weight)),
        ({key: v[:1] if "/updates/" in key else v for key, v in tensors.items()}, "no other client"),
    ):
        with pytest.raises(AttackError, match=message):
            RoundsTest.from_tensors(case, network(0))


def test_rounds_and_clients_that_cannot_be_used_are_left_out_and_too_few_are_refused() -> None:
    history = seen()[0]
    once = UpdateHistory(history.updates[:1], history.others[:1])
    alone = UpdateHistory(history.updates)
    unseen = UpdateHistory(history.updates, ((),) * ROUNDS)
    for one, attack, reason in (
        (once, LossTrajectory(), "does not apply: 1 of 2 rounds"),
        *((one, FedMIA(), "does not apply: no other client's update") for one in (alone, unseen)),
    ):
        assert attack(one, seeded()).failure.startswith(reason)
    for one, attack in ((once, FedMIA()), (alone, LossTrajectory()), (unseen, GradientAlignment())):
        assert not attack(one, seeded()).failure
    bad = replace(history.updates[0], update={})
    others = (history.others[0], (bad, *history.others[1][1:]), *history.others[2:])
    partly = UpdateHistory((bad, *history.updates[1:]), others)
    assert [one.num_clients for one in FedMIA()(partly, seeded()).rounds] == [CLIENTS - 1, CLIENTS]
    few = FedMIA(most_others=2)(partly, seeded())
    assert [one.num_clients for one in few.rounds] == [3, 3], "an unusable update takes no place"
    assert FedMIA()(replace(history, updates=(bad,) * ROUNDS), seeded()).failure


def test_a_test_is_no_larger_than_its_settings() -> None:
    test = FedMIA(most_rounds=2, most_others=3)(seen()[0], seeded())
    assert [one.num_clients for one in test.rounds] == [4, 4]
    assert all(one.num_clients == 1 for one in GradientAlignment()(seen()[0], seeded()).rounds)
    last = seen()[0].updates[-1].model
    assert torch.equal(test.rounds[-1].weights["1.weight"], dict(last.named_parameters())["1.weight"])
    assert_limits(FedMIA, most_rounds=(0, 1), most_others=(0, 1), signal=("drop", "loss"))
    assert_limits(LossTrajectory, most_rounds=(1, 2), signal=("cosine", "loss"))
    assert_limits(GradientAlignment, most_rounds=(0, 1))
    assert spread(10, 3) == [3, 6, 9]
    assert spread(3, 10) == [0, 1, 2]
    for most in range(1, 5):
        for count in range(5, 40):
            found = spread(count, most)
            assert (found[-1], len({*found})) == (count - 1, most)


class Branching(nn.Linear):
    """Reads a value of its input, which no vectorised gradient can."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return super().forward(images.flatten(1) * (1.0 if float(images.detach().sum()) > 0 else 2.0))


def test_models_of_this_package_have_gradients_of_single_records_and_others_are_refused() -> None:
    for name in ("cnn", "resnet20", "vit_lite"):
        model = build_model(name, num_classes=10, input_shape=(3, 16, 16), norm="batch").eval()
        images, classes = torch.randn(2, 3, 16, 16), torch.tensor([1, 2])
        found = torch.cat(list(record_gradients(model, images, classes)))
        for row, image, label in zip(found, images, classes, strict=True):
            confidence = -F.cross_entropy(model(image[None]), label[None]).expm1().log()  # the logit of p
            expected = torch.cat([one.flatten() for one in torch.autograd.grad(confidence, list(model.parameters()))])
            assert float((row - expected).norm()) < 1e-3 * float(expected.norm()), name
    model = Branching(784, 10)
    update = {key: torch.ones_like(value.detach()) for key, value in model.named_parameters()}
    one = replace(seen()[0].updates[0], model=model, update=update)
    history = UpdateHistory((one, one), ((one,), (one,)))
    reason = FedMIA()(history, seeded()).failure
    assert reason.startswith("does not apply: Branching has no gradients of single records")
    assert not FedMIA(signal="loss")(history, seeded()).failure


def test_a_gradient_keeps_its_direction_where_the_probability_rounds_to_one() -> None:
    updates = {"weight": torch.tensor([[[1.0, 0.3], [-0.2, -1.0]]])}
    one = ObservedRound({"weight": 40 * torch.eye(2)}, updates)
    model, image = nn.Linear(2, 2, bias=False), torch.tensor([[3.0, 0.0]])
    found = signals(one, "cosine", model, image, torch.tensor([0]))
    # The gradient of the loss is (p - 1) x for the true class, (1 - p) x for the other.
    g, d = torch.tensor([-3.0, 0, 3.0, 0]), -updates["weight"].flatten()
    assert float(found) == pytest.approx(float(F.cosine_similarity(g, d, dim=0)), abs=1e-6)
