"""Learning rates and local steps that a recording does not state: inferred where a reply proves them, else done without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord
from flwr.serverapp.strategy import FedAvg

from clients.models.classifiers import build_model
from simulations.external_app.recorded.replies import INFERRED_RATE
from strategies.recording.strategy import RecordingStrategy
from tests.lines import read_lines
from tests.simulations.external_app.recorded.recordings import DLG, RATE, Torch, invoke, record


def hide(folder: Path) -> Path:
    """The recording without its learning rate."""
    for file in folder.glob("round-*/sent.json"):
        file.write_text(file.read_text().replace('"lr"', '"unnamed"'))
    return folder


def rows_of(out: Path) -> list[Any]:
    return list(read_lines(out / "rows.jsonl"))


def test_one_example_proves_the_learning_rate(tmp_path: Path) -> None:
    folder, out = hide(record(tmp_path, model="mlp")), tmp_path / "out"
    options = {"model": "mlp", "originals": tmp_path / "originals", "attack": f"{DLG}; LabelInference()"}
    result = invoke(folder, "--local-steps", 1, out=out, **options)
    assert result.exit_code == 0, result.output
    cards = [row["card"] for row in rows_of(out) if row["attack"] in (DLG, "LabelInference()") and row["card"]]
    assert {card["learning_rate"] for card in cards} == {INFERRED_RATE}
    said = " ".join(result.output.split())
    assert f"The learning rate: {RATE:g}" in said
    assert "was inferred from the last layer's update" in said
    assert "Attacks left out" not in said
    assert "was inferred from the last layer&#39;s update" in (out / "report.html").read_text(encoding="utf-8")


def test_several_examples_do_not_and_attacks_on_directions_run_without(tmp_path: Path) -> None:
    folder, out = hide(record(tmp_path, model="mlp", each=4, batch=4)), tmp_path / "out"
    cosine = "InvertingGradients(iterations=2, restarts=1)"
    result = invoke(folder, "--local-steps", 1, out=out, model="mlp", attack=f"{DLG}; {cosine}; LabelInference()")
    assert result.exit_code == 0, result.output
    attacks = {row["attack"].partition("(")[0] for row in rows_of(out) if row["attack"]}
    assert {"InvertingGradients", "LabelInference"} <= attacks
    assert "DLG" not in attacks
    page = (out / "report.html").read_text(encoding="utf-8")
    for text in (" ".join(result.output.split()), " ".join(page.split())):
        assert "Attacks left out because the learning rate is unknown: DLG(" in text
        assert "The learning rate: it is unknown." in text
    refused = invoke(folder, "--local-steps", 1, out=tmp_path / "other", model="mlp", attack=DLG)
    assert refused.exit_code == 2
    assert "--learning-rate is missing, and DLG(" in " ".join(refused.output.split())


def test_a_single_update_without_a_learning_rate_is_attacked(tmp_path: Path) -> None:
    first = record(tmp_path, model="mlp") / "round-0001"
    words = {"model": "mlp", "weights": first / "sent-0-0.safetensors", "attack": f"{DLG}; LabelInference()"}
    update = first / "train-0000-0.safetensors"
    result = invoke(update, "--local", out=tmp_path / "one", **words)
    assert result.exit_code == 0, result.output
    assert f"the learning rate {RATE:g}" in " ".join(result.output.split())
    result = invoke(update, "--local", out=tmp_path / "two", num_examples=2, **words)
    assert "Attacks left out because the learning rate is unknown: DLG(" in " ".join(result.output.split())


@pytest.mark.parametrize("stated", [{}, {"local-epochs": 2, "batch-size": 2}])
def test_batch_norm_counts_the_local_steps(tmp_path: Path, stated: dict[str, int]) -> None:
    """6 examples in batches of 2 are 3 steps; an app that states 2 epochs is contradicted."""
    (tmp_path / "file.py").write_text(
        "import torch\n\n\nclass Net(torch.nn.Sequential):\n    def __init__(self, num_classes):\n"
        "        super().__init__(torch.nn.Flatten(), torch.nn.Linear(784, 8), torch.nn.BatchNorm1d(8),\n"
        "                         torch.nn.ReLU(), torch.nn.Linear(8, num_classes))\n"
    )
    model = f"{tmp_path / 'file.py'}:Net"
    net = build_model(model, num_classes=10, input_shape=(1, 28, 28), seed=4, norm="batch")
    grid = Torch(net, 6, 2, None, True, 2)
    strategy = RecordingStrategy(FedAvg(fraction_evaluate=0.0), tmp_path / "rec", settings=stated)
    strategy.start(grid, grid.arrays(), num_rounds=1, train_config=ConfigRecord({"lr": RATE}))  # type: ignore[arg-type]
    result = invoke(tmp_path / "rec", out=tmp_path / "out", model=model, norm="batch", attack="LabelInference()")
    assert result.exit_code == 0, result.output
    (about,) = [row for row in rows_of(tmp_path / "out") if row["metric"] == "recorded-updates"]
    told = " ".join(about["assumed"])
    if stated:
        assert about["local_steps"] == [6, 6]
        assert "Whether clients took 6 local steps: BatchNorm's batch counters went up by 3" in told
    else:
        assert about["local_steps"] == [3, 3]
        assert "How many local steps there were: inferred from BatchNorm's batch counters" in told
