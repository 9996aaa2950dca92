"""What a node keeps between the messages of federated learning, and what its replies say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord, Message, RecordDict
from torch.nn import functional as F

from attacks.normalisation import normalise
from clients.task.task import Task, load_weights
from clients.wire.records import REFUSED, tensors_of, to_record, values_of
from strategies.exchange.exchange import Exchange
from tests.clients.secrets.test_draws import TASK, Node, weights_of
from tests.local_grid import LocalGrid

OPEN = {"model-check": False, "probes": True, "repeats": -1}


class Asker:
    """One deployed node with 40 training and 20 test images, and a server that sends it the initial weights."""

    def __init__(self, folder: Path, **node_config: bool | int) -> None:
        self.grid = LocalGrid(1, randomness="secret", node_config={0: {"secret-dir": str(folder), **node_config}})
        self.state = self.grid.contexts[100].state
        self.state["indices"] = to_record({"train": torch.arange(40), "test": torch.arange(20)})
        self.exchange = Exchange(self.grid, {0: 100}, 60.0)

    def __call__(self, message_type: str, task: Task, weights: Any = None, **config: Any) -> Message:
        arrays = to_record(weights or weights_of(task))
        content = RecordDict({"config": self.exchange.config(task, **config), "arrays": arrays})
        return self.exchange(message_type, {0: content})[0]


@pytest.mark.parametrize("message_type", ["train", "train.probe"])
def test_under_a_client_level_bound_a_training_that_diverged_answers_like_any_other(
    tmp_path: Path, message_type: str
) -> None:
    """Whether it diverged depends on all data of the client, so that an error would be a message beside the noise."""
    task = TASK.but(pipeline="ClientDP(max_norm=1.0, noise_multiplier=4.0)")
    weights = {
        name: tensor * 1e38 if tensor.is_floating_point() else tensor for name, tensor in weights_of(task).items()
    }
    asker = Asker(tmp_path, **OPEN)
    reply = asker(message_type, task, weights)
    assert not reply.has_error()
    arrays = [tensors_of(reply, name) for name in reply.content.array_records]
    assert arrays
    assert all(tensor.isfinite().all() for found in arrays for tensor in found.values())
    assert asker(message_type, task.but(pipeline=""), weights).has_error()


@pytest.mark.parametrize("key", ["publish-labels", "reveal-windows"])
def test_of_a_probe_a_node_tells_only_what_its_operator_allows(tmp_path: Path, key: str) -> None:
    """And what it tells is true: the classes are those that the update itself gives away."""
    task = TASK.but(pipeline="VisualMixer(window_lower=4, window_upper=16)")
    weights = weights_of(task)
    last = list(weights)[-2:]
    blank = weights | {name: torch.zeros_like(weights[name]) for name in last}  # which predicts every class alike
    asked = {"publish-labels": True, "reveal-windows": True}
    reply = Asker(tmp_path, **OPEN, **{key: True})("train.probe", task, blank, **asked)
    assert not reply.has_error()
    other = "reveal-windows" if key == "publish-labels" else "publish-labels"
    assert set(values_of(reply, "withheld")) == {other}
    assert f"may allow it by {other} in the node's configuration" in values_of(reply, "withheld")[other]
    updates = [tensors_of(reply, f"target-{at}") for at in range(task.plan.probe_targets)]
    assert all(updates)
    assert "target-2" not in reply.content
    labels, windows = tensors_of(reply, "labels"), tensors_of(reply, "windows")
    if key == "reveal-windows":
        assert not labels
        assert {side for sides in windows.values() for side in sides.unique().tolist()} <= {4, 8, 16}
        assert [tuple(windows[f"target-{at}"].shape) for at in range(2)] == [(3, 28, 28)] * 2
        return
    assert not windows
    for at, update in enumerate(updates):
        # The gradient of the last bias is the mean over the images of softmax - one-hot: 1/10 - count / 3.
        counts = 3 * (0.1 + update[last[1]] / task.learning_rate)
        told = torch.bincount(labels[f"target-{at}"], minlength=10)
        torch.testing.assert_close(counts, told.float(), atol=1e-4, rtol=0)


def test_without_windows_to_tell_a_node_neither_tells_nor_withholds_them(tmp_path: Path) -> None:
    reply = Asker(tmp_path, **OPEN, **{"reveal-windows": True})("train.probe", TASK, **{"reveal-windows": True})
    assert tensors_of(reply, "windows") == {}
    assert "withheld" not in reply.content
    assert "labels" not in reply.content


def test_a_node_without_probes_in_its_configuration_computes_none(tmp_path: Path) -> None:
    reply = Asker(tmp_path)("train.probe", TASK)
    assert reply.error.code == REFUSED
    assert "updates of single steps" in str(reply.error.reason)


def test_an_evaluation_is_of_the_sent_model_on_the_nodes_own_test_images(tmp_path: Path) -> None:
    found = values_of(Asker(tmp_path)("evaluate", TASK), "metrics")
    test = TASK.plan.load_data().test
    images, labels = test.images[:20] / 255, test.labels[:20]
    logits = load_weights(TASK.plan.build_model(), weights_of(TASK)).eval()(normalise(images, TASK.plan.data_card()))
    assert found["num-examples"] == 20
    assert type(found["num-examples"]) is int
    assert found["test-loss-original"] == pytest.approx(F.cross_entropy(logits, labels).item(), rel=1e-5)
    assert found["test-accuracy-original"] == pytest.approx((logits.argmax(1) == labels).float().mean().item())


def test_what_two_pipelines_spent_is_kept_apart(tmp_path: Path) -> None:
    """Rounds of another pipeline in between change no budget, and a reply carries the account of its own pipeline alone."""
    ours, other = "DPSGD(noise_multiplier=1.0)", "DPSGD(noise_multiplier=2.0)"
    epsilons = {}
    for name, order in (("alone", (ours, ours)), ("mixed", (ours, other, ours))):
        ask = Asker(tmp_path / name)
        spent: dict[str, list[float]] = {ours: [], other: []}
        for text in order:
            reply = ask("train", TASK.but(pipeline=text, round=len(spent[text]) + 1))
            assert list(values_of(reply, "ledger")) == [text]
            spent[text].append(float(values_of(reply, "metrics")["epsilon"]))
        assert set(ask.state["ledger"]) == set(order)  # type: ignore[arg-type]
        epsilons[name] = spent[ours]
    assert epsilons["alone"] == epsilons["mixed"]
    assert epsilons["alone"][1] > epsilons["alone"][0]


def test_a_message_of_another_scenario_is_an_error_that_names_what_is_known(tmp_path: Path) -> None:
    reply = Asker(tmp_path)("train.step", TASK)
    assert (
        "train.step is no message of the scenario federated; known: train, train.probe, query.coins, evaluate"
        in str(reply.error.reason)
    )


def test_the_server_cannot_choose_the_noise_by_the_ledger_that_it_hands_back(tmp_path: Path) -> None:
    """On resume a ledger comes from the server: in a deployment what was spent counts, the noise multiplier does not."""
    task = TASK.but(pipeline="DPSGD(target_epsilon=1.0)")
    state = {"noise_multiplier": 1e-6, "accountant": {"steps": [[1.0, 0.5, 7]]}}
    ledger = json.dumps({"train": state})
    sizes = {}
    for randomness in ("secret", "seed"):
        grid = LocalGrid(1, randomness=randomness, node_config={0: {"secret-dir": str(tmp_path)}})
        grid.contexts[100].state["indices"] = to_record({"train": torch.arange(40), "test": torch.arange(20)})
        exchange = Exchange(grid, {0: 100}, 60.0)
        content = RecordDict({
            "config": exchange.config(task), "arrays": to_record(weights_of(task)),
            "ledger": ConfigRecord({task.plan.pipeline: ledger}),
        })  # fmt: skip
        reply = exchange("train", {0: content})[0]
        kept = str(reply.content["ledger"][task.plan.pipeline])  # type: ignore[index]
        assert "[1.0, 0.5, 7]" in kept
        sizes[randomness] = sum(float(t.square().sum()) for t in tensors_of(reply, "arrays").values())
    assert sizes["secret"] > 25 * sizes["seed"]


def test_another_spelling_of_a_pipeline_is_the_same_account(tmp_path: Path) -> None:
    """The finding: a server that wrote 1.00 for 1.0 in the second round got an epsilon that began at zero again."""
    spent = {}
    plain, other = "DPSGD(noise_multiplier=1.0)", "DPSGD( noise_multiplier = 1.00 )"
    for name, spellings in (("one", (plain, plain)), ("two", (plain, other))):
        grid = LocalGrid(1, randomness="secret", node_config={0: {"secret-dir": str(tmp_path / name)}})
        grid.contexts[100].state["indices"] = to_record({"train": torch.arange(40), "test": torch.arange(20)})
        exchange, epsilons = Exchange(grid, {0: 100}, 60.0), []
        for at, text in enumerate(spellings, 1):
            task = TASK.but(pipeline=text, round=at)
            content = RecordDict({"config": exchange.config(task), "arrays": to_record(weights_of(TASK))})
            epsilons.append(values_of(exchange("train", {0: content})[0], "metrics")["epsilon"])
        spent[name] = epsilons
    assert spent["one"] == spent["two"]
    assert spent["two"][1] > spent["two"][0]


def test_an_honest_probe_is_found_again_behind_the_question_on_another_model() -> None:
    """Each question of a round has draws of its own, which an audit of it finds again; another number is refused."""
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
