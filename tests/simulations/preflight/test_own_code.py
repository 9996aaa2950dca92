"""Own models and own data on the command line: a run audits them, and bad code is refused in one error before any work."""

import json
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from simulations.run.requested import requested
from tests.lines import read_lines
from tests.simulations.commands import fedveil, refused

CODE = """
import random
import sys
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

class Plain(nn.Module):
    def __init__(self, num_classes, input_shape):
        super().__init__()
        self.last = nn.Linear(torch.tensor(input_shape).prod().item(), num_classes)
    def odd(self, features):
        return features
    def forward(self, images):
        return self.last(self.odd(images.flatten(1)))

class Exits(Plain):
    def odd(self, features):
        sys.exit(0)

class Mixed(Plain):
    def odd(self, features):
        return features * features.softmax(0)

def narrow(input_shape):
    return Plain(2, input_shape)

def text():
    return "no model"

def data():
    drawn = {n: torch.rand(n, 1, 8, 8, generator=torch.Generator().manual_seed(n)) for n in (120, 40)}
    return [TensorDataset(images, torch.arange(n) % 4) for n, images in drawn.items()]

def exits():
    sys.exit(0)

class Flips(Dataset):
    targets = [at % 4 for at in range(60)]
    def __len__(self):
        return 60
    def __getitem__(self, at):
        image = torch.linspace(0, 1, 64).view(1, 8, 8)
        # The first of all images never turns, others do in half of the readings.
        return (image.flip(2) if at and random.random() < 0.5 else image), at % 4

def flips():
    return Flips(), Flips()
"""
SMALL = {
    "train-limit": 100, "test-limit": 40, "rounds": 1, "batch-size": 4, "probe-images": 1, "num-clients": 2,
    "defenses": "", "update-attacks": "", "probe-attacks": "LabelInference()", "attack-rounds": "first",
    "attack-workers": 0, "adaptive": "false",
}  # fmt: skip
OWN = {"dataset": "{file}:data", "model": "mlp"}
ATTACK = [
    "attack", "{dir}/update.safetensors", "-s", "num-classes=4", "-s", "input-shape=1,8,8", "-s", "learning-rate=0.1",
]  # fmt: skip
SPLIT = ["run", "--dry-run", "-s", "scenario=split", "-s", "dataset=mnist-5k", "--out", "{dir}/out"]
FILES = {"raises": "x = 1\nraise RuntimeError('gone')", "paints": "raise SystemExit('\\x1b[2J\\x1b]0;x\\x07\\u202e')"}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with models and data; a command lets Python find what lies beside it."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = tmp_path / "mine.py"
    path.write_text(CODE)
    return path


def test_commands_name_setting_code_and_reason_and_write_nothing(file: Path, tmp_path: Path) -> None:
    save_file({"last.weight": torch.ones(4, 64), "last.bias": torch.ones(4)}, tmp_path / "update.safetensors")
    for name, code in FILES.items():
        (tmp_path / f"{name}.py").write_text(code)
    for command, error in (
        (OWN | {"model": "{dir}/none.py:Net"}, "model: there is no file {dir}/none.py"),
        (OWN | {"model": "{dir}/raises.py:Net"}, "model: {dir}/raises.py cannot be imported: RuntimeError: gone (line 2)"),
        (OWN | {"dataset": "{dir}/raises.py:load"}, "dataset: {dir}/raises.py cannot be imported: RuntimeError: gone (line 2)"),
        # Without what a terminal obeys.
        (OWN | {"model": "{dir}/paints.py:Net"}, r"SystemExit: \x1b[2J\x1b]0;x\x07\u202e"),
        (OWN | {"model": "{file}:text"}, "model: {file}:text() returns str; a torch.nn.Module is expected"),
        (OWN | {"model": "{file}:narrow"}, "answers two images with shape (2, 2); logits (2, 4) are expected"),
        (OWN | {"model": "{file}:Exits"}, "SystemExit(0)"),
        (OWN | {"dataset": "{file}:exits"}, "dataset: {file}:exits() raises SystemExit: 0"),
        ([*SPLIT, "-s", "auxiliary-data={file}:exits"], "auxiliary-data: {file}:exits() raises SystemExit: 0"),
        # The first image is the same each time.
        (OWN | {"dataset": "{file}:flips"}, "is another image at every reading; leave augmentations to crop-padding and"),
        # The bound is for each example, whose gradient this model mixes with those of others.
        (OWN | {"model": "{file}:Mixed", "defenses": "DPSGD(noise_multiplier=1.0)"}, "the clipped sum of random examples is not"),
        ([*ATTACK, "-s", "model={file}:Exits"], "SystemExit(0)"),
        ([*ATTACK, "-s", "model={dir}/raises.py:Net"], "model: {dir}/raises.py cannot be imported"),
        ([*ATTACK, "-s", "model={file}:Plain", "-s", "auxiliary-data={file}:exits"], "{file}:exits() raises SystemExit: 0"),
        (["search", "-s", "dataset={file}:exits", "--out", "{dir}/s"], "dataset: {file}:exits() raises SystemExit: 0"),
    ):  # fmt: skip
        words = command
        if isinstance(command, dict):
            set_words = [word for key, value in (SMALL | command).items() for word in ("-s", f"{key}={value}")]
            words = ["run", "--dry-run", "--out", "{dir}/out", *set_words]
        given = [word.replace("{file}", str(file)).replace("{dir}", str(tmp_path)) for word in words]
        said = refused(*given)
        assert error.replace("{file}", str(file)).replace("{dir}", str(tmp_path)) in said
        assert "\x1b" not in said
        assert not [name for name in ("out", "s") if (tmp_path / name).exists()]


def test_files_of_settings_become_absolute(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    split = {"scenario": "split", "dataset": "mnist-5k", "attack-workers": 0, "auxiliary-data": "mine.py:data"}
    assert requested(None, split, tmp_path / "out").auxiliary_data == f"{file}:data"


@pytest.mark.long
def test_a_model_and_data_that_fedveil_has_never_seen_are_audited(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_its_own_process: None
) -> None:
    monkeypatch.chdir(tmp_path)
    out, attacks = tmp_path / "run", "InvertingGradients(iterations=40, restarts=2); LabelInference()"
    own = {"model": "mine.py:Plain", "dataset": "mine.py:data", "probe-attacks": attacks}
    words = [word for key, value in (SMALL | own).items() for word in ("-s", f"{key}={value}")]
    code, told = fedveil("run", "--in-process", "--out", out, *words)
    assert code == 0, told
    config = json.loads((out / "config.json").read_text())["config"]
    assert (config["model"], config["dataset"]) == (f"{file}:Plain", f"{file}:data")
    rows = list(read_lines(out / "rows.jsonl"))
    psnr = [row for row in rows if row["metric"] == "psnr" and row["attack"].startswith("InvertingGradients")]
    assert [(row["n"], row["status"]) for row in psnr] == [(8, "under-powered")] * 2, "original and transformed"
    labels = [row for row in rows if row["metric"] == "label-accuracy" and row["attack"] == "LabelInference()"]
    assert [row["value"] for row in labels] == [1.0]
    assert (out / "report.html").is_file()
    file.write_text(CODE + "\n# changed")
    assert "is not what it was when the run began" in refused("run", "--in-process", "--resume", out)
