"""An ordinary app, audited in this process: what the server learns, what a node refuses, what mods do, and what goes wrong."""

import json
import random
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp.mod import LocalDpMod
from flwr.serverapp.strategy import FedAvg, Strategy
from torch.utils.data import TensorDataset

from clients import protect_mod
from simulations.audited import audited
from simulations.runtime.local_grid import FIRST_NODE
from strategies.external_app.record import AuditError
from strategies.external_app.settings import AuditSettings
from tests.strategies.external_app import audits
from tests.strategies.external_app.app import AppGrid, Net, an_app, app_that, digits
from tests.strategies.external_app.audits import EXACT, LABELS, page_of, start

PROTECTED = "Clip(max_norm=1.0, per='update') | GaussianNoise(std=0.05, per='update')"


run = partial(audits.run, probe_attacks=EXACT, probe_targets=4)


def value(rows: list[dict[str, Any]], attack: str, metric: str, reference: str = "original") -> dict[str, Any]:
    of = [row for row in rows if row["attack"].startswith(attack)]
    (found,) = [row for row in of if (row["metric"], row["reference"]) == (metric, reference)]
    return found


def test_probes_of_a_relu_network_are_solved_and_scored_by_the_client(tmp_path: Path) -> None:
    """The exact attack finds the pixels that the app holds: the answer, its normalisation and its truth belong together."""
    rows = run(tmp_path / "out", AppGrid(an_app()))
    found = value(rows, EXACT, "psnr")
    assert found["n"] == 8
    assert found["value"] > 60
    labels = value(rows, "LabelInference", "label-accuracy", "")
    assert labels["card"]["observation"] == "training update"
    assert (labels["card"]["local_steps"], labels["card"]["images"], labels["n"]) == (12, 24, 2)
    page = page_of(tmp_path / "out")
    # Seven are beyond chance, however few that is; the eighth has no other image of its class to be told from.
    assert "attacks make images recognisable where no mod is known (7 of 8)" in page
    assert json.loads((tmp_path / "out" / "config.json").read_text())["progress"]["finished"] is True


class Noisy:
    """Draws from one of the global streams, as mods do."""

    def __init__(self, stream: str) -> None:
        self.stream, self.drawn = stream, list[tuple[str, float]]()

    def __call__(self, message: Message, context: Context, call_next: Any) -> Message:
        reply = call_next(message, context)
        if message.metadata.message_type not in ("train", "train.probe") or reply.has_error():
            return reply
        draw = {"torch": lambda: float(torch.randn(())), "numpy": np.random.normal, "python": random.random}
        drawn = draw[self.stream]()
        self.drawn.append((message.metadata.message_type, drawn))
        ((name, record),) = reply.content.array_records.items()
        moved = {key: value + 0.01 * drawn for key, value in record.to_torch_state_dict().items()}
        reply.content[name] = ArrayRecord(moved)
        return reply


@pytest.mark.parametrize(("level", "stream"), [("app", "torch"), ("training", "numpy"), ("app", "python")])
def test_a_mod_draws_in_training_what_it_would_draw_without_audits(tmp_path: Path, level: str, stream: str) -> None:
    """Its draws for probes are others, for each probe: noise that a server sees twice can be subtracted."""

    def final(watched: bool) -> tuple[Any, list[tuple[str, float]]]:
        noisy = Noisy(stream)
        mods: dict[str, Any] = {"everywhere" if level == "app" else "mods": [noisy]}
        strategy: Strategy = FedAvg(fraction_evaluate=0.0)
        if watched:
            strategy = audited(strategy, tmp_path / "out", Net, workers=0,
                               probe_attacks="LabelInference()", update_attacks="", probe_targets=3)  # fmt: skip
        torch.manual_seed(0)
        np.random.seed(7)
        random.seed(7)
        grid = AppGrid(an_app(audited=watched, **mods))
        found = strategy.start(grid, start(), num_rounds=2, train_config=ConfigRecord({"lr": 0.1})).arrays
        return found.to_torch_state_dict(), noisy.drawn

    plain, unwatched = final(False)
    seen, drawn = final(True)
    for name, tensor in plain.items():
        assert torch.equal(seen[name], tensor), name
    assert [one for one in drawn if one[0] == "train"] == unwatched
    assert sum(kind == "train.probe" for kind, _ in drawn) == 6
    assert len({value for _, value in drawn}) == len(drawn) == 10


class Counting:
    """A mod that changes nothing and counts what passes."""

    def __init__(self, name: str) -> None:
        self.__name__ = name
        self.passed = list[str]()

    def __call__(self, message: Message, context: Context, call_next: Any) -> Message:
        self.passed.append(message.metadata.message_type)
        return call_next(message, context)


def test_probes_pass_every_mod_that_rows_name_once_however_mods_are_given(tmp_path: Path) -> None:
    """Mods of the app's own act on every message; naming those of training by hand must not lose one."""
    for by_hand in (False, True):
        outer, inner = Counting("outer"), Counting("inner")
        named = [outer, inner] if by_hand else None
        rows = run(tmp_path / str(by_hand), an_app(mods=[inner], everywhere=[outer], named=named), probe_attacks=LABELS)
        assert all(row["defense"].startswith("inner(") and " | outer(" in row["defense"] for row in rows)
        for mod in (outer, inner):
            assert (mod.passed.count("train.probe"), mod.passed.count("train")) == (8, 2), (by_hand, mod)


