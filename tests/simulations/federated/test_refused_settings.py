"""What cannot work in a federated run is refused before any work, by an error that names the key, the value and what is allowed."""

from pathlib import Path
from typing import Any

import pytest

from simulations.experiment.experiment import Experiment
from simulations.preflight import preflight
from simulations.server_app import run_experiment
from simulations.settings.errors import ConfigError
from tests.local_grid import LocalGrid

SMALL: dict[str, Any] = {
    "dataset": "mnist-5k", "model": "mlp", "width": 4, "train-limit": 400, "test-limit": 60, "num-clients": 4, "rounds": 2,
    "defenses": "", "probe-attacks": "", "update-attacks": "", "attack-workers": 0, "adaptive": False,
}  # fmt: skip
SUMS = {"probe-attacks": "SpearPlusPlus()", "aggregate-clients": "1,2,4", "aggregate-attacks": "SpearPlusPlus()"}
CANARIES = {"dp-canaries": 48, "defenses": "DPSGD(target_epsilon=2.0)", "attack-rounds": ""}
CLIENT_LEVEL = "ClientDP(max_norm=1.0, target_epsilon=2.0, rounds=2)"
AT_ONCE: list[tuple[dict[str, Any], str]] = [
    ({"probe-attacks": "ImprintLayer()"}, "does not attack one-step probes but probes of manipulated models (see active-attacks)"),
    ({"update-attacks": "ImprintLayer()"}, "but probes of manipulated models (see active-attacks)"),
    ({"active-attacks": "InvertingGradients()"}, "active-attacks: InvertingGradients() does not attack probes of manipulated"),
    (SUMS | {"aggregate-clients": "2,5"}, "5 is more than all clients; allowed: at most 4"),
    (SUMS | {"aggregate-clients": "1"}, "sum of one client is its plain probe"),
    *((SUMS | {"aggregate-clients": one}, f"is {one!r}; allowed: whole") for one in ("2, 4,2", "2,0", "2,,4", "two")),
    (SUMS | {"aggregate-clients": ""}, "aggregate-clients is empty"),
    (SUMS | {"aggregate-attacks": ""}, "aggregate-attacks is empty"),
    (SUMS | {"aggregate-attacks": "LabelInference()"}, "does not attack sums of clients' one-step probes"),
    ({"batches-per-message": 3}, "batches-per-message is 3; it is a setting of inference and outsourced and split"),
    ({"attribute-attacks": "AttributeInference()"}, "attribute-attacks is 'AttributeInference()'; it is a setting of inference"),
]  # fmt: skip
BEFORE_WORK: list[tuple[dict[str, Any], str]] = [
    (CANARIES | {"defenses": "ImageNoise(std=0.1)"}, "no pipeline has DPSGD"),
    (CANARIES | {"dp-canaries": 60_000}, "more than the"),
    ({"defenses": CLIENT_LEVEL, "rounds": 3, "attack-rounds": ""}, "over 2 rounds, not 3; allowed: rounds=3"),
]
"""Checks that need the data or a model."""


def test_what_cannot_work_is_refused_by_key_and_value(tmp_path: Path) -> None:
    def begin(values: dict[str, Any], *, checked: bool) -> None:
        settings = Experiment.from_mapping({**SMALL, "output-dir": str(tmp_path / "run"), **values})
        if checked:
            preflight(settings, lambda said: None)

    for table in (AT_ONCE, BEFORE_WORK):
        for changes, told in table:
            with pytest.raises(ConfigError) as refusal:
                begin(changes, checked=table is BEFORE_WORK)
            assert told in str(refusal.value), f"{changes}: {refusal.value}"
            assert "dp-canaries" not in changes or "dp-canaries" in str(refusal.value)


def test_more_clients_in_a_sum_than_are_connected_are_refused_once_they_are_known(tmp_path: Path) -> None:
    changes = {"num-clients": 0, "output-dir": str(tmp_path / "run"), "aggregate-clients": "2,8"}
    with pytest.raises(ConfigError, match="8 is more than all clients; allowed: at most 4"):
        run_experiment(LocalGrid(4), Experiment.from_mapping({**SMALL, **SUMS, **changes}))
