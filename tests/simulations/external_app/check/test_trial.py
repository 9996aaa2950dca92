"""What a trial of an app sees: which class has the arrays that its server sends, and what the server would send first."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from simulations.external_app.check.trial.models import find_models

SOURCE = """
from torch import nn

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
    state = model.state_dict().items()
    return [[name if named else str(at), list(one.shape), "float32"] for at, (name, one) in enumerate(state)]


def call(name: str, *arguments: Any, known: bool = True) -> dict[str, Any]:
    return {"target": f"models_of_a_test:{name}", "arguments": list(arguments), "keywords": [], "known": known}


def test_models_are_found_by_the_arrays_that_a_server_sends_and_by_calls(folder: Path) -> None:
    net = importlib.import_module("models_of_a_test").Net()
    found = find_models(folder, arrays(net), [])
    assert (found["model"], found["by"]) == ("models_of_a_test:Net", "names")
    others = {"dropout": False, "embeds": False, "convolves": False, "transformer": False}
    assert found["facts"] == {"parameters": 14, "batch_norm": True, "frozen": 1, **others}
    assert find_models(folder, arrays(net, named=False), [])["by"] == "order"
    trained = find_models(folder, [one for one in arrays(net) if one[0] != "layer.bias"], [])
    assert (trained["model"], trained["by"], trained["part_of"]) == ("models_of_a_test:Net", "trained", "")
    part = find_models(folder, arrays(net)[:2], [])
    assert (part["by"], part["part_of"]) == ("", "models_of_a_test:Net")
    none = find_models(folder, arrays(nn.Linear(8, 8)), [])
    assert (none["model"], none["failed"]) == ("", {"models_of_a_test:Broken": "OSError: no weights here"})
    found = find_models(folder, arrays(nn.Linear(5, 3)), [call("Other"), call("tiny", 3)])
    assert (found["model"], found["call"], found["by"]) == ("", 1, "names")
    assert find_models(folder, arrays(nn.Linear(5, 10)), [call("tiny", known=False)])["by"] == "", "nothing is guessed"
    assert find_models(folder, None, [call("Net")])["by"] == "source"
