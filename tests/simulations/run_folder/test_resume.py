"""A run that is killed and resumed ends with the rows of an unbroken one, in every scenario."""

import functools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from simulations import server_app
from simulations.experiment.experiment import Experiment
from simulations.report.studies.rows import read_rows
from simulations.run_folder.run_directory import RunDirectory
from simulations.server_app import run_experiment
from simulations.settings.errors import ConfigError
from tests.lines import read_lines
from tests.local_grid import LocalGrid
from tests.simulations.federated.test_federation import experiment
from tests.simulations.inference.test_run import inference_experiment
from tests.simulations.outsourced.test_run import outsourced_experiment
from tests.simulations.run_folder.kills import Killed, killed_at, killed_with_open_attacks
from tests.simulations.short_runs import untimed
from tests.simulations.split.test_run import split_experiment

Kills = tuple[tuple[str, int, int], ...]
SPLIT = {
    "defenses": "BatchShuffle(k=0.4)", "attack_rounds": "all", "batches_per_message": 1, "test_limit": 10,
    "smashed_attacks": "ServerPrediction()",
}  # fmt: skip
SGD, ADAMW = {"optimizer": "sgd", "momentum": 0.9}, {"optimizer": "adamw", "learning_rate": 0.01}
# Three clients, rounds and pipelines: training replies 4-6 are round 2 of the first, 10-12 round 1 of DP-SGD, ...; of the probes,
# 4-6 are on the final model of the first pipeline, 10-12 on that of DP-SGD. Split: two clients with three batches, two rounds, two
# pipelines: reply 8 is in round 2 of the first, 21 in round 2 of the second. What a checkpoint has of uploads, or of queries that
# were answered, is never asked for again.
RUNS: dict[str, tuple[Callable[..., Experiment], dict[str, Any], str, Kills, int]] = {
    "federated": (
        experiment,
        {"defenses": "DPSGD(target_epsilon=8.0); VisualMixer()", "rounds": 3, "attack_rounds": "first,final", "dp_canaries": 8,
         "update_attacks": "LabelInference(); LossThreshold(); GradientAlignment()"},
        "train", (("train", 5, 24), ("train", 14, 15), ("train.probe", 5, 18), ("train.probe", 11, 9)), 27,
    ),
    "a ladder": (
        experiment, {"probe_images": "1, 2, 1x2", "rounds": 1, "attack_rounds": "first", "update_attacks": "LabelInference()"},
        "train.probe", (("train.probe", 14, 9), ("query.audit", 20, 9)), 12,
    ),
    "split, sgd": (split_experiment, SPLIT | SGD, "train.step", (("train.step", 21, 6),), 0),
    "split, adamw": (split_experiment, SPLIT | ADAMW, "train.step", (("train.step", 21, 6),), 0),
    "trained, sgd": (
        split_experiment, SPLIT | SGD | {"train_edge": True}, "train.step", (("train.step", 21, 6), ("train.step", 8, 18)), 6
    ),
    "trained, adamw": (
        split_experiment, SPLIT | ADAMW | {"train_edge": True}, "train.step",
        (("train.step", 21, 6), ("evaluate", 12, 6), ("train.smash", 5, 12)), 0,
    ),
    "inference": (
        inference_experiment,
        {"defenses": "FeaturePCA(components=8) | FeatureNoise(std=0.1)", "query_attacks": "QueryInversion(iterations=2)"},
        "query.features", (("query.features", 3, 8), ("evaluate", 2, 8), ("query.features", 6, 4), ("query.audit", 7, 0)), 2,
    ),
    "outsourced": (
        outsourced_experiment,
        {"defenses": "InstaHide(); STAdam()", "rounds": 3, "attack_rounds": "first,2,final"},
        "train.upload",
        (("evaluate", 3, 8), ("train.upload", 6, 8), ("evaluate", 13, 4), ("evaluate", 24, 0), ("query.audit", 9, 8)), 9,
    ),
}  # fmt: skip
"""Name -> settings; a type of message; kills (type, number of reply, messages of the former type that are left); open jobs."""


def resumed(settings: Experiment) -> list[tuple[str, int]]:
    """The messages of the second part. A new grid: the nodes have forgotten their state, as when a simulation ends."""
    grid = LocalGrid(settings.num_clients)
    run_experiment(grid, settings.but(resume=True))
    return grid.sent


def rows_in(folder: Path) -> list[dict[str, Any]]:
    return untimed(read_lines(folder / "rows.jsonl"))


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[dict[str, Any]]]:
    """Name -> the rows of a run that no kill has broken."""

    @functools.cache
    def rows(name: str) -> list[dict[str, Any]]:
        make, changes, *_ = RUNS[name]
        settings = make(tmp_path_factory.mktemp("unbroken") / "run", **changes)
        run_experiment(LocalGrid(settings.num_clients), settings)
        return rows_in(Path(settings.output_dir))

    return rows


