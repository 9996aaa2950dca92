"""Online tests at the client, and the file with the examples that a membership test exposes most: the node's alone."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message, RecordDict
from torch import nn

from attacks.local_model import shared_tensors
from attacks.membership.federation.round_signals import RoundsTest
from attacks.membership.federation.signals import SIGNALS
from attacks.membership.loss_threshold import Membership
from attacks.membership.online_rules import OnlineTest
from attacks.observations import AttackError
from clients.federated.client import LocalClient
from clients.federated.local_training import train_alone
from clients.federated.plan import FederatedPlan
from clients.scoring.audit import audit_guesses
from clients.scoring.exposed import LISTED, most_exposed
from clients.scoring.guesses import guess_tensors
from clients.task.local_data import LocalData
from clients.wire.records import to_record
from defenses.base import Batch
from strategies.exchange.exchange import Exchange
from tests.local_grid import LocalGrid
from tests.scores import flat

TASK = FederatedPlan(
    scenario="federated",
    dataset="mnist-5k", data_dir="", download=False, image_size=0, train_limit=400, test_limit=80, model="mlp", width=0,
    norm="group", pipeline="", seed=3, rounds=1, local_epochs=1, batch_size=16, learning_rate=0.1, momentum=0.0,
    weight_decay=0.0, probe_targets=1, probe_images=1,
).at(1)  # fmt: skip
ONLINE = OnlineTest("shrunk", 6, 0, 5)


def membership(online: OnlineTest | None = None) -> Membership:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Membership(TASK.plan.build_model().eval(), online=online)


def asked(node_config: dict[str, Any], *tests: Membership, attack: str = "LossThreshold()") -> Message:
    """The last reply to audits of a deployed node, which has trained on 40 of its examples and has 20 others."""
    grid = LocalGrid(1, node_config={0: {"audits": True, **node_config}}, randomness="secret")
    grid.contexts[100].state["indices"] = to_record({"train": torch.arange(100, 140), "test": torch.arange(20)})
    exchange = Exchange(grid, {0: 100}, 300.0)
    weights = to_record(shared_tensors(TASK.plan.build_model()))
    trained = exchange("train", {0: RecordDict({"config": exchange.config(TASK), "arrays": weights})})[0]
    assert not trained.has_error()
    for test in tests:
        about: dict[str, Any] = {"observation": "update", "kind": "membership", "guesses": 1, "attack": attack}
        about["share-images"] = False
        config = exchange.config(TASK, **about)
        content = RecordDict({"config": config, "guesses": to_record(guess_tensors(test, 0, None))})
        reply = exchange("query.audit", {0: content})[0]
    return reply


def set_up(node_config: dict[str, Any]) -> Message:
    """The reply of a deployed node to its set-up."""
    grid = LocalGrid(1, node_config={0: {"audits": True, **node_config}}, randomness="secret")
    exchange = Exchange(grid, {0: 100}, 300.0)
    indices = to_record({"train": torch.arange(100, 140), "test": torch.arange(20)})
    content = RecordDict({"config": exchange.config(TASK), "indices": indices})
    return exchange("query.setup", {0: content})[0]


def written(text: str) -> Any:
    return json.loads(text)


def test_the_highest_scores_are_listed_with_the_non_members_as_high() -> None:
    found = most_exposed([7, 5, 3, 1], [0.0, 9.0, 2.0, math.nan], [1.0, 2.0, 2.5, math.nan])
    assert [(one.example, one.score, one.others_above) for one in found] == [(5, 9.0, 0), (3, 2.0, 2), (7, 0.0, 3)]
    assert found[1].rate == 0.5
    assert found[1].expected == 2.0
    assert found[0].rate_most == pytest.approx(1 - 0.025 ** (1 / 4))
    assert (found[0].expected, found[0].expected_most) == (0.0, pytest.approx(4 * found[0].rate_most))
    many = most_exposed(range(50), list(map(float, range(50))), [0.0])
    assert [one.example for one in many] == list(range(49, 49 - LISTED, -1))
    assert most_exposed([1], [1.0], []) == []


def test_only_the_node_learns_which_examples_are_exposed(tmp_path: Path) -> None:
    test, folder = membership(), tmp_path / "exposed"
    node = {"secret-dir": str(tmp_path / "secrets")}
    plain = asked(node, test)
    assert not folder.exists()
    reply = asked({**node, "exposed-dir": str(folder)}, test)
    assert not reply.has_error()
    (path,) = folder.iterdir()
    assert path.stat().st_mode & 0o077 == 0, "no other user of the machine reads it"
    content = written(path.read_text())
    assert (content["members"], content["non-members"], content["test"]) == (40, 20, "loss")
    listed = content["examples"]
    assert len(listed) == LISTED
    assert all(100 <= one["example"] < 140 for one in listed)
    mine = LocalClient(LocalData(TASK, 0, range(100, 140), range(20)))
    scores = flat(audit_guesses(mine, "update", [(test, None)]))["member-score"]
    best = max(range(40), key=scores.__getitem__)
    assert (listed[0]["example"], listed[0]["score"]) == (100 + best, pytest.approx(scores[best]))
    # The reply is the same with and without the file.
    assert list(reply.content) == list(plain.content)
    assert {name: list(record) for name, record in reply.content.items()} == {
        name: list(record) for name, record in plain.content.items()
    }


def test_each_attack_has_a_file_of_its_own(tmp_path: Path) -> None:
    """Three attacks score by losses alone, and two kinds of ``LiRA`` by one rule."""
    folder = tmp_path / "exposed"
    node = {"secret-dir": str(tmp_path / "secrets"), "exposed-dir": str(folder)}
    attacks = ["LiRA()", "LiRA(variance='fixed')", "LossThreshold()"]
    for attack in (*attacks, "LiRA()"):  # one that comes again replaces its own file
        assert not asked(node, membership(), attack=attack).has_error()
    assert sorted(written(path.read_text())["attack"] for path in folder.iterdir()) == attacks


def test_tests_over_rounds_name_their_own_kind() -> None:
    kinds = {
        RoundsTest(None, signal=signal, compared=compared).kind for signal in SIGNALS for compared in (False, True)
    }
    assert len(kinds | {membership().kind}) == 2 * len(SIGNALS) + 1


@pytest.mark.parametrize("value", ["here", 7, True])
def test_a_folder_that_is_no_absolute_path_ends_the_set_up(tmp_path: Path, value: Any) -> None:
    reply = set_up({"secret-dir": str(tmp_path), "exposed-dir": value})
    wrong = f"exposed-dir is {value!r} in the node's configuration; allowed: an absolute path, as text"
    assert wrong in str(reply.error.reason)


def test_a_folder_that_cannot_be_made_ends_the_set_up(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" / "exposed"
    reply = set_up({"secret-dir": str(tmp_path), "exposed-dir": str(folder)})
    assert f"exposed-dir is {str(folder)!r} in the node's configuration: " in str(reply.error.reason)
    assert "allowed: a folder that this node can make and write to" in str(reply.error.reason)


def test_the_set_up_makes_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "exposed"
    assert not set_up({"secret-dir": str(tmp_path), "exposed-dir": str(folder)}).has_error()
    assert folder.is_dir()
    assert folder.stat().st_mode & 0o077 == 0


def test_scores_leave_although_the_file_cannot_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    node = {"secret-dir": str(tmp_path / "secrets"), "exposed-dir": str(tmp_path / "file")}
    with caplog.at_level(logging.WARNING, "flwr"):
        reply = asked(node, membership())
    assert not reply.has_error()
    assert "exposed-dir: the most exposed examples of LossThreshold() are not written" in caplog.text


def test_a_node_trains_the_shadow_models_of_an_online_test(tmp_path: Path) -> None:
    folder = tmp_path / "exposed"
    reply = asked({"secret-dir": str(tmp_path / "secrets"), "exposed-dir": str(folder)}, membership(ONLINE))
    assert not reply.has_error()
    content = written(next(folder.iterdir()).read_text())
    assert (content["members"], content["non-members"], content["test"]) == (40, 20, "online shrunk")


def test_shadow_models_train_on_training_and_test_examples_as_the_client_does() -> None:
    mine = LocalClient(LocalData(TASK, 0, range(100, 140), range(20)))
    batches = list[Batch]()

    def train(batch: Batch, seed: int) -> nn.Module:
        batches.append(batch)
        return train_alone(FederatedPlan.narrow(TASK.plan), batch, seed)

    found = flat(audit_guesses(mine, "update", [(membership(ONLINE), None)], train=train))
    assert (len(found["member-score"]), len(found["other-score"])) == (40, 20)
    assert [len(batch) for batch in batches] == [40] * 6, "as many as the client has members"
    assert found["shadow-members"] == [40]
    own = {image.numpy().tobytes() for image in mine.data.originals().images}
    own |= {image.numpy().tobytes() for image in mine.data.test_plain(torch.arange(20)).images}
    assert {image.numpy().tobytes() for batch in batches for image in batch.images} == own
    again = flat(audit_guesses(mine, "update", [(membership(ONLINE), None)], train=train))
    assert again == found


def test_too_few_shadow_models_are_refused_before_one_is_trained() -> None:
    mine = LocalClient(LocalData(TASK, 0, range(100, 140), range(20)))
    few = membership(OnlineTest("shrunk", 4, 0, 5))
    with pytest.raises(AttackError, match="num_shadows is 4; allowed: 6 or more"):
        audit_guesses(mine, "update", [(few, None)], train=lambda batch, seed: pytest.fail("trained"))


def test_a_client_that_trains_no_model_refuses_an_online_test() -> None:
    mine = LocalClient(LocalData(TASK, 0, range(100, 140), range(20)))
    with pytest.raises(AttackError, match="trains models as the client does"):
        audit_guesses(mine, "update", [(membership(ONLINE), None)])
