"""What a node draws for one reply it draws for no other, and finds again when that reply is audited or answered."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from flwr.app import Context, Message, RecordDict
from torch import Tensor
from torch.nn import functional as F

from attacks.local_model import shared_tensors
from attacks.normalisation import normalise
from clients.federated.client import LocalClient
from clients.federated.plan import FederatedPlan
from clients.flower_private import SIMULATION_WORKER
from clients.messages.node import answers_of, draws_from_seed, draws_of
from clients.secrets.draws import MOST_NOTES, Draws, ForgottenError, Notebook
from clients.split.training import SplitClient
from clients.task.local_data import LocalData
from clients.task.task import Task, load_weights
from clients.wire.records import REFUSED, tensors_of, to_record
from defenses.random_draws import generator_for
from strategies.exchange.exchange import Exchange
from tests.clients.split.test_training import TASK as SPLIT_TASK
from tests.local_grid import LocalGrid

TASK = FederatedPlan(
    scenario="federated",
    dataset="mnist-5k", data_dir="", download=False, image_size=0, train_limit=200, test_limit=50, model="lenet", width=0,
    norm="group", pipeline="", seed=3, rounds=3, local_epochs=1, batch_size=8, learning_rate=0.1, momentum=0.0,
    weight_decay=0.0, probe_targets=2, probe_images=3,
).at(1)  # fmt: skip
SECRET = b"s" * 32


class Node:
    """A node with a secret, whose every message is answered by a process of its own: only the notebook's text is left."""

    def __init__(self, task: Task, secret: bytes = SECRET, train: Any = range(40)) -> None:
        self.task, self.secret, self.train, self.text = task, secret, train, ""

    def client(self, **changes: Any) -> Any:
        def keep(text: str) -> None:
            self.text = text

        kind = SplitClient if self.task.plan.scenario == "split" else LocalClient
        draws = Draws(self.secret, Notebook(self.text, keep))
        return kind(LocalData(self.task.but(**changes), 0, self.train, range(20), draws))


def kept(one: LocalClient) -> Tensor:
    """All training images of a client after the defences that protect an image once."""
    return one.data.kept(torch.arange(one.data.num_train)).images


def weights_of(task: Task) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in shared_tensors(task.plan.build_model()).items()}


# Nothing the server asks for twice is drawn in the same way ---------------------------------------------------------------


@pytest.mark.parametrize(
    "pipeline",
    [
        "GaussianNoise(std=10.0, per='update')", "GaussianNoise(std=300.0, per='step')", "LaplaceNoise(scale=7.0, per='update')",
        "DPSGD(noise_multiplier=500.0)",
    ],
)  # fmt: skip
@pytest.mark.parametrize("ask", ["train", "probe"])
def test_two_replies_of_one_round_do_not_cancel_the_noise(pipeline: str, ask: str) -> None:
    """The server asks again with other weights and subtracts; in a simulation, where draws repeat, that removes the noise."""
    task = TASK.but(pipeline=pipeline, probe_targets=1)
    weights = weights_of(task)
    others = {name: tensor + 0.01 for name, tensor in weights.items()}
    spread = {}
    for name, node in (("secret", Node(task)), ("seed", None)):
        asked = [node.client() if node else LocalClient(LocalData(task, 0, range(40), range(20))) for _ in "ab"]
        first, second = (getattr(c, ask)(w, {}).updates[0] for c, w in zip(asked, (weights, others), strict=True))
        difference = {key: first[key] - second[key] for key in first}
        sizes = [float(torch.cat([t.flatten() for t in u.values()]).std()) for u in (first, difference)]
        spread[name] = sizes[1] / sizes[0]
    assert spread["secret"] == pytest.approx(2**0.5, rel=0.05)
    assert spread["seed"] < 0.1


def split_exchange(tmp_path: Path, randomness: str, pipeline: str) -> tuple[Any, Task]:
    config = {
        "secret-dir": str(tmp_path),
        "transmissions": -1,
        "audit-steps": True,
        "reveal-orders": True,
        "repeats": -1,
    }
    grid = LocalGrid(1, node_config={0: config}, randomness=randomness)
    indices = to_record({"train": torch.arange(40), "test": torch.arange(20)})
    grid.contexts[100].state["indices"] = indices
    exchange = Exchange(grid, {0: 100}, 60.0)
    task = SPLIT_TASK.but(pipeline=pipeline, probe_targets=1)

    def ask(message_type: str, tensors: dict[str, dict[str, Tensor]], **config: Any) -> Message:
        records = {name: to_record(values) for name, values in tensors.items()}
        content = RecordDict({"config": exchange.config(task, **config), **records})
        reply = exchange(message_type, {0: content})[0]
        assert not reply.has_error(), reply.error.reason
        return reply

    return ask, task


