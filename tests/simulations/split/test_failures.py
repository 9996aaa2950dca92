"""Clients of a split federation that fail: what it costs, what is said, and that the run goes on."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Error, Message

from attacks.guesses import Labels
from attacks.smashed.base import SmashedAttack, SmashedData
from attacks.spec import ATTACKS
from clients.flower_private import error_code
from clients.wire.records import tensors_of
from simulations.server_app import run_experiment
from strategies.exchange.guard import TooFewReplies
from tests.lines import read_lines
from tests.local_grid import LocalGrid
from tests.simulations.broken_replies import Break, at, edit, is_asked, metric, on, raising, setting, without
from tests.simulations.short_runs import Wire, rows_of
from tests.simulations.split.test_run import split_experiment
from tests.strategies.split.test_split_fed import Federation, federation, settings_for

# What holds for arrays of any record is tried with "features".
BROKEN: dict[str, list[tuple[Break, str]]] = {
    "server": [
        (raising, "disk full"),
        (lambda reply: None, "no reply within 300 s"),
        (setting("features", at(7, np.nan)), "features: '0' holds NaN or infinite"),
        (setting("features", lambda v: v[:, :-1]), "expected float32(16, 16, 16)"),
        (setting("features", lambda v: v.astype(np.float64)), "features: '0' is float64"),
        (edit("features", lambda arrays: arrays.update({"1": arrays["0"]})), "names differ"),
        (without("features"), "the reply has no 'features'"),
        (without("examples"), "the reply has no 'examples'"),
        (setting("examples", at(3, 48)), "to 48, the client holds 48"),
        (setting("examples", at(3, -1)), "examples: -1 to"),
        (setting("examples", lambda v: v[1:]), "expected int64(16,)"),
        (setting("examples", lambda v: v.astype(np.float32)), "examples: '0' is float32"),
        (metric("num-examples", -5), "num-examples is -5"),
    ],
    "client": [
        (without("targets"), "the reply has no 'targets'"),
        (setting("targets", lambda v: v[:, :9]), "expected float32(16, 10)"),
        (setting("targets", at(0, np.nan)), "targets: '0' holds NaN"),
    ],
}
"""Where the labels are -> what may be wrong with a reply of training, and what is said."""


def test_each_bad_reply_costs_its_own_batch_and_a_row(tmp_path: Path) -> None:
    """All clients but the first spoil their second of three batches, in one way each."""
    for where, spoils in BROKEN.items():
        count = len(spoils) + 1

        def tamper(at: int, request: Message, reply: Message, spoils: list = spoils) -> Message | None:
            return spoils[at - 1][0](reply) if at and is_asked(request, "train.step", first=1) else reply

        settings = split_experiment(
            tmp_path / where, labels=where, batches_per_message=1, rounds=1, num_clients=count, train_limit=60 * count,
            test_limit=2 * count, min_usable=0.01,
        )  # fmt: skip
        grid = LocalGrid(count, tamper)
        run_experiment(grid, settings)
        rows = read_lines(tmp_path / where / "rows.jsonl")
        failed = {row["client"]: row for row in rows if row["status"] == "failed"}
        assert sorted(failed) == list(range(1, count))
        for client, (_, reason) in enumerate(spoils, 1):
            assert (failed[client]["round"], failed[client]["metric"]) == (1, "client")
            assert failed[client]["message"].startswith("train.step: ")
            assert reason in failed[client]["message"], reason
        counted = {x["metric"]: (x["value"], x["n"]) for x in rows if x["round"] == 1 and not x["reference"]}
        assert counted["batches-lost"] == (count - 1, 3 * count)
        assert counted["clients-failed"] == (count - 1, count)
        # The first client's batches, and those before and after.
        assert counted["train-loss"][1] == (3 + 2 * (count - 1)) * 16
        assert {grid.sent.count(("train.step", client)) for client in range(count)} == {3}
        assert json.loads((tmp_path / where / "config.json").read_text())["progress"]["finished"]


def test_when_all_clients_fail_the_run_stops_and_says_why(tmp_path: Path) -> None:
    for train_edge in (False, True):
        out, tamper = tmp_path / str(train_edge), on("train.step", raising, partitions=(0, 1), first=2)
        with pytest.raises(TooFewReplies, match=r"round 1, no defence: 0 of 2 train\.step replies are usable"):
            rows_of(split_experiment(out, train_edge=train_edge, test_limit=4), tamper)
        failed = [row for row in read_lines(out / "rows.jsonl") if row["status"] == "failed"]
        assert [row["client"] for row in failed] == [0, 1]
        assert all("disk full" in row["message"] for row in failed)
        assert "min-usable" in json.loads((out / "config.json").read_text())["progress"]["failed"]
    # Both waves of a step are counted.
    settings = split_experiment(tmp_path / "run", min_usable=0.9, test_limit=4)
    with pytest.raises(TooFewReplies, match=r"1 of 2 train\.step replies are usable, min-usable = 0\.9"):
        rows_of(settings, on("train.step", raising, first=0))


class Deaf(LocalGrid):
    """Messages of a type, or one step of training, never reach client 1."""

    def __init__(self, clients: int, tamper: Any, message_type: str, **config: int) -> None:
        super().__init__(clients, tamper)
        self.deaf_to, self.config = message_type, config

    def answer(self, message: Message) -> Message | None:
        if message.metadata.dst_node_id == 100 or not is_asked(message, self.deaf_to, **self.config):
            return super().answer(message)
        return Message(Error(code=error_code("CLIENT_APP_RAISED_EXCEPTION"), reason="no power"), reply_to=message)


def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, message_type: str, **config: int) -> Federation:
    """One round of two clients with a trained half and one batch a message, some of which do not arrive."""
    settings = settings_for(tmp_path, train_edge=True, batches_per_message=1)
    grid = "tests.strategies.split.test_split_fed.LocalGrid"
    monkeypatch.setattr(grid, lambda n, tamper: Deaf(n, tamper, message_type, **config))
    run = federation(settings, 2)
    run.server.train_round(1)
    return run


def local_steps(run: Federation) -> dict[int, int]:
    """Partition -> optimizer steps behind its update."""
    return {p: reply.content["metrics"]["local-steps"] for p, _, reply in run.wire.of("train.collect")}


def failures(run: Federation) -> list[tuple[int, str]]:
    """Client and type of message."""
    rows = [row for row in run.rows.found if row.get("status") == "failed"]
    return [(row["client"], row["message"].partition(":")[0]) for row in rows]


def assert_averaged(run: Federation) -> None:
    """The client half moved by the mean of the updates that came, weighted by examples."""
    before, _ = run.task.plan.build_halves()
    updates = {p: tensors_of(reply, "arrays") for p, _, reply in run.wire.of("train.collect")}
    total = sum(run.clients.sizes[p][0] for p in updates)
    for name, weight in before.named_parameters():
        mean = sum(run.clients.sizes[p][0] / total * update[name] for p, update in updates.items())
        torch.testing.assert_close(run.server.edge[name], weight.detach() + mean, rtol=0, atol=1e-6)


def test_a_client_that_misses_messages_counts_by_its_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps, step = [(1, "train.step")] * 3, [(1, "train.step")]
    for message_type, first, failed, lost, made in (
        ("train.step", 0, step, 1, {0: 3, 1: 2}),
        # With a later step it loses the gradients that came with it.
        ("train.step", 1, step, 1, {0: 3, 1: 1}),
        ("train.backward", None, [(1, "train.backward")], 0, {0: 3, 1: 2}),
        ("train.collect", None, [(1, "train.collect")], 0, {0: 3}),
        ("train.step", None, [*steps, (1, "train.collect")], 3, {0: 3}),
    ):
        step_of = {} if first is None else {"first": first}
        run = trained(tmp_path / f"{message_type}-{first}", monkeypatch, message_type, **step_of)
        assert failures(run) == failed
        assert run.rows.of("batches-lost") == [lost]
        assert local_steps(run) == made
        assert_averaged(run)
        requests = [(p, one.content["config"]["first"], one.content) for p, one, _ in run.wire.of("train.step")]
        if first == 0:  # it gets the weights with the next step
            assert [(p, at) for p, at, content in requests if "edge" in content] == [(0, 0), (1, 1)]
        elif first == 1:
            assert not ["gradients" for p, at, content in requests if (p, at) == (1, 2) and "gradients" in content]
    said = [row["message"] for row in run.rows.found if row.get("status") == "failed"]
    assert "does not hold the client half of round 1; it missed its beginning" in said[-1]


def test_an_update_that_cannot_be_used_is_not_averaged(tmp_path: Path) -> None:
    first = "class_token"
    spoils = (
        edit("arrays", lambda arrays: arrays[first].fill(np.nan)),
        edit("arrays", lambda arrays: arrays.update({first: arrays[first][..., :-1]})),
        edit("arrays", lambda arrays: arrays.pop(first)),
    )

    def tamper(partition: int, request: Message, reply: Message) -> Message | None:
        wanted = partition and request.metadata.message_type == "train.collect"
        return spoils[partition - 1](reply) if wanted else reply

    rows = rows_of(
        split_experiment(tmp_path / "run", train_edge=True, rounds=1, test_limit=8, num_clients=4, min_usable=0.2),
        tamper,
    )
    failed = [(row["client"], row["message"].partition(": ")[0]) for row in rows if row["status"] == "failed"]
    assert sorted(failed) == [(client, "train.collect") for client in (1, 2, 3)]


JUDGED: list[tuple[str, dict[str, int], Break, str]] = [
    ("evaluate", {}, raising, "disk full"),
    ("evaluate", {}, lambda reply: None, "no reply"),
    ("evaluate.smash", {"first": 16}, raising, "disk full"),
    ("evaluate.smash", {"first": 0}, setting("features", at(0, np.nan)), "NaN"),
    ("evaluate.smash", {"first": 16}, setting("features", lambda v: v[1:]), "expected float32(4, 16, 16)"),
    ("evaluate", {}, metric("true-positives", [1.0]), "true-positives is [1.0]"),
    ("evaluate", {}, metric("loss", [float("nan")]), "loss is [nan]"),
    ("evaluate", {}, metric("examples", [1000]), "examples is [1000]"),
    ("evaluate", {}, metric("true-positives", [20] * 10), "are not those of 20 examples"),
    ("evaluate", {}, metric("false-positives", [-1] * 10), "false-positives is [-1, -1"),
]


def test_each_client_whose_test_images_cannot_be_judged_is_left_out(tmp_path: Path) -> None:
    """Of the initial and of the trained model. Client 11 sends numbers that were not asked for, which end nothing."""
    wire = Wire()

    def tamper(partition: int, request: Message, reply: Message) -> Message | None:
        message_type = request.metadata.message_type
        if partition == 11 and message_type in ("evaluate", "train.step"):
            return metric("train-seconds", 5)(metric("mood", 5)(reply))  # type: ignore[arg-type]
        if 1 <= partition <= 10:
            wanted, config, spoil, _ = JUDGED[partition - 1]
            reply = on(wanted, spoil, partitions=(partition,), **config)(partition, request, reply)  # type: ignore[assignment]
        return reply if reply is None else wire(partition, request, reply)

    rows = rows_of(
        split_experiment(
            tmp_path / "run", rounds=1, batches_per_message=1, num_clients=12, train_limit=240, test_limit=240, local_steps=1,
            min_usable=0.1,
        ),
        tamper,
    )  # fmt: skip
    failed = [(row["client"], row["message"]) for row in rows if row["status"] == "failed"]
    for partition, (message_type, _, _, reason) in enumerate(JUDGED, 1):
        mine = [message for client, message in failed if client == partition]
        assert len(mine) == 2, reason
        assert all(message.startswith(f"{message_type}: ") and reason in message for message in mine), (reason, mine)
    assert len(failed) == 2 * 10
    assert {row["n"] for row in rows if row["metric"] in ("test-accuracy", "test-loss")} == {2 * 20}
    # Logits of some of its images are of no use to a client whose other images did not come.
    cut_off = {at for at, (message_type, *_) in enumerate(JUDGED, 1) if message_type == "evaluate.smash"}
    assert not cut_off & {partition for partition, _, _ in wire.of("evaluate")}


@dataclass(frozen=True, repr=False)
class WantsStep(SmashedAttack[Labels], needs_step=True):
    """Fails where it is not shown the client half's own step."""

    def attack_one(self, observation: SmashedData, generator: torch.Generator) -> Labels:
        if observation.step is None:
            return self.failed(observation, "no step")
        return Labels(torch.zeros(observation.num_targets, dtype=torch.int64))

    def failed(self, observation: SmashedData, reason: str) -> Labels:
        return Labels(torch.full((observation.num_targets,), -1), failure=reason)


def test_an_audit_goes_on_with_those_who_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ATTACKS._own, "WantsStep", WantsStep)
    for message_type, n, missing in (("train.smash", 2, 0), ("train.audit_step", 4, 2)):
        settings = split_experiment(
            tmp_path / message_type, rounds=1, attack_rounds="last", train_edge=True, test_limit=4, smashed_attacks="WantsStep()"
        )  # fmt: skip
        rows = rows_of(settings, on(message_type, raising))
        (failed,) = [row for row in rows if row["status"] == "failed"]
        assert (failed["client"], failed["message"]) == (1, f"{message_type}: RuntimeError: disk full")
        (scored,) = [row for row in rows if row["metric"] == "label-accuracy" and row["attack"] == "WantsStep()"]
        assert (scored["n"], scored["failures"]) == (n, missing)
