"""What a node draws for one reply it draws for no other, and finds again when that reply is audited or answered."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from flwr.app import Context, Message, RecordDict
from torch import Tensor

from attacks.local_model import shared_tensors
from attacks.normalisation import normalise
from clients.federated.client import LocalClient
from clients.flower_private import SIMULATION_WORKER
from clients.messages.node import answers_of, draws_from_seed, draws_of
from clients.secrets.draws import MOST_NOTES, Draws, ForgottenError, Notebook
from clients.split.training import SplitClient
from clients.task.local_data import LocalData
from clients.task.task import Task
from clients.wire.records import tensors_of, to_record
from defenses.random_draws import generator_for
from tests.clients.asked import Asked, allowed_by, refused
from tests.clients.federated.test_client import TASK as PLAIN
from tests.clients.federated.test_client import assert_one_step
from tests.clients.federated.test_client import weights as weights_of
from tests.clients.split.test_training import TASK as SPLIT_TASK

TASK = PLAIN.but(rounds=3, batch_size=8, weight_decay=0.0, probe_images=3)
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


@pytest.mark.numeric
def test_two_replies_of_one_round_do_not_cancel_the_noise() -> None:
    # The server asks again with other weights and subtracts; in a simulation, where draws repeat, that removes the noise. What
    # is left there is the difference of two updates, far below the noise: none of it steers the steps (noise per step is asked
    # of a probe, of one step), and DP-SGD clips what it sums to a norm of 1.
    for pipeline, asks in {
        "GaussianNoise(std=10.0, per='update')": ("train", "probe"), "GaussianNoise(std=300.0, per='step')": ("probe",),
        "LaplaceNoise(scale=7.0, per='update')": ("train",), "DPSGD(noise_multiplier=500.0)": ("train", "probe"),
    }.items():  # fmt: skip
        task = TASK.but(pipeline=pipeline, probe_targets=1)
        weights = weights_of(task)
        others = {name: tensor + 0.01 for name, tensor in weights.items()}
        for ask in asks:
            spread = {}
            for name, node in (("secret", Node(task)), ("seed", None)):
                asked = [node.client() if node else LocalClient(LocalData(task, 0, range(40), range(20))) for _ in "ab"]
                pairs = zip(asked, (weights, others), strict=True)
                first, second = (getattr(one, ask)(sent, {}).updates[0] for one, sent in pairs)
                both = [torch.cat([u[key].flatten() for key in first]) for u in (first, second)]
                spread[name] = float((both[0] - both[1]).std() / both[0].std())
            # 13,500 values at least: five standard errors of a deviation are 0.03.
            assert spread["secret"] == pytest.approx(2**0.5, rel=0.05), (pipeline, ask)
            assert spread["seed"] < 0.1, (pipeline, ask)


def split_exchange(tmp_path: Path, randomness: str, pipeline: str) -> tuple[Any, Task]:
    node = Asked(tmp_path, randomness, transmissions=-1, probes=True, reveal_orders=True, repeats=-1)
    task = SPLIT_TASK.but(pipeline=pipeline, probe_targets=1)

    def ask(message_type: str, tensors: dict[str, dict[str, Tensor]], **config: Any) -> Message:
        reply = node(message_type, task, {name: to_record(values) for name, values in tensors.items()}, **config)
        assert not reply.has_error(), reply.error.reason
        return reply

    return ask, task


@pytest.mark.numeric
def test_no_question_of_split_learning_gets_the_same_noise_twice(tmp_path: Path) -> None:
    begin: dict[str, Any] = {"first": 0, "count": 1, "labels": "client", "applied": 0}
    smash = {"transmissions": 1, "reveal-order": False, "since": 1, "until": 1}
    noise = "FeatureNoise(std=50.0) | GaussianNoise(std=50.0, per='update')"
    for message_type, record, config in (
        ("train.step", "features", begin), ("train.smash", "target-0", smash),
        ("evaluate.smash", "features", {"first": 0, "count": 8}), ("train.collect", "arrays", {}),
        ("train.audit_step", "target-0", {}),
    ):  # fmt: skip
        spread = {}
        for randomness in ("secret", "seed"):
            ask, task = split_exchange(tmp_path / message_type, randomness, noise)
            edge = {n: t.clone() for n, t in shared_tensors(task.plan.build_halves()[0]).items()}
            other = {name: tensor + 0.01 for name, tensor in edge.items()}
            features = tensors_of(ask("train.step", {"edge": edge}, **begin), "features")["0"]
            ask("train.smash", {"edge": edge}, **smash)
            audit = message_type == "train.audit_step"
            more = {"gradients": {"target-0": torch.zeros_like(features)}} if audit else {}
            replies = [ask(message_type, {"edge": weights, **more}, **config) for weights in (edge, other)]
            first, second = (torch.cat([t.flatten() for t in tensors_of(reply, record).values()]) for reply in replies)
            spread[randomness] = float((first - second).std() / first.std())
        assert spread["secret"] == pytest.approx(2**0.5, rel=0.15), message_type
        assert spread["seed"] < 0.5, message_type


def test_shuffles_of_a_repeated_batch_differ() -> None:
    node = Node(SPLIT_TASK.but(pipeline="PatchShuffle()"))
    edge = node.client().load_edge({}).requires_grad_(False)
    first, second = (node.client().batches.send(edge, 0, 1)[0] for _ in "ab")
    assert torch.equal(first.examples, second.examples)
    assert not any(torch.allclose(a, b, atol=1e-4) for a, b in zip(first.features, second.features, strict=True))


def test_the_audit_finds_the_images_that_a_probe_and_a_round_were_computed_on() -> None:
    task = TASK.but(pipeline="ATS()", learning_rate=0.1)
    node, weights = Node(task), weights_of(task)
    updates = node.client().probe(weights, {}).updates
    for later in ({"round": 2}, {"probe_steps": 2}, {"probe_images": 2}):
        node.client(**later).probe(weights, {})
    for target, update in enumerate(updates):
        assert_one_step(update, node.client().probed(target).seen, task=task)
    node = Node(TASK.but(local_steps=2))
    with pytest.raises(ForgottenError, match="does not know its draws of 'train' in round 1"):
        node.client().trained_on()
    node.client().train(weights, {})
    first = node.client().trained_on()
    assert len(first) == 16
    assert torch.equal(first, node.client().trained_on())
    node.client().train(weights, {})
    assert not torch.equal(first, node.client().trained_on())


def test_a_gradient_and_an_audit_find_the_tokens_that_were_sent() -> None:
    node = Node(SPLIT_TASK.but(pipeline="PatchShuffle() | FeatureNoise(std=1.0)"))
    edge = node.client().load_edge({}).requires_grad_(False)
    sent = [*node.client().batches.send(edge, 0, 2), *node.client().batches.send(edge, 2, 2)]
    for number, one in enumerate(sent):
        again = node.client().batches.smash(edge, number)
        assert torch.equal(again.features, one.features)
        assert torch.equal(again.examples, one.examples)
    seen = torch.cat([one.examples for one in sent])
    assert len(seen.unique()) == len(seen) == 32  # the batches of a round are parts of one pass
    node = Node(SPLIT_TASK.but(pipeline="ImageNoise(std=0.1) | PatchShuffle()"))
    one = node.client()
    edge = one.load_edge({}).requires_grad_(False)
    first = one.audits.send(edge, 0, 2)
    assert not torch.equal(one.audits.send(edge, 0, 2), first)
    sent = one.audits.send(edge, 0, 1)[0]
    again = node.client().audits
    plain, order = again.truth(0).seen, again.orders(0, 1, edge.num_tokens)[0]
    tokens = edge.embed(normalise(plain.images, node.task.plan.data_card()))
    mine = edge.encode(tokens.flatten(0, 1)[order[: len(plain)]])
    torch.testing.assert_close(sent[: len(plain)], mine, atol=1e-5, rtol=1e-4)


def test_old_notes_are_dropped_by_kind_and_every_client_has_a_stream_of_its_own() -> None:
    text = [""]
    draws = Draws(SECRET, Notebook("", lambda new: text.__setitem__(0, new)))
    draws.renew("smash", "p", 1)
    for at in range(MOST_NOTES + 5):
        draws.renew("train", "p", at)
    notebook = Notebook(text[0], lambda _: None)
    assert notebook.nonce("smash", "p", 1, 0)
    assert not notebook.nonce("train", "p", 4, 0)
    assert notebook.nonce("train", "p", 5, 0)
    assert not notebook.nonce("train", "q", 5, 0)
    for one in (Draws(SECRET, notebook), Draws.simulated(1, 0)):
        with pytest.raises(ValueError, match="neither kept nor renewed"):
            one.key("new-kind", pipeline="p", server_round=1)
    streams = [Draws.simulated(*pair) for pair in ((1, 0), (0, 1), (1, 1), (11, 0))]
    keys = [one.key("train", pipeline="", server_round=1) for one in streams]
    assert len({tuple(torch.rand(4, generator=generator_for(*key)).tolist()) for key in keys}) == 4
    assert "secret" not in repr(Draws.simulated(1, 0))


def context_of(**node_config: Any) -> Context:
    return Context(1, 100, {"partition-id": 0, **node_config}, RecordDict(), {})


def test_a_node_draws_from_the_seed_only_in_a_simulation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
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
    monkeypatch.undo()
    folder = {"secret-dir": str(tmp_path / "secrets")}
    first = draws_of(context_of(**folder), 1)
    assert draws_of(context_of(**folder), 2).secret == first.secret
    assert draws_of(context_of(**folder, randomness="seed"), 1) == Draws.simulated(1, 0)
    with pytest.raises(RuntimeError, match="absolute"):
        draws_of(context_of(**{"secret-dir": "secrets"}), 1)


def test_a_deployed_node_answers_what_its_configuration_allows_and_a_simulated_one_all() -> None:
    nothing, everything = answers_of(context_of(randomness="secret")), answers_of(context_of(randomness="seed"))
    allowed = {name: value for name, value in vars(nothing).items() if value}
    assert allowed == {"upload_passes": 1}, "the one that outsourced training cannot do without"
    assert set(vars(everything).values()) == {True, -1}
    assert answers_of(context_of(randomness="secret", probes=True)) == nothing.but(probes=True)
    assert answers_of(context_of(randomness="seed", transmissions=3)).transmissions == 3
    for key, wrong in (("probes", 1), ("transmissions", True), ("transmissions", -2), ("transmissions", 1.5)):
        with pytest.raises(ValueError, match=f"{key} is .* in the node's configuration; (allowed|expected)"):
            answers_of(context_of(randomness="seed", **{key: wrong}))


def test_a_refusal_names_the_key_and_is_not_taken_for_a_crash(tmp_path: Path) -> None:
    for message_type, key, task, config in (
        ("train.probe", "probes", TASK, {}),
        ("query.audit", "audits", TASK, {"observation": "probe", "kind": "baselines", "share-images": False}),
        ("train.smash", "transmissions", SPLIT_TASK, {"transmissions": 2, "reveal-order": False}),
        ("train.audit_step", "probes", SPLIT_TASK, {}),
    ):
        node = Asked(tmp_path / message_type, transmissions=1)
        reply = node(message_type, task, **config)
        assert refused(reply, allowed_by(key))
        assert node.grid.sent == [(message_type, 0)], "a refusal is no lost message that is sent again"


def test_transmissions_are_counted_over_all_messages_of_a_run(tmp_path: Path) -> None:
    node = Asked(tmp_path, transmissions=5)

    def ask(transmissions: int, server_round: int) -> Message:
        asked = {"transmissions": transmissions, "reveal-order": True, "since": 1, "until": server_round}
        return node("train.smash", SPLIT_TASK.but(round=server_round, probe_targets=1), **asked)

    assert "1 or more" in str(ask(-5, 1).error.reason)
    first = ask(3, 1)
    assert "orders" not in first.content
    assert "reveal-orders" in first.content["withheld"]  # type: ignore[operator]
    assert refused(ask(3, 2))
    assert not ask(2, 2).has_error()
    assert refused(ask(1, 3))
