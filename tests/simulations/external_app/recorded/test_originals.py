"""From a page without originals to one with scores, by the lines and the command that the page shows."""

import html
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message
from flwr.serverapp.strategy import FedAvg
from torch.utils.data import DataLoader, TensorDataset
from typer.testing import CliRunner

from clients.flower_private import set_message_id
from clients.models.classifiers import build_model
from simulations.cli import app
from simulations.external_app.recorded.missing import FOLDER
from strategies.recording.strategy import RecordingStrategy
from tests.lines import read_lines
from tests.simulations.external_app.recorded.recordings import (
    MEAN,
    NODES,
    RATE,
    STD,
    Torch,
    digits,
    invoke,
    page_of,
    record,
)


def code_blocks(out: Path) -> Iterator[str]:
    """The text of every <pre> on the page, before its first section."""
    page = (out / "report.html").read_text(encoding="utf-8").partition("<section")[0]
    return map(html.unescape, re.findall("<pre[^>]*>(.*?)</pre>", page, re.DOTALL))


class Saving(Torch):
    """Clients that run the lines of the page, and train on what their loader gives."""

    lines: str = ""

    def answer(self, message: Message) -> Message:
        set_message_id(message, "m")
        node = message.metadata.dst_node_id
        images, labels = digits(NODES.index(node) * self.each, self.each)
        loader = DataLoader(TensorDataset((images - MEAN) / STD, labels), self.batch)
        names: dict[str, Any] = {
            "trainloader": loader, "context": type("Context", (), {"node_id": node}), "msg": message,
        }  # fmt: skip
        exec(self.lines, names)
        for _ in names["trainloader"]:
            pass  # which keeps what it gives
        return super().answer(message)


@pytest.mark.numeric
@pytest.mark.long
def test_the_page_without_scores_shows_how_to_get_them_and_that_works(tmp_path: Path) -> None:
    steps = {"local-epochs": 1, "batch-size": 1}
    folder, out = record(tmp_path, model="mlp", nodes=16, **steps), tmp_path / "out"
    result = invoke(folder, out=out, model="mlp", update_attacks="Spear()")
    assert result.exit_code == 0, result.output
    lines, command = code_blocks(out)
    assert f"mean={MEAN}, std={STD}" in lines

    kept = tmp_path / "kept"
    grid = Saving(build_model("mlp", num_classes=10, input_shape=(1, 28, 28), seed=4), 1, 1, None, True, 16)
    grid.lines = lines.replace(FOLDER, str(kept))
    strategy = RecordingStrategy(FedAvg(fraction_evaluate=0.0), tmp_path / "again", settings=steps)
    strategy.start(grid, grid.arrays(), num_rounds=1, train_config=ConfigRecord({"lr": RATE}))  # type: ignore[arg-type]
    # Split first: the folders of a test may hold spaces.
    places = {f"originals={FOLDER}": f"originals={kept}", "NEW-RECORDING": str(tmp_path / "again")}
    words = [places.get(word, word) for word in shlex.split(command)]
    scored = CliRunner().invoke(app, [*words[1:], "-s", "auxiliary-data=mnist-5k", "--out", str(tmp_path / "scored")])
    assert scored.exit_code == 0, scored.output
    rows = read_lines(tmp_path / "scored" / "rows.jsonl")
    (psnr,) = [row for row in rows if row["metric"] == "psnr" and row["attack"].startswith("Spear")]
    assert (psnr["n"], psnr["status"]) == (16, "ok")
    assert psnr["value"] > 60, "exact but for rounding: the originals are those that were trained on"
    assert not list(code_blocks(tmp_path / "scored"))
    assert '<b class="word recognisable">recognisable</b>' in page_of(tmp_path / "scored")
    (line,) = (line.split() for line in scored.output.splitlines() if " recognisable " in line and "Spear" in line)
    assert line[1].startswith("Spear"), "the verdict of the page"
