"""What keeps an audit from beginning is named at once, before any training; an audit that attacked nothing fails, with a page."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp.strategy import FedAvg
from torch import Tensor, nn

from attacks.metrics.metric import LEAST_IMAGES
from clients import answer_audits, protect_mod
from clients.external_app.client import DataMistake, read_data
from clients.external_app.partial import AppModel, ModelMismatchError
from defenses.base import DefenseError
from simulations.audited import audited
from simulations.settings.errors import ConfigError
from strategies.external_app.nodes import common_config
from strategies.external_app.record import AuditError, say_how_many
from strategies.external_app.settings import ENOUGH, AuditSettings
from tests.lines import read_lines
from tests.strategies.external_app.app import AppGrid, Net, an_app, app_that, digits
from tests.strategies.external_app.audits import attacked, node_of, page_of, started


class Counted(AppGrid):
    trained = 0

    def answer(self, message: Message) -> Message:
        self.trained += message.metadata.message_type == "train"
        return super().answer(message)


run = partial(started, probe_targets=0)


def test_all_that_is_missing_is_named_before_any_client_trains(tmp_path: Path) -> None:
    grid = Counted(an_app(audited=False))
    with pytest.raises(AuditError) as found:
        run(tmp_path / "out", grid, model=Other)
    model, clients = found.value.reasons
    assert "the strategy sends other weights than those of the audit's model" in model
    assert "does the ClientApp call answer_audits?" in clients
    assert grid.trained == 0
    assert all(reason in str(found.value) for reason in found.value.reasons)
    assert "No attack has a score." in page_of(tmp_path / "out")
    assert {row["message"] for row in read_lines(tmp_path / "out" / "rows.jsonl")} == set(found.value.reasons)


class Odd(Net):
    """State that no message holds, and a parameter without elements; behind a wrapper, as for several cards."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("grid", torch.linspace(0, 1, 64).view(8, 8), persistent=False)
        self.unused = nn.Parameter(torch.empty(0))

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images + self.grid)


