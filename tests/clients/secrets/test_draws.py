"""What a node draws for one reply it draws for no other, what a server may choose of it, and the secret that a node keeps."""

import os
import re
import subprocess
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
from clients.secrets.draws import MOST_NOTES, Draws, ForgottenError, Notebook, SecretError, digest_of, kept_secret
from clients.secrets.policy import AnswerPolicy, allowed_pipelines
from clients.split.training import SplitClient
from clients.task.local_data import LocalData
from clients.task.task import Task
from clients.wire.records import tensors_of, to_record
from defenses.base import Batch
from defenses.pipeline import Pipeline
from defenses.random_draws import generator_for
from defenses.spec import parse
from tests.clients.asked import Asked, allowed_by, refused
from tests.clients.federated.test_client import TASK as PLAIN
from tests.clients.federated.test_client import assert_one_step
from tests.clients.federated.test_client import weights as weights_of
from tests.clients.split.test_training import TASK as SPLIT_TASK
from tests.flower_private import parse_config_args

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


NOISE = "ImageNoise(std=0.5)"
MIXER = "VisualMixer(window_lower=4, window_upper=16)"
FROZEN = SPLIT_TASK.but(train_edge=False, learning_rate=0.0)


def test_an_image_keeps_its_protection_whatever_company_or_part_a_message_names() -> None:
    for pipeline in [NOISE, MIXER, f"{NOISE} | Clip(max_norm=1.0)"]:
        dealt = [[0, *range(1 + 7 * at, 8 + 7 * at)] for at in range(5)] + [[90, 0, 91], [0]]
        task = TASK.but(pipeline=pipeline)
        clients = [Node(task, train=train).client() for train in dealt]
        seen = [c.data.kept(torch.tensor([train.index(0)])).images for c, train in zip(clients, dealt, strict=True)]
        assert not torch.equal(seen[0], clients[0].data.plain(torch.tensor([0])).images)
        assert all(torch.equal(one, seen[0]) for one in seen)
    for kind in ["test", "membership"]:
        data = Node(TASK.but(pipeline=MIXER)).client().data
        wholes = [data.test_plain(torch.arange(first, 6)) for first in range(6)]
        parts = [data.protected_test(kind, batch, 6 - len(batch)).images[-1] for batch in wholes]
        assert not torch.equal(parts[0], wholes[-1].images[0])
        assert all(torch.equal(part, parts[0]) for part in parts)
    one = Node(TASK.but(pipeline=NOISE)).client()
    noise = one.data.kept(torch.arange(one.data.num_train)).images - one.data.originals().images
    assert len({image.numpy().round(3).tobytes() for image in noise}) == len(noise)


STEP = {"count": 1, "labels": "client", "applied": 0}
INDICES = {"indices": to_record({"train": torch.arange(40), "test": torch.arange(20)})}


def test_batches_test_images_and_updates_are_sent_once_in_a_round(tmp_path: Path) -> None:
    ask, task = Asked(tmp_path), FROZEN.but(pipeline="FeatureNoise(std=1.0)")
    assert not ask("train.step", task, first=0, **STEP).has_error()
    again = ask("train.step", task, first=0, **STEP)
    assert refused(again, allowed_by("repeats"))
    assert refused(ask("train.step", task.but(pipeline="FeatureNoise( std = 1.0 )"), first=0, **STEP))
    assert refused(ask("train.step", task, first=0, **STEP | {"count": 5})), "one of the five was sent"
    assert not ask("train.step", task, first=1, **{**STEP, "count": 4}).has_error()
    assert not ask("train.step", task.but(round=2), first=0, **STEP).has_error()
    assert refused(ask("train.step", task, first=2, **STEP)), "rounds only go forward"
    negative = ask("train.step", task.but(round=2), first=-1, **STEP)
    assert "allowed: 0 or more" in str(negative.error.reason), "such a number names a batch of the round before"
    assert not ask("train.step", task.but(pipeline=""), first=0, **STEP).has_error(), "another pipeline of the run"
    assert not ask("evaluate.smash", FROZEN, first=0, count=8).has_error()
    assert refused(ask("evaluate.smash", FROZEN, first=7, count=2))
    assert not ask("evaluate.smash", FROZEN, first=8, count=50).has_error()
    ask, arrays = Asked(tmp_path), {"arrays": to_record(weights_of(TASK))}
    assert not ask("train", TASK, arrays).has_error()
    assert refused(ask("train", TASK, arrays))
    assert not ask("train", TASK.but(round=2), arrays).has_error()
    # Repeats are what the operator allows: else the noise of a batch could be averaged away.
    for repeats, answered in ((2, [False, False, False, True]), (-1, [False] * 6)):
        ask = Asked(tmp_path / str(repeats), repeats=repeats)
        assert [ask("train.step", FROZEN, first=0, **STEP).has_error() for _ in answered] == answered
    assert [AnswerPolicy.of({}, simulated=simulated).repeats for simulated in (False, True)] == [0, -1]


