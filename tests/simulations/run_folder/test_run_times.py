from __future__ import annotations

import json
import re
from pathlib import Path

from simulations.experiment.experiment import Experiment
from simulations.run_folder.run_directory import RunDirectory


def written(path: Path, experiment: Experiment) -> dict[str, object]:
    run = RunDirectory.open(path, experiment)
    run.write_progress({"round": 1})
    run.close()
    found: dict[str, object] = json.loads((path / "config.json").read_text())["run"]
    return found


def test_a_resumed_run_keeps_its_start_and_adds_its_seconds(tmp_path: Path) -> None:
    experiment = Experiment.of(output_dir=str(tmp_path / "run"))
    first = written(tmp_path / "run", experiment)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", str(first["started"]))
    assert re.match(r"\d+ cores?, \d+ GiB, \w+", str(first["machine"]))
    config = tmp_path / "run" / "config.json"
    kept = json.loads(config.read_text())
    kept["run"] |= {"started": "2020-01-01 00:00 UTC", "seconds": 1000.0}
    config.write_text(json.dumps(kept))
    again = written(tmp_path / "run", Experiment.of(output_dir=str(tmp_path / "run"), resume=True))
    assert again["started"] == "2020-01-01 00:00 UTC"
    assert 1000 <= float(str(again["seconds"])) < 1000 + 600