@pytest.mark.long
@pytest.mark.parametrize("name", RUNS)
def test_resumed_rows_equal_unbroken_rows(
    name: str, tmp_path: Path, unbroken: Callable[[str], list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_app, "write_report", lambda path: path)
    make, changes, asked, kills, jobs = RUNS[name]
    for message_type, count, left in kills:
        settings = make(tmp_path / f"{message_type}-{count}", **changes)
        with pytest.raises(Killed):
            run_experiment(LocalGrid(settings.num_clients, killed_at(message_type, count)), settings)
        sent = resumed(settings)
        assert rows_in(Path(settings.output_dir)) == unbroken(name), (message_type, count)
        assert len([kind for kind, _ in sent if kind == asked]) == left, (message_type, count)
    if jobs:  # attacks that were open are run again, and nothing else
        settings, open_jobs = make(tmp_path / "open", **changes), tmp_path / "open" / "jobs"
        killed_with_open_attacks(settings)
        assert len(list(open_jobs.glob("*.safetensors"))) == jobs
        assert {kind for kind, _ in resumed(settings)} == {"query.partition", "query.setup", "query.audit"}
        assert rows_in(tmp_path / "open") == unbroken(name)
        assert not list(open_jobs.glob("*.safetensors"))


@pytest.mark.long
def test_epsilon_grows_over_rounds_and_survives_the_kill(unbroken: Callable[[str], list[dict[str, Any]]]) -> None:
    rows = unbroken("federated")
    spent, probed = ([r["value"] for r in rows if r["metric"] == name] for name in ("epsilon", "epsilon-with-probes"))
    assert (len(spent), spent[-1] <= 8.0) == (3, True)
    # Drawn up at the probes of round 1, after the last round, and at the probes on the final model: each of them spends.
    assert len(probed) == 3
    for values in (spent, probed):
        assert values == sorted(set(values))
    assert probed[1] > spent[-1]


def test_a_small_run_is_resumed_after_a_kill_and_refuses_other_settings_and_a_second_run(tmp_path: Path) -> None:
    small = {"model": "mlp", "defenses": "", "rounds": 2, "attack_rounds": ""}
    settings = experiment(tmp_path / "run", **small)
    with pytest.raises(ConfigError, match="holds no run"):
        RunDirectory.open(tmp_path / "run", settings.but(resume=True))
    with pytest.raises(Killed):
        run_experiment(LocalGrid(3, killed_at("train", 5)), settings)
    grid = LocalGrid(3)
    run_experiment(grid, settings.but(resume=True))
    assert len([sent for sent in grid.sent if sent[0] == "train"]) == 3
    whole = experiment(tmp_path / "whole", **small)
    run_experiment(LocalGrid(3), whole)
    rows = [untimed(read_lines(tmp_path / name / "rows.jsonl")) for name in ("run", "whole")]
    assert rows[0] == rows[1]
    with pytest.raises(ConfigError, match="already holds a run"):
        run_experiment(LocalGrid(3), settings)
    with pytest.raises(ConfigError, match="batch-size was 32 and is now 8"):
        run_experiment(LocalGrid(3), settings.but(resume=True, batch_size=8))


def test_two_writers_are_refused_and_further_columns_and_times_are_kept(tmp_path: Path) -> None:
    settings, config = experiment(tmp_path / "run"), tmp_path / "run" / "config.json"

    def written(resume: bool) -> dict[str, Any]:
        run = RunDirectory.open(tmp_path / "run", settings.but(resume=resume))
        with pytest.raises(ConfigError, match="another run is still writing"):
            RunDirectory.open(tmp_path / "run", settings)
        if not resume:
            task = settings.plan(settings.pipelines[0]).at(1)
            run.row(task, metric="bytes-uploaded", value=7.0, releases=3)
            with pytest.raises(TypeError, match="no row has the columns compressed"):
                run.row(task, metric="bytes-uploaded", value=7.0, compressed=3)  # type: ignore[call-arg]
        run.write_progress({"round": 1})
        run.flush()
        run.close()
        found: dict[str, Any] = json.loads(config.read_text())["run"]
        return found

    first = written(resume=False)
    (row,) = read_rows(tmp_path / "run" / "rows.jsonl")[0]
    assert (row.metric, row.value, row.extra) == ("bytes-uploaded", 7.0, {"releases": 3})
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", first["started"])
    assert re.match(r"\d+ cores?, \d+ GiB, \w+", first["machine"])
    kept = json.loads(config.read_text())
    kept["run"] |= {"started": "2020-01-01 00:00 UTC", "seconds": 1e6}
    config.write_text(json.dumps(kept))
    again = written(resume=True)
    assert again["started"] == "2020-01-01 00:00 UTC"
    assert 1e6 <= again["seconds"] < 1.1e6
