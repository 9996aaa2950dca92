"""A run in the calling process: from Python and from the command line, with the rows of a run on Flower's runtime."""

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict

import simulations
from simulations import server_app
from simulations.experiment.experiment import Experiment
from simulations.run_folder.run_directory import RunDirectory
from simulations.runtime.local_grid import FIRST_NODE, LocalGrid
from simulations.server_app import SHARE, Throttle
from simulations.settings.errors import ConfigError
from tests.lines import read_lines
from tests.simulations.commands import fedveil
from tests.simulations.runtime.runtimes import BINARIES, PATIENCE, config, pairs
from tests.simulations.short_runs import untimed
from tests.simulations.split.test_run import split_experiment

pytestmark = pytest.mark.usefixtures("as_its_own_process")

TINY = {
    "dataset": "mnist-5k", "model": "lenet", "train_limit": 200, "test_limit": 60, "rounds": 2, "num_clients": 2,
    "defenses": "ImageNoise(std=0.1)", "probe_attacks": "InvertingGradients(iterations=3)", "update_attacks": "",
    "attack_rounds": "first", "attack_workers": 0, "adaptive": False,
}  # fmt: skip


@pytest.mark.long
def test_one_call_gives_rows_conclusions_and_the_report(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    found = simulations.audit(out=tmp_path / "run", **TINY)
    assert torch.get_num_threads() == before
    assert found.directory == tmp_path / "run"
    assert found.report.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert len(found.rows) == len(read_lines(tmp_path / "run" / "rows.jsonl"))
    psnr = [row for row in found.rows if row.metric == "psnr" and row.attack.startswith("InvertingGradients")]
    assert {row.defense for row in psnr} == {"", "ImageNoise(std=0.1)"}
    assert set(found.conclusions) == {"", "ImageNoise(std=0.1)"}
    assert all("of 8" in said for said in found.conclusions.values()), found.conclusions
    assert found.failures == []


def test_what_one_should_know_beforehand_is_a_warning_at_the_call(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="each attacked round has 2 images") as told:
        simulations.audit(out=tmp_path / "run", **{**TINY, "probe_targets": 1, "rounds": 1, "defenses": ""})
    assert {one.filename for one in told if "each attacked round" in str(one.message)} == {__file__}


def test_the_page_of_a_run_is_written_again_as_attacks_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[dict[str, Any]]()

    def look(directory: Path) -> None:
        rows = read_lines(directory / "rows.jsonl")
        attacked = len({(row["attack"], row["round"]) for row in rows if row["role"] == "attack"})
        seen.append(json.loads((directory / "config.json").read_text())["progress"] | {"attacked": attacked})

    monkeypatch.setattr("simulations.server_app.Throttle", lambda: look)
    short = {"probe_targets": 16, "rounds": 1, "defenses": "", "attack_rounds": "all,final"}
    simulations.audit(out=tmp_path / "run", **{**TINY, **short})
    assert not any(one["finished"] for one in seen)
    assert [one["attacks_done"] for one in seen][-1] == seen[-1]["attacks"] == seen[-1]["attacked"] == 2
    assert len(seen) > 3, "a page after each of two rounds and of the model after them, and more"


def test_a_resumed_run_goes_on_in_the_way_in_which_it_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ways: list[str] = []
    for way in ("run_in_process", "run_locally"):
        monkeypatch.setattr(f"simulations.run.seeds.{way}", lambda *_, way=way: ways.append(way) or 1)
    for in_process in (True, False):
        out = tmp_path / str(in_process)
        run = RunDirectory.open(out, Experiment.of(output_dir=str(out), **TINY), in_process=in_process)
        run.write_progress({})
        run.close()
        code, told = fedveil("run", "--resume", out)
        assert (code, ways.pop()) == (1, "run_in_process" if in_process else "run_locally"), told
    assert not ways


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["split", "federated"])
def test_rows_are_those_of_a_run_on_flowers_runtime(tmp_path: Path, scenario: str) -> None:
    if scenario == "split":
        settings = split_experiment(tmp_path / "here", attack_workers=1).to_mapping()
    else:
        settings = config(
            tmp_path / "here", defenses="GaussianNoise(std=0.01, per='step'); DPSGD(noise_multiplier=1.0)",
            update_attacks="LabelInference(); InvertingGradients(iterations=3)",
        )  # fmt: skip
    assert settings["scenario"] == scenario
    told = {name: value for name, value in settings.items() if name not in ("output-dir", "num-clients", "resume")}
    simulations.audit(out=tmp_path / "here", clients=2, **{name.replace("-", "_"): v for name, v in told.items()})
    done = subprocess.run(
        [str(BINARIES / "fedveil"), "run", "--out", str(tmp_path / "there"), "--clients", "2", *pairs(told)],
        capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    here, there = (untimed(read_lines(tmp_path / where / "rows.jsonl")) for where in ("here", "there"))
    assert here == there


def test_temporary_files_of_an_audit_have_their_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def run(grid: object, experiment: Experiment, *, in_process: bool) -> None:
        seen.append((os.environ["TMPDIR"], tempfile.gettempdir()))

    monkeypatch.setattr("simulations.run.in_process.run_experiment", run)
    before = os.environ.get("TMPDIR"), tempfile.gettempdir()
    simulations.audit(preset="quick", out=tmp_path / "run", attack_workers=0)
    ((variable, folder),) = seen
    assert variable == folder != before[1]
    assert Path(folder).name.startswith("fedveil-run-")
    assert Path(folder).is_dir()
    assert (os.environ.get("TMPDIR"), tempfile.gettempdir()) == before


def test_a_client_app_that_raises_answers_with_an_error() -> None:
    def broken(message: Message, context: Context) -> Message:
        raise OSError("disk full")

    reply = LocalGrid(1, app=broken).answer(Message(RecordDict(), FIRST_NODE, "train"))
    assert reply.error.reason == "OSError: disk full"


def test_neither_side_of_a_message_sees_what_the_other_does_to_it() -> None:
    def changing(message: Message, context: Context) -> Message:
        del message.content["arrays"]["0"]
        message.content["config"]["rounds"] = 4
        return Message(message.content, reply_to=message)

    arrays, config = ArrayRecord([np.arange(3.0), np.eye(2)]), ConfigRecord({"rounds": 3})
    message = Message(RecordDict({"arrays": arrays, "config": config}), FIRST_NODE, "train")
    (reply,) = LocalGrid(1, app=changing).send_and_receive([message])
    assert (list(arrays), config["rounds"]) == (["0", "1"], 3)
    assert (list(reply.content["arrays"]), reply.content["config"]["rounds"]) == (["1"], 4)
    np.testing.assert_array_equal(reply.content["arrays"]["1"].numpy(), np.eye(2))


def test_arguments_of_another_kind_are_refused_by_name(tmp_path: Path) -> None:
    counts = [
        ({name: value}, f"{name} is {value!r}; allowed: a whole number of at least 1")
        for name in ("clients", "cpus_per_client") for value in (0, -3, "4", 2.5, True)
    ]  # fmt: skip
    cases: list[tuple[dict[str, Any], str]] = [
        *counts, ({"out": ""}, "out is ''; allowed: a path"), ({"out": 3}, "out is 3; allowed: a path"),
        ({"config": "a\0b"}, "config is 'a\\x00b'; allowed: a path"), ({"resume": ""}, "resume is ''; allowed: a path"),
        ({"size": ["paper"]}, "size is ['paper']; allowed: a text"), ({"preset": 3}, "preset is 3; allowed: a text"),
        ({"cpus_per_client": 10**10}, "cpus_per_client is 10000000000; this machine has"),
    ]  # fmt: skip
    for arguments, told in cases:
        with pytest.raises(ConfigError) as error:
            simulations.audit(**{"out": tmp_path / "run", **arguments})
        assert str(error.value).startswith(told), arguments
        assert not (tmp_path / "run").exists()
    for scenario in ("audited", "recording"):
        (tmp_path / "config.json").write_text(json.dumps({"config": {"scenario": scenario}}))
        with pytest.raises(ConfigError, match=f"--resume: {tmp_path} holds an audit that is begun anew"):
            simulations.audit(resume=tmp_path)


def test_reports_of_a_running_run_take_a_small_share_of_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now, cost, written = 0.0, 0.5, list[float]()

    def write(directory: Path) -> Path:
        nonlocal now
        written.append(now)
        now += cost
        return directory

    monkeypatch.setattr(server_app, "write_report", write)
    monkeypatch.setattr("time.monotonic", lambda: now)
    throttle = Throttle()
    for _ in range(1000):
        now += 1.0
        throttle(Path())
    assert written[0] == 1.0  # after the first round there is one
    assert 0.8 * SHARE < cost * len(written) / now <= SHARE
    throttle, cost, before = Throttle(), 0.0, len(written)
    for _ in range(3):
        throttle(Path())
    assert len(written) == before + 3, "a report that costs nothing is written after every round"
