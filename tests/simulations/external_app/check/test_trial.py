"""What a trial of an app sees: which call has built the model whose arrays its server sends."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from torch import nn

from simulations.external_app.check.trial.models import find_model, watched_models

SOURCE = """
from torch import nn

class Net(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.layer, self.norm = nn.Linear(width, 2), nn.BatchNorm1d(2)
        self.layer.bias.requires_grad_(False)

class Same(Net):
    pass

def tiny(classes=10, *layers, image=None):
    return nn.Sequential(nn.Linear(64, classes), *layers)

def words():
    return nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 2))

def table(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, 8), nn.Linear(8, outputs))
"""


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    (tmp_path / "models_of_a_test.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("models_of_a_test")
    del sys.modules["models_of_a_test"]


def arrays(model: nn.Module, *, named: bool = True) -> list[list[Any]]:
    state = model.state_dict().items()
    return [[name if named else str(at), list(one.shape)] for at, (name, one) in enumerate(state)]


def test_a_model_is_found_by_the_call_that_built_it_and_the_arrays_that_a_server_sends(made: ModuleType) -> None:
    refused: list[str] = []
    with watched_models() as seen:
        net, tiny = made.Net().eval(), made.tiny(3)
        made.Same(width=80)
        made.tiny(10)
        made.tiny(7, nn.ReLU())  # whose layers no text names
        made.tiny(8, image=net)
    assert [one.call for one in seen] == ["Net()", "tiny(classes=3)", "Same(width=80)", "tiny()"]
    found = find_model(arrays(net), seen, refused)
    assert found == {"factory": "models_of_a_test:Net", "home": "models_of_a_test", "by": "names"}
    assert find_model(arrays(net, named=False), seen, refused)["by"] == "order"
    trained = find_model([one for one in arrays(net) if one[0] != "layer.bias"], seen, refused)
    assert (trained["factory"], trained["by"]) == ("models_of_a_test:Net", "trained")
    assert find_model(arrays(tiny), seen, refused)["call"] == "tiny(classes=3)"
    assert find_model(arrays(nn.Linear(8, 8)), seen, refused) == {}
    assert not refused
    assert find_model(arrays(net)[:2], seen, refused) == {}
    assert refused[0].startswith(
        "the server sends some of the arrays of models_of_a_test:Net; an audit needs every parameter"
    )
    assert sys.getprofile() is None


def test_models_of_words_of_tables_and_of_one_output_are_refused(made: ModuleType) -> None:
    for build, reason in (
        (lambda: made.words(), "begins with an embedding of tokens"),
        (lambda: made.table(14, 2), "takes rows of 14 numbers"),
        (lambda: made.table(784, 1), "ends in one output"),
        (lambda: made.table(784, 10), ""),
        (lambda: made.table(28 * 40, 10), ""),
        (lambda: made.table(3 * 32 * 32, 10), ""),
    ):
        refused: list[str] = []
        with watched_models() as seen:
            model = build()
        assert find_model(arrays(model), seen, refused)["by"] == "names"
        assert [reason in one for one in refused] == ([True] if reason else [])
