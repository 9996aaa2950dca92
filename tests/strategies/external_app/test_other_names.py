"""Apps whose messages name arrays otherwise than the model: lists of arrays fit by their order, other models not at all."""

from pathlib import Path

import pytest
import torch
from torch import nn

from clients.external_app.partial import AppModel, ModelMismatchError
from tests.strategies.external_app.app import Net, an_app
from tests.strategies.external_app.audits import run


class Other(nn.Linear):
    def __init__(self) -> None:
        super().__init__(64, 10)


class Wide(Net):
    def __init__(self) -> None:
        super().__init__()
        self.body[3] = nn.Linear(32, 12)


def test_a_model_that_is_not_the_apps_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for model, why in (
        (Other, "no 'weight': they begin 'body.1.weight', 'body.1.bias', 'body.3.weight'"),
        (Wide, "'body.3.weight' of shape (10, 32), and the model (12, 32)"),
    ):
        with caplog.at_level("WARNING", logger="flwr"):
            run(tmp_path / model.__name__, an_app(), model=model, go_on=True)
        said = f"the strategy sends other weights than those of the audit's model: they have {why}. Name the class"
        assert said in caplog.text


def test_names_and_shapes_decide() -> None:
    model = AppModel.of(Net())
    state, values = model.state, list(model.state.values())
    assert list(model.named(dict(zip("0123", values, strict=True)))) == list(state)
    assert list(model.named(dict(zip("0123", values[::-1], strict=True)))) == list("0123")
    assert list(model.named(dict(zip("012", values[:3], strict=True)))) == list("012")
    mixed = {"body.3.bias": values[0], "a": values[1], "b": values[2], "c": values[3]}
    assert model.named(mixed) == mixed


def test_names_of_a_module_fit_if_every_shape_agrees() -> None:
    class Headed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(64, 32), nn.Linear(32, 10)
            self.body.requires_grad_(False)

    model, weight, bias = AppModel.of(Headed()), torch.zeros(10, 32), torch.zeros(10)
    sent: dict[str, torch.Tensor]
    for sent, names in (
        ({"weight": weight, "bias": bias}, ["head.weight", "head.bias"]),
        ({"bias": bias, "weight": weight}, ["head.bias", "head.weight"]),
        ({"0": weight, "1": bias}, ["head.weight", "head.bias"]),
        ({"weight": weight.T, "bias": bias}, ["weight", "bias"]),
        ({"weight": weight, "slope": bias}, ["head.weight", "head.bias"]),  # in order, as a list
    ):
        assert list(model.named(sent)) == names
    whole = model.whole(model.named({"weight": weight, "bias": bias}))
    assert whole.keys() == model.state.keys()
    assert torch.equal(whole["head.weight"], weight)
    assert torch.equal(whole["body.weight"], model.state["body.weight"])
    other = AppModel.of(Headed())
    assert model.digest(model.frozen) == model.digest(model.frozen) != other.digest(other.frozen)
    nested = AppModel({"a.x": weight, "a.b.x": weight, "a.b.b.x": weight}, ("a.b.x",), ("a.x", "a.b.b.x"))
    with pytest.raises(ModelMismatchError, match=r"fit several modules of the model, 'a' and 'a\.b'"):
        nested.named({"x": weight, "b.x": weight})


def test_a_module_whose_names_are_also_those_of_the_whole_is_the_trained_one() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4)))
    model[0].requires_grad_(False)
    app, sent = AppModel.of(model), model[1].state_dict()
    assert list(sent) == ["0.weight", "0.bias"]
    assert list(app.named(sent)) == ["1.0.weight", "1.0.bias"]
    assert list(app.named(model.state_dict())) == list(model.state_dict())
