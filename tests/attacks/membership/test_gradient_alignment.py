"""Membership by gradients over the rounds of a federation, against its formula and where it must and must not work."""

import copy
import pickle
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from attacks import AttackError, ClientUpdate, GradientAlignment, UpdateHistory
from attacks.local_model import local_model
from attacks.membership.gradient_alignment import MOST_ROUNDS, ObservedRound, RoundsTest, record_gradients, spread
from attacks.scoring.roc import auc_interval
from clients.models.classifiers import build_model
from clients.scoring.guesses import guess_tensors, read_guesses
from tests.attacks.membership.remembering import Records, digits, network, normalise, observe, overfit, seeded

CLIENTS, EACH, ROUNDS = 5, 40, 3


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
        start = copy.deepcopy(start)
        with torch.no_grad():
            for name, value in start.named_parameters():
                value += torch.stack([one.update[name] for one in sent]).mean(0)
    return [UpdateHistory(tuple(sent[at] for sent in rounds)) for at in range(CLIENTS)]


def interval(inside: list[Records]) -> tuple[float, float]:
    """95 % interval of the AUC of what passes for members of each client against digits of no client."""
    tests = [GradientAlignment()(one, seeded()) for one in seen()]
    assert not any(test.failure for test in tests)
    outside = zip(*(part.chunk(CLIENTS) for part in records(1000, 300)), strict=True)
    pairs = [zip(tests, each, strict=True) for each in (inside, outside)]
    return auc_interval(*(torch.cat([test.scores(normalise(i), c) for test, (i, c) in each]) for each in pairs))


IMAGES, CLASSES = records(0, 12)


def slow_cosine(update, image, label) -> float:
    """Of one record alone, by autograd in double precision."""
    still = replace(update, update={name: 0 * value for name, value in update.update.items()})
    model = local_model(still).double().requires_grad_(True)
    loss = F.cross_entropy(model(normalise(image[None]).double()), label[None])
    names = [name for name, _ in model.named_parameters()]
    found = torch.autograd.grad(loss, list(model.parameters()))
    g, d = torch.cat([one.flatten() for one in found]), -torch.cat([update.update[n].flatten().double() for n in names])
    return float(F.cosine_similarity(g, d, dim=0, eps=0))


def test_scores_are_mean_cosines_of_single_records_by_autograd() -> None:
    history = seen()[1]
    test = GradientAlignment().attack_one(history, seeded())
    each = [[slow_cosine(one, *record) for record in zip(IMAGES, CLASSES, strict=True)] for one in history.updates]
    expected = torch.tensor(each).double()
    found = test.rounds[1].cosines(network(7), normalise(IMAGES), CLASSES)
    torch.testing.assert_close(found, expected[1], rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(test.scores(normalise(IMAGES), CLASSES), expected.mean(0), rtol=1e-3, atol=1e-5)


@pytest.mark.numeric
def test_clients_that_remember_their_digits_are_found_out_and_strangers_are_not() -> None:
    low, _ = interval(shares())
    assert low > 0.55
    low, high = interval(shares(2000))
    assert abs((low + high) / 2 - 0.5) < high - low  # of 95 %: half its width is two standard deviations


def test_a_test_crosses_the_wire_as_tensors() -> None:
    shown, untouched = normalise(IMAGES), network(99).state_dict()
    attack, model = GradientAlignment(), network(99)
    guess = attack(seen()[0], seeded())
    assert guess.diagnostics["rounds-used"] == ROUNDS
    tensors = pickle.loads(pickle.dumps(guess_tensors(guess, 0, None)))
    ((again, _),) = read_guesses("membership", tensors, 1, model)
    assert torch.equal(again.scores(shown, CLASSES), guess.scores(shown, CLASSES))
    assert again.kind == guess.kind == "rounds"
    assert all(torch.equal(value, untouched[key]) for key, value in model.state_dict().items())
    failed = attack.failed(seen()[0], "why")
    ((none, _),) = read_guesses("membership", guess_tensors(failed, 0, None), 1, model)
    assert none.failure
    for lost in (failed, none):
        with pytest.raises(AttackError, match="scores no record"):
            lost.scores(shown, CLASSES)


def test_tensors_that_do_not_fit_are_refused() -> None:
    tensors = GradientAlignment()(seen()[0], seeded()).to_tensors()
    first = next(key for key in tensors if key.startswith("rounds/0/update/"))
    weight, three = first.replace("update", "weights"), torch.ones(3)

    def without(key: str) -> dict[str, torch.Tensor]:
        return {name: value for name, value in tensors.items() if name != key}

    for case, message in (
        (tensors | {"rounds/settings": three}, "names no part"),
        (tensors | {"rounds/7/weights/x": three}, "without a gap"),
        (without(first), "missing or unknown"),
        (tensors | {"rounds/0/other/x": three}, "names no part"),
        (tensors | {first: three}, "shape"),
        *((tensors | {one: torch.full_like(tensors[one], torch.nan)}, "NaN") for one in (first, weight)),
    ):
        with pytest.raises(AttackError, match=message):
            RoundsTest.from_tensors(case, network(0))


def test_rounds_that_cannot_be_used_are_left_out_and_without_one_the_test_fails() -> None:
    history = seen()[0]
    bad = replace(history.updates[0], update={})
    partly = GradientAlignment()(UpdateHistory((bad, *history.updates[1:])), seeded())
    assert not partly.failure
    assert len(partly.rounds) == ROUNDS - 1
    assert GradientAlignment()(UpdateHistory((bad,) * ROUNDS), seeded()).failure.startswith("the update lacks")
    assert GradientAlignment()(UpdateHistory(()), seeded()).failure == "the client sent no update"


def test_a_test_holds_ten_rounds_at_most_and_among_them_the_last() -> None:
    first, last = seen()[0].updates[0], seen()[0].updates[-1]
    test = GradientAlignment()(UpdateHistory((first,) * MOST_ROUNDS + (last,)), seeded())
    assert len(test.rounds) == MOST_ROUNDS
    assert torch.equal(test.rounds[-1].weights["1.weight"], dict(last.model.named_parameters())["1.weight"])
    assert spread(10, 3) == [3, 6, 9]
    assert spread(3, 10) == [0, 1, 2]


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
    reason = GradientAlignment()(UpdateHistory((one, one)), seeded()).failure
    assert reason.startswith("does not apply: Branching has no gradients of single records")


def test_a_gradient_keeps_its_direction_where_the_probability_rounds_to_one() -> None:
    update = {"weight": torch.tensor([[1.0, 0.3], [-0.2, -1.0]])}
    one = ObservedRound({"weight": 40 * torch.eye(2)}, update)
    model, image = nn.Linear(2, 2, bias=False), torch.tensor([[3.0, 0.0]])
    found = one.cosines(model, image, torch.tensor([0]))
    # The gradient of the loss is (p - 1) x for the true class, (1 - p) x for the other.
    g, d = torch.tensor([-3.0, 0, 3.0, 0]), -update["weight"].flatten()
    assert float(found) == pytest.approx(float(F.cosine_similarity(g, d, dim=0)), abs=1e-6)