@pytest.mark.parametrize(
    ("message_type", "record"),
    [
        ("train.step", "features"), ("train.smash", "target-0"), ("evaluate.smash", "features"), ("train.collect", "arrays"),
        ("train.audit_step", "target-0"),
    ],
)  # fmt: skip
def test_no_question_of_split_learning_gets_the_same_noise_twice(
    tmp_path: Path, message_type: str, record: str
) -> None:
    spread = {}
    for randomness in ("secret", "seed"):
        ask, task = split_exchange(
            tmp_path, randomness, "FeatureNoise(std=50.0) | GaussianNoise(std=50.0, per='update')"
        )
        edge = {n: t.clone() for n, t in shared_tensors(task.plan.build_halves()[0]).items()}
        other = {name: tensor + 0.01 for name, tensor in edge.items()}
        begin: dict[str, Any] = {"first": 0, "count": 1, "labels": "client", "applied": 0}
        features = tensors_of(ask("train.step", {"edge": edge}, **begin), "features")["0"]
        ask("train.smash", {"edge": edge}, transmissions=1, since=1, until=1, **{"reveal-order": False})
        config = {
            "train.step": begin, "train.smash": {"transmissions": 1, "reveal-order": False, "since": 1, "until": 1},
            "evaluate.smash": {"first": 0, "count": 8},
        }.get(message_type, {})  # fmt: skip
        more = {"gradients": {"target-0": torch.zeros_like(features)}} if message_type == "train.audit_step" else {}
        replies = [ask(message_type, {"edge": weights, **more}, **config) for weights in (edge, other)]
        first, second = (torch.cat([t.flatten() for t in tensors_of(reply, record).values()]) for reply in replies)
        spread[randomness] = float((first - second).std() / first.std())
    assert spread["secret"] == pytest.approx(2**0.5, rel=0.15)
    assert spread["seed"] < 0.1


def test_shuffles_of_a_repeated_batch_differ() -> None:
    node = Node(SPLIT_TASK.but(pipeline="PatchShuffle()"))
    edge = node.client().load_edge({}).requires_grad_(False)
    first, second = (node.client().batches.send(edge, 0, 1)[0] for _ in "ab")
    assert torch.equal(first.examples, second.examples)
    assert not any(torch.allclose(a, b, atol=1e-4) for a, b in zip(first.features, second.features, strict=True))


def test_other_images_in_the_same_place_get_other_draws(tmp_path: Path) -> None:
    """A server that deals out the examples could put one image where another was, and compare the two under the same draws."""
    noise = []
    for train in (range(40), [1, 0, *range(2, 40)]):
        one = Node(TASK.but(pipeline="ImageNoise(std=0.1, clamp=False)"), train=train).client()
        noise.append(kept(one) - one.data.originals().images)
    assert (noise[0] - noise[1]).abs().amin((1, 2, 3)).max() < 0.1
    assert not any(torch.allclose(noise[0][at], noise[1][at], atol=1e-3) for at in range(2))
    # And an image keeps its draws wherever it is put.
    torch.testing.assert_close(noise[0][[0, 1, 2]], noise[1][[1, 0, 2]])


# What was drawn is found again ----------------------------------------------------------------------------------------------


def test_what_is_protected_once_is_the_same_in_all_rounds_messages_and_pipelines_around_it() -> None:
    mixed = "VisualMixer(window_lower=4, window_upper=16)"
    node = Node(TASK.but(pipeline=mixed))
    first = kept(node.client())
    assert not torch.equal(first, node.client().data.originals().images)
    assert torch.equal(kept(node.client(round=2)), first)
    assert torch.equal(kept(node.client(pipeline=f"{mixed} | Clip(max_norm=1.0)")), first)
    assert not torch.equal(kept(Node(node.task, b"t" * 32).client()), first)


