"""What a node keeps between the messages of federated learning, and what its replies say."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord, Message
from torch import Tensor, nn
from torch.nn import functional as F

from attacks.dp_audit.placed_canaries import BRIGHT, EMPTY, NO_CANARY
from attacks.normalisation import normalise
from clients.federated.canaries import shared_shapes
from clients.federated.client import LocalClient
from clients.task.local_data import LocalData
from clients.task.task import Task, load_weights
from clients.wire.records import tensors_of, to_record, values_of
from defenses.neighbours import ADD_OR_REMOVE
from tests.clients.asked import Asked, refused
from tests.clients.secrets.test_draws import TASK, Node, weights_of

OPEN = {"model-check": False, "probes": True, "repeats": -1}


class Asker(Asked):
    """A deployed node that is sent the initial weights unless others are given."""

    def __call__(self, message_type: str, task: Task, weights: Any = None, **config: Any) -> Message:
        return super().__call__(message_type, task, {"arrays": to_record(weights or weights_of(task))}, **config)


def test_under_a_client_level_bound_a_training_that_diverged_answers_like_any_other(tmp_path: Path) -> None:
    # Whether it diverged depends on all data of the client, so that an error would be a message beside the noise.
    task = TASK.but(pipeline="ClientDP(max_norm=1.0, noise_multiplier=4.0)")
    weights = {n: tensor * 1e38 if tensor.is_floating_point() else tensor for n, tensor in weights_of(task).items()}
    for message_type in ("train", "train.probe"):
        asker = Asker(tmp_path / message_type, **OPEN)
        reply = asker(message_type, task, weights)
        assert not reply.has_error()
        arrays = [tensors_of(reply, name) for name in reply.content.array_records]
        assert arrays
        assert all(tensor.isfinite().all() for found in arrays for tensor in found.values())
        assert asker(message_type, task.but(pipeline=""), weights).has_error()


def test_a_node_tries_gradients_per_example_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [*sys.path])  # to which the file's folder is added
    file = tmp_path / "net.py"
    file.write_text(
        "from torch import nn\ndef build(num_classes):\n    return nn.Sequential(\n        "
        "nn.Conv2d(1, 4, 5, 4, 2, padding_mode='circular'), nn.Flatten(), nn.Linear(196, num_classes))\n"
    )
    asker = Asker(tmp_path, **OPEN, **{"own-code": f"{file}:build"})
    for message_type in ("train", "train.probe"):
        for pipeline in ("DPSGD(noise_multiplier=1.0)", "DPSGD(noise_multiplier=1.0, clipping='ghost')", ""):
            reply = asker(message_type, TASK.but(model=f"{file}:build", pipeline=pipeline))
            assert reply.has_error() == bool(pipeline)
            assert not pipeline or "0.weight: the clipped sum of random examples is not" in reply.error.reason


def test_of_a_probe_a_node_tells_only_what_its_operator_allows(tmp_path: Path) -> None:
    task = TASK.but(pipeline="VisualMixer(window_lower=4, window_upper=16)")
    weights = weights_of(task)
    last = list(weights)[-2:]
    blank = weights | {name: torch.zeros_like(weights[name]) for name in last}  # which predicts every class alike
    asked = {"publish-labels": True}
    closed = Asker(tmp_path / "closed", **OPEN)("train.probe", task, blank, **asked)
    why = values_of(closed, "withheld")
    assert set(why) == {"publish-labels"}
    assert "may allow it by publish-labels in the node's configuration" in why["publish-labels"]
    assert not tensors_of(closed, "labels")
    reply = Asker(tmp_path / "open", **OPEN, **asked)("train.probe", task, blank, **asked)
    assert not reply.has_error()
    assert "withheld" not in reply.content
    updates = [tensors_of(reply, f"target-{at}") for at in range(task.plan.probe_targets)]
    assert all(updates)
    assert "target-2" not in reply.content
    labels = tensors_of(reply, "labels")
    for at, update in enumerate(updates):
        # The gradient of the last bias is the mean over the images of softmax - one-hot: 1/10 - count / 3.
        counts = 3 * (0.1 + update[last[1]] / task.learning_rate)
        told = torch.bincount(labels[f"target-{at}"], minlength=10)
        torch.testing.assert_close(counts, told.float(), atol=1e-4, rtol=0)
    unasked = Asker(tmp_path / "unasked", **OPEN, **asked)("train.probe", TASK)
    assert not {"withheld", "labels"} & set(unasked.content)


def test_an_evaluation_is_of_the_sent_model_on_the_nodes_own_test_images(tmp_path: Path) -> None:
    found = values_of(Asker(tmp_path)("evaluate", TASK.but(round=0)), "metrics")
    test = TASK.plan.load_data().test
    images, labels = test.images[:20] / 255, test.labels[:20]
    logits = load_weights(TASK.plan.build_model(), weights_of(TASK)).eval()(normalise(images, TASK.plan.data_card()))
    assert found["num-examples"] == 20
    assert type(found["num-examples"]) is int
    assert found["test-loss-original"] == round(F.cross_entropy(logits, labels).item(), 2)
    assert found["test-accuracy-original"] == pytest.approx((logits.argmax(1) == labels).float().mean().item())


def test_what_two_pipelines_spent_is_kept_apart_and_another_spelling_is_the_same_account(tmp_path: Path) -> None:
    # A server that wrote 1.00 for 1.0 in the second round once got an epsilon that began at zero again.
    ours, other, spelt = (f"DPSGD(noise_multiplier{value})" for value in ("=1.0", "=2.0", " = 1.00"))
    epsilons = {}
    for name, order in (("alone", (ours, ours)), ("mixed", (ours, other, ours)), ("spelt", (ours, spelt))):
        ask = Asker(tmp_path / name)
        spent: dict[str, list[float]] = {ours: [], other: []}
        for text in order:
            account = spent[other if text == other else ours]
            reply = ask("train", TASK.but(pipeline=text, round=len(account) + 1), weights_of(TASK))
            if text != spelt:
                assert list(values_of(reply, "ledger")) == [text], "a reply carries the account of its pipeline alone"
            account.append(float(values_of(reply, "metrics")["epsilon"]))
        epsilons[name] = spent[ours]
    assert epsilons["alone"] == epsilons["mixed"] == epsilons["spelt"]
    assert epsilons["alone"][1] > epsilons["alone"][0]


def test_the_server_cannot_choose_the_noise_by_the_ledger_that_it_hands_back(tmp_path: Path) -> None:
    # On resume a ledger comes from the server: in a deployment what was spent counts, the noise multiplier does not.
    task = TASK.but(pipeline="DPSGD(target_epsilon=1.0)")
    state = {"noise_multiplier": 1e-6, "accountant": {"steps": [[1.0, 0.5, 7]]}}
    ledger, sizes = ConfigRecord({task.plan.pipeline: json.dumps({"train": state})}), {}
    for randomness in ("secret", "seed"):
        records = {"arrays": to_record(weights_of(task)), "ledger": ledger}
        reply = Asked(tmp_path, randomness)("train", task, records)
        assert "[1.0, 0.5, 7]" in str(reply.content["ledger"][task.plan.pipeline])  # type: ignore[index]
        sizes[randomness] = sum(float(t.square().sum()) for t in tensors_of(reply, "arrays").values())
    assert sizes["secret"] > 25 * sizes["seed"]


def test_an_honest_probe_is_found_again_behind_the_question_on_another_model() -> None:
    node = Node(TASK.but(pipeline="InstaHide()", batch_size=8))
    weights = weights_of(node.task)
    node.client().probe(weights, {})
    first = node.client().truths("probe").views[0].seen.images
    node.client().probe(weights, {}, 1)
    assert torch.equal(node.client().truths("probe").views[0].seen.images, first)
    again, other = (node.client().truths("active").views[0].seen.images for _ in "ab")
    assert torch.equal(again, other)
    assert not torch.equal(again, first)
    original = [node.client().truths(kind).views[0].original.images for kind in ("probe", "active")]
    assert torch.equal(*original), "the same people"
    with pytest.raises(ValueError, match="question is 2; allowed: 0, 1"):
        node.client().probe(weights, {}, 2)


EXAMPLES, COUNT = 20, 40
SILENT = "DPSGD(noise_multiplier=0.0)"
HIDDEN = f"DPSGD(noise_multiplier=0.0, neighbours={ADD_OR_REMOVE!r}, sample_rate=1.0)"
CANARIES = TASK.but(model="mlp", width=4, batch_size=64, dp_canaries=COUNT, pipeline=SILENT)


def client(task: Task = CANARIES, partition: int = 0) -> LocalClient:
    return LocalClient(LocalData(task, partition, range(EXAMPLES), range(4)))


def update_of(one: LocalClient) -> dict[str, Tensor]:
    return one.train(weights_of(one.task), {}).updates[0]


@pytest.mark.numeric
def test_without_noise_an_update_shows_every_coin_and_alternating_signs_move_back() -> None:
    one = client()
    canaries = one.canaries
    assert canaries is not None
    result = one.train(weights_of(one.task), {})
    assert result.num_examples == EXAMPLES + COUNT + 1
    # A clipped canary moves its weight by the learning rate times the clipping norm over the batch; others hardly by more.
    step = one.task.learning_rate / (EXAMPLES + COUNT + 1)
    scores = canaries.placed.scores(result.updates[0], 1) / step
    right = (scores > 0) == canaries.coins
    assert right.float().mean() > 0.9
    assert abs(canaries.coins.float().mean() - 0.5) < 5 * 0.5 / COUNT**0.5
    later = client(CANARIES.but(round=2))
    assert later.canaries is not None
    assert torch.equal(canaries.coins, later.canaries.coins)
    turns, plain = canaries.placed.turns, later.canaries.placed.scores(update_of(later), 1)
    same = (scores > 0) == (plain > 0)
    assert same[~turns].float().mean() > 0.8
    assert same[turns].float().mean() < 0.2


def test_canaries_stand_behind_the_examples_where_a_coin_decides() -> None:
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
    even, odd = (client(CANARIES.but(pipeline=HIDDEN), partition) for partition in (0, 1))
    assert even.canaries is not None
    assert odd.canaries is not None
    assert len(even.canaries.examples) == even.canaries.coins.sum()
    assert even.canaries.lone is None
    assert odd.canaries.examples.tolist() == [EMPTY] * odd.canaries.lone
    found = {len(client(CANARIES.but(pipeline=HIDDEN), at).canaries.examples) for at in range(1, 60, 2)}  # type: ignore[union-attr]
    assert found == {0, 1}
    for changes in ({"dp_canaries": 0}, {"pipeline": ""}, {"pipeline": "ImageNoise(std=0.1)"}):
        one = client(CANARIES.but(**changes))
        assert one.canaries is None, changes
        assert one.train(weights_of(one.task), {}).num_examples == EXAMPLES
    assert set(client(CANARIES.but(local_steps=1)).trained_on().tolist()) <= set(range(EXAMPLES))
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    assert [name for name in shared_shapes(model) if not name.startswith("1.")] == ["2.weight", "2.bias"]
    assert "1.running_mean" in shared_shapes(model)


def test_a_deployed_node_trains_with_canaries_only_if_its_operator_allows_it(tmp_path: Path) -> None:
    closed, open_ = Asker(tmp_path, **OPEN), Asker(tmp_path, **OPEN, canaries=True)
    for message in ("train", "query.coins"):
        reply = closed(message, CANARIES)
        assert refused(reply, "canaries in the node's configuration")
    assert not closed("train", CANARIES.but(dp_canaries=0)).has_error()
    assert not open_("train", CANARIES).has_error()
    coins = tensors_of(open_("query.coins", CANARIES), "coins")
    assert {name: tuple(one.shape) for name, one in coins.items()} == {"coins": (COUNT,), "lone": (1,)}
    assert coins["coins"].dtype == torch.bool
