"""CuriousFedAvg as a strategy of Flower: ``start``, against this package's own loop over the rounds."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message
from flwr.serverapp.strategy import Result

from clients.wire.records import to_tensors
from defenses.pipeline import Pipeline
from simulations.run_folder.run_directory import RunDirectory
from simulations.scenarios.federated import FederatedExperiment
from simulations.server_app import auditing, finish, run_experiment
from strategies.exchange.guard import TooFewReplies
from strategies.federated.curious import CuriousFedAvg
from strategies.federated.observations import PROBE, UPDATE
from tests.lines import read_lines
from tests.local_grid import LocalGrid
from tests.simulations.broken_replies import on
from tests.simulations.federated.test_federation import experiment, untimed


class LateFirst(LocalGrid):
    """Replies arrive last node first: Flower promises no order."""

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return super().pull_messages(message_ids)[::-1]


def settings_for(out: Path, **changes: object) -> FederatedExperiment:
    """Two clients on digits; everything is attacked that can be."""
    usual: dict[str, object] = {
        "defenses": "", "num_clients": 2, "attack_rounds": "first,final", "seed": 5, "batch_size": 4,
    }  # fmt: skip
    attacks = {
        "probe_attacks": "InvertingGradients(iterations=20); LabelInference()",
        "update_attacks": "LossThreshold()",
    }
    found = experiment(out, **{**usual, **attacks, **changes})
    assert isinstance(found, FederatedExperiment)
    return found


def start(settings: FederatedExperiment, grid: LocalGrid, pipeline: Pipeline | None = None, **how: Any) -> Result:
    """What a user writes (docs/own_server.md), and the report behind it."""
    run, pipeline = RunDirectory.open(Path(settings.output_dir), settings), pipeline or Pipeline()
    with auditing(grid, run) as (auditor, clients):
        strategy = CuriousFedAvg(
            plan=settings.plan(pipeline, card=clients.card), auditor=auditor,
            attacks={kind: settings.attacks_on(pipeline, kind) for kind in (PROBE, UPDATE)},
            min_usable=settings.min_usable, label=run.label(str(pipeline)),
        )  # fmt: skip
        how = {"num_rounds": settings.rounds, "initial_arrays": strategy.initial_arrays(), **how}
        result = strategy.start(grid=grid, **how)
        assert not len(auditor.pool), "every attack was scored"
    finish(run)
    return result


def rows_of(settings: FederatedExperiment) -> list[dict[str, Any]]:
    return untimed(read_lines(Path(settings.output_dir) / "rows.jsonl"))


@pytest.mark.long
def test_start_gives_the_weights_and_rows_of_our_own_loop(tmp_path: Path) -> None:
    """The last bit included, whatever order the replies come in: the hooks, and nothing but them, are what both run on."""
    own, flowers = settings_for(tmp_path / "own"), settings_for(tmp_path / "flowers")
    run_experiment(LocalGrid(2), own)
    result = start(flowers, LateFirst(2))
    done = RunDirectory(tmp_path / "own", own).checkpoint(Pipeline())
    assert done is not None
    final = to_tensors(result.arrays)
    assert final.keys() == done.weights.keys()
    assert all(torch.equal(final[name], weight) for name, weight in done.weights.items())

    rows = rows_of(flowers)
    assert rows == rows_of(own)
    assert not [row for row in rows if row["status"] == "failed"]
    attacked = {(row["round"], row["card"].get("observation")) for row in rows if row["attack"].endswith(")")}
    last = own.rounds
    assert attacked == {
        (1, "one-step probe"), (last + 1, "one-step probe"), (1, "training update"), (last, "training update"),
    }  # fmt: skip
    accuracy = {
        row["round"]: row["value"] for row in rows if (row["metric"], row["reference"]) == ("test-accuracy", "original")
    }
    told = {at: metrics["test-accuracy-original"] for at, metrics in result.evaluate_metrics_clientapp.items()}
    assert list(told) == list(range(last + 1))
    assert told == accuracy
    loss = [row["value"] for row in rows if (row["metric"], row["reference"]) == ("test-loss", "original")]
    assert loss[-1] < 0.9 * loss[0], "nothing was trained"
    assert set(result.train_metrics_clientapp) == set(range(1, last + 1))


@pytest.mark.parametrize("message_type", ["train", "train.probe", "evaluate"])
def test_a_client_that_is_not_heard_of_costs_a_row_or_the_run(tmp_path: Path, message_type: str) -> None:
    common: dict[str, Any] = {"rounds": 1, "update_attacks": "", "probe_attacks": "LabelInference()"}
    half, whole = settings_for(tmp_path / "half", **common), settings_for(tmp_path / "whole", min_usable=1.0, **common)
    losing = on(message_type, lambda reply: None)
    start(half, LocalGrid(2, losing))
    failed = [(row["client"], row["message"]) for row in rows_of(half) if row["status"] == "failed"]
    assert failed == [(1, f"{message_type}: no reply within 300 s")] * (1 if message_type == "train" else 2)
    if message_type == "evaluate":  # its share of the test images is missing, and nothing else
        start(whole, LocalGrid(2, losing))
        return
    with pytest.raises(TooFewReplies, match=f"1 of 2 {message_type} replies are usable"):
        start(whole, LocalGrid(2, losing))


def test_another_number_of_rounds_than_the_clients_are_told_is_refused(tmp_path: Path) -> None:
    grid = LocalGrid(2)
    with pytest.raises(ValueError, match="num_rounds is 3, and the clients' plan is for 2 rounds"):
        start(settings_for(tmp_path / "run"), grid, num_rounds=3)
    assert {message_type for message_type, _ in grid.sent} == {"query.partition", "query.setup"}
