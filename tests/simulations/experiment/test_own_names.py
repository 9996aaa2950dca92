"""A model and data that fedveil has never seen, named on the command line, are audited."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from simulations.cli import app
from tests.lines import read_lines

CODE = """
import torch
from torch import nn
from torch.utils.data import TensorDataset


class Net(nn.Module):
    def __init__(self, num_classes, input_shape):
        super().__init__()
        self.first = nn.Linear(torch.tensor(input_shape).prod().item(), 24)
        self.last = nn.Linear(24, num_classes)

    def forward(self, images):
        return self.last(torch.sinc(self.first(images.flatten(1))))


def data():
    images = torch.rand(160, 1, 8, 8, generator=torch.Generator().manual_seed(3))
    return [TensorDataset(part, torch.arange(len(part)) % 4) for part in images.split([120, 40])]
"""

RUN = {
    "model": "mine.py:Net", "dataset": "mine.py:data", "train-limit": 0, "test-limit": 0, "rounds": 1, "batch-size": 4,
    "probe-images": 1, "num-clients": 2, "defenses": "", "update-attacks": "", "attack-rounds": "first",
    "probe-attacks": "InvertingGradients(iterations=40, restarts=2); LabelInference()", "attack-workers": 0, "adaptive": "false",
}  # fmt: skip


@pytest.mark.long
def test_a_run_audits_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_its_own_process: None) -> None:
    monkeypatch.chdir(tmp_path)
    file, out = tmp_path / "mine.py", tmp_path / "run"
    file.write_text(CODE)
    words = [word for key, value in RUN.items() for word in ("-s", f"{key}={value}")]
    result = CliRunner().invoke(app, ["run", "--in-process", "--out", str(out), *words])
    assert result.exit_code == 0, result.output
    config = json.loads((out / "config.json").read_text())["config"]
    assert (config["model"], config["dataset"]) == (f"{file}:Net", f"{file}:data")
    rows = list(read_lines(out / "rows.jsonl"))
    psnr = [row for row in rows if row["metric"] == "psnr" and row["attack"].startswith("InvertingGradients")]
    assert [(row["n"], row["status"]) for row in psnr] == [(8, "under-powered")] * 2, "original and transformed"
    labels = [row for row in rows if row["metric"] == "label-accuracy" and row["attack"] == "LabelInference()"]
    assert [row["value"] for row in labels] == [1.0]
    assert (out / "report.html").is_file()
    file.write_text(CODE + "\n# changed")
    again = CliRunner().invoke(app, ["run", "--in-process", "--resume", str(out)])
    assert again.exit_code == 2
    assert "is not what it was when the run began" in " ".join(again.output.split())
