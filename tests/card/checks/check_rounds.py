"""An audit of each scenario on a machine with a card: its attacks compute there, and its rows are the processor's."""

import functools
import gc
from pathlib import Path
from typing import Any

import pytest
import torch

from clients.training import evaluation
from defenses.random_draws import spawned
from defenses.training import dp_sgd, precode
from simulations import server_app
from simulations.experiment.experiment import Experiment
from simulations.server_app import run_experiment
from strategies.audit import pool, runner
from strategies.audit.jobs import AttackJob, AttackResult
from tests.card import stand_in
from tests.lines import read_lines
from tests.local_grid import LocalGrid
from tests.simulations.inference.test_run import inference_experiment
from tests.simulations.outsourced.test_run import outsourced_experiment
from tests.simulations.short_runs import untimed
from tests.simulations.split.test_run import split_experiment

SMALL: dict[str, Any] = {"rounds": 1, "attack_rounds": "first,final", "probe_targets": 1}
INVERSION = "InvertingGradients(iterations=3)"


def federated(out: Path, **changes: Any) -> Experiment:
    return Experiment.of(
        output_dir=str(out), dataset="mnist-5k", model="lenet", train_limit=120, test_limit=30, num_clients=2, local_epochs=1,
        batch_size=16, probe_images=2, attack_workers=0, adaptive=False, share_images=False,
        **{"update_attacks": "LabelInference(); LossThreshold()", **SMALL, **changes},
    )  # fmt: skip


RUNS = {
    "federated": lambda out: federated(
        out, probe_attacks=f"{INVERSION}; {INVERSION} | LearnedRestorer(iterations=6, width=4)", defenses="VisualMixer()"
    ),
    "federated-updates": lambda out: federated(
        out, probe_attacks="LabelInference()", defenses="Pruning(fraction=0.5) | GaussianNoise(std=0.01)",
        update_attacks="LossThreshold(); ShadowModels(num_shadows=1, iterations=3); SurrogateMatching(iterations=3); "
        "ClassGAN(iterations=3)",
    ),
    "federated-private": lambda out: federated(out, probe_attacks=INVERSION, defenses="DPSGD()", norm="group"),
    "federated-active": lambda out: federated(
        out, probe_attacks="LabelInference()", update_attacks="", active_attacks="ClassFishing(iterations=3)",
        aggregate_clients="2", aggregate_attacks=INVERSION, defenses="Precode()",
    ),
    "split": lambda out: split_experiment(
        out, **SMALL, train_edge=True, defenses="PatchShuffle()",
        smashed_attacks="TokenDecoder(iterations=3, width=16, batch_size=8); FeatureInversion(iterations=3); ServerPrediction()",
    ),
    "outsourced": lambda out: outsourced_experiment(
        out, **SMALL, defenses="VisualMixer()", upload_passes=2,
        upload_attacks="AsUploaded() | LearnedRestorer(iterations=6, width=4); PassAveraging()",
    ),
    "inference": lambda out: inference_experiment(
        out, **SMALL, defenses="FeatureNoise(std=0.1)", query_attacks="QueryInversion(iterations=3); InverseNetwork(iterations=3)",
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_app, "write_report", lambda path: path)
    monkeypatch.setattr(server_app, "Throttle", lambda: lambda path: None)


def rows_of(experiment: Experiment) -> list[dict[str, Any]]:
    run_experiment(LocalGrid(experiment.num_clients), experiment)
    rows = read_lines(Path(experiment.output_dir) / "rows.jsonl")
    assert {row["computed_on"] for row in rows if row["metric"] == "attack-seconds"} == {evaluation.device().type}
    return untimed(rows)


def _forget() -> None:
    """Forget the models that the process keeps: a process computes on one device as a rule."""
    runner.learned.clear()
    for one in gc.get_objects():
        if isinstance(one, functools._lru_cache_wrapper) and one.__module__.startswith(("clients.", "strategies.")):
            one.cache_clear()


def _drawn_alike(generator: torch.Generator, where: torch.device | str = "cpu") -> torch.Generator:
    """As ``defenses.random_draws.spawned``, with the processor's stream on the card, too: DP noise of both can be compared."""
    stream = spawned(generator).get_state()
    return torch.Generator(where).set_state(stream)


@pytest.mark.parametrize("name", RUNS)
def test_attacks_compute_on_the_card_and_rows_are_those_of_the_processor(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (dp_sgd, precode):
        monkeypatch.setattr(module, "spawned", _drawn_alike)
    on_host: dict[str, dict[str, int]] = {}
    run_job = pool.run_job

    def watched(job: AttackJob) -> AttackResult:
        with stand_in.counted() as work:
            result = run_job(job)
        if work["cpu"]:
            on_host["; ".join(map(repr, job.attacks))] = dict(work["cpu"])
        return result

    monkeypatch.setattr(pool, "run_job", watched)
    found = rows_of(RUNS[name](tmp_path / "card"))
    assert not on_host
    _forget()
    monkeypatch.setattr(evaluation, "GPU", "cuda")  # of which this machine has none
    assert evaluation.device() == torch.device("cpu")
    wanted = rows_of(RUNS[name](tmp_path / "processor"))
    _forget()
    assert not [row["message"] for row in found if row["metric"] == "attack" and row["status"] == "failed"]
    assert len(found) == len(wanted)
    for got, want in zip(found, wanted, strict=True):
        assert got.keys() == want.keys()
        for column, value in want.items():
            assert got[column] == near(value), (column, got)


def near(value: Any) -> Any:
    """What equals a value up to rounding, in dictionaries of numbers, too."""
    if isinstance(value, dict):
        return {key: near(one) for key, one in value.items()}
    return pytest.approx(value, rel=1e-4, abs=1e-5, nan_ok=True) if isinstance(value, float) else value
