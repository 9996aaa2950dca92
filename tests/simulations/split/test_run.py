"""The split federation in this process: real clients, real server half, real attacks; only the transport is local."""

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, Message
from torch import Tensor

from attacks.guesses import Labels
from attacks.normalisation import normalise
from attacks.smashed.base import SmashedAttack, SmashedData
from attacks.spec import ATTACKS
from clients.split.plan import SplitPlan
from clients.task.auxiliary import Auxiliary
from clients.wire.records import tensors_of
from simulations.experiment.experiment import Experiment
from tests.simulations.short_runs import Wire, rows_of

DECODER = "TokenDecoder(iterations=3, width=16, depth=1, heads=2)"
SHUFFLES = ("", "PatchShuffle()", "BatchShuffle(k=0.4)")


def split_experiment(out: Path, **changes: Any) -> Experiment:
    """Two clients with three batches of 16 digits each: 120 examples less a fifth for the server. 16 tokens of length 16."""
    small = Experiment.of(
        scenario="split", model="vit", output_dir=str(out), dataset="mnist-5k", train_limit=120, test_limit=30, num_clients=2,
        rounds=2, local_epochs=1, batch_size=16, patch_size=7, width=16, depth=2, heads=2, learning_rate=0.3, momentum=0.5,
        batches_per_message=2, defenses="", smashed_attacks=f"{DECODER}; ServerPrediction()", attack_rounds="",
        probe_targets=1, probe_images=2, attack_workers=0, adaptive=False, share_images=False,
    )  # fmt: skip
    return small.but(**changes)


def values(rows: list[dict[str, Any]], metric: str, defense: str | None = None) -> list[float]:
    """A metric's values in the order of pipelines and rounds, of protected images where there are both."""
    return [
        row["value"]
        for row in rows
        if row["metric"] == metric and row["reference"] != "original" and defense in (None, row["defense"])
    ]


def arrays_in(message: Message) -> dict[str, dict[str, Tensor]]:
    """Record -> name -> tensor."""
    return {name: tensors_of(message, name) for name, one in message.content.items() if isinstance(one, ArrayRecord)}


@dataclass
class Golden:
    """Rows and messages of a run with both shuffles."""

    settings: Experiment
    rows: list[dict[str, Any]]
    wire: Wire


