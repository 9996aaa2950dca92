"""Apps whose messages name arrays otherwise than the model: lists of arrays fit by their order, other models not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from torch import nn
from torch.nn import functional as F

from clients import answer_audits
from clients.external_app.partial import AppModel
from simulations.audited import audited
from tests.lines import read_lines
from tests.strategies.external_app.app import EXAMPLES, MEAN, STD, AppGrid, Net, an_app, digits


class Other(nn.Linear):
    """Not what the app trains."""

    def __init__(self) -> None:
        super().__init__(64, 10)


class Wide(Net):
    """Of the app's names, and another shape."""

    def __init__(self) -> None:
        super().__init__()
        self.body[3] = nn.Linear(32, 12)


def listed(state: dict[str, torch.Tensor]) -> ArrayRecord:
    return ArrayRecord({str(at): Array(one.numpy()) for at, one in enumerate(state.values())})


def app_of_lists() -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = Net()
        sent = [torch.from_numpy(one.numpy()) for one in message.content["arrays"].values()]  # type: ignore
        model.load_state_dict(dict(zip(model.state_dict(), sent, strict=True)))
        images, labels = digits(context).tensors
        F.cross_entropy(model((images - MEAN) / STD), labels).backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        records = {"arrays": listed(model.state_dict()), "metrics": MetricRecord({"num-examples": EXAMPLES})}
        return Message(RecordDict({**records}), reply_to=message)

    answer_audits(app, model=Net, data=digits, mean=MEAN, std=STD)
    return app


def run(app: ClientApp, start: ArrayRecord, out: Path, model: Any = Net) -> None:
    settings = {"batch-size": EXAMPLES, "local-epochs": 1}
    more: dict[str, Any] = {"workers": 0, "probe_attacks": "Spear()", "settings": settings, "go_on": True}
    watched = audited(FedAvg(fraction_evaluate=0.0), out, model, **more)
    watched.start(AppGrid(app), start, num_rounds=1, train_config=ConfigRecord({"lr": 0.1}))


def test_lists_of_arrays_are_taken_in_the_order_of_the_model(tmp_path: Path) -> None:
    """The exact attack finds the pixels: each array stands at its place, in the question and in the answer."""
    torch.manual_seed(0)
    run(app_of_lists(), listed(Net().state_dict()), tmp_path / "out")
    rows = read_lines(tmp_path / "out" / "rows.jsonl")
    (psnr,) = [
        row
        for row in rows
        if row["attack"].startswith("Spear") and (row["metric"], row["reference"]) == ("psnr", "original")
    ]
    assert (psnr["n"], psnr["value"] > 60) == (16, True)
    (labels,) = [row for row in rows if row["metric"] == "label-accuracy" and row["attack"].startswith("LabelInf")]
    assert labels["card"]["observation"] == "training update"


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (Other, "no 'weight': they begin 'body.1.weight', 'body.1.bias', 'body.3.weight'"),
        (Wide, "'body.3.weight' of shape (10, 32), and the model (12, 32)"),
    ],
)
def test_a_model_that_is_not_the_apps_is_told(
    model: Any, why: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("WARNING", logger="flwr"):
        run(an_app(), ArrayRecord(Net().state_dict()), tmp_path / "out", model)
    assert (
        f"the strategy sends other weights than those of the audit's model: they have {why}. Name the class"
        in caplog.text
    )


def test_names_and_shapes_decide() -> None:
    model = AppModel.of(Net())
    state, values = model.state, list(model.state.values())
    assert list(model.named(dict(zip("0123", values, strict=True)))) == list(state)
    assert list(model.named(dict(zip("0123", values[::-1], strict=True)))) == list("0123")
    assert list(model.named(dict(zip("012", values[:3], strict=True)))) == list("012")
    mixed = {"body.3.bias": values[0], "a": values[1], "b": values[2], "c": values[3]}
    assert model.named(mixed) == mixed