def test_a_deployed_node_refuses_what_its_operator_does_not_allow(tmp_path: Path) -> None:
    grid = AppGrid(an_app(), randomness="secret", **{"secret-dir": str(tmp_path)})
    rows = run(tmp_path / "out", grid, go_on=True)
    refused = [row for row in rows if row["status"] == "refused"]
    assert {row["client"] for row in refused} == {0, 1}
    assert any("audits in the node's configuration" in row["message"] for row in refused)
    assert not [row for row in rows if row["metric"] == "psnr"]
    allowing = AppGrid(an_app(), randomness="secret", probes=True, audits=True, **{"secret-dir": str(tmp_path)})
    rows = run(tmp_path / "allowed", allowing)
    assert value(rows, EXACT, "psnr")["value"] > 60
    assert any("share-images" in row["message"] for row in rows if row["status"] == "refused")


def test_probes_pass_through_the_mods_of_training(tmp_path: Path) -> None:
    """The exact attack, which needs every digit, fails behind noise; rows name what was in the way."""
    local = "LocalDpMod(clipping_norm=0.5, sensitivity=0.5, epsilon=10.0, delta=0.001)"
    for mod, name in ((LocalDpMod(0.5, 0.5, 10.0, 1e-3), local), (protect_mod(PROTECTED), PROTECTED)):
        rows = run(tmp_path / name[:5], AppGrid(an_app(mods=[mod])))
        found = next(row for row in rows if row["attack"] == EXACT)
        assert found["status"] == "not-applicable" or found["value"] < 30
        assert {row["defense"] for row in rows} == {name}
        assert found["card"]["mods"] == name


def inferred(rows: list[dict[str, Any]], observation: str) -> set[int]:
    """Of how many images the classes were inferred, from what was observed."""
    accuracies = [row for row in rows if row["metric"] == "label-accuracy"]
    return {row["n"] for row in accuracies if row["card"]["observation"].endswith(observation)}


def test_a_probe_that_fails_leaves_a_row(tmp_path: Path) -> None:
    for silent in (False, True):

        class Flaky(AppGrid):
            def answer(self, message: Message, silent: bool = silent) -> Message:
                told, config = message.metadata, message.content.config_records.get("config", {})
                if (told.message_type, told.dst_node_id, config.get("target")) != ("train.probe", FIRST_NODE + 1, 2):
                    return super().answer(message)
                return None if silent else Message(Error(code=2, reason="flaky"), reply_to=message)  # type: ignore

        rows = audits.run(tmp_path / str(silent), Flaky(an_app()), probe_targets=4, update_attacks="")
        assert inferred(rows, "probe") == {4}
        (failed,) = [row for row in rows if row["metric"] == "client"]
        assert (failed["client"], failed["status"]) == (1, "failed")
        assert failed["message"].startswith("train.probe 2: " + ("no reply" if silent else "flaky"))


def test_a_training_that_nobody_saw_is_not_made_up(tmp_path: Path) -> None:
    """Weights that no optimizer made: nothing of them is attacked, and the reason is named."""
    app = app_that(lambda sent, *_: {name: value * 0.9 for name, value in sent.items()})
    with pytest.raises(
        AuditError, match=r"attacked nothing:\n- query\.training: .*no optimizer of torch\.optim made a step"
    ):
        audits.run(tmp_path / "out", AppGrid(app))


def test_a_node_with_other_images_is_left_out_and_named(tmp_path: Path) -> None:
    def uneven(context: Context) -> TensorDataset:
        images, labels = digits(context).tensors
        return TensorDataset(images.expand(-1, 1 + 2 * int(context.node_config["partition-id"]), -1, -1), labels)

    class Wide(Net):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return super().forward(images[:, :1])

    rows = audits.run(tmp_path / "out", AppGrid(an_app(data=uneven, model=Wide)), probe_targets=4)
    assert inferred(rows, "probe") == {4}
    (odd,) = [row for row in rows if row["metric"] == "client"]
    assert odd["client"] == 1
    assert "differs from the first and is left out: card" in odd["message"]


def test_no_server_runs_code_on_a_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "victim.py").write_text("def ran():\n    raise SystemExit('code of the server ran')\n")
    monkeypatch.syspath_prepend(tmp_path)
    grid = AppGrid(an_app(), randomness="secret", audits=True, **{"secret-dir": str(tmp_path)})
    plan = replace(AuditSettings(Net).plan(), model="victim:ran")
    asked = {"observation": "update", "kind": "membership", "guesses": 0, "share-images": False, "timeout": 5.0}
    config = ConfigRecord({"task": plan.at(1).to_json(), **asked})
    content = RecordDict({"config": config, "guesses": ArrayRecord({})})
    list(grid.send_and_receive([Message(content, dst_node_id=FIRST_NODE, message_type="query.audit")]))
    assert "victim" not in sys.modules