@pytest.fixture(scope="module", params=["frozen", pytest.param("trained", marks=pytest.mark.long)])
def golden(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Golden:
    """With a frozen and with a trained client half."""
    settings = split_experiment(
        tmp_path_factory.mktemp("shuffled") / "run", defenses="; ".join(SHUFFLES[1:]), attack_rounds="last",
        share_images=True, train_edge=request.param == "trained",
    )  # fmt: skip
    wire = Wire()
    return Golden(settings, rows_of(settings, wire), wire)


@pytest.mark.essential
def test_every_pipeline_has_rows_of_every_kind(golden: Golden) -> None:
    rows = golden.rows
    assert {row["scenario"] for row in rows} == {"split"}
    assert {row["defense"] for row in rows} == set(SHUFFLES)
    assert not [row for row in rows if row["status"] == "failed"]
    for defense in SHUFFLES:
        mine = [row for row in rows if row["defense"] == defense]
        by_round = {at: {row["metric"] for row in mine if row["round"] == at and not row["attack"]} for at in range(3)}
        evaluated = {"test-accuracy", "test-loss", "mcc-micro", "mcc-macro"}
        cost = {"edge-parameters", "edge-macs", "edge-training-macs", "edge-peak-bytes"}
        counts = {"log10-orders", "log10-target-share"} if defense else set()
        trained = {"train-loss", "clients-failed", "batches-lost", "train-seconds", "update-bytes", "bytes-per-sample"}
        assert by_round[0] == evaluated | cost | counts
        assert evaluated | trained <= by_round[1]
        assert by_round[1] == by_round[2]
        attacked = {row["attack"] for row in mine if row["round"] == 2}
        assert attacked == {"", DECODER, "ServerPrediction()", "grey", "mean", "uniform", "blurred", "class-mean"}
        found = {row["metric"] for row in mine if row["attack"] == DECODER}
        assert {"psnr", "ssim", "mse", "psnr-paper", "ssim-paper", "mse-paper", "recognition", "holdout_psnr"} <= found
        # Two clients with one audit batch of two images each.
        scored = [row for row in mine if row["attack"] == DECODER and row["metric"] == "psnr"]
        assert {(row["reference"], row["n"]) for row in scored} == {("original", 4), ("transformed", 4)}
        # Without a defence at inference one number stands for clean images too; under a shuffle these were never shown.
        references = {row["reference"] for row in mine if row["metric"] == "test-accuracy"}
        assert references == ({"transformed"} if defense else {"original", "transformed"})
    assert {row["n"] for row in rows if row["metric"] == "train-loss"} == {96}
    assert {row["n"] for row in rows if row["metric"] == "test-accuracy"} == {30}
    assert [(row["value"], row["n"]) for row in rows if row["metric"] == "batches-lost"] == [(0, 6)] * 6


def test_a_transformer_without_positions_does_not_notice_a_shuffle_within_images(golden: Golden) -> None:
    for metric, rounds in (("train-loss", 2), ("test-loss", 3)):
        plain, patch, batch = (values(golden.rows, metric, defense) for defense in SHUFFLES)
        assert len(plain) == rounds
        assert patch == pytest.approx(plain, abs=1e-5)
        # Foreign tokens it does notice; the initial model (round 0) sees them too.
        assert all(abs(a - b) > 1e-4 for a, b in zip(plain, batch, strict=True))


@pytest.mark.long
def test_batches_in_a_message_change_no_number_that_a_client_sends(tmp_path: Path) -> None:
    """Tokens, examples and what a shuffle mixes, in training and at inference, which has 40 images a client here.

    They do change the server's training: the clients take turns by messages.
    """
    sent, found = [], []
    for count in (1, 4):
        wire = Wire()
        settings = split_experiment(
            tmp_path / str(count), batches_per_message=count, defenses="BatchShuffle(k=0.4)", test_limit=80, rounds=1
        )
        found.append(rows_of(settings, wire))
        features = defaultdict(list)
        for partition, request, reply in wire.of("train.step"):
            pipeline = json.loads(request.content["config"]["task"])["plan"]["pipeline"]
            features[pipeline, partition] += tensors_of(reply, "features").values()
        sent.append({place: torch.cat(batches) for place, batches in features.items()})
    assert len(sent[0]) == 4
    assert all(torch.equal(sent[1][place], tokens) for place, tokens in sent[0].items())
    for metric in ("test-loss", "test-accuracy", "mcc-macro"):
        # Of the initial model, before training takes another turn.
        one, four = ([row["value"] for row in rows if row["metric"] == metric and not row["round"]] for rows in found)
        assert one == pytest.approx(four, abs=1e-5)
    assert values(found[0], "train-loss") != values(found[1], "train-loss")


@dataclass(frozen=True, repr=False)
class ToldOrder(SmashedAttack[Labels]):
    """Upper bound that asks for the order, and checks that it belongs to what was sent."""

    @property
    def reveals_order(self) -> bool:
        return True

    def attack_one(self, observation: SmashedData, generator: torch.Generator) -> Labels:
        assert observation.orders is not None
        assert observation.orders.shape == observation.features.shape[:3]
        assert torch.equal(observation.orders.flatten(1).sort().values[0], torch.arange(observation.orders[0].numel()))
        return Labels(torch.zeros(observation.num_targets, dtype=torch.int64))


REQUESTS = {
    "query.partition": {"config"}, "query.setup": {"config", "indices"}, "query.audit": {"config", "guesses", "oracle"},
    "train.step": {"config", "edge", "gradients"}, "train.backward": {"config", "gradients"},
    "train.collect": {"config", "edge"}, "train.smash": {"config", "edge"},
    "train.audit_step": {"config", "edge", "gradients"}, "evaluate.smash": {"config", "edge"},
    "evaluate": {"config", "logits"},
}  # fmt: skip
"""Type -> the records that a message to a client may hold."""


def assert_steps(wire: Wire, labels: str, *, train_edge: bool) -> None:
    """A training step carries tokens, what they are for, and no more."""
    other, shape, kind = {
        "server": ("examples", (), torch.int64), "client": ("targets", (10,), torch.float32)
    }[labels]  # fmt: skip
    for _, request, reply in wire.of("train.step"):
        first = request.content["config"]["first"]
        sizes = [16, 16] if first == 0 else [16]
        assert set(reply.content) == {"features", other, "metrics"}
        found = arrays_in(reply)
        # 28 / 7 squared tokens: the class token stays.
        assert [tuple(t.shape) for t in found["features"].values()] == [(size, 16, 16) for size in sizes]
        assert [(tuple(t.shape), t.dtype) for t in found[other].values()] == [((size, *shape), kind) for size in sizes]
        assert set(reply.content["metrics"]) == {"num-examples", "train-seconds"}
        assert ("edge" in request.content) == (train_edge and first == 0)
        assert ("gradients" in request.content) == (train_edge and first > 0)
    sent = {kind for _, kind, _, _ in wire.messages}
    assert ("train.collect" in sent) == ("train.backward" in sent) == train_edge


def test_a_training_step_carries_tokens_and_who_they_are_for(golden: Golden, tmp_path: Path) -> None:
    # Three pipelines, two rounds, two clients, three batches in messages of two.
    assert len(golden.wire.of("train.step")) == 3 * 2 * 2 * 2
    assert_steps(golden.wire, "server", train_edge=golden.settings.train_edge)
    wire, trained = Wire(), golden.settings.train_edge
    changes: dict[str, Any] = {"labels": "client", "rounds": 1, "train_edge": trained, "test_limit": 4}
    rows_of(split_experiment(tmp_path / "run", **changes), wire)
    assert len(wire.of("train.step")) == 4
    assert_steps(wire, "client", train_edge=trained)


def test_no_message_holds_an_order_and_none_sent_down_holds_images_or_labels(golden: Golden) -> None:
    data = golden.settings.plan().load_data()
    private = {image.flatten().numpy().tobytes() for part in (data.train, data.test) for image in part.images.float()}
    for _, message_type, request, reply in golden.wire.messages:
        assert set(request.content) <= REQUESTS[message_type]
        assert "orders" not in reply.content
        whole = [(name, tensor) for name, record in arrays_in(reply).items() for tensor in record.values()]
        # Whole numbers could be an order: those that are sent say which examples the tokens are of, and how often they were sent.
        numbers = {(message_type, name, tensor.dim()) for name, tensor in whole if not tensor.is_floating_point()}
        assert numbers <= {("train.step", "examples", 1), ("train.smash", "exposure", 1)}
        for record, tensors in arrays_in(request).items():
            if record not in ("indices", "guesses", "oracle"):
                assert all(tensor.is_floating_point() for tensor in tensors.values())
                assert all(tuple(tensor.shape[-2:]) != (28, 28) for tensor in tensors.values())
        for guess in arrays_in(request).get("guesses", {}).values():
            pixels = (255 * guess).round().flatten(1) if guess.dim() == 4 else torch.zeros(0)
            assert not private & {image.numpy().tobytes() for image in pixels}
    sent_down = {name for _, _, request, _ in golden.wire.messages for name in request.content}
    assert ("edge" in sent_down) == golden.settings.train_edge


@pytest.mark.long
def test_orders_are_sent_only_to_an_attack_that_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ATTACKS._own, "ToldOrder", ToldOrder)
    wire, attacks = Wire(), "ServerPrediction(); ToldOrder()"
    changes: dict[str, Any] = {
        "defenses": "BatchShuffle(k=0.4)", "edge_blocks": 0, "rounds": 1, "attack_rounds": "last",
    }  # fmt: skip
    rows = rows_of(split_experiment(tmp_path / "run", smashed_attacks=attacks, **changes), wire)
    assert not [row for row in rows if row["status"] == "failed"]
    assert {kind for _, kind, _, reply in wire.messages if "orders" in reply.content} == {"train.smash"}
    audited = [row for row in rows if row["metric"] == "label-accuracy" and row["attack"] in attacks.split("; ")]
    assert {(row["attack"], row["role"], row["card"].get("upper_bound")) for row in audited} == {
        ("ServerPrediction()", "attack", None), ("ToldOrder()", "upper bound", "knows the order")
    }  # fmt: skip
    # What is told leads from the tokens of the undefended run, which was sent the same images, to those of the shuffled one.
    plain, mixed = (
        [
            (tensors_of(reply, "target-0")["features"][0], tensors_of(reply, "orders")["target-0"][0])
            for _, request, reply in wire.of("train.smash")
            if json.loads(request.content["config"]["task"])["plan"]["pipeline"] == pipeline
        ]
        for pipeline in ("", "BatchShuffle(k=0.4)")
    )
    assert len(plain) == 2
    for (clean, in_order), (features, order) in zip(plain, mixed, strict=True):
        assert torch.equal(in_order.flatten(), torch.arange(order.numel()))
        assert torch.equal(features, clean.flatten(0, 1)[order])
        assert not torch.equal(features, clean)


