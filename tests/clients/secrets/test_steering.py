"""What a deployed node lets a server choose: not whether an image is protected anew; and the secret that it keeps."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from clients.secrets.draws import SecretError, kept_secret
from clients.secrets.policy import AnswerPolicy, allowed_pipelines
from clients.wire.records import to_record
from defenses.pipeline import Pipeline
from defenses.spec import parse
from tests.clients.asked import Asked, allowed_by, refused
from tests.clients.secrets.test_draws import TASK, Node, weights_of
from tests.clients.split.test_training import TASK as SPLIT_TASK
from tests.flower_private import parse_config_args

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
    for damaged in ("abc", "zz" * 32, ""):
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
