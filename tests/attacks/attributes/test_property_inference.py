"""Passive property inference: it reads what a gradient tells, is at chance on noise, and learns from the defences it knows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
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
from defenses.base import Batch, Update
from defenses.pipeline import Pipeline
from tests.attacks.queries.query_wire import MEAN, SHAPE, STD, pictures, seeded

STEPS = {"updates": 240, "size": 128, "iterations": 150}
RATE = 0.1


class Known:
    mean, std = MEAN, STD


@cache
def model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = (
            nn.Conv2d(1, 8, 5, 2, 2),
            nn.ReLU(),
            nn.Conv2d(8, 8, 5, 2, 2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(128, 2),
        )
    return nn.Sequential(*layers)


def step(images: Tensor, labels: Tensor, scale: Any = 1.0) -> Update:
    """Of plain SGD, each tensor multiplied by what a defence makes of it."""
    loss = F.cross_entropy(model()(normalise(images, Known())), labels)
    gradient = torch.autograd.grad(loss, list(model().parameters()))
    return {name: -RATE * scale * g for (name, _), g in zip(model().named_parameters(), gradient, strict=True)}


def probes(size: int, scale: float, batch: Batch, count: int, seed: int) -> Iterator[tuple[Tensor, Update]]:
    """As ``clients.federated.local_training.probes_alone``; classes are of no account to the attribute."""
    generator = seeded(seed)
    for _ in range(count):
        rows = torch.randperm(len(batch), generator=generator)[:size]
        yield rows, step(batch.images[rows], batch.targets[rows].argmax(1), scale)


def knowledge(size: int = 1, scale: float = 1.0, **changes: Any) -> Knowledge:
    images, right = pictures(160, seed=5)
    classes = torch.randint(2, (160,), generator=seeded(6))
    values: dict[str, Any] = {
        "auxiliary": Batch(images, F.one_hot(classes, 2).float()), "pipeline": Pipeline(), "mean": MEAN, "std": STD,
        "train": lambda *_: model(), "sensitive": right, "probes": partial(probes, size, scale),
    }  # fmt: skip
    return Knowledge(**(values | changes))


@cache
def fitted(size: int = 1) -> PropertyInference:
    return PropertyInference(**STEPS).fit(knowledge(size), seeded(1))


def observed(count: int, size: int = 1) -> tuple[list[ClientUpdate], list[int]]:
    """Updates of new images, and what is to be inferred of each."""
    images, right = pictures(count * size, seed=9)
    labels = torch.randint(2, (count * size,), generator=seeded(10))
    groups = torch.arange(count * size).split(size)
    seen = [
        ClientUpdate(model(), step(images[rows], labels[rows]), SHAPE, MEAN, STD, size, size, 1, RATE)
        for rows in groups
    ]
    return seen, [majority(right[rows]) for rows in groups]


def hits(attack: PropertyInference, seen: list[ClientUpdate], truth: list[int]) -> int:
    guesses = attack.attack_many(seen, [seeded(at) for at in range(len(seen))])
    return sum(int(guess.values == value) for guess, value in zip(guesses, truth, strict=True))


@pytest.mark.parametrize("size", [1, 3])
def test_it_reads_an_attribute_from_undefended_steps(size: int) -> None:
    """Of one image its value, of three that of most; whatever the class, which turns the sign of the whole gradient."""
    right = hits(fitted(size), *observed(100, size))
    assert stats.binomtest(right, 100, 0.5, alternative="greater").pvalue < 1e-6
    assert fitted(size).learned.diagnostics["holdout_accuracy"] > fitted(size).learned.diagnostics["holdout_majority"]


@pytest.mark.long
def test_it_is_at_chance_on_noise() -> None:
    seen, truth = observed(200)
    noisy = []
    for at, one in enumerate(seen):
        generator = seeded(at)
        noise = {
            name: t.norm() / t.numel() ** 0.5 * torch.randn(t.shape, generator=generator)
            for name, t in one.update.items()
        }
        noisy.append(replace(one, update=noise))
    assert stats.binomtest(hits(fitted(), noisy, truth), 200, 0.5).pvalue > 0.001


@pytest.mark.long
def test_it_repeats_itself_and_a_guess_depends_on_its_own_update() -> None:
    torch.manual_seed(1)
    again = PropertyInference(**STEPS).fit(knowledge(), seeded(1))
    seen, _ = observed(3)
    first, second = (one.attack_many(seen, [seeded(0)] * 3) for one in (fitted(), again))
    assert all(torch.equal(a.logits, b.logits) for a, b in zip(first, second, strict=True))
    alone = fitted()(seen[1], seeded(5))
    assert torch.equal(alone.logits, first[1].logits)
    assert alone.logits.shape == (1, 2)


@pytest.mark.parametrize(("broken", "why"), [("names", "names or shapes differ"), ("NaN", "NaN or infinite")])
def test_an_update_that_cannot_be_read_is_never_right(broken: str, why: str) -> None:
    (seen,), (value,) = observed(1)
    update = {"other": torch.zeros(2)} if broken == "names" else {n: t * math.nan for n, t in seen.update.items()}
    guess = fitted()(replace(seen, update=update), seeded(0))
    assert why in guess.failure
    assert score(guess, torch.tensor([value])) == {"attribute-accuracy": [0.0]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sensitive": None}, "no sensitive attribute"),
        ({"sensitive": torch.ones(160, dtype=torch.int64)}, "the same sensitive attribute"),
        ({"probes": None}, "only probes of federated learning"),
    ],
)
def test_knowledge_that_is_not_enough_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(AttackError, match=message):
        PropertyInference(**PropertyInference.quick).fit(knowledge(**changes), seeded(0))
    with pytest.raises(AttackError, match="call fit first"):
        PropertyInference()(observed(1)[0][0], seeded(0))


@pytest.mark.parametrize(
    "settings",
    [
        {"training": "never"}, {"updates": 15}, {"size": 0}, {"hidden": 0}, {"iterations": 0}, {"learning_rate": 0.0},
        {"weight_decay": -1.0},
    ],
    ids=str,
)  # fmt: skip
def test_settings_out_of_range_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        PropertyInference(**settings)


def test_a_static_adversary_becomes_a_retrained_one_of_the_same_effort() -> None:
    static = PropertyInference(training="static", updates=40)
    assert not static.learns_from_defenses
    assert static.aware() == PropertyInference(updates=40)
    assert static.aware().aware() == static.aware()


# --- the property, and the sketch


@pytest.mark.parametrize(("values", "most"), [([1], 1), ([0, 1, 1], 1), ([0, 1], 0), ([2, 1, 1, 2], 1)])
def test_the_property_is_the_most_frequent_value_and_of_equals_the_smallest(values: list[int], most: int) -> None:
    assert majority(torch.tensor(values)) == most


def test_a_sketch_forgets_lengths_keeps_angles_and_holds_small_tensors_as_they_are() -> None:
    generator = seeded(0)
    first, second = (
        {"w": torch.randn(60, 50, generator=generator), "b": torch.randn(4, generator=generator)} for _ in range(2)
    )
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
