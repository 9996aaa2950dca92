"""What is wrong with what somebody says of an audit is told before a run begins, or blames whoever it is about."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.serverapp.strategy import FedAvg
from torch import nn

from clients import answer_audits, protect_mod
from clients.external_app.client import DataMistake, read_data
from defenses.base import DefenseError
from simulations.audited import audited
from simulations.settings.errors import ConfigError
from strategies.external_app.settings import AuditSettings
from tests.strategies.external_app.app import Net, an_app, digits
from tests.strategies.external_app.audits import node_of

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
