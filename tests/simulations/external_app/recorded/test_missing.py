"""What an attack lacks: one error that names everything, before torch is imported."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message, MetricRecord, RecordDict
from safetensors import safe_open
from safetensors.torch import save_file

from simulations.external_app.recorded.reply_numbers import numbers_of_reply
from simulations.external_app.recorded.settings import AttackSettings
from simulations.runtime.launch import ROOT
from strategies.external_app.replies import UnusableReplyError, examples_behind
from strategies.recording.files import RecordedReply
from tests.lines import read_lines
from tests.simulations.commands import fedveil, refused
from tests.simulations.external_app.recorded.recordings import DLG, RATE, invoke, record


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("foreign"), names=False)


@pytest.fixture(scope="module")
def digits_of_two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("two"), model="mlp", each=2, batch=2)


def test_everything_missing_is_named_at_once(digits_of_two: Path, tmp_path: Path) -> None:
    toml = tmp_path / "attack.toml"
    toml.write_text('update-attacks = "LabelInference()"\nmomentum = 0.9')
    told = refused("attack", digits_of_two, toml, "-s", "momentum=0.5", "--out", tmp_path / "out")
    assert told.count("error:") == 1
    assert "4 arguments are missing or wrong:" in told
    for line in (
        "set local-steps, or local-epochs and batch-size", "- model is missing; needed: a name of `fedveil list models`",
        "- num-classes is missing; needed: number of logits", "- input-shape is missing; needed: channels, height and width",
    ):  # fmt: skip
        assert line in told
    given = ("model=mlp", "num-classes=10", "input-shape=1,28,28", "local-epochs=1", "batch-size=2")
    words = [word for one in given for word in ("-s", one)]
    assert fedveil("attack", digits_of_two, toml, *words, "--out", tmp_path / "out")[0] == 0
    (about,) = (row for row in read_lines(tmp_path / "out" / "rows.jsonl") if row["metric"] == "recorded-updates")
    assert about["local_steps"] == [1, 1]


def test_arguments_are_checked_before_torch_is_imported(digits_of_two: Path) -> None:
    code = (
        "import sys; from tests.simulations.commands import refused; "
        f"print(refused('attack', {str(digits_of_two)!r}), sorted({{'torch', 'flwr', 'ray'}} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "model is missing" in done.stdout
    assert done.stdout.endswith(" []\n")


CASES: list[tuple[dict[str, Any], str]] = [
    ({}, "does not tell how often a client stepped; set local-steps, or local-epochs and batch-size"),
    ({"local_epochs": -1, "batch_size": 1}, "local-epochs is -1; allowed: a whole number from 0"),
    ({"local_steps": 1, "weights": "w"}, "weights is for a single update"),
    ({"local_steps": 1, "labels": "3"}, "labels is for a single update"),
    ({"local_steps": 1, "attack_rounds": "7"}, "attack-rounds is '7'; allowed: first, last, all, and of 1"),
    ({"local_steps": 1, "model": "cnn"}, "lacks '0.weight'"),
    ({"local_steps": 1, "originals": "nowhere"}, "nowhere has neither round-0001-node-1"),
    ({"local_steps": 1, "modle": "cnn"}, "unknown setting 'modle', did you mean 'model'?"),
]


def test_refuses_before_any_work(foreign: Path, tmp_path: Path) -> None:
    for settings, message in CASES:
        result = invoke(foreign, out=tmp_path / "out", update_attacks=DLG, **settings)
        assert result.exit_code == 2, settings
        assert message in " ".join(result.output.split()), settings
        assert not (tmp_path / "out").exists()
    os.mkfifo(tmp_path / "pipe")  # to open it is to wait for its writer
    told = invoke(tmp_path / "pipe", out=tmp_path / "out", model="cnn")
    assert (told.exit_code, "is no file and no folder" in told.output) == (2, True)


def test_numbers_of_a_recording_that_are_none_blame_no_setting(tmp_path: Path) -> None:
    for at, told in enumerate(({"local-epochs": -1, "batch-size": 1}, {"local-epochs": 1, "batch-size": -2})):
        folder = record(tmp_path / str(at), **told)
        words = " ".join(invoke(folder, out=tmp_path / "out", update_attacks=DLG).output.split())
        assert "does not tell how often a client stepped; set local-steps" in words
        path = folder / "round-0001" / "sent.json"
        path.write_text(path.read_text().replace(f'"lr": {RATE}', '"lr": -0.5'))
        words = " ".join(invoke(folder, "-s", "local-steps=1", out=tmp_path / "out", update_attacks=DLG).output.split())
        assert "holds no 'lr' or 'learning-rate' or 'learning_rate' above 0 (-0.5); set learning-rate" in words


def test_replies_that_cannot_be_used_are_told_and_the_others_are_attacked(tmp_path: Path) -> None:
    folder, out = record(tmp_path, nodes=3), tmp_path / "out"
    path = folder / "round-0001" / "train-0001-0.safetensors"
    with safe_open(path, framework="pt") as file:
        order, arrays = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    arrays["0.weight"][0] = float("nan")
    save_file(arrays, path, order)
    path = folder / "round-0001" / "train-0000.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"arrays": {}, "dropped": "arrays: the disk was full"}))
    result = invoke(folder, "-s", "local-steps=1", out=out, update_attacks="LabelInference()")
    assert result.exit_code == 0, result.output
    assert "'0.weight' holds NaN or infinite values" in " ".join(result.output.split())
    assert "its arrays were not recorded: arrays: the disk was full" in (out / "report.html").read_text("utf-8")
    about = next(row for row in read_lines(out / "rows.jsonl") if row["metric"] == "recorded-updates")
    assert (about["n"], len(about["unusable"])) == (1, 2)


def test_a_count_of_examples_is_read_alike_in_a_recording_and_on_the_wire() -> None:
    for told, expected in ((4, 4), (4.0, 4), (2.5, 0), (0, 0), (-3.0, 0), (math.inf, 0), (math.nan, 0), ([4], 0)):
        values = {"num_examples": told}
        reply = RecordedReply(1, 0, Path("reply"), {"metrics": {"metrics": values}}, {}, {})
        assert numbers_of_reply(reply, AttackSettings()).values["num_examples"] == expected, told
        sent = Message(RecordDict(), dst_node_id=1, message_type="train")
        message = Message(RecordDict({"metrics": MetricRecord(values)}), reply_to=sent)
        if expected:
            assert examples_behind(message) == expected
        else:
            with pytest.raises(UnusableReplyError, match="a positive whole number"):
                examples_behind(message)
