"""The model check accepts what honest rounds made and refuses the rest, each of its tests for a reason of its own."""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from attacks import ClassFishing, ImprintLayer, Knowledge, TrapWeights
from attacks.active.base import AgreedModel
from attacks.local_model import shared_tensors
from clients.federated.client import LocalClient
from clients.messages.agreed_model import tried_on_own
from clients.messages.model_check import Remembered, Tried, fault, share_of_copies, turn
from clients.task.local_data import LocalData
from clients.task.task import load_weights
from clients.wire.records import tensors_of
from defenses.pipeline import Pipeline
from tests.clients.asked import allowed_by, refused
from tests.clients.federated.test_messages import Asker
from tests.clients.secrets.test_draws import TASK, weights_of

CLASSES = 10
PLAIN = Tried(2.3, 0.4)
MLP = TASK.but(model="mlp", momentum=0.5, learning_rate=0.05, local_epochs=2)
ATTACKS = [ImprintLayer(), TrapWeights(), ClassFishing()]


def layers(seed: int = 0, spread: float = 0.1) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"first.weight": (32, 64), "first.bias": (32,), "head.weight": (CLASSES, 32), "head.bias": (CLASSES,)}
    return {name: spread * torch.randn(shape, generator=generator) for name, shape in shapes.items()}


INITIAL = layers()
STEP = layers(seed=1, spread=0.01)
LAST = Remembered(3, INITIAL).after(STEP)


def verdict(sent: dict[str, Tensor], last: Remembered = LAST, at: int = 4, tried: Tried = PLAIN) -> str:
    def of(weights: Any) -> Tried:
        return tried if weights is sent else PLAIN

    return fault(sent, INITIAL, last, at, of, CLASSES)


def moved(times: float = 1.0) -> dict[str, Tensor]:
    return {name: value + times * layers(seed=2, spread=0.01)[name] for name, value in INITIAL.items()}


def with_weight(value: Tensor, name: str = "first.weight") -> dict[str, Tensor]:
    return {**INITIAL, name: value}


def test_accepts_what_its_own_updates_make_and_refuses_what_no_round_makes() -> None:
    for sent, why in (
        ({name: value for name, value in INITIAL.items() if name != "head.bias"}, "named otherwise than agreed"),
        ({**INITIAL, "extra": torch.zeros(1)}, "named otherwise than agreed"),
        (with_weight(torch.zeros(33, 64)), "agreed is"), (with_weight(INITIAL["first.weight"].double()), "agreed is"),
        (with_weight(INITIAL["first.weight"] * math.nan), "NaN or infinite"), (moved(8.0), "moved by"),
    ):  # fmt: skip
        assert why in verdict(sent)
    assert verdict(moved()) == verdict(moved(2.0)) == ""
    assert "loss on own examples is above 4 times" in verdict(moved(), tried=Tried(20.0, 0.4))
    assert "below 10% of the values of a layer are on" in verdict(moved(), tried=Tried(2.3, 0.05))
    # A number of the reason would be a measurement on own examples, for every model that a server cares to send.
    assert verdict(moved(), tried=Tried(20.0, 0.4)) == verdict(moved(), tried=Tried(math.nan, 0.4))
    assert verdict(moved(), tried=Tried(8.0, 0.15)) == ""
    grown = Remembered(3, INITIAL).after({name: 0.8 * value for name, value in INITIAL.items()})
    assert verdict({name: 1.5 * value for name, value in INITIAL.items()}, grown) == ""
    assert "turned by" in verdict(with_weight(layers(seed=9)["first.weight"]), grown)
    assert "moved by" in verdict(moved(6.0), at=4)
    assert verdict(moved(6.0), at=6) == ""
    assert "turned by" in verdict({**moved(0.1), **{n: -v for n, v in INITIAL.items() if v.dim() > 1}}, at=50)
    assert verdict(INITIAL, far(), at=1) == ""
    assert verdict(moved(0.1), far(), at=1) == "it is not that of the agreed seed"
    assert verdict(INITIAL, at=3) == ""
    assert verdict(moved(0.1), at=3) == "it is not the one of round 3"
    nudged = {name: value * (1 + 1e-6) for name, value in INITIAL.items()}
    assert verdict(nudged, far(), at=1) == "", "another processor may round otherwise"


def far(**changes: Any) -> Remembered:
    return replace(Remembered(0, INITIAL), **changes)


def test_refuses_odd_weights_without_a_memory() -> None:
    first, head = INITIAL["first.weight"], INITIAL["head.weight"]
    for sent, why in (
        (with_weight(20 * first), "root mean square"),
        (with_weight(first[:1].expand(32, 64) * torch.arange(1, 33)[:, None] / 32), "multiples of others"),
        (with_weight(head[:, :1].expand(CLASSES, 32), "head.weight"), "multiples of others"),
        (with_weight(torch.cat([head[:1] * 12, head[1:]]), "head.weight"), "median row"),
    ):
        assert why in verdict(sent, far(), at=5)
    assert verdict(moved(8.0), far(), at=5) == "", "nothing to compare with"
    assert turn(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 2.0])) == pytest.approx(1.0)
    assert turn(torch.tensor([1.0, 1.0]), torch.tensor([-1.0, -1.0])) == pytest.approx(2.0)
    rows = torch.eye(8)
    assert share_of_copies(rows) == 0.0
    assert share_of_copies(torch.cat([rows[:6], -3 * rows[:2]])) == 0.5
    assert share_of_copies(torch.cat([rows[:7], torch.zeros(1, 8)])) == 1 / 8


