"""A file of policies is read once, where a person names it; from there on everything works without it, wherever it runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict
from typer.testing import CliRunner

from clients.data.datasets import load_dataset
from simulations import cli, server_app
from simulations.experiment.experiment import Experiment
from simulations.external_app.recorded.arguments.request import Request
from simulations.external_app.recorded.attack_file import prepare
from simulations.run import command as run_command
from simulations.runtime.progress import read_progress
from simulations.settings.errors import ConfigError
from tests.lines import read_lines
from tests.local_grid import LocalGrid

DEFENSES = 'ATS(policies="search/policies.json")'
HELD = "ATS(policies='3-1-7', channels=1)"
SMALL: dict[str, Any] = {
    "dataset": "mnist-5k", "model": "lenet", "train-limit": 120, "test-limit": 40, "rounds": 1, "local-epochs": 1,
    "probe-attacks": "LabelInference()", "probe-targets": 1, "attack-rounds": "first", "attack-workers": 0, "adaptive": False,
}  # fmt: skip


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The person's folder holds the file; what a command starts has another."""
    (tmp_path / "mine" / "search").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    found = {"policies": "3-1-7", "channels": 1}
    (tmp_path / "mine" / "search" / "policies.json").write_text(json.dumps(found))
    monkeypatch.chdir(tmp_path / "mine")
    return tmp_path / "elsewhere"


@pytest.fixture
def started(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> list[Experiment]:
    """The experiments that ``fedveil run`` sends to the server, which runs them in its own folder, on nodes of this process."""
    seen: list[Experiment] = []

    def run(_: Any, experiment: Experiment, resources: Any) -> int:
        sent = json.loads(json.dumps(experiment.to_mapping()))
        with monkeypatch.context() as there:
            there.chdir(elsewhere)
            seen.append(Experiment.from_mapping(sent))
            server_app.run_experiment(LocalGrid(2), seen[-1])
        return 0

    monkeypatch.setattr(run_command, "run_locally", run)
    return seen


def command(*words: object) -> tuple[int, str]:
    result = CliRunner().invoke(cli.app, list(map(str, words)))
    return result.exit_code, result.output


def pairs(**changes: str) -> list[str]:
    return [word for key, value in {**SMALL, **changes}.items() for word in ("-s", f"{key}={value}")]


@pytest.mark.long
def test_a_run_in_another_folder_needs_no_file_and_neither_does_going_on(started: list[Experiment]) -> None:
    code, told = command("run", *pairs(defenses=DEFENSES), "--clients", 2, "--out", "run")
    assert code == 0, told
    (first,) = started
    assert ".json" not in json.dumps(first.to_mapping())
    assert [str(pipeline) for pipeline in first.pipelines] == ["", HELD]
    rows = read_lines(Path("run/rows.jsonl"))
    assert {row["defense"] for row in rows} == {"", HELD}
    assert not [row for row in rows if row["status"] == "failed"]
    assert "policies.json" not in "".join(p.read_text() for p in Path("run").glob("*.json*"))

    same = command("run", "--resume", "run", "-s", f"defenses={DEFENSES}")
    assert same[0] == 0, same[1]
    Path("search/policies.json").write_text(json.dumps({"policies": "1", "channels": 1}))
    other = command("run", "--resume", "run", "-s", f"defenses={DEFENSES}")
    assert (other[0], "resume with the settings of the run" in other[1]) == (2, True)
    Path("search/policies.json").unlink()
    code, told = command("run", "--resume", "run")
    assert code == 0, told
    assert read_progress(Path("run"))["finished"]
    assert read_lines(Path("run/rows.jsonl")) == rows


def test_a_file_of_settings_names_it_from_where_the_command_is_typed(started: list[Experiment]) -> None:
    Path("search/audit.toml").write_text(
        "\n".join(f"{k} = {json.dumps(v)}" for k, v in {**SMALL, "defenses": DEFENSES}.items())
    )
    code, told = command("run", "search/audit.toml", "--dry-run")
    assert code == 0, told
    assert HELD in told
    Path("search/audit.toml").write_text(f"defenses = {json.dumps(DEFENSES.replace('search/', ''))}")
    code, told = command("run", "search/audit.toml", "--dry-run")
    assert (code, "defenses: defence ATS: policies is 'policies.json': No such file" in told) == (2, True)
    code, _ = command("run", "search/audit.toml", *pairs(defenses=DEFENSES), "--dry-run")
    assert code == 0, "what -s overrides is not read"


def test_a_transfer_is_refused_unless_it_is_asked_for(started: list[Experiment]) -> None:
    """``fedveil search -s transfer-to=mnist-5k`` scores colour policies on grey digits."""
    Path("search/policies.json").write_text(json.dumps({"policies": "3-1-7", "channels": 3}))
    code, told = command("run", *pairs(defenses=DEFENSES), "--dry-run")
    assert (code, "was searched for images of 3 channels, and these have 1" in told) == (2, True)
    for channels in (0, 1):
        given = DEFENSES.replace(")", f", channels={channels})")
        code, told = command("run", *pairs(defenses=given), "--dry-run")
        assert code == 0, told


def test_a_run_that_flower_starts_refuses_a_file(elsewhere: Path) -> None:
    """Its server is another process, in another folder: whether a file is there decides nothing."""
    told = set()
    for name in ("search/policies.json", "search/missing.json", str(Path("search/policies.json").resolve())):
        values = {**SMALL, "output-dir": str(elsewhere / "run"), "defenses": f"ATS(policies={name!r})"}
        with pytest.raises(
            ConfigError, match=r"defenses: defence ATS: .*allowed: the name of a file only in the configuration"
        ) as error:
            server_app.app(LocalGrid(2), Context(1, 0, {}, RecordDict(), values))
        told.add(str(error.value).replace(name, "NAME"))
    assert len(told) == 1
    assert not (elsewhere / "run").exists()


def test_protected_copies_and_recorded_updates_take_a_file_too(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(elsewhere))
    code, told = command("protect", "pictures", "copies", "--defense", 'ATS(policies="missing.json")')
    assert (code, "--defense: defence ATS: policies is 'missing.json': No such file" in told) == (2, True)
    from PIL import Image

    Path("pictures").mkdir()
    pixels = load_dataset("mnist-5k").train.images[0]
    Image.fromarray(pixels.numpy()[0]).save("pictures/digit.png")
    code, told = command("protect", "pictures", "copies", "--defense", DEFENSES)
    assert code == 0, told
    assert json.loads(Path("copies/manifest.json").read_text())["defense"] == HELD

    seen: list[Request] = []

    def stop(request: Request) -> Any:
        seen.append(request)
        raise ConfigError("far enough")

    monkeypatch.setattr("simulations.external_app.recorded.attack_file.prepare", stop)
    Path("u").touch()
    words = ("attack", "u", "--model", "lenet", "--num-classes", 10, "--input-shape", "1,28,28", "--learning-rate", 0.1)
    assert command(*words, "--defense", DEFENSES)[0] == 2
    assert seen[0].defense == HELD
    code, told = command(*words, "--defense", 'ATS(policies="missing.json")')
    assert (code, "--defense: defence ATS: policies is 'missing.json': No such file" in told) == (2, True)
    assert len(seen) == 1
    with pytest.raises(
        ConfigError, match=r"--defense: defence ATS: .*allowed: the name of a file only in the configuration"
    ):
        prepare(Request(
            update=Path("u"), model="lenet", num_classes=10, input_shape="1,28,28", learning_rate=0.1, defense=DEFENSES,
        ))  # fmt: skip