def test_a_node_takes_part_under_the_pipelines_that_it_pins(tmp_path: Path) -> None:
    ask = Asked(tmp_path, pipelines="FeatureDP(clip=1, noise_multiplier=1.0); FeatureNoise(std=2.0)")
    pinned = FROZEN.but(pipeline="FeatureDP(clip=1.0, noise_multiplier=1.0)")
    assert not ask("train.step", pinned, first=0, **STEP).has_error()
    for other in ("", "FeatureDP(clip=1.0, noise_multiplier=0.1)", f"{pinned.plan.pipeline} | Clip(max_norm=1.0)"):
        reply = ask("train.step", FROZEN.but(pipeline=other), first=0, **STEP)
        assert refused(reply, allowed_by("pipelines"))
    assert not Asked(tmp_path)("train.step", FROZEN, first=0, **STEP).has_error(), "without the key, any"
    assert not Asked(tmp_path, pipelines="none")("train.step", FROZEN, first=0, **STEP).has_error()
    # The set-up comes before any pipeline, and tells a wrong value at once.
    assert not Asked(tmp_path, pipelines=NOISE)("query.setup", TASK, INDICES).has_error()
    assert "unknown defence" in str(Asked(tmp_path, pipelines="Noize()")("query.setup", TASK, INDICES).error.reason)
    assert allowed_pipelines({}) is None
    assert allowed_pipelines({"pipelines": f"none; {NOISE}"}) == {Pipeline(), parse(NOISE)}
    for slip in ("", f"{NOISE};", "; ;", 1):
        with pytest.raises(ValueError, match="none for no defence"):
            allowed_pipelines({"pipelines": slip})
    text = "GaussianNoise(std=0.1, per='update') | Clip(max_norm=1.0)"
    parsed = parse_config_args([f'partition-id=0 pipelines="{text}; none"'])  # Flower's command line
    assert allowed_pipelines(parsed) == {parse(text), Pipeline()}


def test_a_message_cannot_ask_which_files_a_node_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Neither does a relative or an absolute name of one that is there, and holds policies, tell it from one that is not.
    monkeypatch.chdir(tmp_path)
    Path("there.json").write_text('{"policies": "3-1-7", "channels": 1}')
    for pinned in ({}, {"pipelines": NOISE}):
        ask, answers = Asked(tmp_path, **pinned), set()
        for name in ("there.json", "away.json", f"{tmp_path}/there.json", f"{tmp_path}/away.json"):
            reply = ask("train.step", FROZEN.but(pipeline=f"ATS(policies={name!r})"), first=0, **STEP)
            assert "allowed: the name of a file only in the configuration" in str(reply.error.reason)
            answers.add((reply.error.code, str(reply.error.reason).replace(name, "NAME")))
        assert len(answers) == 1


