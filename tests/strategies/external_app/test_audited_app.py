"""An ordinary app, audited in this process: what the server learns, what a node refuses, and what mods do to probes."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message
from flwr.clientapp.mod import LocalDpMod, fixedclipping_mod
from flwr.serverapp.strategy import DifferentialPrivacyClientSideFixedClipping, FedAvg, Strategy

from clients import protect_mod
from defenses.base import DefenseError
from simulations.audited import audited
from simulations.settings.errors import ConfigError
from tests.lines import read_lines
from tests.strategies.external_app.app import AppGrid, Net, an_app, digits

EXACT = "Spear()"
PROTECTED = "Clip(max_norm=1.0, per='update') | GaussianNoise(std=0.05, per='update')"


def run(
    out: Path, grid: AppGrid, strategy: Strategy | None = None, rounds: int = 1, **told: Any
) -> list[dict[str, Any]]:
    known: dict[str, Any] = {
        "settings": {"batch-size": 2, "local-epochs": 1},
        "probe_attacks": EXACT,
        "probe_targets": 4,
    }
    settings = {"workers": 0, **known, **told}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        start = ArrayRecord(Net().state_dict())
    watched = audited(strategy or FedAvg(fraction_evaluate=0.0), out, Net, **settings)
    result = watched.start(grid, start, num_rounds=rounds, train_config=ConfigRecord({"lr": 0.1}))
    assert list(result.arrays) == list(start)
    return read_lines(out / "rows.jsonl")


def value(rows: list[dict[str, Any]], attack: str, metric: str, reference: str = "original") -> dict[str, Any]:
    (found,) = [
        row
        for row in rows
        if row["attack"].startswith(attack) and (row["metric"], row["reference"]) == (metric, reference)
    ]
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
    page = " ".join((tmp_path / "out" / "report.html").read_text().split())
    # A count stands beside no sentence that denies it: eight images are recovered, and too few for a verdict.
    assert "Where no mod is known: unknown (8 of 8 recovered): too few images were attacked for a verdict" in page
    assert "no attack is shown to" not in page
    assert "nothing here says that an attack works" not in page
    assert json.loads((tmp_path / "out" / "config.json").read_text())["progress"]["finished"] is True


def test_the_run_goes_on_as_if_nobody_had_looked(tmp_path: Path) -> None:
    torch.manual_seed(0)
    start = ArrayRecord(Net().state_dict())
    asked: dict[str, Any] = {"num_rounds": 2, "train_config": ConfigRecord({"lr": 0.1})}
    plain = FedAvg(fraction_evaluate=0.0).start(AppGrid(an_app(audited=False)), start, **asked).arrays
    watched = audited(FedAvg(fraction_evaluate=0.0), tmp_path / "out", Net, workers=0, settings={"batch-size": 2},
                      probe_attacks=EXACT)  # fmt: skip
    seen = watched.start(AppGrid(an_app()), start, **asked).arrays
    for name, tensor in plain.to_torch_state_dict().items():
        torch.testing.assert_close(seen.to_torch_state_dict()[name], tensor)


@pytest.mark.parametrize(
    ("mod", "name"),
    [
        (
            LocalDpMod(0.5, 0.5, 10.0, 1e-3),
            "LocalDpMod(clipping_norm=0.5, sensitivity=0.5, epsilon=10.0, delta=0.001)",
        ),
        (protect_mod(PROTECTED), PROTECTED),
    ],
)
def test_probes_pass_through_the_mods_of_training(tmp_path: Path, mod: Any, name: str) -> None:
    """The exact attack, which needs every digit, fails behind noise; rows name what was in the way."""
    rows = run(tmp_path / "out", AppGrid(an_app(mods=[mod])))
    found = value(rows, EXACT, "psnr")
    assert found["value"] < 30
    assert {row["defense"] for row in rows} == {name}
    assert found["card"]["mods"] == name


class Noisy:
    """Draws from one of the global streams, as mods do."""

    def __init__(self, stream: str) -> None:
        self.stream, self.drawn = stream, list[tuple[str, float]]()

    def __call__(self, message: Message, context: Context, call_next: Any) -> Message:
        reply = call_next(message, context)
        if message.metadata.message_type not in ("train", "train.probe") or reply.has_error():
            return reply
        drawn = {"torch": lambda: float(torch.randn(())), "numpy": np.random.normal, "python": random.random}[
            self.stream
        ]()
        self.drawn.append((message.metadata.message_type, drawn))
        ((name, record),) = reply.content.array_records.items()
        moved = {key: value + 0.01 * drawn for key, value in record.to_torch_state_dict().items()}
        reply.content[name] = ArrayRecord(moved)
        return reply


@pytest.mark.parametrize("level", ["app", "training"])
@pytest.mark.parametrize("stream", ["torch", "numpy", "python"])
def test_a_mod_draws_in_training_what_it_would_draw_if_nobody_had_looked(
    tmp_path: Path, stream: str, level: str
) -> None:
    """Its draws for probes are others, for each probe: noise that a server sees twice can be subtracted."""

    def final(watched: bool) -> tuple[Any, list[tuple[str, float]]]:
        noisy = Noisy(stream)
        mods: dict[str, Any] = {"everywhere" if level == "app" else "mods": [noisy]}
        strategy: Strategy = FedAvg(fraction_evaluate=0.0)
        if watched:
            strategy = audited(strategy, tmp_path / "out", Net, workers=0, settings={"batch-size": 2, "local-epochs": 1},
                               probe_attacks="LabelInference()", update_attacks="", probe_targets=3)  # fmt: skip
        torch.manual_seed(0)
        start = ArrayRecord(Net().state_dict())
        np.random.seed(7)
        random.seed(7)
        grid = AppGrid(an_app(audited=watched, **mods))
        found = strategy.start(grid, start, num_rounds=2, train_config=ConfigRecord({"lr": 0.1})).arrays
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


@pytest.mark.parametrize("given", ["not at all", "of training", "all"])
def test_probes_pass_every_mod_that_rows_name_once_however_mods_are_given(tmp_path: Path, given: str) -> None:
    """Mods of the app's own act on every message; naming those of training by hand must not lose one."""
    outer, inner = Counting("outer"), Counting("inner")
    named = {"not at all": None, "of training": [inner], "all": [outer, inner]}[given]
    rows = run(tmp_path / "out", AppGrid(an_app(mods=[inner], everywhere=[outer], named=named)))
    assert all(row["defense"].startswith("inner(") and " | outer(" in row["defense"] for row in rows)
    for mod in (outer, inner):
        assert mod.passed.count("train.probe") == 8
        assert mod.passed.count("train") == 2