def test_the_audit_finds_the_images_that_a_probe_was_computed_on() -> None:
    task = TASK.but(pipeline="ATS()", learning_rate=0.1)
    node, weights = Node(task), weights_of(task)
    updates = node.client().probe(weights, {}).updates
    node.client(round=2).probe(weights, {})
    for target, update in enumerate(updates):
        seen = node.client().probed(target).seen
        model = load_weights(task.plan.build_model(), weights)
        loss = F.cross_entropy(model(normalise(seen.images, task.plan.data_card())), seen.targets)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        for (name, _), own in zip(model.named_parameters(), gradients, strict=True):
            torch.testing.assert_close(update[name], -0.1 * own, atol=1e-6, rtol=1e-4)


def test_the_audit_finds_whom_a_round_trained_on() -> None:
    node = Node(TASK.but(local_steps=2))
    with pytest.raises(ForgottenError, match="does not know its draws of 'train' in round 1"):
        node.client().trained_on()
    node.client().train(weights_of(node.task), {})
    first = node.client().trained_on()
    assert len(first) == 16
    assert torch.equal(first, node.client().trained_on())
    node.client().train(weights_of(node.task), {})
    assert not torch.equal(first, node.client().trained_on())


def test_a_gradient_finds_the_tokens_that_it_answers() -> None:
    node = Node(SPLIT_TASK.but(pipeline="PatchShuffle() | FeatureNoise(std=1.0)"))
    edge = node.client().load_edge({}).requires_grad_(False)
    sent = [*node.client().batches.send(edge, 0, 2), *node.client().batches.send(edge, 2, 2)]
    for number, one in enumerate(sent):
        again = node.client().batches.smash(edge, number)
        assert torch.equal(again.features, one.features)
        assert torch.equal(again.examples, one.examples)
    seen = torch.cat([one.examples for one in sent])
    assert len(seen.unique()) == len(seen) == 32  # the batches of a round are parts of one pass


def test_the_audit_of_smashed_data_finds_what_was_sent() -> None:
    node = Node(SPLIT_TASK.but(pipeline="ImageNoise(std=0.1) | PatchShuffle()"))
    one = node.client()
    edge = one.load_edge({}).requires_grad_(False)
    first = one.audits.send(edge, 0, 2)
    assert not torch.equal(one.audits.send(edge, 0, 2), first)
    sent = one.audits.send(edge, 0, 1)[0]
    order = node.client().audits.orders(0, 1, edge.num_tokens)[0]
    plain = node.client().audits.truth(0).seen
    tokens = edge.embed(normalise(plain.images, node.task.plan.data_card()))
    mine = edge.encode(tokens.flatten(0, 1)[order[: len(plain)]])
    torch.testing.assert_close(sent[: len(plain)], mine, atol=1e-5, rtol=1e-4)


def test_old_notes_are_dropped_by_kind_and_newest_win() -> None:
    text = [""]
    draws = Draws(SECRET, Notebook("", lambda new: text.__setitem__(0, new)))
    draws.renew("smash", "p", 1)
    for at in range(MOST_NOTES + 5):
        draws.renew("train", "p", at)
    notebook = Notebook(text[0], lambda _: None)
    again = Draws(SECRET, notebook)
    assert notebook.nonce("smash", "p", 1, 0)
    assert not notebook.nonce("train", "p", 4, 0)
    assert notebook.nonce("train", "p", 5, 0)
    assert not notebook.nonce("train", "q", 5, 0)
    with pytest.raises(ValueError, match="neither kept nor renewed"):
        again.key("new-kind", pipeline="p", server_round=1)


def test_a_kind_of_draws_is_either_kept_or_renewed() -> None:
    simulated = Draws.simulated(1, 0)
    with pytest.raises(ValueError, match="neither kept nor renewed"):
        simulated.key("new-kind", pipeline="", server_round=1)
    streams = [
        torch.rand(
            4, generator=generator_for(*Draws.simulated(seed, partition).key("train", pipeline="", server_round=1))
        )
        for seed, partition in ((1, 0), (0, 1), (1, 1), (11, 0))
    ]
    assert len({tuple(stream.tolist()) for stream in streams}) == 4
    assert "secret" not in repr(simulated)


# Which of the two holds -----------------------------------------------------------------------------------------------------


def context_of(**node_config: Any) -> Context:
    return Context(1, 100, {"partition-id": 0, **node_config}, RecordDict(), {})


