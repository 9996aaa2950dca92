"""Recordings of apps that send what they train and leave out what they freeze."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp.strategy import FedAvg
from torch import nn

from strategies.recording.strategy import RecordingStrategy
from tests.lines import read_lines
from tests.simulations.external_app.recorded.recordings import RATE, Torch, invoke, page_of

SOURCE = """
import torch

class Net(torch.nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            self.body = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 40), torch.nn.Tanh())
            self.head = torch.nn.Linear(40, num_classes)
        self.body.requires_grad_(FROZEN)

    def forward(self, images):
        return self.head(self.body(images))
"""


class HeadOnly(Torch):
    """Nodes that are sent a head, train it and reply with it."""

    def answer(self, message: Message) -> Message:
        arrays: Any = message.content["arrays"]
        head: Any = self.model.head
        head.load_state_dict(arrays.to_torch_state_dict())
        message.content["arrays"] = ArrayRecord(self.model.state_dict())
        reply = super().answer(message)
        message.content["arrays"] = arrays  # nodes share it
        return reply

    def arrays(self) -> ArrayRecord:
        head: Any = self.model.head
        return ArrayRecord({name: value.clone() for name, value in head.state_dict().items()})


def net(path: Path, *, frozen: bool) -> nn.Module:
    path.write_text(SOURCE.replace("FROZEN", str(not frozen)))
    spec = importlib.util.spec_from_file_location("net_of_a_test", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model: nn.Module = module.Net(10)
    return model


def record(folder: Path, *, frozen: bool = True) -> Path:
    (folder / "originals").mkdir()
    grid = HeadOnly(net(folder / "net.py", frozen=frozen), 1, 1, folder / "originals", True, 16)
    strategy = RecordingStrategy(FedAvg(fraction_evaluate=0.0), folder / "rec")
    strategy.start(grid, grid.arrays(), num_rounds=1, train_config=ConfigRecord({"lr": RATE}))  # type: ignore[arg-type]
    return folder / "rec"


def test_a_head_alone_is_attacked_with_the_frozen_rest_of_the_model(tmp_path: Path) -> None:
    folder, out = record(tmp_path), tmp_path / "out"
    options = {"model": f"{tmp_path / 'net.py'}:Net", "originals": tmp_path / "originals", "auxiliary": "mnist-5k"}
    attack = "LabelInference(); HeadInversion(iterations=200, total_variation=0)"
    result = invoke(folder, "--local-steps", 1, out=out, attack=attack, **options)
    assert result.exit_code == 0, result.output
    rows = read_lines(out / "rows.jsonl")
    scores = {(row["attack"].partition("(")[0], row["metric"]): row for row in rows}
    assert scores["LabelInference", "label-accuracy"]["value"] == 1.0
    assert scores["HeadInversion", "singular_gap"]["value"] < 1e-3, "the features of one example are exact"
    assert scores["HeadInversion", "relative_loss"]["value"] < 0.1, "and the search comes near to them"
    assert scores["HeadInversion", "psnr"]["n"] == 16
    text = page_of(out)
    assert "Whether training started from the 2 frozen tensors that no message holds" in text
    assert "so they were taken in order" not in text


def test_what_the_model_trains_must_be_in_the_recording(tmp_path: Path) -> None:
    folder = record(tmp_path, frozen=False)
    refused = invoke(folder, "--local-steps", 1, out=tmp_path / "out", model=f"{tmp_path / 'net.py'}:Net")
    assert refused.exit_code == 2
    assert "lacks 'body.1.weight', 'body.1.bias'" in " ".join(refused.output.split())


@pytest.mark.parametrize("part", [(), ("head.",), ("head.", "body.")])
def test_a_reply_is_read_by_full_names_too(part: tuple[str, ...], tmp_path: Path) -> None:
    from simulations.external_app.recorded.replies import fitted

    model = net(tmp_path / "net.py", frozen=True)
    state = {name: value.numpy() for name, value in model.state_dict().items()}
    arrays = {name: value for name, value in state.items() if name.startswith(part or ("head.", "body."))}
    if not part:
        arrays = {str(at): value for at, value in enumerate(arrays.values())}
    found = fitted(arrays, model, "the reply")
    assert {name: value.shape for name, value in found.items()} == {name: one.shape for name, one in state.items()}
