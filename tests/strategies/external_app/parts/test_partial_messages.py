"""Apps that send a part of a vision transformer: what is audited, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord
from flwr.serverapp.strategy import FedAvg
from torch import nn

from clients.external_app.partial import AppModel, ModelMismatchError
from simulations.audited import audited
from strategies.external_app.preflight import AuditError
from strategies.external_app.replies import unfit
from tests.lines import read_lines
from tests.strategies.external_app.app import EXAMPLES, AppGrid
from tests.strategies.external_app.parts import transformer_app as apps

Build, Part = Callable[[], nn.Module], Callable[[nn.Module], apps.Arrays]


def run(out: Path, build: Build, part: Part, attacks: str) -> list[dict[str, Any]]:
    settings = {"batch-size": EXAMPLES, "local-epochs": 1}
    watched = audited(FedAvg(fraction_evaluate=0.0), out, build, workers=0, probe_attacks=attacks, settings=settings)
    config = ConfigRecord({"lr": apps.LEARNING_RATE})
    grid = AppGrid(apps.app_of(build, part))
    watched.start(grid, apps.record(part(build())), num_rounds=1, train_config=config)
    return list(read_lines(out / "rows.jsonl"))


def value(rows: list[dict[str, Any]], attack: str, metric: str, observation: str = "one-step probe") -> Any:
    (found,) = {
        (row["value"], row["n"])
        for row in rows
        if row["attack"].startswith(attack) and row["metric"] == metric and row["card"]["observation"] == observation
    }
    return found


def page(out: Path) -> str:
    return " ".join((out / "report.html").read_text(encoding="utf-8").split())


def test_an_app_that_trains_a_whole_transformer_gets_a_verdict(tmp_path: Path) -> None:
    rows = run(tmp_path / "out", apps.transformer, apps.whole, "PatchEmbeddingInversion()")
    psnr, count = value(rows, "PatchEmbedding", "psnr")
    assert count == 16
    assert psnr > 40, "exact but for the rounding of float32 weights, whose difference the update is"
    assert "readable (" in page(tmp_path / "out")


@pytest.mark.parametrize(
    ("build", "part"),
    [(apps.head_only, apps.head), (apps.head_only, apps.trained), (apps.last_block, apps.listed)],
    ids=["the head by its own names", "the head", "a list of the last block's arrays"],
)
def test_trained_parameters_alone_are_enough(build: Build, part: Part, tmp_path: Path) -> None:
    rows = run(tmp_path / "out", build, part, "LabelInference(); PatchEmbeddingInversion()")
    assert value(rows, "LabelInference", "label-accuracy") == (1.0, 16)
    assert value(rows, "LabelInference", "label-accuracy", "training update")[0] > 0.5
    differences = [row["value"] for row in rows if row["metric"] == "reply-difference"]
    assert len(differences) == 2
    assert max(differences) < 1e-3, "probes train what the app trains, from the weights from which it does"
    unsent, text = len(AppModel.of(build()).frozen), page(tmp_path / "out")
    assert f"Whether training starts from the {unsent} frozen tensors that no message holds" in text
    assert "does not apply: no trained position embedding of VisionTransformer" in text


def test_the_inputs_of_a_head_are_solved_with_the_frozen_rest_of_the_model(tmp_path: Path) -> None:
    rows = run(tmp_path / "out", apps.head_only, apps.head, "HeadInversion(iterations=3)")
    assert value(rows, "HeadInversion", "label-accuracy") == (1.0, 16)
    assert value(rows, "HeadInversion", "psnr")[1] == 16
    assert value(rows, "HeadInversion", "singular_gap")[0] < 1e-3, "one example, whose features are exact"


def test_nodes_that_build_other_frozen_weights_than_the_server_answer_nothing(tmp_path: Path) -> None:
    torch.manual_seed(0)
    with pytest.raises(AuditError, match="'cls_token', and model builds others at this node than at the server"):
        run(tmp_path / "out", apps.head_of_unlike, apps.head, "LabelInference()")


def test_a_part_that_clients_train_and_keep_is_named(tmp_path: Path) -> None:
    with pytest.raises(AuditError, match=r"no 'head\.weight', a parameter that the model trains.*Send every") as found:
        run(tmp_path / "out", apps.transformer, apps.body, "LabelInference()")
    assert "Name the class" not in str(found.value)


def test_names_of_a_module_fit_if_every_shape_agrees() -> None:
    model = AppModel.of(apps.head_only())
    weight, bias = torch.zeros(10, 32), torch.zeros(10)
    assert list(model.named({"weight": weight, "bias": bias})) == ["head.weight", "head.bias"]
    assert list(model.named({"bias": bias, "weight": weight})) == ["head.bias", "head.weight"]
    assert list(model.named({"0": weight, "1": bias})) == ["head.weight", "head.bias"]
    assert list(model.named({"weight": weight.T, "bias": bias})) == ["weight", "bias"]
    assert list(model.named({"weight": weight, "slope": bias})) == ["head.weight", "head.bias"], "in order, as a list"
    whole = model.whole(model.named({"weight": weight, "bias": bias}))
    assert whole.keys() == model.state.keys()
    assert torch.equal(whole["head.weight"], weight)
    assert torch.equal(whole["pos_embed"], model.state["pos_embed"])


def test_a_module_whose_names_are_also_those_of_the_whole_is_the_trained_one() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4)))
    model[0].requires_grad_(False)
    app, sent = AppModel.of(model), model[1].state_dict()
    assert list(sent) == ["0.weight", "0.bias"]
    assert list(app.named(sent)) == ["1.0.weight", "1.0.bias"]
    assert list(app.named(model.state_dict())) == list(model.state_dict())
    assert list(app.named({"0.weight": sent["0.weight"], "head": sent["0.bias"]})) == ["0.weight", "head"]


def test_a_model_that_was_built_for_inference_trains_all_it_has() -> None:
    app = AppModel.of(nn.Linear(4, 3).requires_grad_(False))
    assert (app.trained, app.frozen) == (("weight", "bias"), ())
    held = {"kernel": torch.ones(7)}
    wrong = unfit(app.named(held), dict(app.state), app)
    assert wrong is not None
    assert wrong[0].startswith("no 'weight'")


def test_of_several_modules_the_trained_one_counts() -> None:
    model: Any = apps.part_of_last_block()
    arrays = model.blocks[1].state_dict()
    app = AppModel.of(model)
    assert all(name.startswith("blocks.1.") for name in app.named(arrays))
    sorted_names = dict(sorted(arrays.items()))
    assert list(app.named(sorted_names)) == [f"blocks.1.{name}" for name in sorted_names]


def test_arrays_that_fit_several_modules_are_refused() -> None:
    weight = torch.zeros(2, 2)
    nested = AppModel({"a.x": weight, "a.b.x": weight, "a.b.b.x": weight}, ("a.b.x",), ("a.x", "a.b.b.x"))
    with pytest.raises(ModelMismatchError, match=r"fit several modules of the model, 'a' and 'a\.b'"):
        nested.named({"x": weight, "b.x": weight})


def test_a_part_of_a_block_is_audited(tmp_path: Path) -> None:
    rows = run(tmp_path / "out", apps.part_of_last_block, apps.last_block_by_its_names, "LabelInference()")
    assert [row for row in rows if row["attack"].startswith("LabelInference") and row["metric"] == "label-accuracy"]


@pytest.mark.parametrize("part", [apps.head, apps.trained])
def test_missing_averages_of_a_frozen_body_are_named_as_such(part: Part, tmp_path: Path) -> None:
    """The message holds the head alone, and the model is right."""
    with pytest.raises(AuditError) as found:
        run(tmp_path / "out", apps.batch_norm_body, part, "LabelInference()")
    text = str(found.value)
    assert "they have no 'body.2.running_mean', a buffer of the model: they begin 'head.weight', 'head.bias'." in text
    assert "Send the buffers" in text
    assert "Name the class" not in text


def test_the_digest_depends_on_names_and_values() -> None:
    one, same, other = (AppModel.of(build()) for build in (apps.head_only, apps.head_only, apps.head_of_unlike))
    assert one.digest(one.frozen) == same.digest(same.frozen) != other.digest(other.frozen)
    assert one.digest(["cls_token"]) != one.digest(["pos_embed"]) != ""
    assert one.digest(["elsewhere"]) == ""
