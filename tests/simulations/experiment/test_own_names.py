"""Models and data that fedveil has never seen, named on the command line: audited, or refused before anything is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch.nn import functional as F
from typer.testing import CliRunner, Result

from attacks import AttackError
from attacks.gradient.trial_gradients.trial_layers import TrialNetwork
from clients.models.classifiers import build_model
from simulations.cli import app
from tests.lines import read_lines

CODE = """
import torch
from torch import nn
from torch.utils.data import TensorDataset


class Gate(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gain = nn.Parameter(torch.linspace(0.5, 1.5, width))

    def forward(self, features):
        return torch.sinc(features * self.gain)


class Net(nn.Module):
    def __init__(self, num_classes, input_shape):
        super().__init__()
        self.first = nn.Linear(torch.tensor(input_shape).prod().item(), 24)
        self.gate = Gate(24)
        self.last = nn.Linear(24, num_classes)

    def forward(self, images):
        return self.last(self.gate(self.first(images.flatten(1))))


class Needy(Net):
    def __init__(self, depth):
        pass


class Maps(nn.Conv2d):
    def __init__(self, num_classes, input_shape):
        super().__init__(input_shape[0], num_classes, 3)


class Ten(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 10))


def data(side=8, test_side=8, count=120, high=1.0):
    draws = torch.Generator().manual_seed(3)
    parts = []
    for size, number in ((side, count), (test_side, 40)):
        images = torch.rand(number, 1, size, size, generator=draws) * high
        parts.append(TensorDataset(images, torch.arange(number) % 4))
    return parts


def small():
    return data(count=6)


def uneven():
    return data(test_side=9)


def wide():
    return data(side=10, test_side=10)


def normalised():
    return data(high=3.0)
