"""What a deployed node lets a server choose: not whether an image is protected anew, and pipelines only as its operator allows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message, RecordDict

from attacks.image_measures import psnr
from clients.federated.client import LocalClient
from clients.secrets.draws import Draws, Notebook
from clients.secrets.policy import AnswerPolicy, allowed_pipelines
from clients.split.training import SplitClient
from clients.task.local_data import LocalData
from clients.wire.records import REFUSED, tensors_of, to_record
from defenses.pipeline import Pipeline
from defenses.spec import parse
from strategies.exchange.exchange import Exchange
from tests.clients.secrets.test_draws import SECRET, TASK, Node, weights_of
from tests.clients.split.test_training import TASK as SPLIT_TASK
from tests.flower_private import parse_config_args
from tests.local_grid import LocalGrid

NOISE = "ImageNoise(std=0.5, clamp=False)"
MIXER = "VisualMixer(window_lower=4, window_upper=16)"
FROZEN = SPLIT_TASK.but(train_edge=False, learning_rate=0.0)


# One image, one protection ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pipeline", [NOISE, MIXER, f"{NOISE} | Clip(max_norm=1.0)"])
def test_an_image_keeps_its_protection_whatever_company_it_is_dealt(pipeline: str) -> None:
    dealt = [[0, *range(1 + 7 * at, 8 + 7 * at)] for at in range(5)] + [[90, 0, 91], [0]]
    task = TASK.but(pipeline=pipeline)
    clients = [Node(task, train=train).client() for train in dealt]
    seen = [c.data.kept(torch.tensor([train.index(0)])).images for c, train in zip(clients, dealt, strict=True)]
    assert not torch.equal(seen[0], clients[0].data.plain(torch.tensor([0])).images)
    assert all(torch.equal(one, seen[0]) for one in seen)


def test_protections_of_other_company_do_not_average_out() -> None:
    task = TASK.but(pipeline=NOISE)
    quality = {}
    for name in ("secret", "seed"):
        draws = Draws(SECRET, Notebook("", lambda _: None)) if name == "secret" else None
        dealt = [
            LocalClient(LocalData(task, 0, [0, *range(1 + 7 * k, 8 + 7 * k)], range(20), draws)) for k in range(15)
        ]
        seen = torch.stack([one.data.kept(torch.tensor([0])).images for one in dealt])
        truth = dealt[0].data.plain(torch.tensor([0])).images
        quality[name] = float(psnr(seen.mean(0), truth)[0] - psnr(seen[0], truth)[0])
    assert quality["secret"] == pytest.approx(0.0, abs=1e-3)
    assert quality["seed"] > 8.0  # what a simulation keeps, and a deployed node did


def test_other_images_of_one_client_get_other_draws() -> None:
    one = Node(TASK.but(pipeline=NOISE)).client()
    noise = one.data.kept(torch.arange(one.data.num_train)).images - one.data.originals().images
    assert len({image.numpy().round(3).tobytes() for image in noise}) == len(noise)


@pytest.mark.parametrize("kind", ["test", "membership"])
def test_a_test_image_keeps_its_protection_whatever_part_a_message_names(kind: str) -> None:
    one = Node(TASK.but(pipeline=MIXER)).client()
    parts = [
        one.data.protected_test(kind, one.data.test_plain(torch.arange(first, 6)), first).images[-1]
        for first in range(6)
    ]
    assert not torch.equal(parts[0], one.data.test_plain(torch.tensor([5])).images[0])
    assert all(torch.equal(part, parts[0]) for part in parts)


# A round is trained once --------------------------------------------------------------------------------------------------


def asking(tmp_path: Path, **node_config: Any) -> Any:
    config = {"secret-dir": str(tmp_path), **node_config}
    grid = LocalGrid(1, node_config={0: config}, randomness="secret")
    grid.contexts[100].state["indices"] = to_record({"train": torch.arange(40), "test": torch.arange(20)})
    exchange = Exchange(grid, {0: 100}, 60.0)

    def ask(message_type: str, task: Any, records: dict[str, Any] | None = None, **config: Any) -> Message:
        content = RecordDict({"config": exchange.config(task, **config), **(records or {})})
        return exchange(message_type, {0: content})[0]

    return ask


STEP = {"count": 1, "labels": "client", "applied": 0}


def test_a_batch_is_sent_once_in_a_round(tmp_path: Path) -> None:
    ask, task = asking(tmp_path), FROZEN.but(pipeline="FeatureNoise(std=1.0)")
    assert not ask("train.step", task, first=0, **STEP).has_error()
    again = ask("train.step", task, first=0, **STEP)
    assert again.error.code == REFUSED
    assert "may allow it by repeats in the node's configuration" in str(again.error.reason)
    spelled = task.but(pipeline="FeatureNoise( std = 1.0 )")
    assert ask("train.step", spelled, first=0, **STEP).error.code == REFUSED
    assert ask("train.step", task, first=0, **{**STEP, "count": 5}).error.code == REFUSED, "one of the five was sent"
    assert not ask("train.step", task, first=1, **{**STEP, "count": 4}).has_error()
    assert not ask("train.step", task.but(round=2), first=0, **STEP).has_error()
    assert ask("train.step", task, first=2, **STEP).error.code == REFUSED, "rounds only go forward"
    negative = ask("train.step", task.but(round=2), first=-1, **STEP)
    assert "allowed: 0 or more" in str(negative.error.reason), "such a number names a batch of the round before"
    assert not ask("train.step", task.but(pipeline=""), first=0, **STEP).has_error(), "another pipeline of the run"


def test_noise_of_one_batch_cannot_be_averaged_away(tmp_path: Path) -> None:
    task = FROZEN.but(pipeline="FeatureNoise(std=1.0)")
    plain = SplitClient(
        LocalData(task.but(pipeline=""), 0, range(40), range(20), Draws(SECRET, Notebook("", lambda _: None)))
    )
    shape = plain.load_edge({}).num_tokens
    left = {}
    for repeats in (0, -1):
        ask = asking(tmp_path, repeats=repeats)
        replies = [ask("train.step", task, first=0, **STEP) for _ in range(30)]
        got = torch.stack([tensors_of(reply, "features")["0"] for reply in replies if not reply.has_error()])
        assert got.shape[2] == shape
        left[repeats] = len(got), float(got.mean(0).std())
    assert left[0][0] == 1
    assert left[-1][0] == 30
    assert left[0][1] > 1.2 * left[-1][1]


def test_test_images_and_updates_are_sent_once_in_a_round(tmp_path: Path) -> None:
    ask = asking(tmp_path)
    assert not ask("evaluate.smash", FROZEN, first=0, count=8).has_error()
    assert ask("evaluate.smash", FROZEN, first=7, count=2).error.code == REFUSED
    assert not ask("evaluate.smash", FROZEN, first=8, count=50).has_error()
    arrays = {"arrays": to_record(weights_of(TASK))}
    assert not ask("train", TASK, arrays).has_error()
    assert ask("train", TASK, arrays).error.code == REFUSED
    assert not ask("train", TASK.but(round=2), arrays).has_error()


def test_repeats_are_what_the_operator_allows(tmp_path: Path) -> None:
    ask = asking(tmp_path, repeats=2)
    assert [ask("train.step", FROZEN, first=0, **STEP).has_error() for _ in range(4)] == [False, False, False, True]
    assert AnswerPolicy.of({}, simulated=False).repeats == 0
    assert AnswerPolicy.of({}, simulated=True).repeats == -1


# Pipelines that a node takes part under -------------------------------------------------------------------------------------


def test_a_node_takes_part_under_the_pipelines_that_it_pins(tmp_path: Path) -> None:
    ask = asking(tmp_path, pipelines="FeatureDP(clip=1, noise_multiplier=1.0); FeatureNoise(std=2.0)")
    pinned = FROZEN.but(pipeline="FeatureDP(clip=1.0, noise_multiplier=1.0)")
    assert not ask("train.step", pinned, first=0, **STEP).has_error()
    for other in ("", "FeatureDP(clip=1.0, noise_multiplier=0.1)", f"{pinned.plan.pipeline} | Clip(max_norm=1.0)"):
        reply = ask("train.step", FROZEN.but(pipeline=other), first=0, **STEP)
        assert reply.error.code == REFUSED
        assert "may allow it by pipelines in the node's configuration" in str(reply.error.reason)
    assert not asking(tmp_path)("train.step", FROZEN, first=0, **STEP).has_error(), "without the key, any"
    assert not asking(tmp_path, pipelines="none")("train.step", FROZEN, first=0, **STEP).has_error()


def test_a_node_that_pins_pipelines_can_be_set_up(tmp_path: Path) -> None:
    """The set-up comes before any pipeline, and tells a wrong value at once."""
    indices = {"indices": to_record({"train": torch.arange(40), "test": torch.arange(20)})}
    assert not asking(tmp_path, pipelines=NOISE)("query.setup", TASK, indices).has_error()
    assert "unknown defence" in str(asking(tmp_path, pipelines="Noize()")("query.setup", TASK, indices).error.reason)


@pytest.mark.parametrize("pinned", [{}, {"pipelines": NOISE}])
def test_a_message_cannot_ask_which_files_a_node_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pinned: dict[str, str]
) -> None:
    """Neither does a relative or an absolute name of one that is there, and holds policies, tell it from one that is not."""
    monkeypatch.chdir(tmp_path)
    Path("there.json").write_text('{"policies": "3-1-7", "channels": 1}')
    ask, answers = asking(tmp_path, **pinned), []
    for name in ("there.json", "away.json", f"{tmp_path}/there.json", f"{tmp_path}/away.json"):
        reply = ask("train.step", FROZEN.but(pipeline=f"ATS(policies={name!r})"), first=0, **STEP)
        assert "allowed: the name of a file only in the configuration" in str(reply.error.reason)
        answers.append((reply.error.code, str(reply.error.reason).replace(name, "NAME")))
    assert len(set(answers)) == 1


def test_a_message_names_no_folder_and_no_file_of_a_node(tmp_path: Path) -> None:
    """Else a server could train on any pictures that lie on the node's machine, and ask which files there are."""
    (tmp_path / "there").mkdir()
    (tmp_path / "there.pth").touch()
    told = set()
    for name in ("there", "away"):
        for key, task in (
            ("data-dir", TASK.but(dataset="folder", data_dir=str(tmp_path / name))),
            ("pretrained", FROZEN.but(pretrained=str(tmp_path / f"{name}.pth"))),
        ):
            for message_type in ("query.setup", "query.audit"):
                reply = asking(tmp_path / "secrets", audits=True)(message_type, task)
                assert reply.error.code == REFUSED
                assert f"may allow it by {key} in the node's configuration" in str(reply.error.reason)
                told.add(str(reply.error.reason).replace(name, "NAME"))
    assert len(told) == 2
    indices = {"indices": to_record({"train": torch.arange(40), "test": torch.arange(20)})}
    pinned = asking(tmp_path / "secrets", **{"data-dir": str(tmp_path)})
    assert not pinned("query.setup", TASK.but(data_dir="/no/such/folder"), indices).has_error()