def test_a_message_names_no_folder_and_no_file_of_a_node(tmp_path: Path) -> None:
    # Else a server could train on any pictures that lie on the node's machine, and ask which files there are.
    (tmp_path / "there").mkdir()
    (tmp_path / "there.pth").touch()
    ask, told = Asked(tmp_path / "secrets", audits=True), set()
    for name in ("there", "away"):
        for key, task in (
            ("data-dir", TASK.but(dataset="folder", data_dir=str(tmp_path / name))),
            ("weights", FROZEN.but(weights=str(tmp_path / f"{name}.pth"))),
        ):
            for message_type in ("query.setup", "query.audit"):
                reply = ask(message_type, task)
                assert refused(reply, allowed_by(key))
                told.add(str(reply.error.reason).replace(name, "NAME"))
    assert len(told) == 2
    pinned = Asked(tmp_path / "secrets", **{"data-dir": str(tmp_path)})
    assert not pinned("query.setup", TASK.but(data_dir="/no/such/folder"), INDICES).has_error()


def test_kept_draws_are_of_these_examples_and_defences_alone() -> None:
    images, targets = torch.zeros(2, 1, 3, 3), torch.eye(2)
    batch, other = Batch(images, targets), images.clone()
    other[1, 0, 2, 2] = 1.0
    assert digest_of(Batch(images.clone(), targets.clone()), "Blur()") == digest_of(batch, "Blur()")
    digests = {
        digest_of(batch, "Blur()"),
        digest_of(batch, "Blur(std=2.0)"),
        digest_of(Batch(other, targets), "Blur()"),
        digest_of(Batch(images.view(2, 3, 1, 3), targets), "Blur()"),
        digest_of(Batch(images, targets.flip(0)), "Blur()"),
    }
    assert len(digests) == 5


def test_it_is_made_once_with_256_bits_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "partition-0.secret"
    before = os.umask(0)  # the mode must not depend on it
    try:
        first = kept_secret(path)
    finally:
        os.umask(before)
    assert len(first) == 32
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert kept_secret(path) == first
    assert kept_secret(path.with_name("partition-1.secret")) != first
    assert sorted(file.name for file in path.parent.iterdir()) == ["partition-0.secret", "partition-1.secret"]


def test_processes_that_start_together_share_one(tmp_path: Path) -> None:
    path = tmp_path / "partition-0.secret"
    go = tmp_path / "go"
    code = (
        "import sys, time; from pathlib import Path; from clients.secrets.draws import kept_secret\n"
        f"while not Path({str(go)!r}).exists(): time.sleep(0.001)\n"
        f"print(kept_secret(Path({str(path)!r})).hex())"
    )
    started = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(6)]
    go.touch()
    found = {process.communicate(timeout=120)[0].strip() for process in started}
    assert found == {path.read_text().strip()}
    assert re.fullmatch("[0-9a-f]{64}", found.pop())
    assert {file.name for file in tmp_path.iterdir()} == {"go", "partition-0.secret"}


def test_a_file_or_folder_that_cannot_be_trusted_is_refused_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "partition-0.secret"
    secret = kept_secret(path).hex()
    path.chmod(0o640)
    with pytest.raises(SecretError, match="can be read by others"):
        kept_secret(path)
    path.chmod(0o600)
    for damaged in ("abc", "zz" * 32, "", secret[:-2], secret + "00"):
        path.write_text(damaged)
        with pytest.raises(SecretError, match="is damaged"):
            kept_secret(path)
        assert path.read_text() == damaged
    (tmp_path / "partition-1.secret").symlink_to(path)  # which is not followed
    for wrong in (tmp_path / "partition-1.secret", path / "partition-0.secret"):
        with pytest.raises(SecretError, match="secret-dir"):
            kept_secret(wrong)
    # A node whose secret was removed would make another, and send its images under new draws.
    path.write_text(secret)
    for mode in (0o777, 0o770, 0o702):
        tmp_path.chmod(mode)
        with pytest.raises(SecretError, match=r"others may move files .*chmod 700"):
            kept_secret(path)
    path.unlink()
    with pytest.raises(SecretError, match="others may move files"):
        kept_secret(path)
    assert not path.exists()
    tmp_path.chmod(0o1777)
    assert kept_secret(path).hex() != secret
