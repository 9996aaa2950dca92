"""What a scenario has where nobody sets it, and numbers that nobody can have meant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clients.data.datasets import load_dataset
from clients.data.files import file_sets
from clients.data.images import MissingDataError
from simulations.experiment.experiment import Experiment
from simulations.settings.errors import ConfigError


@pytest.mark.parametrize(
    "values",
    [
        {"scenario": "inference"}, {"scenario": "split"}, {"scenario": "outsourced"},
        {"scenario": "split", "dataset": "census"}, {"scenario": "split", "dataset": "criteo:all"},
    ],
    ids=str,
)  # fmt: skip
def test_a_scenario_alone_can_be_run_and_what_is_set_stays(values: dict[str, Any]) -> None:
    experiment = Experiment.of(**values)
    assert len(experiment.pipelines) > 1
    assert all(experiment.attacks[kind] for kind in experiment.kinds[:1])
    # Written out, as a run is started and taken up again, it is the same.
    assert Experiment.from_mapping(experiment.to_mapping()) == experiment
    assert Experiment.of(**values, defenses="").defenses == ""
    assert Experiment.of().model == "cnn"


def test_a_width_beyond_any_layer_is_refused() -> None:
    with pytest.raises(ConfigError, match="width is 1000000000; allowed: at least 0, at most 65536"):
        Experiment.of(width=10**9)


def test_where_fashion_mnist_is_missing_its_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_sets, "SYSTEM_FASHION_MNIST", tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(
        MissingDataError, match=r"where Debian's package dataset-fashion-mnist puts it; set data-dir .*download=true"
    ):
        load_dataset("fashion-mnist")
