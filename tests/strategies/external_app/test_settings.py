"""What is wrong with what somebody says of an audit is told before a run begins, or blames whoever it is about."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from torch import nn

from clients import answer_audits
from clients.external_app.client import DataMistake, read_data
from defenses.pipeline import Pipeline
from simulations.audited import audited
from simulations.external_app.study import ForeignPipeline
from strategies.external_app.settings import AuditSettings
from tests.strategies.external_app.app import AppGrid, Net, an_app, digits

NAN, INF = float("nan"), float("inf")


class Needy(nn.Linear):
    """Is not built without arguments."""


def nothing() -> None:
    """Builds no model."""


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("momentum", "a", "a number, at least 0, below 1"),
        ("momentum", NAN, "a number, at least 0, below 1"),
        ("momentum", 1, "a number, at least 0, below 1"),
        ("weight_decay", NAN, "a number, at least 0"),
        ("weight_decay", -1, "a number, at least 0"),
        ("probe_images", 1.5, "a whole number, at least 1"),
        ("probe_images", 10**9, "a whole number, at least 1, at most 1048576"),
        ("probe_targets", INF, "a whole number, 0, or at least 1"),
        ("seed", "a", "a whole number, at least 0"),
        ("seed", -1, "a whole number, at least 0"),
        ("seed", True, "a whole number, at least 0"),
        ("workers", -1, "a whole number, at least 0, at most 1024"),
        ("workers", 0.5, "a whole number, at least 0, at most 1024"),
        ("workers", 10**9, "a whole number, at least 0, at most 1024"),
        ("timeout", -1, "a number, at least 0.001"),
        ("timeout", 0, "a number, at least 0.001"),
        ("timeout", "x", "a number, at least 0.001"),
        ("share_images", "yes", "True or False"),
        ("settings", "x", "a mapping"),
        ("settings", None, "a mapping"),
        ("probe_attacks", None, "a text"),
    ],
)
@pytest.mark.parametrize("folder", [True, False])
def test_values_out_of_range_are_refused_at_once(
    name: str, value: Any, allowed: str, folder: bool, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=f"{name} is .*; allowed: {allowed}"):
        audited(FedAvg(), tmp_path / "out" if folder else "", Net, **{name: value})


def test_an_audit_without_attacks_is_none() -> None:
    with pytest.raises(ValueError, match="probe_attacks and update_attacks name no attack"):
        AuditSettings(Net, probe_attacks="", update_attacks=" ")
    with pytest.raises(TypeError, match="bogus"):
        audited(FedAvg(), "", Net, bogus=1)


def test_numbers_of_numpy_are_plain_ones() -> None:
    told = AuditSettings(Net, probe_images=np.int64(2), momentum=np.float32(0.5), seed=np.uint8(3))  # type: ignore
    assert (told.probe_images, told.momentum, told.seed) == (2, 0.5, 3)
    assert {type(told.probe_images), type(told.momentum), type(told.seed)} == {int, float}


@pytest.mark.parametrize(("model", "why"), [(Needy, "fails: TypeError"), (nothing, "gives NoneType")])
def test_a_model_that_cannot_be_built_is_refused_at_the_server(model: Any, why: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"model is .*{why}.*allowed: a class or function that builds the model"):
        audited(FedAvg(), tmp_path / "out", model)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"model": Net()}, TypeError),
        ({"data": [1, 2]}, TypeError),
        ({"loss": None}, TypeError),
        ({"loss": nn.CrossEntropyLoss}, TypeError),
        ({"mods": "LocalDpMod"}, TypeError),
        ({"mods": ["LocalDpMod"]}, TypeError),
        ({"mean": NAN}, ValueError),
        ({"mean": 100.0}, ValueError),
        ({"mean": "a"}, ValueError),
        ({"std": INF}, ValueError),
        ({"std": (0.5, 0.0, 0.5)}, ValueError),
    ],
)
def test_what_an_app_gives_is_checked_when_it_is_loaded(wrong: dict[str, Any], error: type[Exception]) -> None:
    (name,) = wrong
    with pytest.raises(error, match=rf"answer_audits: {name} is .*; allowed: "):
        answer_audits(an_app(audited=False), **{"model": Net, "data": digits, **wrong})
    with pytest.raises(TypeError, match=r"app is .*; allowed: a ClientApp"):
        answer_audits(nothing, model=Net, data=digits)  # type: ignore[arg-type]


def test_an_app_is_told_once() -> None:
    app = an_app()
    with pytest.raises(ValueError, match="answer_audits: this app answers audits already; call it once"):
        answer_audits(app, model=Net, data=digits)


@pytest.mark.long
def test_an_audit_leaves_no_empty_folders_and_says_what_it_waits_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="flwr"):
        run(an_app(), tmp_path / "out", workers=1)
    assert "Audit: waiting for attacks on" in caplog.text
    assert sorted(path.name for path in (tmp_path / "out").iterdir() if path.is_dir()) == ["pictures"]


def test_pipelines_of_other_mods_are_told_apart() -> None:
    assert ForeignPipeline(text="a") == ForeignPipeline(text="a")
    assert len({ForeignPipeline(text="a"), ForeignPipeline(text="b"), Pipeline()}) == 3
    assert str(ForeignPipeline(text="a | b")) == "a | b"


def run(app: ClientApp, out: Path, **told: Any) -> None:
    watched = audited(
        FedAvg(fraction_evaluate=0.0),
        out,
        Net,
        **{"workers": 0, "probe_attacks": "LabelInference()", "go_on": True, **told},
    )
    start = ArrayRecord(Net().state_dict())
    watched.start(AppGrid(app), start, num_rounds=1, train_config=ConfigRecord({"lr": 0.1}))


@pytest.mark.parametrize(
    ("app", "told", "why"),
    [
        ({"model": Needy}, {}, "ValueError: model is .*Needy.*, which fails: TypeError"),
        ({}, {"probe_images": 25}, "DataMistake: probe_images is 25; data gives 24 examples at this node"),
        ({"mean": (0.5, 0.5), "std": 1.0}, {}, "DataMistake: mean is .*expected a number each, or 1"),
    ],
)
def test_an_app_that_answers_wrongly_is_not_said_to_lack_the_answers(
    app: dict[str, Any], told: dict[str, Any], why: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("WARNING", logger="flwr"):
        run(an_app(**app), tmp_path / "out", **told)
    assert "does the ClientApp call answer_audits?" not in caplog.text
    (line,) = [line for line in caplog.messages if "no node answers audits" in line]
    assert re.search(f"no node answers audits: {why}", line), line


def test_a_class_between_two_is_none() -> None:
    with pytest.raises(DataMistake, match=r"a class is 3\.7; expected a whole number"):
        read_data([(torch.zeros(1, 2, 2), 3.7)])  # type: ignore[arg-type]