def test_flowers_clipping_acts_on_probes_and_says_so(tmp_path: Path) -> None:
    """What reaches the server is as long as the strategy's clipping norm allows, in a probe too."""
    grid, norms = AppGrid(an_app(mods=[fixedclipping_mod])), []
    answer = grid.answer

    def watched(message: Message) -> Message:
        reply = answer(message)
        if message.metadata.message_type == "train.probe":
            sent, came = (one.content["arrays"].to_torch_state_dict() for one in (message, reply))  # type: ignore[union-attr]
            norms.append(float(torch.cat([(came[key] - sent[key]).flatten() for key in sent]).norm()))
        return reply

    grid.answer = watched  # type: ignore[method-assign]
    wrapped = DifferentialPrivacyClientSideFixedClipping(
        FedAvg(fraction_evaluate=0.0), noise_multiplier=0.0, clipping_norm=0.01, num_sampled_clients=2
    )
    rows = run(tmp_path / "out", grid, wrapped)
    assert len(norms) == 8
    assert max(norms) == pytest.approx(0.01, rel=1e-3)
    assert {row["defense"] for row in rows} == {"fixedclipping_mod"}


def test_a_deployed_node_refuses_what_its_operator_does_not_allow(tmp_path: Path) -> None:
    grid = AppGrid(an_app(), randomness="secret", **{"secret-dir": str(tmp_path)})
    rows = run(tmp_path / "out", grid, go_on=True)
    refused = [row for row in rows if row["status"] == "refused"]
    assert {row["client"] for row in refused} == {0, 1}
    assert any("probes in the node's configuration" in row["message"] for row in refused)
    assert any("audits in the node's configuration" in row["message"] for row in refused)
    assert not [row for row in rows if row["metric"] == "psnr"]
    allowing = AppGrid(an_app(), randomness="secret", probes=True, audits=True, **{"secret-dir": str(tmp_path)})
    rows = run(tmp_path / "allowed", allowing)
    assert value(rows, EXACT, "psnr")["value"] > 60
    assert any("share-images" in row["message"] for row in rows if row["status"] == "refused")


def test_an_app_that_answers_no_audit_runs_and_the_log_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("WARNING", logger="flwr"):
        (row,) = run(tmp_path / "out", AppGrid(an_app(audited=False)), go_on=True)
    assert row["status"] == "failed"
    assert "does the ClientApp call answer_audits?" in caplog.text


def test_images_outside_0_1_are_told_to_who_wrote_data(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def normalised(context: Context) -> Any:
        images, labels = digits(context).tensors
        return list(zip((images - 0.5) / 0.25, labels, strict=True))

    with caplog.at_level("WARNING", logger="flwr"):
        run(tmp_path / "out", AppGrid(an_app(data=normalised)), go_on=True)
    assert "expected [0, 1], before the normalisation of your transform" in caplog.text


def test_mistakes_end_before_the_run(tmp_path: Path) -> None:
    plain = FedAvg()
    assert audited(plain, "", Net) is plain
    with pytest.raises(ConfigError, match="it must be absolute"):
        audited(FedAvg(), "relative", Net)
    with pytest.raises(ValueError, match="at the top level of a module"):
        audited(FedAvg(), tmp_path, lambda: Net())
    with pytest.raises(ValueError, match="probe_images is 0; allowed: a whole number, at least 1"):
        audited(FedAvg(), tmp_path, Net, probe_images=0)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="file is a file; name a folder"):
        audited(FedAvg(), tmp_path / "file", Net)
    with pytest.raises(ConfigError, match=r"cannot write into .*file/inside"):
        audited(FedAvg(), tmp_path / "file" / "inside", Net)
    with pytest.raises(DefenseError, match="allowed are defences of whole updates \\(per='update'\\)"):
        protect_mod("DPSGD()")
    with pytest.raises(
        DefenseError, match=r"SiloBN\(\) is not allowed: .* initial running averages, which the app's own"
    ):
        protect_mod("SiloBN()")
