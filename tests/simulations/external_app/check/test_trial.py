"""What a trial of an app sees: which call has built the model whose arrays its server sends."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from simulations.external_app.check.trial.models import find_model, watched_models

SOURCE = """
from torch import nn

class Net(nn.Module):
    def __init__(this, width=64):
        super().__init__()
        this.layer, this.norm = nn.Linear(width, 2), nn.BatchNorm1d(2)
        this.layer.bias.requires_grad_(False)

    def forward(self, images):
        return self.norm(self.layer(images.flatten(1)))

class Same(Net):
    pass

def tiny(classes=10, *layers, image=None):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes), *layers)

def words():
    return nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 2))

def table(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, 8), nn.Linear(8, outputs))

def flat(inputs, outputs):
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, 8), nn.Linear(8, outputs))

def lazy():
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(2))

def wide():
    return nn.Sequential(nn.Conv2d(1, 1, 3), nn.Flatten(), nn.Linear(38 * 18, 4))

def parallel():
    return nn.DataParallel(flat(64, 4))
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
    assert found == {"factory": "models_of_a_test:Net", "home": "models_of_a_test", "images": "(1, 1, 64)"}
    assert find_model(arrays(net, named=False), seen, refused)["factory"] == "models_of_a_test:Net"
    trained = find_model([one for one in arrays(net) if one[0] != "layer.bias"], seen, refused)
    assert trained["factory"] == "models_of_a_test:Net"
    assert find_model(arrays(tiny), seen, refused)["call"] == "tiny(classes=3)"
    assert not refused
    assert find_model(arrays(nn.Linear(8, 8)), seen, refused) == {}
    assert refused.pop().startswith("no model of the server's arrays was seen: build it by a class or function")
    assert find_model(arrays(net)[:2], seen, refused) == {}
    assert refused[0].startswith("the server sends some of the arrays of models_of_a_test:Net; an audit needs every")
    assert sys.getprofile() is None


def test_a_model_that_takes_no_image_or_has_one_output_is_refused(made: ModuleType) -> None:
    for build, images, reason in (
        (lambda: made.words(), "", "the model takes none of the images that were tried"),
        (lambda: made.table(14, 2), "", "takes rows of 14 numbers"),
        (lambda: made.table(784, 10), "", "takes rows of 784 numbers"),
        (lambda: made.flat(30, 2), "", "takes rows of 30 numbers"),
        (lambda: made.table(14, 1), "", "takes rows of 14 numbers"),
        (lambda: made.flat(784, 1), "", "ends in one output"), (lambda: made.flat(784, 784), "", "one for each pixel"),
        (lambda: made.lazy(), "", "1.weight has no shape before the first images"),
        (lambda: made.flat(784, 10), "(1, 28, 28)", ""), (lambda: made.flat(28 * 40, 10), "(1, 1, 1120)", ""),
        (lambda: made.flat(3 * 32 * 32, 10), "(3, 32, 32)", ""), (lambda: made.parallel(), "(1, 1, 64)", ""),
        (lambda: made.wide(), "", ""),
    ):  # fmt: skip
        refused: list[str] = []
        with watched_models() as seen:
            model = build()
        if reason.startswith("1.weight"):
            model(torch.zeros(1, 64))  # as a server must before it can send arrays
        found = find_model(arrays(model), seen, refused)
        assert found["images"] == images, reason
        assert [reason in one for one in refused] == ([True] if reason else []), refused
    refused = []
    assert find_model([["0", [1, 30]], ["1", [1]]], [], refused) == {}
    assert "ends in one output" in refused[0], "where nothing of the app builds such a model"
