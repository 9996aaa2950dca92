"""From a page without originals to one with scores, by the lines and the command that the page shows."""

from __future__ import annotations

import html
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from typer.testing import CliRunner

from clients.models.classifiers import build_model
from simulations.cli import app
from simulations.external_app.recorded.arguments.originals_files import FOLDER
from strategies.recording.strategy import RecordingStrategy
from tests.lines import read_lines
from tests.simulations.external_app.recorded.recordings import MEAN, NODES, RATE, STD, Torch, digits, invoke, record


def code_blocks(out: Path) -> Iterator[str]:
    """The text of every <pre> on the page, before its first section."""
    page = (out / "report.html").read_text(encoding="utf-8").partition("<section")[0]
    return map(html.unescape, re.findall("<pre[^>]*>(.*?)</pre>", page, re.DOTALL))


class Saving(Torch):
    """Clients that run the lines of the page, and train on a shuffled loader."""

    lines: str = ""

    def answer(self, message: Message) -> Message:
        message.metadata.__dict__["_message_id"] = "m"
        node, config = message.metadata.dst_node_id, message.content["config"]
        images, labels = digits(NODES.index(node) * self.each, self.each)
        data = TensorDataset((images - MEAN) / STD, labels)
        shuffled = DataLoader(data, self.batch, shuffle=True, generator=torch.Generator().manual_seed(node))
        context = type("Context", (), {"node_id": node})
        names: dict[str, Any] = {"trainloader": shuffled, "context": context, "msg": message}
        exec(self.lines, names)
        self.model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD(self.model.parameters(), lr=config["lr"])
        for batch, classes in names["trainloader"]:
            optimizer.zero_grad()
            F.cross_entropy(self.model(batch), classes).backward()
            optimizer.step()
        content = RecordDict({"arrays": self.arrays(), "metrics": MetricRecord({"num-examples": self.each})})
        return Message(content, reply_to=message)

    def arrays(self) -> ArrayRecord:
        return ArrayRecord({name: value.clone() for name, value in self.model.state_dict().items()})


def test_the_page_without_scores_shows_how_to_get_them_and_that_works(tmp_path: Path) -> None:
    steps = {"local-epochs": 1, "batch-size": 1}
    folder, out = record(tmp_path, model="mlp", nodes=16, **steps), tmp_path / "out"
    result = invoke(folder, out=out, model="mlp", attack="Spear()")
    assert result.exit_code == 0, result.output
    assert "clients.save_originals keeps the originals in the client" in " ".join(result.output.split())
    top = " ".join((out / "report.html").read_text(encoding="utf-8").partition("<section")[0].split())
    assert (
        "The attacks ran on 16 replies. Guesses of images are among the pictures below, if an attack made any." in top
    )
    lines, command = code_blocks(out)
    assert f"mean={MEAN}, std={STD}" in lines

    kept = tmp_path / "kept"
    grid = Saving(build_model("mlp", num_classes=10, input_shape=(1, 28, 28), seed=4), 1, 1, None, True, 16)
    grid.lines = lines.replace(FOLDER, str(kept))
    strategy = RecordingStrategy(FedAvg(fraction_evaluate=0.0), tmp_path / "again", settings=steps)
    strategy.start(grid, grid.arrays(), num_rounds=1, train_config=ConfigRecord({"lr": RATE}))  # type: ignore[arg-type]
    words = shlex.split(command.replace(FOLDER, str(kept)).replace("NEW-RECORDING", str(tmp_path / "again")))
    scored = CliRunner().invoke(app, [*words[1:], "--auxiliary", "mnist-5k", "--out", str(tmp_path / "scored")])
    assert scored.exit_code == 0, scored.output
    (psnr,) = [
        row
        for row in read_lines(tmp_path / "scored" / "rows.jsonl")
        if row["metric"] == "psnr" and row["attack"].startswith("Spear")
    ]
    assert psnr["n"] == 16
    assert psnr["value"] > 60, "exact but for rounding: the originals are those that were trained on"
    assert not list(code_blocks(tmp_path / "scored"))