"""

RUN = {
    "train-limit": 0, "test-limit": 0, "rounds": 1, "batch-size": 4, "probe-images": 1, "num-clients": 2,
    "defenses": "", "update-attacks": "",
    "probe-attacks": "InvertingGradients(iterations=40, restarts=2); LabelInference()", "attack-rounds": "first",
    "attack-workers": 0, "adaptive": "false",
}  # fmt: skip


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(CODE)
    return path


def run(out: Path, *options: str, **changes: Any) -> Result:
    words = [word for key, value in (RUN | changes).items() for word in ("-s", f"{key}={value}")]
    return CliRunner().invoke(app, ["run", *options, "--out", str(out), *words])


def attack(update: Path, out: Path, model: str, shape: str = "1,8,8") -> Result:
    words = {"--model": model, "--num-classes": 4, "--input-shape": shape, "--learning-rate": 0.1, "--out": out}
    return CliRunner().invoke(app, ["attack", str(update), *(str(word) for pair in words.items() for word in pair)])


@pytest.mark.long
def test_a_run_audits_them(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "run"
    result = run(out, "--in-process", model="mine.py:Net", dataset="mine.py:data")
    assert result.exit_code == 0, result.output
    config = json.loads((out / "config.json").read_text())["config"]
    assert (config["model"], config["dataset"]) == (f"{file}:Net", f"{file}:data")
    rows = list(read_lines(out / "rows.jsonl"))
    psnr = [row for row in rows if row["metric"] == "psnr" and row["attack"].startswith("InvertingGradients")]
    assert [(row["n"], row["status"]) for row in psnr] == [(8, "under-powered")] * 2, "original and transformed"
    recognised = [
        row["value"] for row in rows if row["metric"] == "label-accuracy" and row["attack"] == "LabelInference()"
    ]
    assert recognised == [1.0]
    assert (out / "report.html").is_file()
    file.write_text(CODE + "\n# changed")
    again = CliRunner().invoke(app, ["run", "--in-process", "--resume", str(out)])
    assert again.exit_code == 2
    assert "is not what it was when the run began" in " ".join(again.output.split())


@pytest.mark.long
def test_an_update_of_a_model_outside_the_fast_path_is_attacked(file: Path, tmp_path: Path) -> None:
    model = build_model(f"{file}:Net", num_classes=4, input_shape=(1, 8, 8))
    with pytest.raises(AttackError, match="Gate has no form"):
        TrialNetwork(model)
    before = {name: value.detach().clone() for name, value in model.state_dict().items()}
    image = torch.rand(1, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    F.cross_entropy(model(image), torch.tensor([2])).backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    save_file({name: value - before[name] for name, value in model.state_dict().items()}, tmp_path / "update")
    result = attack(tmp_path / "update", tmp_path / "out", f"{file}:Net")
    assert result.exit_code == 0, result.output
    inverted, labels = json.loads((tmp_path / "out" / "result.json").read_text())["attacks"]
    assert not inverted["failure"]
    assert labels["labels"] == [2]


@pytest.mark.long
@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"model": "{folder}/none.py:Net"}, "model: there is no file {folder}/none.py"),
        ({"model": "{file}:Nett"}, "model: '{file}:Nett': {file} has no 'Nett'; in it are Gate, Maps, Needy, Net"),
        ({"model": "{file}:Needy"}, "needs depth; given are num_classes and input_shape alone"),
        ({"model": "{file}:Maps"}, "answers two images with shape (2, 4, 6, 6); logits (2, 4) are expected"),
        ({"model": "{file}:Ten"}, "answers two images with shape (2, 10); logits (2, 4) are expected"),
        (
            {"model": "{file}:Ten", "dataset": "{file}:wide"},
            "does not take images of (1, 10, 10) in eval mode: at its layer '1'",
        ),
        ({"dataset": "{folder}/none.py:data"}, "dataset: there is no file {folder}/none.py"),
        ({"dataset": "{file}:uneven"}, "training images are (8, 8) and test images (9, 9) pixels; set image-size"),
        (
            {"dataset": "{file}:small", "num-clients": "8"},
            "8 clients share 6 training examples, of which the server holds 1",
        ),
        ({"dataset": "{file}:normalised"}, "uint8, or floats in [0, 1] (not normalised), are expected"),
    ],
)
def test_what_cannot_be_audited_ends_before_any_work(
    file: Path, tmp_path: Path, changes: dict[str, str], why: str
) -> None:
    given = {"model": "{file}:Net", "dataset": "{file}:data"} | changes
    asked = {key: value.format(file=file, folder=tmp_path) for key, value in given.items()}
    result = run(tmp_path / "run", **asked)
    assert result.exit_code == 2, result.output
    assert why.format(file=file, folder=tmp_path) in " ".join(result.stderr.split()), result.stderr
    assert not (tmp_path / "run").exists()


def test_split_learning_cuts_only_models_that_it_knows(file: Path, tmp_path: Path) -> None:
    words = [
        "-s",
        "scenario=split",
        "-s",
        f"model={file}:Net",
        "-s",
        f"dataset={file}:data",
        "--out",
        str(tmp_path / "run"),
    ]
    result = CliRunner().invoke(app, ["run", *words])
    assert result.exit_code == 2
    assert f"unknown split model '{file}:Net'; known: " in " ".join(result.stderr.split())
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("model", "shape", "why"),
    [
        ("{folder}/none.py:Net", "1,8,8", "model: there is no file {folder}/none.py"),
        ("{file}:Needy", "1,8,8", "needs depth; given are num_classes and input_shape alone"),
        ("{file}:Maps", "1,8,8", "logits (2, 4) are expected"),
        ("{file}:Ten", "1,9,9", "does not take images of (1, 9, 9)"),
    ],
)
def test_a_model_that_does_not_fit_ends_before_any_attack(
    file: Path, tmp_path: Path, model: str, shape: str, why: str
) -> None:
    save_file({"weight": torch.zeros(1)}, tmp_path / "update")
    result = attack(tmp_path / "update", tmp_path / "out", model.format(file=file, folder=tmp_path), shape)
    assert result.exit_code == 2, result.output
    assert why.format(folder=tmp_path) in " ".join(result.stderr.split()), result.stderr
    assert not (tmp_path / "out").exists()
