"""Passive property inference: it reads what a gradient tells, is at chance on noise, and learns from the defences it knows."""

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from torch.nn import functional as F

from attacks import AttackError, ClientUpdate, Knowledge, PropertyInference, score
from attacks.attributes.property_inference import majority
from attacks.attributes.update_sketch import UpdateSketch
from attacks.normalisation import normalise
from defenses.base import Batch
from defenses.pipeline import Pipeline
from defenses.tensors import Update
from tests.attacks.limits import assert_limits
from tests.attacks.queries.query_wire import MEAN, SHAPE, STD, pictures, seeded

STEPS = {"updates": 240, "size": 128, "iterations": 150}
RATE = 0.1


class Known:
    mean, std = MEAN, STD


@cache
def model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        first, second = nn.Conv2d(1, 8, 5, 2, 2), nn.Conv2d(8, 8, 5, 2, 2)
        return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Flatten(), nn.Linear(128, 2))


def step(images: Tensor, labels: Tensor) -> Update:
    loss = F.cross_entropy(model()(normalise(images, Known())), labels)
    gradient = torch.autograd.grad(loss, list(model().parameters()))
    return {name: -RATE * g for (name, _), g in zip(model().named_parameters(), gradient, strict=True)}


def probes(batch: Batch, count: int, seed: int) -> Iterator[tuple[Tensor, Update]]:
    """As ``clients.federated.local_training.probes_alone``; classes are of no account to the attribute."""
    generator = seeded(seed)
    for _ in range(count):
        rows = torch.randperm(len(batch), generator=generator)[:1]
        yield rows, step(batch.images[rows], batch.targets[rows].argmax(1))


def knowledge(**changes: Any) -> Knowledge:
    images, right = pictures(160, seed=5)
    classes = torch.randint(2, (160,), generator=seeded(6))
    values: dict[str, Any] = {
        "auxiliary": Batch(images, F.one_hot(classes, 2).float()), "pipeline": Pipeline(), "mean": MEAN, "std": STD,
        "train": lambda *_: model(), "sensitive": right, "probes": probes,
    }  # fmt: skip
    return Knowledge(**(values | changes))


@cache
def fitted() -> PropertyInference:
    return PropertyInference(**STEPS).fit(knowledge(), seeded(1))


def observed(count: int) -> tuple[list[ClientUpdate], list[int]]:
    """Updates of new images, and what is to be inferred of each."""
    images, right = pictures(count, seed=9)
    labels = torch.randint(2, (count,), generator=seeded(10))
    sent = [step(images[at : at + 1], labels[at : at + 1]) for at in range(count)]
    return [ClientUpdate(model(), one, SHAPE, MEAN, STD, 1, 1, 1, RATE) for one in sent], right.tolist()


def hits(attack: PropertyInference, seen: list[ClientUpdate], truth: list[int]) -> int:
    guesses = attack.attack_many(seen, [seeded(at) for at in range(len(seen))])
    return sum(int(guess.values == value) for guess, value in zip(guesses, truth, strict=True))


@pytest.mark.numeric
def test_it_reads_an_attribute_from_undefended_steps_and_nothing_from_noise() -> None:
    # Whatever the class, which turns the sign of the whole gradient.
    right = hits(fitted(), *observed(300))
    assert stats.binomtest(right, 300, 0.5, alternative="greater").pvalue < 1e-3
    told = fitted().learned.diagnostics
    assert told["holdout_accuracy"] > told["holdout_majority"]
    seen, truth = observed(100)
    noise, generator = [], seeded(0)
    for one in seen:
        lengths = {name: t.norm() / t.numel() ** 0.5 for name, t in one.update.items()}
        drawn = {name: lengths[name] * torch.randn(t.shape, generator=generator) for name, t in one.update.items()}
        noise.append(replace(one, update=drawn))
    assert stats.binomtest(hits(fitted(), noise, truth), 100, 0.5).pvalue > 1e-4, "at chance on noise"


def test_it_repeats_itself_and_a_guess_depends_on_its_own_update_which_must_be_readable() -> None:
    small = PropertyInference(**PropertyInference.profile.quick)
    attack, (seen, truth) = small.fit(knowledge(), seeded(1)), observed(3)
    torch.manual_seed(1)
    again = small.fit(knowledge(), seeded(1))
    first, second = (one.attack_many(seen, [seeded(0)] * 3) for one in (attack, again))
    assert all(torch.equal(a.logits, b.logits) for a, b in zip(first, second, strict=True))
    alone = attack(seen[1], seeded(5))
    assert torch.equal(alone.logits, first[1].logits)
    assert alone.logits.shape == (1, 2)
    for update, why in (
        ({"other": torch.zeros(2)}, "names or shapes differ"),
        ({name: t * math.nan for name, t in seen[0].update.items()}, "NaN or infinite"),
    ):
        guess = attack(replace(seen[0], update=update), seeded(0))
        assert why in guess.failure
        assert score(guess, torch.tensor(truth[:1])) == {"attribute-accuracy": [0.0]}


def test_knowledge_that_is_not_enough_and_settings_out_of_range_are_refused() -> None:
    for changes, message in (
        ({"sensitive": None}, "no sensitive attribute"),
        ({"sensitive": torch.ones(160, dtype=torch.int64)}, "the same sensitive attribute"),
        ({"probes": None}, "only probes of federated learning"),
    ):
        with pytest.raises(AttackError, match=message):
            PropertyInference(**PropertyInference.profile.quick).fit(knowledge(**changes), seeded(0))
    with pytest.raises(AttackError, match="call fit first"):
        PropertyInference()(observed(1)[0][0], seeded(0))
    assert_limits(
        PropertyInference, training=("never", "static"), updates=(15, 16), size=(0, 1),
        iterations=(0, 1),
    )  # fmt: skip
    for values, most in (([1], 1), ([0, 1, 1], 1), ([0, 1], 0), ([2, 1, 1, 2], 1)):
        assert majority(torch.tensor(values)) == most, "of equals the smallest"
    static = PropertyInference(training="static", updates=40)
    assert not static.learns_from_defenses
    assert static.aware() == static.aware().aware() == PropertyInference(updates=40)


@pytest.mark.numeric
def test_a_sketch_forgets_lengths_keeps_angles_and_holds_small_tensors_as_they_are() -> None:
    generator = seeded(0)
    shapes = {"w": (60, 50), "b": (4,)}
    first, second = ({name: torch.randn(shape, generator=generator) for name, shape in shapes.items()} for _ in "ab")
    near = {name: tensor + 0.3 * second[name] for name, tensor in first.items()}
    sketch = UpdateSketch(first, 256, seeded(1))
    one, other, scaled = sketch(first), sketch(near), sketch({name: 5 * tensor for name, tensor in first.items()})
    bins = 4 + 256
    assert one.shape == (2 * bins + 2,)
    torch.testing.assert_close(one[: 2 * bins], scaled[: 2 * bins])
    torch.testing.assert_close(scaled[-2:] - one[-2:], torch.full((2,), math.log(5)))
    torch.testing.assert_close(one[:4], first["b"] / first["b"].norm())
    torch.testing.assert_close(one[bins : 2 * bins], one[:bins].abs())
    # Inner products are kept within a few times 1 / sqrt(bins).
    cosine = F.cosine_similarity(first["w"].flatten(), near["w"].flatten(), dim=0)
    assert abs(float(one[4:bins] @ other[4:bins] - cosine)) < 4 / 256**0.5
    assert torch.isfinite(sketch({"w": torch.zeros(60, 50), "b": torch.zeros(4)})).all()
