"""What an attack lacks: one error that names everything, before torch is imported, with a command that runs."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner, Result

from simulations.cli import app
from simulations.runtime.launch import ROOT
from tests.lines import read_lines
from tests.simulations.external_app.recorded.recordings import MEAN, STD, invoke, record


def bare(*words: Any) -> Result:
    return CliRunner().invoke(app, ["attack", *map(str, words)])


def command_in(result: Result) -> list[str]:
    """The words of the command that ends an error."""
    assert result.exit_code == 2, result.output
    assert result.output.count("error:") == 1
    return shlex.split(result.output.splitlines()[-1])


@pytest.fixture(scope="module")
def digits_of_two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("two"), model="mlp", each=2, batch=2)


def test_everything_missing_is_named_at_once_and_the_command_runs(digits_of_two: Path, tmp_path: Path) -> None:
    result = bare(digits_of_two, "--attack", "LabelInference()", "--momentum", 0.5, "--out", tmp_path / "out")
    for option in ("--model", "--num-classes", "--input-shape", "--local-steps", "--local-epochs", "--batch-size"):
        assert option in result.output
    assert "4 arguments are missing or wrong" in result.output
    assert "examples of a reply 2; learning rate 0.1" in result.output
    words = command_in(result)
    assert words[:3] == ["fedveil", "attack", str(digits_of_two)]
    given = dict(zip(words[3::2], words[4::2], strict=True))
    assert given == {
        "--model": "MODEL", "--num-classes": "10", "--input-shape": "1,28,28", "--momentum": "0.5",
        "--local-epochs": "LOCAL_EPOCHS", "--batch-size": "BATCH_SIZE", "--attack": "LabelInference()",
        "--out": str(tmp_path / "out"),
    }  # fmt: skip
    known = {"MODEL": "mlp", "LOCAL_EPOCHS": "1", "BATCH_SIZE": "2"}
    assert bare(*(known.get(word, word) for word in words[2:])).exit_code == 0
    (about,) = (row for row in read_lines(tmp_path / "out" / "rows.jsonl") if row["metric"] == "recorded-updates")
    assert about["local_steps"] == [1, 1]


def test_what_is_wrong_stands_beside_what_is_missing(digits_of_two: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = bare(
        digits_of_two, "--model", "mlp", "--momentum", 2, "--truth", "t", "--rounds", 7, "--learning-rate", -1,
        "--std", 0, "--batch-size", -3, "--originals", tmp_path, "--out", tmp_path / "file" / "in",
    )  # fmt: skip
    words = " ".join(result.output.split())
    for told in (
        "--momentum is 2.0; allowed: from 0, below 1", "--truth is for a single update", "--rounds is '7'; allowed: of 1",
        "--learning-rate is -1.0; allowed: a positive number", "--std is '0'; allowed: positive numbers",
        "--batch-size is -3; allowed", "--num-classes is missing", "--input-shape is missing", "is a file, and results need",
    ):  # fmt: skip
        assert told in words
    assert "--truth" not in command_in(result)
    assert "MOMENTUM" in command_in(result)


def test_a_single_update_has_the_same_error(tmp_path: Path) -> None:
    result = bare(tmp_path / "none.safetensors", "--rounds", 1, "--mean", "cat")
    words = " ".join(result.output.split())
    for told in ("UPDATE: there is no file", "--mean is 'cat'", "--model is missing", "--num-classes is missing"):
        assert told in words
    assert "--model MODEL --num-classes CLASSES --input-shape C,H,W" in words


def test_arguments_are_checked_before_torch_is_imported(digits_of_two: Path) -> None:
    code = (
        "import sys\nfrom typer.testing import CliRunner\nfrom simulations.cli import app\n"
        f"result = CliRunner().invoke(app, ['attack', {str(digits_of_two)!r}])\nprint(result.output)\n"
        "print(sorted({'torch', 'flwr', 'ray'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "--model is missing" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


def test_momentum_and_decay_of_the_app_are_used_and_said(tmp_path: Path) -> None:
    settings = {"local-epochs": 1, "batch-size": 1, "momentum": 0.9, "weight-decay": 0.01}
    folder = record(tmp_path, model="mlp", **settings)
    used = {}
    for name, options in (("read", {}), ("given", {"momentum": 0, "weight_decay": 0.02})):
        result = invoke(folder, model="mlp", out=tmp_path / name, attack="LabelInference()", **options)
        assert result.exit_code == 0, result.output
        config = json.loads((tmp_path / name / "config.json").read_text())["config"]
        used[name] = (config["momentum"], config["weight-decay"])
        said = "Whether 0.9, which the recording gives as momentum" in " ".join(result.output.split())
        assert said == (name == "read")
    assert used == {"read": (0.9, 0.01), "given": (0.0, 0.02)}


def test_originals_state_the_normalisation(tmp_path: Path) -> None:
    folder, kept = record(tmp_path, model="mlp", **{"local-epochs": 1, "batch-size": 1}), tmp_path / "originals"
    stated = {"normalisation": json.dumps({"mean": [MEAN], "std": [STD]})}
    for file in kept.iterdir():
        save_file(load_file(file), file, stated)
    options = {"model": "mlp", "originals": kept, "attack": "LabelInference()"}
    result = invoke(folder, out=tmp_path / "out", mean=None, std=None, **options)
    assert result.exit_code == 0, result.output
    assert f"The mean of the normalisation: {MEAN} was read from the originals" in " ".join(result.output.split())
    config = json.loads((tmp_path / "out" / "config.json").read_text())["config"]
    assert (config["mean"], config["std"]) == (str(MEAN), str(STD))
    refused = invoke(folder, out=tmp_path / "other", mean=0.5, **options)
    assert f"--mean is '0.5'; the originals were saved with {MEAN}" in " ".join(refused.output.split())
    assert f"--mean {MEAN}" in " ".join(command_in(refused))


def test_weight_decay_needs_a_learning_rate(tmp_path: Path) -> None:
    folder = record(tmp_path)
    sent = folder / "round-0001" / "sent.json"
    sent.write_text(sent.read_text().replace('"lr"', '"unnamed"'))
    result = invoke(folder, "--local-steps", 1, "--weight-decay", 0.1, out=tmp_path / "out")
    assert "weight decay cannot be subtracted without it; name --learning-rate" in " ".join(result.output.split())
    assert "LEARNING_RATE" in command_in(result)