def test_a_node_reads_the_file_of_weights_that_its_operator_lists(tmp_path: Path) -> None:
    listed = str(tmp_path / "vit.pth")
    ask = asking(tmp_path, pretrained=f"/srv/other.pth; {listed}")
    reply = ask("train.step", FROZEN.but(pretrained=listed), first=0, **STEP)
    assert "cannot read" in str(reply.error.reason), "it was looked for, and is not there"


@pytest.mark.parametrize(("allowed", "fetched"), [({}, 0), ({"download": False}, 0), ({"download": True}, 1)])
def test_a_node_fetches_what_the_server_names_only_where_its_operator_allows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allowed: dict[str, bool], fetched: int
) -> None:
    asked: list[str] = []
    monkeypatch.setattr("torchvision.datasets.MNIST", lambda root, download: asked.append(root))
    ask = asking(tmp_path, **{"data-dir": str(tmp_path), **allowed})
    assert ask("query.setup", TASK.but(dataset="mnist", download=True)).has_error()  # nothing came
    assert asked == [str(tmp_path)] * fetched


def test_no_defence_is_allowed_by_its_name_alone() -> None:
    assert allowed_pipelines({}) is None
    assert allowed_pipelines({"pipelines": f"none; {NOISE}"}) == {Pipeline(), parse(NOISE)}
    for slip in ("", f"{NOISE};", "; ;", 1):
        with pytest.raises(ValueError, match="none for no defence"):
            allowed_pipelines({"pipelines": slip})


def test_the_key_passes_flowers_command_line() -> None:
    text = "GaussianNoise(std=0.1, per='update') | Clip(max_norm=1.0); none"
    parsed = parse_config_args([f'partition-id=0 pipelines="{text}"'])
    assert allowed_pipelines(parsed) == {parse("GaussianNoise(std=0.1, per='update') | Clip(max_norm=1.0)"), Pipeline()}
