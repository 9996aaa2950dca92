"""Data that are more than images of one class, through the split scenario: several labels, tables."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from attacks.scoring.objective import macro_mcc, micro_mcc
from clients.task.scenarios import read_task
from clients.wire.records import tensors_of
from simulations.experiment.experiment import Experiment
from tests.clients.data.data_files import write_celeba
from tests.clients.data.table_files import write_census
from tests.simulations.short_runs import Wire, rows_of
from tests.simulations.split.test_run import split_experiment


def one(rows: list[dict[str, Any]], **wanted: Any) -> dict[str, Any]:
    found = [row for row in rows if all(row[key] == value for key, value in wanted.items())]
    assert len(found) == 1, (wanted, len(found))
    return found[0]


Result = tuple[Path, list[dict[str, Any]], Wire]


NAMES = ("Male", "Smiling", "Young", "Wearing_Hat")


def celeba(folder: Path, faces: int = 120) -> Path:
    """Small faces without content; the first attribute says nothing, the last is rare."""
    draws = np.random.default_rng(3)
    values = {
        name: np.where(draws.random(faces) < share, 1, -1).tolist()
        for name, share in zip(NAMES, (0.5, 0.6, 0.7, 0.1), strict=True)
    }
    write_celeba(folder / "celeba", [0] * (faces - 40) + [2] * 40, values)
    return folder


@pytest.fixture(scope="module")
def faces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return celeba(tmp_path_factory.mktemp("faces"))


def vector_experiment(out: Path, data: Path, **changes: Any) -> Experiment:
    small = split_experiment(
        out, dataset="celeba:all", data_dir=str(data), image_size=16, patch_size=8, train_limit=0, test_limit=0, rounds=1,
        batch_size=8, auxiliary_fraction=0.3, defenses="", smashed_attacks="TokenDecoder(iterations=3, width=16, depth=1, heads=2)",
        attack_rounds="final", probe_images=4,
    )  # fmt: skip
    return small.but(**changes)


@pytest.fixture(scope="module", params=["server", "client"])
def vectors(
    request: pytest.FixtureRequest, faces: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[list[dict[str, Any]], Wire]:
    wire = Wire()
    out = tmp_path_factory.mktemp(request.param) / "run"
    return rows_of(vector_experiment(out, faces, labels=request.param), wire), wire


@pytest.mark.long
def test_accuracy_loss_and_correlation_are_those_of_all_labels(vectors: tuple[list[dict[str, Any]], Wire]) -> None:
    rows, wire = vectors
    assert not [row for row in rows if row["status"] in ("failed", "refused")]
    mine = {at: tensors_of(request, "indices")["test"] for at, request, _ in wire.of("query.setup")}
    logits, truth = [], []
    for partition, request, _ in wire.of("evaluate"):
        task = read_task(request.content["config"]["task"])
        if task.round == 1:
            logits.append(tensors_of(request, "logits")["0"])
            truth.append(task.plan.load_data().test.vectors[mine[partition]])
    said, true = torch.cat(logits), torch.cat(truth)
    assert said.shape == true.shape == (40, 4)
    names = ("test-accuracy", "test-loss", "mcc-micro", "mcc-macro")
    found = {name: one(rows, metric=name, round=1, reference="original") for name in names}
    assert {row["n"] for row in found.values()} == {40}
    assert found["test-accuracy"]["value"] == pytest.approx(float(((said > 0) == (true == 1)).float().mean()))
    loss = float(F.binary_cross_entropy_with_logits(said, true.float()))
    assert found["test-loss"]["value"] == pytest.approx(loss, rel=1e-5)
    counts = [((said > 0) & (true == 1)), ((said > 0) & (true == 0)), ((said <= 0) & (true == 1))]
    tp, fp, fn = (count.sum(0).tolist() for count in counts)
    assert found["mcc-micro"]["value"] == pytest.approx(micro_mcc(tp, fp, fn, 40))
    assert found["mcc-macro"]["value"] == pytest.approx(macro_mcc(tp, fp, fn, 40))
    # A head that has learned next to nothing is as wrong as a coin on each label, not as one of four classes would be.
    assert abs(one(rows, metric="train-loss", round=1)["value"] - np.log(2)) < 0.4
    assert one(rows, metric="test-loss", round=0, reference="original")["value"] < 1.2
    # Images are reconstructed and compared by features; no face is a class.
    attack = next(row["attack"] for row in rows if row["attack"].startswith("TokenDecoder"))
    metrics = {row["metric"] for row in rows if row["attack"] == attack}
    assert {"psnr", "feature-similarity", "identification", "oracle-accuracy"} <= metrics
    assert not metrics & {"recognition", "label-accuracy"}
    others = {row["attack"] for row in rows if row["role"] in ("null baseline", "scale")}
    assert others == {"grey", "mean", "blurred"}


DEFENSES = "PatchShuffle()"


def table_experiment(out: Path, **changes: Any) -> Experiment:
    data = write_census(out.parent / "census", train=240, test=80)
    small = Experiment.of(
        scenario="split", model="difm", output_dir=str(out), dataset="census", data_dir=str(data), num_clients=2, rounds=3,
        local_epochs=1, batch_size=8, optimizer="adamw", learning_rate=0.02, batches_per_message=4, defenses="",
        smashed_attacks="FieldReading(); ServerPrediction()", attack_rounds="final", probe_targets=1, probe_images=8,
        attack_workers=0,
    )  # fmt: skip
    return small.but(**changes)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Result:
    out, wire = tmp_path_factory.mktemp("tables") / "run", Wire()
    return out, rows_of(table_experiment(out, defenses=DEFENSES), wire), wire


@pytest.mark.long
def test_utility_has_auc_and_log_loss_of_all_clients(tables: Result) -> None:
    """What decides is in one column, which the model finds without a defence; the AUC is recomputed from the wire's logits."""
    _, rows, wire = tables
    assert not [row for row in rows if row["status"] == "failed"]
    names = ("test-accuracy", "test-auc", "test-loss")
    plain = {name: one(rows, defense="", round=3, metric=name, reference="original") for name in names}
    assert plain["test-accuracy"]["value"] > 0.8
    assert plain["test-auc"]["value"] > 0.9
    assert plain["test-loss"]["value"] < 0.6
    asked = [
        (tensors_of(request, "logits")["0"], reply.content["metrics"]["pairs"])
        for _, request, reply in wire.of("evaluate")
        if '"pipeline": ""' in request.content["config"]["task"] and '"round": 3,' in request.content["config"]["task"]
    ]
    assert len(asked) == 2
    assert plain["test-auc"]["value"] == pytest.approx(sum(p[0] for _, p in asked) / sum(p[1] for _, p in asked))