def attacked_tokens(wire: Wire, settings: Experiment, part: str) -> list[bool]:
    """Whether each attacked image of the undefended run is one of the client's own examples in a part of the data."""
    plan = SplitPlan.narrow(settings.plan())
    data, (edge, _) = plan.load_data(), plan.build_halves()
    shares = {at: tensors_of(request, "indices") for at, request, _ in wire.of("query.setup")}
    found = []
    for partition, _, reply in wire.of("train.smash"):
        images = getattr(data, part).images[shares[partition][part]].float() / 255
        with torch.no_grad():
            known = edge(normalise(images, data)).flatten(1)
        seen = tensors_of(reply, "target-0")["features"][0, : settings.probe_images].flatten(1)
        # Not cdist: by way of products, it is off by more than neighbours are apart.
        found += [bool((known - one).norm(dim=1).min() < 1e-4) for one in seen]
    return found


@pytest.mark.long
def test_where_the_servers_examples_come_from(tmp_path: Path) -> None:
    of_oracle = {"recognition", "oracle-accuracy", "identification"}
    for auxiliary, attacked, num_train, judged, said in (
        ("held-out", "train", 96, of_oracle, ("training images", "known", "disjoint from all clients")),
        ("private", "test", 120, of_oracle,
         ("test images", "unknown", "the clients' training images (worst case); attacked are test images")),
        # An oracle of other classes recognises nothing.
        ("photos", "train", 120, set[str](), ("training images", "known", "data set photos")),
    ):  # fmt: skip
        wire, out = Wire(), tmp_path / auxiliary
        settings = split_experiment(out, rounds=1, attack_rounds="last", auxiliary_data=auxiliary, share_images=True)
        rows = rows_of(settings, wire)
        assert not [row for row in rows if row["status"] == "failed"]
        assert all(attacked_tokens(wire, settings, attacked))
        assert not any(attacked_tokens(wire, settings, {"train": "test", "test": "train"}[attacked]))
        plan, shares = settings.plan(), [request for _, request, _ in wire.of("query.setup")]
        clients = torch.cat([tensors_of(request, "indices")["train"] for request in shares])
        assert len(clients.unique()) == len(clients) == num_train
        assert Auxiliary(plan).examples().images.shape[1:] == (1, 28, 28)
        if auxiliary != "photos":  # indices of another data set are no examples of this one
            own = set(Auxiliary(plan).indices(plan.load_data().train.labels.numpy()).tolist())
            assert len(own & set(clients.tolist())) == {"held-out": 0, "private": 120}[auxiliary]
        cards = [row["card"] for row in rows if row["attack"] == DECODER and row["metric"] == "psnr"]
        assert {(card["attacked"], card["labels"], card["auxiliary_data"]) for card in cards} == {said}
        assert {row["metric"] for row in rows} & of_oracle == judged


def test_without_examples_an_attack_that_learns_says_so(tmp_path: Path) -> None:
    settings = split_experiment(tmp_path / "run", rounds=1, attack_rounds="last", auxiliary_fraction=0.0)
    (row,) = [row for row in rows_of(settings) if row["attack"] == DECODER]
    assert row["status"] == "failed"
    assert "auxiliary-fraction is 0" in row["message"]
    assert row["failures"] == row["n"] == 2


def test_rounds_of_a_few_steps_go_on_where_the_pass_stood(tmp_path: Path) -> None:
    """The finding: the server reckoned with the batches of round 0, and refused those of a round that begins elsewhere."""
    rows = rows_of(split_experiment(tmp_path / "run", rounds=3, local_steps=2, train_limit=92))
    assert not [row for row in rows if row["status"] != "ok"]
    # 37 examples of each client: batches of 16, 16 and 5, two of them in each round.
    assert [row["n"] for row in rows if row["metric"] == "train-loss"] == [2 * (16 + 16), 2 * (5 + 16), 2 * (16 + 5)]
