"""``fedveil attack FOLDER``: from the recording of a strategy to a report, with and without the true images."""

import html
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord, Message
from flwr.serverapp.strategy import FedAvg
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch.utils.data import DataLoader, TensorDataset
from typer.testing import CliRunner

from attacks.metrics.names import GuessName, Role
from attacks.scoring.metrics import optimal_assignment
from clients.data.datasets import load_dataset
from clients.flower_private import set_message_id
from clients.models.classifiers import build_model
from simulations.cli import app
from simulations.external_app.recorded import audit
from simulations.external_app.recorded.missing import FOLDER
from simulations.external_app.recorded.originals import Truth
from strategies.recording.strategy import RecordingStrategy
from tests.lines import read_lines
from tests.simulations.external_app.recorded.recordings import (
    EXACT,
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

pytestmark = pytest.mark.usefixtures("as_its_own_process")


def test_what_a_recorded_app_says_about_its_privacy_is_on_the_page_and_in_json(tmp_path: Path) -> None:
    """The metrics of every reply, and the strategy's wrapper by its name; JSON of a recording has no infinity."""
    folder, out = record(tmp_path, rounds=2), tmp_path / "out"
    given = {"update_attacks": "LabelInference()"}
    without = invoke(folder, "-s", "local-steps=1", "--json", out=tmp_path / "without", **given)
    assert not json.loads(without.stdout)["claims"]
    about = json.loads((folder / "recording.json").read_text())
    wrapper = "DifferentialPrivacyServerSideFixedClipping"
    (folder / "recording.json").write_text(json.dumps(about | {"strategy": [wrapper, *about["strategy"]]}))
    for path, epsilon in zip(sorted(folder.glob("round-*/train-*.json")), (2.5, 7.0, "inf", 4.0), strict=True):
        reply = json.loads(path.read_text())
        reply["metrics"]["metrics"] |= {"epsilon": epsilon, "delta": 1e-5}
        path.write_text(json.dumps(reply))
    result = invoke(folder, "-s", "local-steps=1", "--json", out=out, **given)
    assert result.exit_code == 0, result.output
    metrics, server = json.loads(result.stdout)["claims"]
    assert (metrics["epsilon"], metrics["lowest"], metrics["delta"], metrics["rounds"]) == (7.0, 2.5, 1e-5, 2)
    assert "1 value of epsilon was left out" in metrics["text"]
    assert f"The server's {wrapper} claims differential privacy in 2 rounds" in server["text"]
    said = [metrics["text"], server["text"]]
    assert all(row["card"]["claimed_privacy"] == said for row in read_lines(out / "rows.jsonl"))
    assert all(text in html.unescape(page_of(out)) for text in said)


def test_guesses_are_pictured_under_the_number_of_the_original_that_they_are_scored_against(tmp_path: Path) -> None:
    folder, out = record(tmp_path, model="mlp", each=4, batch=4), tmp_path / "out"
    attack = "InvertingGradients(iterations=2, restarts=1, max_images=2)"
    options = {"originals": tmp_path / "originals", "update_attacks": attack, "model": "mlp"}
    assert invoke(folder, "-s", "local-steps=1", out=out, **options).exit_code == 0
    shown = [one for one in read_lines(out / "pictures" / "index.jsonl") if one["client"] == 0]
    guesses = load_file(out / "guesses" / "round-0001-client-0.safetensors")["InvertingGradients/images"]
    truth = load_file(tmp_path / "originals" / "round-0001-node-11.safetensors")["images"]
    numbers = optimal_assignment(guesses, truth)[1].tolist()
    assert [one["image"] for one in shown if one["kind"] == "original"] == [0, 1, 2, 3]
    assert [one["image"] for one in shown if one["kind"] == "reconstruction"] == sorted(numbers)
    told = json.loads((out / "config.json").read_text())
    assert (told["config"]["scenario"], told["progress"]["finished"]) == ("recording", True)
    assert not (out / "jobs").exists()


@pytest.mark.long
def test_normalised_originals_are_no_decoys_nor_to_learn_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The digits of the clients are of the auxiliary data set, too, and differ from it by float errors."""
    folder = record(tmp_path, model="mlp", nodes=16, **{"local-epochs": 1, "batch-size": 1})
    true = set[bytes]()
    for file in (tmp_path / "originals").iterdir():
        with safe_open(file, framework="pt") as found:
            images, labels = found.get_tensor("images"), found.get_tensor("labels")
        true.add((images * 255).round().to(torch.uint8).numpy().tobytes())
        again = (((images - MEAN) / STD) * STD + MEAN).clamp(0, 1)
        assert not torch.equal(again, images)
        save_file({"images": again, "labels": labels}, file)
    learned = list[Any]()
    real = audit.fit
    monkeypatch.setattr(audit, "fit", lambda a, s, known: (learned.append(known), real(a, s, known))[1])
    options = {
        "originals": tmp_path / "originals", "auxiliary_data": "mnist-5k", "model": "mlp", "update_attacks": EXACT,
    }  # fmt: skip
    result = invoke(folder, out=tmp_path / "out", **options)
    assert result.exit_code == 0, result.output
    rows = read_lines(tmp_path / "out" / "rows.jsonl")
    (picked,) = [row for row in rows if row["metric"] == "identified" and row["attack"].startswith("Spear")]
    assert (picked["value"], picked["n"]) == (1.0, 16)
    pixels = [(one * 255).round().to(torch.uint8).numpy().tobytes() for one in learned[0].auxiliary.images]
    total = len(load_dataset("mnist-5k").train)
    assert true.isdisjoint(pixels)
    assert len(pixels) == total - 16 == total - len(true)
    said = f"16 of the {total} images of auxiliary-data mnist-5k are true images"
    assert said in page_of(tmp_path / "out")
    assert f"whose originals are not here: {said}" in " ".join(result.output.split())


def test_without_other_images_there_is_no_mean_image() -> None:
    """The mean of none is no baseline; grey under its name was one."""
    dark = 0.3 * torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    assert GuessName(Role.NULL_BASELINE, "mean") not in Truth(dark, None, dark[:0]).baselines(10)
    other = torch.full((1, 1, 8, 8), 0.25)
    found = Truth(dark, None, other).baselines(10)[GuessName(Role.NULL_BASELINE, "mean")]["mse", "original"]
    expected = (dark - 0.25).square().mean((1, 2, 3))  # guesses are alike, so that any assignment is the best
    torch.testing.assert_close(torch.tensor(sorted(found)), expected.sort().values)


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
    result = invoke(folder, out=out, model="mlp", update_attacks="SpearPlusPlus()")
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