@pytest.mark.long
def test_attacks_are_scored_by_cells_with_a_null_baseline(tables: Result) -> None:
    out, rows, _ = tables
    for defense in ("", "PatchShuffle()"):
        read = one(rows, defense=defense, attack="FieldReading()", metric="cells-right")
        assert (read["n"], read["status"]) == (16, "ok")
        assert read["value"] > 0.95
        # A frozen half sends a row once a round; behind a shuffle the attack may match what came.
        assert read["card"]["transmissions_used"] == 3
        assert 0 <= read["ci_low"] <= read["value"] <= read["ci_high"] <= 1
        assert read["ci_high"] - read["ci_low"] > 0
        null = one(rows, defense=defense, attack="frequent", metric="cells-right")
        # 37 of 40 columns are constant; of the others the most frequent category is right sometimes.
        assert 37 / 40 < null["value"] < 38.6 / 40
        column = one(rows, defense=defense, attack="FieldReading()", metric="column class-of-worker")
        assert (column["value"], column["n"]) == (1.0, 16)
        assert one(rows, defense=defense, attack="FieldReading()", metric="mse-embedding")["value"] < 0.1
    assert not [row for row in rows if row["metric"] in ("psnr", "identified", "recognition")]
    assert not list((out / "pictures").glob("*.png"))


def test_a_trained_client_half_learns_its_embeddings(tmp_path: Path) -> None:
    wire = Wire()
    rows = rows_of(table_experiment(tmp_path / "run", train_edge=True, rounds=1, attack_rounds="last"), wire)
    assert not [row for row in rows if row["status"] == "failed"]
    assert not [row for row in rows if row["metric"] == "mse-embedding"], "no client knows the embeddings of the round"
    updates = [tensors_of(reply, "arrays") for _, _, reply in wire.of("train.collect")]
    assert all(torch.count_nonzero(update["embedding.table.weight"]) > 0 for update in updates)
