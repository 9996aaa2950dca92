"""What replies hold, and where the numbers of training come from: rate, steps and batch size of a recording."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp.strategy import FedProx
from safetensors.torch import load_file

from clients.models.classifiers import build_model
from simulations.external_app.recorded.update_files import resembles_differences
from strategies.external_app.orders import OF_ROUND, OF_SETTINGS
from strategies.recording.strategy import RecordingStrategy
from tests.lines import read_lines
from tests.simulations.external_app.recorded.recordings import (
    EXACT,
    NODES,
    RATE,
    Torch,
    digits,
    invoke,
    page_of,
    record,
)


class Differences(Torch):
    """Clients that send how their weights changed."""

    def answer(self, message: Message) -> Message:
        reply = super().answer(message)
        sent, came = (one.content["arrays"].to_torch_state_dict() for one in (message, reply))
        reply.content["arrays"] = ArrayRecord({name: came[name] - sent[name] for name in came})
        return reply


def test_replies_that_hold_differences_are_refused_and_can_be_attacked_as_single_updates(tmp_path: Path) -> None:
    net = build_model("mlp", num_classes=10, input_shape=(1, 28, 28), seed=4)
    grid = Differences(net, 1, 1, None, True, 2)
    strategy = RecordingStrategy(FedProx(fraction_evaluate=0.0, proximal_mu=0.0), tmp_path / "rec")
    strategy.start(grid, grid.arrays(), num_rounds=1, train_config=ConfigRecord({"lr": RATE}))  # type: ignore[arg-type]
    result = invoke(tmp_path / "rec", "--local-steps", 1, out=tmp_path / "out", attack=EXACT, model="mlp")
    assert result.exit_code == 2
    assert "seems to hold differences (local - global), not weights" in " ".join(result.output.split())
    assert not (tmp_path / "out").exists()
    first = tmp_path / "rec" / "round-0001"
    single = invoke(
        first / "train-0000-0.safetensors", out=tmp_path / "single", attack=EXACT, model="mlp",
        weights=first / "sent-0-0.safetensors", learning_rate=RATE,
    )  # fmt: skip
    assert single.exit_code == 0, single.output
    images = load_file(tmp_path / "single" / "guesses.safetensors")["Spear/images"]
    node = json.loads((first / "train-0000.json").read_text())["node"]  # nodes are asked in any order
    torch.testing.assert_close(images, digits(NODES.index(int(node)), 1)[0], atol=1e-3, rtol=0)


def test_weights_that_training_shrank_are_weights() -> None:
    generator = torch.Generator().manual_seed(0)
    sent = {"a": torch.randn(40, 50, generator=generator), "b": torch.randn(50, generator=generator)}
    moved = {name: 0.05 * torch.randn(value.shape, generator=generator) for name, value in sent.items()}
    assert resembles_differences(moved, sent)
    assert resembles_differences({name: -0.1 * value for name, value in sent.items()}, sent), "the change of a decay"
    for scale in (0.1, 0.3, 1.0, 2.0):
        assert not resembles_differences({name: scale * value + moved[name] for name, value in sent.items()}, sent)
    assert not resembles_differences(moved, {name: torch.zeros_like(value) for name, value in sent.items()})


def test_where_the_learning_rate_comes_from_is_on_the_card(tmp_path: Path) -> None:
    folder = record(tmp_path, **{"local-epochs": 1, "batch-size": 1})
    told = {}
    for name, options in (("round", {}), ("option", {"learning_rate": RATE})):
        result = invoke(
            folder, out=tmp_path / name, attack="LabelInference()", originals=tmp_path / "originals", **options
        )
        assert result.exit_code == 0, result.output
        rows = [row for row in read_lines(tmp_path / name / "rows.jsonl") if row["attack"] == "LabelInference()"]
        told[name] = {row["card"]["learning_rate"] for row in rows}
    assert told == {"round": {OF_ROUND}, "option": {"as --learning-rate says, the same in every round"}}
    for file in (folder / "round-0001").glob("*.json"):
        file.write_text(file.read_text().replace('"lr"', '"rate"'))
    about = json.loads((folder / "recording.json").read_text())
    (folder / "recording.json").write_text(json.dumps(about | {"settings": about["settings"] | {"lr": RATE}}))
    result = invoke(folder, out=tmp_path / "settings", attack="LabelInference()")
    assert result.exit_code == 0, result.output
    rows = [row for row in read_lines(tmp_path / "settings" / "rows.jsonl") if row["attack"] == "LabelInference()"]
    assert {row["card"]["learning_rate"] for row in rows} == {OF_SETTINGS}


def test_several_local_steps_are_counted(tmp_path: Path) -> None:
    folder = record(tmp_path, each=6, batch=2, mu=0.3)
    out = tmp_path / "out"
    result = invoke(folder, "--local-epochs", 1, "--batch-size", 2, out=out, attack="LabelInference()")
    assert result.exit_code == 0, result.output
    about = next(row for row in read_lines(out / "rows.jsonl") if row["metric"] == "recorded-updates")
    assert about["local_steps"] == [3, 3]
    assert any("a proximal term of weight 0.3" in text for text in about["assumed"])
    assert about["examples"] == [6, 6]
    assert about["clients"] == {"0": "11", "1": "12"}


@pytest.mark.parametrize(("options", "told"), [({}, True), ({"batch_size": 2}, False)])
def test_steps_without_a_batch_size_are_said_to_be_of_full_batches(
    tmp_path: Path, options: dict[str, Any], told: bool
) -> None:
    folder, out = record(tmp_path, each=6, batch=2), tmp_path / "out"
    result = invoke(folder, "--local-steps", 3, out=out, attack="LabelInference()", **options)
    assert result.exit_code == 0, result.output
    about = next(row for row in read_lines(out / "rows.jsonl") if row["metric"] == "recorded-updates")
    said = "How many examples a step saw: all of them in each of the 3 local steps, for want of --batch-size."
    assert (said in about["assumed"]) == told
    assert (said in " ".join((out / "report.html").read_text(encoding="utf-8").split())) == told


def test_a_batch_size_that_the_recording_tells_is_not_assumed(tmp_path: Path) -> None:
    folder, out = record(tmp_path, each=6, batch=2, **{"batch-size": 2}), tmp_path / "out"
    result = invoke(folder, "--local-steps", 3, out=out, attack="LabelInference()")
    assert result.exit_code == 0, result.output
    about = next(row for row in read_lines(out / "rows.jsonl") if row["metric"] == "recorded-updates")
    assert not any("How many examples a step saw" in text for text in about["assumed"])


class Falling(FedProx):
    """0.1 in the first round, 0.01 in the second."""

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Any) -> Any:
        config["lr"] = 0.1**server_round
        return super().configure_train(server_round, arrays, config, grid)


def test_every_learning_rate_of_the_rounds_is_told(tmp_path: Path) -> None:
    net = build_model("lenet", num_classes=10, input_shape=(1, 28, 28), seed=4)
    grid = Torch(net, 1, 1, None, True, 2)
    strategy = RecordingStrategy(Falling(fraction_evaluate=0.0, proximal_mu=0.0), tmp_path / "rec")
    strategy.start(grid, grid.arrays(), num_rounds=2, train_config=ConfigRecord({"lr": RATE}))  # type: ignore[arg-type]
    result = invoke(tmp_path / "rec", "--local-steps", 1, out=tmp_path / "out", attack="LabelInference()")
    assert result.exit_code == 0, result.output
    about = next(row for row in read_lines(tmp_path / "out" / "rows.jsonl") if row["metric"] == "recorded-updates")
    assert any(text.startswith("The learning rate: 0.1, 0.01 was read") for text in about["assumed"])
    assert "Learning rates differ" not in result.output
    # One rate for all rounds is that of the first alone.
    result = invoke(
        tmp_path / "rec", "--local-steps", 1, out=tmp_path / "given", attack="LabelInference()", learning_rate=0.1
    )
    assert result.exit_code == 0, result.output
    text = "Learning rates differ in round 2: attacks use 0.1 for every client, and 2 of 2 clients were sent or reported 0.01."
    assert text in " ".join(result.output.split())
    assert text in page_of(tmp_path / "given")
    assert "Learning rates differ in round 1" not in page_of(tmp_path / "given")
