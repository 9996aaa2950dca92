"""Canaries at a client: what it trains on, what its update shows of them, and what a deployed node refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from attacks.dp_audit.example_gradients import EMPTY, NO_CANARY
from attacks.dp_audit.placed_canaries import BRIGHT
from attacks.local_model import shared_tensors
from clients.federated.canaries import shared_shapes
from clients.federated.client import LocalClient
from clients.task.local_data import LocalData
from clients.task.task import Task
from clients.wire.records import REFUSED, tensors_of
from defenses.neighbours import ADD_OR_REMOVE
from tests.clients.federated.test_messages import OPEN, Asker
from tests.clients.secrets.test_draws import TASK

EXAMPLES, COUNT = 20, 40
SILENT = "DPSGD(noise_multiplier=0.0)"
HIDDEN = f"DPSGD(noise_multiplier=0.0, neighbours={ADD_OR_REMOVE!r}, sample_rate=1.0)"
CANARIES = TASK.but(model="mlp", width=4, batch_size=64, dp_canaries=COUNT, pipeline=SILENT)


def client(task: Task = CANARIES, partition: int = 0) -> LocalClient:
    return LocalClient(LocalData(task, partition, range(EXAMPLES), range(4)))


def update_of(one: LocalClient) -> dict[str, Tensor]:
    weights = shared_tensors(one.task.plan.build_model())
    return one.train(weights, {}).updates[0]


def test_without_noise_an_update_shows_every_coin() -> None:
    one = client()
    canaries = one.canaries
    assert canaries is not None
    result = one.train(shared_tensors(one.task.plan.build_model()), {})
    assert result.num_examples == EXAMPLES + COUNT + 1
    # A clipped canary moves its weight by the learning rate times the clipping norm over the batch; others hardly by more.
    step = one.task.learning_rate / (EXAMPLES + COUNT + 1)
    scores = canaries.placed.scores(result.updates[0], 1) / step
    right = (scores > 0) == canaries.coins
    assert right.float().mean() > 0.9
    assert 0.3 < canaries.coins.float().mean() < 0.7


def test_canaries_of_alternating_sign_move_their_weight_back_in_the_next_round() -> None:
    first = client()
    second = client(CANARIES.but(round=2))
    assert first.canaries is not None
    assert second.canaries is not None
    assert torch.equal(first.canaries.coins, second.canaries.coins)
    turns = first.canaries.placed.turns
    plain = [one.canaries.placed.scores(update_of(one), 1) for one in (first, second) if one.canaries]
    same = (plain[0] > 0) == (plain[1] > 0)
    assert same[~turns].float().mean() > 0.8
    assert same[turns].float().mean() < 0.2


def test_a_coin_decides_whether_a_canary_exists_where_the_number_is_hidden() -> None:
    even, odd = (client(CANARIES.but(pipeline=HIDDEN), partition) for partition in (0, 1))
    assert even.canaries is not None
    assert odd.canaries is not None
    assert len(even.canaries.examples) == even.canaries.coins.sum()
    assert even.canaries.lone is None
    assert odd.canaries.examples.tolist() == [EMPTY] * odd.canaries.lone
    found = {len(client(CANARIES.but(pipeline=HIDDEN), at).canaries.examples) for at in range(1, 20, 2)}  # type: ignore[union-attr]
    assert found == {0, 1}


def test_canaries_stand_behind_the_examples_and_a_lone_one_is_extreme() -> None:
    one = client()
    examples = one._examples
    images, targets, numbers = zip(*(examples[at] for at in range(EXAMPLES + COUNT + 1)), strict=True)
    assert list(numbers[:EXAMPLES]) == [NO_CANARY] * EXAMPLES
    assert numbers[-1] == EMPTY
    assert one.canaries is not None
    assert list(numbers[EXAMPLES:-1]) == one.canaries.placed.weights.tolist()
    assert torch.stack(images[:EXAMPLES]).max() <= 1
    assert images[-1].abs().min() == BRIGHT
    assert {tuple(target.shape) for target in targets} == {(10,)}


@pytest.mark.parametrize("changes", [{"dp_canaries": 0}, {"pipeline": ""}, {"pipeline": "ImageNoise(std=0.1)"}])
def test_without_a_request_or_a_claim_there_are_none(changes: dict[str, object]) -> None:
    one = client(CANARIES.but(**changes))
    assert one.canaries is None
    result = one.train(shared_tensors(one.task.plan.build_model()), {})
    assert result.num_examples == EXAMPLES


def test_attacks_on_training_updates_are_scored_against_the_clients_own_examples() -> None:
    one = client(CANARIES.but(local_steps=1))
    assert set(one.trained_on().tolist()) <= set(range(EXAMPLES))


def test_a_deployed_node_trains_with_canaries_only_if_its_operator_allows_it(tmp_path: Path) -> None:
    closed, open_ = Asker(tmp_path, **OPEN), Asker(tmp_path, **OPEN, canaries=True)
    for message in ("train", "query.coins"):
        reply = closed(message, CANARIES)
        assert reply.error.code == REFUSED
        assert "canaries in the node's configuration" in str(reply.error.reason)
    assert not closed("train", CANARIES.but(dp_canaries=0)).has_error()
    assert not open_("train", CANARIES).has_error()
    coins = tensors_of(open_("query.coins", CANARIES), "coins")
    assert {name: tuple(one.shape) for name, one in coins.items()} == {"coins": (COUNT,), "lone": (1,)}
    assert coins["coins"].dtype == torch.bool


def test_no_canary_client_hides_in_frozen_parameters() -> None:
    """A client sends 0 for them, so that a direction there would be lost."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    assert [name for name in shared_shapes(model) if not name.startswith("1.")] == ["2.weight", "2.bias"]
    assert "1.running_mean" in shared_shapes(model)
