import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from simulations.run.command import RunRequest
from simulations.run.requested import requested
from simulations.run_folder.run_config import command_of
from simulations.settings.presets import presets
from tests.simulations.commands import fedveil, refused


def test_the_command_gives_the_settings_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[RunRequest] = []
    monkeypatch.setattr("simulations.run.command.begin", lambda console, one, *, dry_run: taken.append(one) or 0)
    text = "DPSGD(target_epsilon=8.0); Pruning()"
    for number, (preset, size, settings, targets) in enumerate((
        ("quick", "", {}, 0),
        ("quick", "", {"rounds": 4, "adaptive": False}, 0),
        ("quick", "", {}, 32),
        ("split_table2", "paper", {"learning-rate": 0.5}, 0),
        ("", "", {}, 0),
        ("", "", {"defenses": text, "experiment": "it's mine"}, 0),
        ("", "", {"num-clients": 7, "learning-rate": 1e-05, "resume": False, "attack-gpus": 0.5}, 0),
    )):  # fmt: skip
        folder = tmp_path / f"a run {number}"
        before = requested(presets().get(preset), {**settings, "seed": 9}, folder, size=size)
        config: dict[str, Any] = {"config": before.to_mapping()} | ({"run": {"in-process": True}} if targets else {})
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        command = command_of(folder, config, "0..4", "five", *([f"probe-targets={targets}"] if targets else []))
        assert fedveil(*shlex.split(command)[1:])[0] == 0
        one = taken.pop()
        assert (one.seeds, one.in_process) == ([0, 1, 2, 3, 4], bool(targets))
        again = requested(one.config, one.settings, one.out, one.resume, one.clients, one.size)
        assert (again.seed, again.output_dir) == (9, str(Path("five").resolve()))
        assert again.but(output_dir=before.output_dir) == (before.but(probe_targets=targets) if targets else before)


def test_a_damaged_configuration_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    for text, why in (
        ("[" * 99_999, "nested too deep"), ("{", "is not a configuration of a run"), ("[1]", "no settings under config"),
        ('{"config": 3}', "no settings under config"), ('{"config": {"rounds": {}}}', "rounds"),
    ):  # fmt: skip
        file.write_text(text)
        assert why in refused("run", file, "--out", tmp_path / "new")
