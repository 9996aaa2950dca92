"""Learning rates and local steps that a recording does not state: inferred where a reply proves them, else done without."""

from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord
from flwr.serverapp.strategy import FedAvg
from torch import nn

from clients.models.classifiers import build_model
from simulations.external_app.recorded.replies import INFERRED_RATE
from simulations.external_app.recorded.update_files import fitted, model_tensors, resembles_differences
from simulations.settings.errors import ConfigError
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
    options = {"model": "mlp", "originals": tmp_path / "originals", "update_attacks": f"{DLG}; LabelInference()"}
    result = invoke(folder, "-s", "local-steps=1", out=out, **options)
    assert result.exit_code == 0, result.output
    cards = [row["card"] for row in rows_of(out) if row["attack"] in (DLG, "LabelInference()") and row["card"]]
    assert {card["learning_rate"] for card in cards} == {INFERRED_RATE}
    said = " ".join(result.output.split())
    assert f"The learning rate: {RATE:g}" in said
    assert "Attacks left out" not in said


def test_several_examples_do_not_and_attacks_on_directions_run_without(tmp_path: Path) -> None:
    folder, out = hide(record(tmp_path, model="mlp", each=4, batch=4)), tmp_path / "out"
    attacks = f"{DLG}; InvertingGradients(iterations=2, restarts=1); LabelInference()"
    result = invoke(folder, "-s", "local-steps=1", out=out, model="mlp", update_attacks=attacks)
    assert result.exit_code == 0, result.output
    attacks = {row["attack"].partition("(")[0] for row in rows_of(out) if row["attack"]}
    assert {"InvertingGradients", "LabelInference"} <= attacks
    assert "DLG" not in attacks
    told = " ".join(result.output.split())
    assert "Attacks left out because the learning rate is unknown: DLG(" in told
    assert "The learning rate: it is unknown." in told
    refused = invoke(folder, "-s", "local-steps=1", out=tmp_path / "other", model="mlp", update_attacks=DLG)
    assert refused.exit_code == 2
    assert "learning-rate is missing, and DLG(" in " ".join(refused.output.split())


def test_batch_norm_counts_the_local_steps(tmp_path: Path) -> None:
    """6 examples in batches of 2 are 3 steps; an app that states 2 epochs is contradicted."""
    net = build_model("resnet20", num_classes=10, input_shape=(1, 28, 28), seed=4, norm="batch")
    grid = Torch(net, 6, 2, None, True, 2)
    for name, stated, steps, said in (
        ("silent", {}, 3, "How many local steps there were: inferred from BatchNorm's batch counters"),
        ("stated", {"local-epochs": 2, "batch-size": 2}, 6, "took 6 local steps: BatchNorm's batch counters went up by 3"),
    ):  # fmt: skip
        strategy = RecordingStrategy(FedAvg(fraction_evaluate=0.0), tmp_path / name, settings=stated)
        strategy.start(grid, grid.arrays(), num_rounds=1, train_config=ConfigRecord({"lr": RATE}))  # type: ignore[arg-type]
        out = tmp_path / f"{name}-out"
        result = invoke(tmp_path / name, out=out, model="resnet20", norm="batch", update_attacks="LabelInference()")
        assert result.exit_code == 0, result.output
        (about,) = [row for row in rows_of(out) if row["metric"] == "recorded-updates"]
        assert about["local_steps"] == [steps, steps]
        assert said in " ".join(about["assumed"])


def test_a_head_is_read_by_its_place_by_its_names_and_by_full_names() -> None:
    """Of a model whose body is frozen, replies hold the head alone."""
    body = nn.Linear(784, 40).requires_grad_(False)
    model = nn.Sequential(OrderedDict(flat=nn.Flatten(), body=body, head=nn.Linear(40, 10)))
    state = {name: value.numpy() for name, value in model.state_dict().items()}
    head = {name: value for name, value in state.items() if name.startswith("head.")}
    by_place = {str(at): value for at, value in enumerate(head.values())}
    for arrays in (by_place, head, state):
        found = fitted(arrays, model, "the reply")
        assert {name: value.shape for name, value in found.items()} == {name: one.shape for name, one in state.items()}
        assert (found["head.weight"].numpy() == state["head.weight"]).all()


def test_weights_that_training_shrank_are_weights() -> None:
    generator = torch.Generator().manual_seed(0)
    sent = {"a": torch.randn(40, 50, generator=generator), "b": torch.randn(50, generator=generator)}
    moved = {name: 0.05 * torch.randn(value.shape, generator=generator) for name, value in sent.items()}
    assert resembles_differences(moved, sent)
    assert resembles_differences({name: -0.1 * value for name, value in sent.items()}, sent), "the change of a decay"
    for scale in (0.1, 0.3, 1.0, 2.0):
        assert not resembles_differences({name: scale * value + moved[name] for name, value in sent.items()}, sent)
    assert not resembles_differences(moved, {name: torch.zeros_like(value) for name, value in sent.items()})


def test_local_steps_and_examples_are_counted(tmp_path: Path) -> None:
    folder = record(tmp_path, each=6, batch=2, mu=0.3)
    out = tmp_path / "out"
    result = invoke(folder, "-s", "local-epochs=1", "-s", "batch-size=2", out=out, update_attacks="LabelInference()")
    assert result.exit_code == 0, result.output
    about = next(row for row in read_lines(out / "rows.jsonl") if row["metric"] == "recorded-updates")
    assert about["local_steps"] == [3, 3]
    assert any("a proximal term of weight 0.3" in text for text in about["assumed"])
    assert about["examples"] == [6, 6]
    assert about["clients"] == {"0": "11", "1": "12"}


class Tied(nn.Module):
    """Two names of one weight, and a buffer that is no state."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.register_buffer("grid", torch.ones(4), persistent=False)


def test_names_that_share_a_tensor_are_one_and_their_values_must_agree() -> None:
    model = Tied()
    whole = {name: value.detach().clone() for name, value in model.state_dict().items()}
    expected = {name: whole[name] for name in ("first.weight", "first.bias", "second.bias")}
    second = {"second.weight" if name == "first.weight" else name: value for name, value in expected.items()}
    for held in (whole, expected, second, whole | {"grid": torch.zeros(4)}):
        read = model_tensors("file", held, model)
        assert read.keys() == expected.keys()
        assert all(torch.equal(read[name], value) for name, value in expected.items())
    with pytest.raises(ConfigError, match=r"file: 'first.weight' and 'second.weight', one tensor of the model, differ"):
        model_tensors("file", whole | {"second.weight": torch.zeros(4, 4)}, model)
