"""A membership test that no client scores: the row and the terminal give a client's reason."""

from __future__ import annotations

from pathlib import Path

import pytest
from flwr.app import Message

from clients.wire.records import values_of
from simulations.forecast.preflight import preflight
from simulations.report.analysis.failures import failed_attacks
from simulations.server_app import run_experiment
from simulations.settings.errors import ConfigError
from tests.lines import read_lines
from tests.local_grid import LocalGrid
from tests.simulations.federated.test_federation import experiment


def test_the_first_reason_of_the_clients_is_shown(tmp_path: Path) -> None:
    def scores_no_test(partition: int, request: Message, reply: Message) -> Message:
        if values_of(request, "config").get("kind") == "membership":
            raise ValueError(f"client {partition} has too little memory")
        return reply

    settings = experiment(tmp_path / "run", defenses="", rounds=1, probe_attacks="", update_attacks="LossThreshold()")
    run_experiment(LocalGrid(3, scores_no_test), settings)
    rows = [row for row in read_lines(tmp_path / "run" / "rows.jsonl") if row["metric"].startswith("membership")]
    reason = "client 0: ValueError: client 0 has too little memory"
    assert [(row["status"], row["message"]) for row in rows] == [("failed", reason)]
    assert [str(one) for one in failed_attacks(tmp_path / "run")] == [
        f"LossThreshold() on no defence, round 1: {reason}"
    ]


@pytest.mark.parametrize(
    ("attack", "said"),
    [
        ("OnlineLiRA(num_members=400)", "num_members is 400; allowed: 1 to"),
        ("OnlineRMIA(num_shadows=4)", r"num_shadows of OnlineRMIA\(num_shadows=4\) is 4; allowed: [5-9] or more"),
    ],
)
def test_shadow_models_that_clients_cannot_train_are_refused_before_any_work(
    attack: str, said: str, tmp_path: Path
) -> None:
    settings = experiment(tmp_path / "run", probe_attacks="", update_attacks=attack)
    with pytest.raises(ConfigError, match=said):
        preflight(settings, print)