Nodes = list[tuple[LocalClient, Remembered]]


def honest(task: Any, rounds: int) -> Iterator[tuple[int, dict[str, Tensor], Nodes]]:
    """Rounds of two clients, and what each remembers of the rounds before."""
    weights = weights_of(task)
    clients = [LocalClient(LocalData(task, at, range(80 * at, 80 * at + 80), range(20))) for at in range(2)]
    known = [Remembered(0, weights)] * 2
    for at in range(1, rounds + 1):
        for client in clients:
            client.data.task = task.but(round=at)
        yield at, weights, list(zip(clients, known, strict=True))
        updates = [client.train(weights, {}).updates[0] for client in clients]
        pairs = zip(known, updates, strict=True)
        known = [replace(last, round=at, weights=weights).after(update) for last, update in pairs]
        weights = {name: value + sum(update[name] for update in updates) / 2 for name, value in weights.items()}


def judged(client: LocalClient, last: Remembered, sent: dict[str, Tensor], at: int) -> str:
    initial = weights_of(client.task)
    return fault(sent, initial, last, at, lambda weights: tried_on_own(client, weights), CLASSES)


@pytest.mark.numeric
def test_no_honest_round_is_refused() -> None:
    for changes in ({}, {"pipeline": "GaussianNoise(std=0.01, per='update')"}):
        for at, weights, nodes in honest(MLP.but(**changes), 4):
            assert [judged(client, last, weights, at) for client, last in nodes] == ["", ""], (at, changes)


@pytest.mark.numeric
def test_every_active_attack_is_refused_in_the_first_round_and_later() -> None:
    for attack in ATTACKS:
        for at, weights, nodes in honest(MLP, 3):
            data, model = nodes[0][0].data, load_weights(MLP.plan.build_model(), weights)
            card = data.card
            own = Knowledge(data.originals(), Pipeline(), card.mean, card.std, lambda *_: pytest.fail("trains"))
            generator = torch.Generator().manual_seed(at)
            agreed = AgreedModel(model, card.input_shape, card.mean, card.std)
            sent = shared_tensors(attack.fit(own, generator).manipulated(agreed, generator))
            assert [bool(judged(client, last, dict(sent), at)) for client, last in nodes] == [True, True]


def test_a_deployed_node_refuses_by_default_and_its_operator_may_turn_that_off(tmp_path: Path) -> None:
    weights = weights_of(TASK)
    other = {name: value + 0.1 for name, value in weights.items()}
    for number, (keys, declines) in enumerate([({}, True), ({"model-check": False}, False)]):
        ask = Asker(tmp_path / str(number), probes=True, **keys)
        for kind in ("train.probe", "train"):
            reply = ask(kind, TASK, other)
            assert reply.has_error() == declines
            if declines:
                assert refused(reply, allowed_by("model-check"))
                assert "agreed seed" in str(reply.error.reason)
        assert not ask("train.probe", TASK, weights).has_error(), "what was refused is forgotten"
    strict = Asker(tmp_path / "0", probes=True)
    assert not strict("train", TASK, weights).has_error()
    far_off = {n: v + 5.0 for n, v in weights.items()}
    assert "moved by" in str(strict("train.probe", TASK.but(round=2), far_off).error.reason)
    reply = Asker(tmp_path, probes=True, **{"model-check": "yes"})("train", TASK, weights)
    assert "model-check is 'yes' in the node's configuration; allowed: true or false" in str(reply.error.reason)


def test_neither_a_later_round_nor_another_pipeline_lets_a_replaced_layer_pass(tmp_path: Path) -> None:
    ask, weights = Asker(tmp_path, probes=True), weights_of(TASK)
    moved_by = tensors_of(ask("train", TASK, weights), "arrays")
    honest_model = {name: value + moved_by[name] for name, value in weights.items()}
    assert not ask("train.probe", TASK.but(round=2), honest_model).has_error()
    generator = torch.Generator().manual_seed(0)
    # As large as it was, so that nothing but its direction tells.
    name = next(name for name, value in weights.items() if value.dim() > 1)
    value = honest_model[name]
    other = torch.randn(value.shape, generator=generator) * value.square().mean().sqrt()
    replaced = {**honest_model, name: other}
    last = TASK.plan.rounds + 1
    for task, why in (
        (TASK.but(round=last), "0.weight "),
        (TASK.but(round=60, rounds=60), "anything for another plan in the same run (rounds differs)"),
        (TASK.but(round=60), f"round 60 of a run of {TASK.plan.rounds} rounds"),
        (TASK.but(round=2, pipeline="GaussianNoise(std=1e-12)"), "0.weight "),
    ):
        reply = ask("train.probe", task, replaced)
        assert reply.has_error(), task
        assert why in str(reply.error.reason)
    assert not ask("train.probe", TASK.but(round=2, pipeline="GaussianNoise(std=1e-12)"), honest_model).has_error()
