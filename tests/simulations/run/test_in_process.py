"""A run in the calling process: from Python and from the command line, with the rows of a run on Flower's runtime."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import simulations
from clients.secrets.policy import RefusedError
from simulations.cli import app
from simulations.experiment.experiment import Experiment
from simulations.run_folder.run_directory import RunDirectory
from simulations.settings.errors import ConfigError
from tests.lines import read_lines
from tests.simulations.runtime.runtimes import BINARIES, PATIENCE, config, pairs
from tests.simulations.split.test_run import split_experiment, untimed

TINY = {
    "dataset": "mnist-5k", "model": "lenet", "train_limit": 200, "test_limit": 60, "rounds": 2, "num_clients": 2,
    "defenses": "ImageNoise(std=0.1)", "probe_attacks": "InvertingGradients(iterations=3)", "update_attacks": "",
    "attack_rounds": "first", "attack_workers": 0, "adaptive": False,
}  # fmt: skip


def spelt(settings: dict[str, Any]) -> dict[str, Any]:
    return {name.replace("_", "-"): value for name, value in settings.items()}


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
    assert all("dB" in said for said in found.conclusions.values()), found.conclusions
    assert found.failures == []


def test_what_one_should_know_beforehand_is_a_warning_at_the_call(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="each attacked round has 2 images") as told:
        simulations.audit(out=tmp_path / "run", **{**TINY, "probe_targets": 1, "rounds": 1, "defenses": ""})
    assert {one.filename for one in told if "each attacked round" in str(one.message)} == {__file__}


class Small(torch.nn.Sequential):
    """A model of a module, given as it is."""

    def __init__(self, num_classes: int) -> None:
        super().__init__(torch.nn.Flatten(), torch.nn.Linear(784, num_classes))


@pytest.mark.long
def test_a_class_stands_for_its_place(tmp_path: Path) -> None:
    told = {**TINY, "defenses": "", "rounds": 1, "probe_attacks": "LabelInference()", "model": Small}
    found = simulations.audit(out=tmp_path / "run", **told)
    assert {row.model for row in found.rows} == {f"{__name__}:Small"}

    class Inner(Small):
        """Nobody else finds it."""

    with pytest.raises(ConfigError, match=r"model is <class .*Inner'>; allowed: a name, or a class or function"):
        simulations.audit(out=tmp_path / "other", **{**TINY, "model": Inner})


@pytest.mark.long
def test_a_class_of_the_script_is_found_in_its_file(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from simulations.run.in_process import place_of\nclass Net: pass\nif __name__ == '__main__': print(place_of('model', Net))"
    )
    root = str(Path(__file__).resolve().parents[3])
    command = [sys.executable, str(script)]
    env = {**os.environ, "PYTHONPATH": root}
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stdout.strip() == f"{script}:Net"


@pytest.mark.long
def test_a_shipped_configuration_goes_by_its_name(tmp_path: Path) -> None:
    told: dict[str, Any] = {
        "out": tmp_path / "run",
        "clients": 2,
        "attack_workers": 0,
        "attack_rounds": "",
        "rounds": 1,
    }
    found = simulations.audit(preset="quick", defenses="", train_limit=200, test_limit=60, **told)
    stored = json.loads((found.directory / "config.json").read_text())["config"]
    assert (stored["experiment"], stored["rounds"]) == ("quick", 1)
    with pytest.raises(ConfigError, match=r"config is 'quick', which is no file; .* is preset='quick'"):
        simulations.audit("quick", **told)
    with pytest.raises(ConfigError, match=r"unknown preset 'quik', did you mean 'quick'\?"):
        simulations.audit(preset="quik", **told)


@pytest.mark.parametrize("value", [0, -3, "4", 2.5, True])
@pytest.mark.parametrize("name", ["clients", "cpus_per_client"])
def test_numbers_of_clients_and_threads_are_checked(name: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"{name} is {value!r}; allowed: a whole number of at least 1"):
        simulations.audit(out=tmp_path / "run", **{name: value}, **TINY)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("scenario", "what"), [("audited", "the audit of an app"), ("recording", "attacks on a recording")]
)
def test_what_is_no_run_does_not_go_on(scenario: str, what: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"config": {"scenario": scenario}}))
    with pytest.raises(ConfigError, match=f"--resume: {tmp_path} holds {what}, which is begun anew"):
        simulations.audit(resume=tmp_path)


@pytest.mark.long
def test_a_file_its_settings_and_what_stands_over_them(tmp_path: Path) -> None:
    config = tmp_path / "own.toml"
    lines = (f"{name} = {json.dumps(value)}" for name, value in spelt(TINY).items())
    config.write_text("\n".join(lines))
    found = simulations.audit(config, out=tmp_path / "run", rounds=1, defenses="")
    assert {row.defense for row in found.rows} == {""}
    assert max(row.round for row in found.rows) <= 2
    with pytest.raises(ConfigError, match="already holds a run"):
        simulations.audit(config, out=tmp_path / "run")
    with pytest.raises(ConfigError, match="did you mean 'rounds'"):
        simulations.audit(config, out=tmp_path / "other", round=1)
    assert not (tmp_path / "other").exists()


@pytest.mark.slow
def test_workers_change_no_row(tmp_path: Path) -> None:
    both = [simulations.audit(out=tmp_path / str(n), **{**TINY, "attack_workers": n}).directory for n in (0, 1)]
    first, second = (untimed(read_lines(path / "rows.jsonl")) for path in both)
    assert first == second


@pytest.mark.long
def test_what_was_complete_is_kept_and_taken_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from simulations.run import in_process

    class Broken(in_process.LocalGrid):
        def answer(self, message: Any) -> Any:
            if message.metadata.message_type == "train" and '"round": 2' in str(message.content["config"]["task"]):
                raise KeyboardInterrupt
            return super().answer(message)

    whole = simulations.audit(out=tmp_path / "whole", **TINY).directory
    with monkeypatch.context() as patch:
        patch.setattr(in_process, "LocalGrid", Broken)
        texts = [text for name, value in spelt(TINY).items() for text in ("-s", f"{name}={value}")]
        result = CliRunner().invoke(app, ["run", "--in-process", "--out", str(tmp_path / "run"), *texts])
    assert result.exit_code == 130
    assert f"--resume {tmp_path / 'run'}" in result.output.replace("\n", "")
    resumed = simulations.audit(resume=tmp_path / "run").directory
    assert untimed(read_lines(resumed / "rows.jsonl")) == untimed(read_lines(whole / "rows.jsonl"))


@pytest.mark.parametrize("in_process", [True, False])
def test_a_resumed_run_goes_on_in_the_way_in_which_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_process: bool
) -> None:
    settings = Experiment.of(output_dir=str(tmp_path / "run"), **TINY)
    run = RunDirectory.open(tmp_path / "run", settings, in_process=in_process)
    run.write_progress({})
    run.close()
    ways: list[str] = []
    for way in ("run_in_process", "run_locally"):
        monkeypatch.setattr(f"simulations.run.command.{way}", lambda *_, way=way: ways.append(way) or 1)
    result = CliRunner().invoke(app, ["run", "--resume", str(tmp_path / "run")])
    assert (result.exit_code, ways) == (1, ["run_in_process" if in_process else "run_locally"]), result.output


@pytest.mark.long
def test_the_command_says_how_it_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [text for name, value in spelt(TINY).items() for text in ("-s", f"{name}={value}")]
    result = CliRunner().invoke(app, ["run", "--in-process", "--out", str(tmp_path / "run"), *texts])
    assert result.exit_code == 0, result.output
    assert "report:" in result.output

    from simulations.run import in_process

    class Refusing(in_process.LocalGrid):
        def answer(self, message: Any) -> Any:
            if message.metadata.message_type == "train":
                raise RefusedError("not here")
            return super().answer(message)

    monkeypatch.setattr(in_process, "LocalGrid", Refusing)
    failed = CliRunner().invoke(app, ["run", "--in-process", "--out", str(tmp_path / "failed"), *texts])
    assert failed.exit_code == 1


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
    run = [str(BINARIES / "fedveil"), "run", "--out"]
    told = {name: value for name, value in settings.items() if name not in ("output-dir", "num-clients", "resume")}
    simulations.audit(out=tmp_path / "here", clients=2, **{name.replace("-", "_"): v for name, v in told.items()})
    done = subprocess.run(
        [*run, str(tmp_path / "there"), "--clients", "2", *pairs(told)],
        capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    here, there = (untimed(read_lines(tmp_path / where / "rows.jsonl")) for where in ("here", "there"))
    assert here == there


def test_temporary_files_of_an_audit_lie_in_a_folder_of_its_own_and_those_of_its_caller_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"out": ""}, "out is ''; allowed: a path"),
        ({"out": 3}, "out is 3; allowed: a path"),
        ({"config": "a\0b"}, "config is 'a\\x00b'; allowed: a path"),
        ({"resume": ""}, "resume is ''; allowed: a path"),
        ({"size": ["paper"]}, "size is ['paper']; allowed: a text"),
        ({"preset": 3}, "preset is 3; allowed: a text"),
        ({"cpus_per_client": 10**10}, "cpus_per_client is 10000000000; this machine has"),
    ],
)
def test_arguments_of_another_kind_are_refused_by_name(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as error:
        simulations.audit(**arguments)
    assert str(error.value).startswith(told)
