"""What CuriousFedAvg computes, against a weighted mean of what crossed the wire, and under ``start`` against our own loop."""

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message
from flwr.serverapp.strategy import Result
from numpy.typing import NDArray

from clients.task.scenarios import read_task
from clients.wire.records import to_tensors, values_of
from defenses.pipeline import Pipeline
from simulations.experiment.experiment import Experiment
from simulations.report.analysis.finding import findings_of
from simulations.report.studies.rows import read_rows
from simulations.report.studies.study import split
from simulations.run_folder.run_directory import RunDirectory
from simulations.scenarios.federated import FederatedExperiment
from simulations.server_app import auditing, finish, run_experiment
from strategies.exchange.guard import TooFewReplies
from strategies.federated.audit import _statistics
from strategies.federated.curious import CuriousFedAvg
from strategies.federated.observations import PROBE, UPDATE
from tests.lines import read_lines
from tests.local_grid import LocalGrid, Tamper
from tests.simulations.broken_replies import is_asked, on
from tests.simulations.federated.test_federation import experiment, untimed
from tests.simulations.short_runs import Wire

Arrays = dict[str, NDArray[np.float64]]

ROUNDS = 3


def arrays_of(message: Message) -> Arrays:
    return {name: array.numpy().astype(np.float64) for name, array in message.content["arrays"].items()}  # type: ignore[union-attr]


def sent(wire: Wire) -> list[tuple[str, Arrays]]:
    asked = [(kind, request) for partition, kind, request, _ in wire.messages if partition == 0]
    return [(kind, arrays_of(request)) for kind, request in asked if kind in ("train", "evaluate")]


def updates(wire: Wire) -> dict[int, list[tuple[int, Arrays]]]:
    """Round -> number of examples and update of each reply, in the order of the messages."""
    found = defaultdict(list)
    for _, request, reply in wire.of("train"):
        count = int(values_of(reply, "metrics")["num-examples"])
        found[read_task(values_of(request, "config")["task"]).round].append((count, arrays_of(reply)))
    return found


def run(out: Path, tamper: Tamper | None = None, **changes: object) -> None:
    settings: dict[str, Any] = {
        "output_dir": str(out), "dataset": "mnist-5k", "model": "lenet", "train_limit": 150, "test_limit": 40,
        "num_clients": 4, "partition": "dirichlet(alpha=0.5)", "rounds": ROUNDS, "local_epochs": 1, "batch_size": 8,
        "defenses": "", "attack_rounds": "", "attack_workers": 0, "auxiliary_fraction": 0.0,
    }  # fmt: skip
    run_experiment(LocalGrid(4, tamper), Experiment.of(**{**settings, **changes}))


def expected(before: Arrays, updates: list[tuple[int, Arrays]]) -> Arrays:
    """w + sum_i n_i u_i / sum_i n_i, in float64 (McMahan et al., AISTATS 2017, Algorithm 1)."""
    total = sum(count for count, _ in updates)
    return {name: w + sum(count * update[name] for count, update in updates) / total for name, w in before.items()}


def test_the_global_model_moves_by_the_mean_update_weighted_by_examples(tmp_path: Path) -> None:
    """Round after round, when one client's update is lost: by the mean of the others."""
    wire = Wire()

    def tamper(partition: int, request: Message, reply: Message) -> Message | None:
        return None if partition == 2 and is_asked(request, "train") else wire(partition, request, reply)

    run(tmp_path / "run", tamper)
    came, models = updates(wire), sent(wire)
    assert {at: len(of) for at, of in came.items()} == dict.fromkeys(range(1, ROUNDS + 1), 3)
    sizes = [count for count, _ in came[1]]
    assert max(sizes) >= 2 * min(sizes), "clients of much the same size could not tell a weighted from a plain mean"
    kinds = [kind for kind, _ in models]
    assert kinds == ["evaluate", *["train", "evaluate"] * ROUNDS]
    for at in range(1, ROUNDS + 1):
        trained, evaluated = models[2 * at - 1][1], models[2 * at][1]
        wanted = expected(trained, came[at])
        for name, weight in evaluated.items():
            moved = np.abs(wanted[name] - trained[name]).max()
            assert moved > 0, name
            # float32 weights of order one, added once; half of the update would be off by half of ``moved``.
            np.testing.assert_allclose(weight, wanted[name], rtol=0, atol=1e-6 + 1e-3 * moved, err_msg=name)
    for at in range(1, ROUNDS):
        evaluated, trained = models[2 * at][1], models[2 * at + 1][1]
        assert all(np.array_equal(evaluated[name], trained[name]) for name in evaluated)


@pytest.mark.long
def test_a_running_variance_is_never_pushed_below_zero(tmp_path: Path) -> None:
    """Noise larger than the statistics: all else moves by the mean update, variances stop at zero."""
    wire = Wire()
    noise = "GaussianNoise(std=3.0, per='update')"
    run(tmp_path / "run", wire, model="resnet20", width=1, norm="batch", rounds=1, defenses=noise)
    # Two pipelines of one round of four clients: none first, then the noise.
    *_, (_, trained), (_, evaluated) = sent(wire)
    wanted = expected(trained, updates(wire)[1][-4:])
    variances = [name for name in wanted if name.endswith("running_var")]
    assert any((wanted[name] < 0).any() for name in variances)
    for name, weight in evaluated.items():
        bound = np.maximum(wanted[name], 0) if name in variances else wanted[name]
        np.testing.assert_allclose(weight, bound, rtol=1e-4, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("labels", ["known", "unknown"])
def test_attacks_that_are_told_labels_are_upper_bounds_and_lead_nothing(tmp_path: Path, labels: str) -> None:
    run(
        tmp_path / "run", rounds=1, attack_rounds="first", probe_attacks="InvertingGradients(iterations=2)",
        update_attacks="", labels=labels, probe_targets=1, adaptive=False,
    )  # fmt: skip
    rows, _ = read_rows(tmp_path / "run" / "rows.jsonl")
    scored = [row for row in rows if row.is_attack and row.metric == "psnr"]
    assert scored
    assert {row.card.upper_bound for row in scored} == {"knows the labels" if labels == "known" else ""}
    (study,) = split(rows, [""])
    (line,) = findings_of(study, {})
    assert (line.strongest is None) == (labels == "known")


def test_a_card_says_what_happened_to_batch_norm_statistics() -> None:
    step, update = "GaussianNoise(std=0.01, per='step')", "GaussianNoise(std=0.01, per='update')"
    for defenses, mode, told in (
        ("", "train", "sent as they are"),
        ("VisualMixer()", "train", "sent as they are"),
        (step, "train", "sent, untouched by the defences, which act on gradients"),
        (update, "train", "sent, under the update defences"),
        (f"{step} | Clip(max_norm=1.0, per='update')", "train", "sent, under the update defences"),
        ("Clip() | SiloBN()", "train", "kept by the client"),
        (update, "eval", "sent, and not moved by the client, in eval mode"),
    ):
        experiment = Experiment.of(defenses=defenses, model="resnet20", norm="batch")
        assert _statistics(experiment.plan(experiment.pipelines[-1]).at(1), mode == "train") == told, defenses


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
