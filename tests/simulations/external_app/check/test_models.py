"""Which of an app's classes and calls has the arrays that a server sends."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from simulations.external_app.check.refusals import in_the_trial
from simulations.external_app.check.source.project import Project
from simulations.external_app.check.trial.models import find_models

SOURCE = """
from torch import nn
from torchvision.models import resnet18

class Wide(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layer = nn.Linear(width, 2)

class Other(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

class Net(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.layer, self.norm = nn.Linear(width, 2), nn.BatchNorm1d(2)
        self.layer.bias.requires_grad_(False)

class Broken(nn.Module):
    def __init__(self):
        raise OSError("no weights here")

class Tuned(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(6, 7), nn.BatchNorm1d(7)), nn.Linear(7, 9)
        self.body.requires_grad_(False)

class Empty(nn.Module):
    pass

def tiny(classes=10):
    return nn.Linear(5, classes)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "models_of_a_test.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.import_module("models_of_a_test")
    yield tmp_path
    del sys.modules["models_of_a_test"]


def arrays(model: nn.Module, *, named: bool = True) -> list[list[Any]]:
    return [
        [name if named else str(at), list(one.shape), "float32"]
        for at, (name, one) in enumerate(model.state_dict().items())
    ]


def call(name: str, *arguments: Any, known: bool = True) -> dict[str, Any]:
    return {"target": f"models_of_a_test:{name}", "arguments": list(arguments), "keywords": [], "known": known}


def net() -> nn.Module:
    return importlib.import_module("models_of_a_test").Net()  # type: ignore[no-any-return]


def test_a_class_with_the_same_names_and_shapes_is_found_among_others(folder: Path) -> None:
    found = find_models(folder, arrays(net()), [])
    assert (found["model"], found["by"]) == ("models_of_a_test:Net", "names")
    others = {"dropout": False, "embeds": False, "convolves": False, "transformer": False}
    assert found["facts"] == {"parameters": 14, "batch_norm": True, "frozen": 1, **others}


def test_lists_of_arrays_are_matched_in_order(folder: Path) -> None:
    assert (find_models(folder, arrays(net(), named=False), [])["by"]) == "order"
    assert find_models(folder, arrays(nn.Linear(8, 8)), [])["model"] == ""


def test_a_call_with_arguments_is_found_by_them(folder: Path) -> None:
    found = find_models(folder, arrays(nn.Linear(5, 3)), [call("Other"), call("tiny", 3)])
    assert (found["model"], found["call"], found["by"]) == ("", 1, "names")
    assert find_models(folder, arrays(nn.Linear(5, 10)), [call("tiny")])["model"] == "models_of_a_test:tiny"


def test_arguments_that_are_unknown_are_not_guessed(folder: Path) -> None:
    assert find_models(folder, arrays(nn.Linear(5, 10)), [call("tiny", known=False)])["by"] == ""


def test_some_of_the_arrays_of_a_model_are_told_from_all(folder: Path) -> None:
    found = find_models(folder, arrays(net())[:2], [])
    assert (found["by"], found["part_of"]) == ("", "models_of_a_test:Net")


@pytest.mark.parametrize("prefix", ["", "head."])
def test_a_model_whose_buffers_are_not_sent_is_found_as_such(prefix: str, folder: Path) -> None:
    sent = [[prefix + "weight", [9, 7], "float32"], [prefix + "bias", [9], "float32"]]
    found = find_models(folder, sent, [])
    assert (found["by"], found["part_of"], found["lacks_buffers_of"]) == ("", "", "models_of_a_test:Tuned")
    (reason,) = in_the_trial(Project(folder, "", "", {}, ()), [], {"model": found})
    assert "without its buffers, such as BatchNorm's running averages" in reason


def test_arrays_of_all_that_is_trained_fit_the_model(folder: Path) -> None:
    sent = [one for one in arrays(net()) if one[0] != "layer.bias"]
    found = find_models(folder, sent, [])
    assert (found["model"], found["by"], found["part_of"]) == ("models_of_a_test:Net", "trained", "")


def test_a_model_that_cannot_be_built_is_named_with_its_error(folder: Path) -> None:
    found = find_models(folder, arrays(nn.Linear(8, 8)), [])
    assert found["failed"] == {"models_of_a_test:Broken": "OSError: no weights here"}


def test_without_arrays_the_call_of_the_source_counts(folder: Path) -> None:
    assert find_models(folder, None, [])["model"] == ""
    assert (find_models(folder, None, [call("Net")])["model"], find_models(folder, None, [call("Net")])["by"]) == (
        "models_of_a_test:Net", "source",
    )  # fmt: skip


def test_attention_and_convolutions_are_facts_of_a_model(folder: Path) -> None:
    whole = nn.Sequential(nn.Conv2d(3, 8, 4, 4), nn.TransformerEncoderLayer(8, 2, 8))
    module = importlib.import_module("models_of_a_test")
    module.Seeing = lambda: whole  # type: ignore[attr-defined]
    found = find_models(folder, arrays(whole), [call("Seeing")])
    assert (found["facts"]["convolves"], found["facts"]["transformer"]) == (True, True)


def test_a_model_that_was_built_for_inference_has_no_frozen_part(folder: Path) -> None:
    module = importlib.import_module("models_of_a_test")
    module.Still = lambda: nn.Linear(6, 11).requires_grad_(False)  # type: ignore[attr-defined]
    found = find_models(folder, arrays(nn.Linear(6, 11)), [call("Still")])
    assert found["facts"]["frozen"] == 0
