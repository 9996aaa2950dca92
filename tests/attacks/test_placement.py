"""Places: what moves, what stays shared, and what a try without enough memory leaves. tests/card has a second device."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attacks import AttackError, Labels, UpdateHistory
from attacks.base import Attack, Knowledge
from attacks.placement import HOST, Placement
from defenses import parse
from defenses.base import Batch
from tests.attacks.wire import MEAN, STD, classes, generators, observe, pictures, sigmoid_net

META = Placement(torch.device("meta"))


@dataclass(frozen=True, repr=False)
class Hungry(Attack[Any, Labels]):
    """Draws a number for each observation; runs out of memory where there are more than ``most``."""

    most: int = 2

    def attack_many(self, observations: Sequence[Any], generators: Sequence[torch.Generator]) -> list[Labels]:
        found = [Labels(torch.randint(1 << 40, (1,), generator=generator)) for generator in generators]
        if len(observations) > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return found


def test_models_that_observations_share_are_shared_after_a_move_and_nothing_is_copied_in_vain() -> None:
    model, images, labels = sigmoid_net(), pictures(2), classes(2)
    seen: list[Any] = [observe(model, images[at : at + 1], labels[at : at + 1]) for at in range(2)]
    history = UpdateHistory(tuple(seen))
    moved, (other,) = META.moved((seen, [history]))
    assert moved[0].model is moved[1].model is other.updates[0].model
    assert {tensor.device.type for tensor in moved[0].update.values()} == {"meta"}
    assert next(moved[0].model.parameters()).device.type == "meta"
    assert next(seen[0].model.parameters()).device == HOST
    assert moved[0].labels.device.type == "meta"
    assert moved[0].input_shape == seen[0].input_shape
    pipeline = parse("VisualMixer()")
    assert Placement(HOST).moved(seen) is seen
    assert META.moved(pipeline) is pipeline
    assert META.moved({"a": 1, "b": "text"}) == {"a": 1, "b": "text"}


def test_clients_are_simulated_with_examples_on_the_host() -> None:
    came: list[Tensor] = []

    def train(batch: Batch, seed: int) -> nn.Module:
        came.append(batch.images)
        return sigmoid_net()

    auxiliary = Batch(pictures(3), torch.eye(3))
    known = META.knowledge(Knowledge(auxiliary, parse(""), MEAN, STD, train))
    assert known.auxiliary.images.device.type == "meta"
    model = known.train(auxiliary, 0)
    assert came[0].device == HOST
    assert next(model.parameters()).device.type == "meta"


def test_fewer_observations_at_once_draw_the_same() -> None:
    for most in (1, 2, 3, 5):
        ours, theirs = generators(5), generators(5)
        found = Placement(HOST).attack_many(Hungry(most), range(5), ours)
        wanted = Hungry(5).attack_many(range(5), theirs)
        assert [guess.classes.tolist() for guess in found] == [guess.classes.tolist() for guess in wanted]
        assert all(torch.equal(a.get_state(), b.get_state()) for a, b in zip(ours, theirs, strict=True))
    with pytest.raises(AttackError, match="out of memory with a single"):
        Placement(HOST).attack_many(Hungry(0), range(2), generators(2))
    assert Placement(HOST).attack_many(Hungry(2), [], []) == []


@dataclass(frozen=True, repr=False)
class Exact(Attack[Any, Labels]):
    """Says as its class whether TensorFloat-32 may be used."""

    def attack_many(self, observations: Sequence[Any], generators: Sequence[torch.Generator]) -> list[Labels]:
        allowed = torch.backends.cudnn.allow_tf32 or torch.backends.cuda.matmul.allow_tf32
        return [Labels(torch.tensor([int(allowed)])) for _ in observations]


def test_attacks_compute_in_full_float32_and_leave_the_settings_as_they_were() -> None:
    settings = (torch.backends.cudnn, torch.backends.cuda.matmul)
    before = [one.allow_tf32 for one in settings]
    try:
        for one in settings:
            one.allow_tf32 = True
        (found,) = Placement(HOST).attack_many(Exact(), [0], generators(1))
        assert found.classes.item() == 0
        assert all(one.allow_tf32 for one in settings)
    finally:
        for one, allowed in zip(settings, before, strict=True):
            one.allow_tf32 = allowed