class Kept(Net):
    """Answers with what has no gradient."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images.round())


def parallel() -> nn.Module:
    return nn.DataParallel(Odd())


def a_step(sent: dict[str, Tensor], message: Message, context: Context) -> dict[str, Tensor]:
    del message
    model = Odd()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(digits(context).tensors[0][:1]).sum().backward()
    optimizer.step()
    return sent


def test_a_model_of_odd_state_is_attacked_and_one_without_use_is_named_before_training(tmp_path: Path) -> None:
    run(tmp_path / "odd", AppGrid(app_that(a_step, model=parallel)), model=parallel, begins=parallel, update_attacks="")
    scored = [row for row in read_lines(tmp_path / "odd" / "rows.jsonl") if row["metric"] == "label-accuracy"]
    assert {row["value"] for row in scored if row["role"] == "attack"} == {1.0}
    grid = Counted(app_that(a_step, model=Kept))
    with pytest.raises(
        AuditError, match=r"model: .*:Kept: no gradient reaches the images, as behind torch.no_grad, torch.round"
    ):
        run(tmp_path / "kept", grid, model=Kept)
    assert grid.trained == 0


def test_an_audit_that_attacked_nothing_fails_after_the_last_round_and_keeps_the_model(tmp_path: Path) -> None:
    """Every node refuses probes, and updates are not attacked."""
    grid = Counted(an_app(), randomness="secret", audits=True, **{"secret-dir": str(tmp_path)})
    with pytest.raises(
        AuditError, match=r"attacked nothing:\n- PatchEmbeddingInversion\(\) does not apply: no layer of"
    ):
        run(tmp_path / "none", AppGrid(an_app()), probe_attacks="PatchEmbeddingInversion()", update_attacks="")
    with pytest.raises(AuditError, match="the audit attacked nothing") as found:
        run(tmp_path / "out", grid, update_attacks="", rounds=2)
    assert grid.trained == 4
    assert found.value.result is not None
    assert list(found.value.result.arrays) == list(Net().state_dict())
    assert "its operator may allow it by probes" in found.value.reasons[0]
    assert "No attack has a score." in page_of(tmp_path / "out")


def test_a_verdict_has_enough_images_by_any_number_of_nodes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert ENOUGH == LEAST_IMAGES
    settings = AuditSettings(Net)
    assert [settings.targets([100] * nodes) for nodes in (1, 2, 3, 4, 16, 100)] == [16, 8, 6, 4, 1, 1]
    assert AuditSettings(Net, probe_images=4).targets([100, 100]) == 2
    assert settings.targets([100, 5]) == 5, "no image is probed twice"
    assert AuditSettings(Net, probe_targets=3).targets([100]) == 3
    with caplog.at_level("INFO", logger="flwr"):
        run(tmp_path / "one", AppGrid(an_app(), clients=1), rounds=1)
    told = "one-step probes of up to 16 images in an attacked round (16 x 1 from each of 1 nodes, if all reply)"
    assert told in caplog.text
    for images, level in ((ENOUGH - 1, "WARNING"), (ENOUGH, "INFO")):
        caplog.clear()
        with caplog.at_level("INFO", logger="flwr"):
            say_how_many(1, 1, images)
        assert [record.levelname for record in caplog.records] == [level], "too few images are a warning"
    probes = attacked(read_lines(tmp_path / "one" / "rows.jsonl"), "one-step probe")
    counts = {row["role"]: row["n"] for row in probes if row["metric"] == "label-accuracy"}
    assert counts == {"attack": ENOUGH, "null baseline": ENOUGH}


def test_what_one_node_alone_was_sent_goes_to_no_other() -> None:
    AppGrid(an_app())  # Flower makes messages only within a run, which a grid begins
    records = {node: RecordDict({"config": ConfigRecord({"lr": 0.1, "token": node})}) for node in (11, 22)}
    sent = [Message(record, dst_node_id=node, message_type="train") for node, record in records.items()]
    assert {name: dict(one) for name, one in common_config(sent).items()} == {"config": {"lr": 0.1}}
    assert {name: dict(one) for name, one in common_config(sent[:1]).items()} == {"config": {"lr": 0.1, "token": 11}}


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
            started(tmp_path / model.__name__, an_app(), model=model, go_on=True)
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


NAN, INF = float("nan"), float("inf")


class Needy(nn.Linear):
    """Is not built without arguments."""


def test_settings_out_of_range_are_refused_at_once_with_what_is_allowed(tmp_path: Path) -> None:
    number, whole = "a number from", "a whole number from"
    bad: dict[str, tuple[tuple[Any, ...], str]] = {
        "go_on": ((1,), ""),
        "probe_images": ((1.5, 0), f"{whole} 1"), "probe_targets": ((INF,), "0, or a whole number from 1"),
        "seed": (("a", -1, True), f"{whole} 0"), "workers": ((-1, 0.5, 10**9), f"{whole} 0 to 1024"),
        "timeout": ((-1, 0, "x"), f"{number} 0.001"), "share_images": (("yes",), "True or False"),
        "probe_attacks": ((None,), "a text"),
    }  # fmt: skip
    for name, (values, allowed) in bad.items():
        for value in values:
            for folder in (tmp_path / "out", ""):
                with pytest.raises(ValueError, match=f"{name} is .*; allowed: {allowed}"):
                    audited(FedAvg(), folder, Net, **{name: value})
    with pytest.raises(ValueError, match="probe_attacks and update_attacks name no attack"):
        AuditSettings(Net, probe_attacks="", update_attacks=" ")
    with pytest.raises(ValueError, match="at the top level of a module"):
        audited(FedAvg(), tmp_path, lambda: Net())
    for model, why in ((Needy, "fails: TypeError"), (dict, "gives dict")):
        with pytest.raises(ValueError, match=f"model is .*{why}.*allowed: a class or function that builds the model"):
            audited(FedAvg(), tmp_path / "out", model)
    told = AuditSettings(Net, probe_images=np.int64(2), timeout=np.float32(0.5), seed=np.uint8(3))  # type: ignore
    plain = [(type(value), value) for value in (told.probe_images, told.timeout, told.seed)]
    assert plain == [(int, 2), (float, 0.5), (int, 3)]


def test_folders_that_cannot_hold_an_audit_are_refused(tmp_path: Path) -> None:
    plain = FedAvg()
    assert audited(plain, "", Net) is plain
    (tmp_path / "file").touch()
    for folder, why in (
        ("relative", "it must be absolute"), (tmp_path / "file", "file is a file; name a folder"),
        (tmp_path / "file" / "inside", r"cannot write into .*file/inside"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=why):
            audited(FedAvg(), folder, Net)


def test_what_an_app_gives_is_checked_when_it_is_loaded() -> None:
    bad: dict[str, tuple[type[Exception], tuple[Any, ...]]] = {
        "model": (TypeError, (Net(),)), "data": (TypeError, ([1, 2],)), "loss": (TypeError, (None, nn.CrossEntropyLoss)),
        "mods": (TypeError, ("LocalDpMod", ["LocalDpMod"])), "mean": (ValueError, (NAN, 100.0, "a")),
        "std": (ValueError, (INF, (0.5, 0.0, 0.5))),
    }  # fmt: skip
    for name, (error, values) in bad.items():
        for value in values:
            with pytest.raises(error, match=rf"answer_audits: {name} is .*; allowed: "):
                answer_audits(an_app(audited=False), **{"model": Net, "data": digits, name: value})
    with pytest.raises(ValueError, match="answer_audits: this app answers audits already; call it once"):
        answer_audits(an_app(), model=Net, data=digits)
    for text, why in (
        ("DPSGD()", r"allowed are defences of whole updates \(per='update'\)"), ("SiloBN()", r"SiloBN\(\) is not allowed"),
    ):  # fmt: skip
        with pytest.raises(DefenseError, match=why):
            protect_mod(text)


def test_data_that_is_no_data_is_named() -> None:
    pairs = list(digits(node_of(0)))
    odd: Any
    for odd, why in (
        (None, r"data gives NoneType; expected a map-style data set of pairs"),
        ((pairs, ...), r"data gives ellipsis; expected a map-style data set of pairs"),
        ([(torch.zeros(1, 2, 2), 3.7)], r"a class is 3\.7; expected a whole number"),
        ((pairs, pairs, pairs), "a tuple of 3; expected a data set, or a pair"),
        ((pairs[0], pairs[1]), "or a tuple of two such data sets"),
        ((pairs, [(torch.zeros(1, 4, 4), 0)]), r"trained images \(1, 8, 8\) and held-out ones \(1, 4, 4\)"),
        ((pairs, [(torch.full((1, 8, 8), 2.0), 0)]), "expected \\[0, 1\\]"),
    ):
        with pytest.raises(DataMistake, match=why):
            read_data(odd)
