"""The machine of a run: what fits on it, and what is refused."""

from collections.abc import Callable
from pathlib import Path

import pytest

from simulations.run.hardware import Hardware
from simulations.settings.errors import ConfigError
from tests.simulations.commands import refused

pytestmark = pytest.mark.usefixtures("as_its_own_process")

MACHINE = Hardware(cores=8, cards=2)


def test_workers_are_as_many_as_fit_and_one_at_least() -> None:
    assert [MACHINE.workers(*of) for of in ((100, 3), (2, 1), (9, 16))] == [2, 2, 1]


def test_a_worker_must_find_room() -> None:
    MACHINE.require(8, 2.0)
    MACHINE.require(1, 0.5)
    MACHINE.require_cards("attack-gpus", 2.0)
    refused: list[tuple[Callable[[], None], str]] = [
        (lambda: MACHINE.require(9, 0.0), "--cpus-per-client is 9; this machine has 8"),
        (lambda: MACHINE.require(1, 3.0), "--gpus-per-client is 3; allowed: 0 to 2, the graphics cards of this"),
        (lambda: MACHINE.require(1, -0.5), r"--gpus-per-client is -0\.5; allowed: 0 to 2"),
        (lambda: MACHINE.require_cards("attack-gpus", 3.0), "attack-gpus is 3; allowed: 0 to 2"),
        (lambda: MACHINE.require(1, 1.5), r"is 1\.5; allowed: 0 to 1, or a whole number of graphics cards"),
    ]
    for require, told in refused:
        with pytest.raises(ConfigError, match=told):
            require()


def test_a_cluster_of_other_machines_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert "RAY_ADDRESS is set, and a run uses the Ray of its own machine" in refused("run", "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()