def test_a_node_draws_from_the_seed_only_by_its_own_configuration_or_in_flowers_simulation(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/bin/flwr-clientapp"])
    monkeypatch.delitem(sys.modules, SIMULATION_WORKER, raising=False)
    assert not draws_from_seed(context_of())
    assert draws_from_seed(context_of(randomness="seed"))
    monkeypatch.setattr(sys, "argv", ["/site/ray/_private/workers/default_worker.py"])
    assert not draws_from_seed(context_of()), "a node inside somebody's own Ray job is no simulation"
    monkeypatch.setitem(sys.modules, SIMULATION_WORKER, SimpleNamespace())  # type: ignore[arg-type]
    assert draws_from_seed(context_of())
    assert not draws_from_seed(context_of(randomness="secret"))
    with pytest.raises(ValueError, match="allowed: seed, secret"):
        draws_from_seed(context_of(randomness="server"))


def test_a_deployed_node_ignores_the_seed_and_survives_a_restart(tmp_path: Path) -> None:
    folder = {"secret-dir": str(tmp_path / "secrets")}
    first = draws_of(context_of(**folder), 1)
    assert draws_of(context_of(**folder), 2).secret == first.secret
    assert draws_of(context_of(**folder, randomness="seed"), 1) == Draws.simulated(1, 0)
    with pytest.raises(RuntimeError, match="absolute"):
        draws_of(context_of(**{"secret-dir": "secrets"}), 1)


# Questions ------------------------------------------------------------------------------------------------------------------


def test_a_deployed_node_answers_what_its_configuration_allows_and_a_simulated_one_all() -> None:
    nothing, everything = answers_of(context_of(randomness="secret")), answers_of(context_of(randomness="seed"))
    allowed = {name: value for name, value in vars(nothing).items() if value}
    assert allowed == {"upload_passes": 1}, "the one that outsourced training cannot do without"
    assert set(vars(everything).values()) == {True, -1}
    assert answers_of(context_of(randomness="secret", probes=True)) == replace(nothing, probes=True)
    assert answers_of(context_of(randomness="seed", transmissions=3)).transmissions == 3
    for wrong in (
        {"probes": "yes"},
        {"probes": 1},
        {"transmissions": True},
        {"transmissions": -2},
        {"transmissions": 1.5},
    ):
        with pytest.raises(ValueError, match="in the node's configuration; allowed"):
            answers_of(context_of(randomness="seed", **wrong))


@pytest.mark.parametrize(
    ("message_type", "key", "config"),
    [
        ("train.probe", "probes", {}),
        ("query.audit", "audits", {"observation": "probe", "kind": "baselines", "share-images": False}),
        ("train.smash", "transmissions", {"transmissions": 2, "reveal-order": False}),
        ("train.audit_step", "audit-steps", {}),
    ],
)
def test_a_refusal_names_the_key_and_is_not_taken_for_a_crash(
    tmp_path: Path, message_type: str, key: str, config: dict[str, Any]
) -> None:
    grid = LocalGrid(1, randomness="secret", node_config={0: {"secret-dir": str(tmp_path), "transmissions": 1}})
    grid.contexts[100].state["indices"] = to_record({"train": torch.arange(40), "test": torch.arange(20)})
    task = SPLIT_TASK if message_type in ("train.smash", "train.audit_step") else TASK
    exchange = Exchange(grid, {0: 100}, 60.0)
    reply = exchange(message_type, {0: RecordDict({"config": exchange.config(task, **config)})})[0]
    assert reply.error.code == REFUSED
    assert f"may allow it by {key} in the node's configuration" in str(reply.error.reason)
    assert grid.sent == [(message_type, 0)], "a refusal is no lost message that is sent again"


def test_transmissions_are_counted_over_all_messages_of_a_run(tmp_path: Path) -> None:
    grid = LocalGrid(1, randomness="secret", node_config={0: {"secret-dir": str(tmp_path), "transmissions": 5}})
    grid.contexts[100].state["indices"] = to_record({"train": torch.arange(40), "test": torch.arange(20)})
    exchange = Exchange(grid, {0: 100}, 60.0)

    def ask(transmissions: int, server_round: int) -> Message:
        task = SPLIT_TASK.but(round=server_round, probe_targets=1)
        config = exchange.config(
            task, **{"transmissions": transmissions, "reveal-order": True, "since": 1, "until": server_round}
        )
        return exchange("train.smash", {0: RecordDict({"config": config})})[0]

    assert "1 or more" in str(ask(-5, 1).error.reason)
    first = ask(3, 1)
    assert "orders" not in first.content
    assert "reveal-orders" in first.content["withheld"]  # type: ignore[operator]
    assert ask(3, 2).error.code == REFUSED
    assert not ask(2, 2).has_error()
    assert ask(1, 3).error.code == REFUSED
