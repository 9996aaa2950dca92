"""Rows of a table through the split scenario: from two files to rows of results and the report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from clients.wire.records import tensors_of
from simulations.experiment.experiment import Experiment
from simulations.settings.errors import ConfigError
from tests.clients.data.table_files import write_census
from tests.simulations.split.test_run import Wire, split_rows, untimed

DEFENSES = "PatchShuffle()"


def table_experiment(out: Path, **changes: Any) -> Experiment:
    data = write_census(out.parent / "census", train=240, test=80)
    small = Experiment.of(
        scenario="split", model="difm", output_dir=str(out), dataset="census", data_dir=str(data), num_clients=2, rounds=3,
        local_epochs=1, batch_size=8, optimizer="adamw", learning_rate=0.02, batches_per_message=4, defenses="",
        smashed_attacks="FieldReading(); ServerPrediction()", attack_rounds="final", probe_targets=1, probe_images=8,
        attack_workers=0,
    )  # fmt: skip
    return replace(small, **changes)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]], Wire]:
    out, wire = tmp_path_factory.mktemp("tables") / "run", Wire()
    return out, split_rows(table_experiment(out, defenses=DEFENSES), wire), wire


def one(rows: list[dict[str, Any]], **wanted: Any) -> dict[str, Any]:
    found = [row for row in rows if all(row[key] == value for key, value in wanted.items())]
    assert len(found) == 1, (wanted, len(found))
    return found[0]


@pytest.mark.long
def test_utility_has_auc_and_log_loss_of_all_clients(run: tuple[Path, list[dict[str, Any]], Wire]) -> None:
    """What decides is in one column, which the model finds without a defence; the AUC is recomputed from the wire's logits."""
    _, rows, wire = run
    assert not [row for row in rows if row["status"] == "failed"]
    plain = {
        name: one(rows, defense="", round=3, metric=name, reference="original")
        for name in ("test-accuracy", "test-auc", "test-loss")
    }
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
def test_attacks_are_scored_by_cells_with_a_null_baseline(run: tuple[Path, list[dict[str, Any]], Wire]) -> None:
    _, rows, _ = run
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
    assert not [row for row in rows if row["metric"] in ("psnr", "retrieval", "recognition")]


@pytest.mark.long
def test_the_report_shows_columns_and_no_pictures(run: tuple[Path, list[dict[str, Any]], Wire]) -> None:
    out, _, _ = run
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "Attacks on rows of a table" in page
    assert "class-of-worker" in page
    assert "of the cells" in page
    assert not list((out / "pictures").glob("*.png"))


@pytest.mark.long
def test_runs_repeat_bit_for_bit_and_the_papers_cut_shows_the_row(tmp_path: Path) -> None:
    """Both branches at the client: m_vec alone is of shuffled embeddings, so that no order is hidden, and the cells are read."""
    settings = {
        "model": "difm-factors",
        "defenses": "PatchShuffle()",
        "rounds": 1,
        "smashed_attacks": "FieldReading(); EmbeddingReversal(iterations=5)",
    }
    runs = [split_rows(table_experiment(tmp_path / name / "run", **settings)) for name in ("one", "two")]
    assert untimed(runs[0]) == untimed(runs[1])
    assert not [row for row in runs[0] if row["status"] == "failed"]
    assert one(runs[0], defense="PatchShuffle()", attack="FieldReading()", metric="cells-right")["value"] > 0.95
    assert one(runs[0], defense="", attack="EmbeddingReversal(iterations=5)", metric="mse-embedding")["value"] > 0
    assert not [row for row in runs[0] if "orders" in row["metric"]]


def test_a_trained_client_half_learns_its_embeddings(tmp_path: Path) -> None:
    wire = Wire()
    rows = split_rows(table_experiment(tmp_path / "run", train_edge=True, rounds=1, attack_rounds="last"), wire)
    assert not [row for row in rows if row["status"] == "failed"]
    assert not [row for row in rows if row["metric"] == "mse-embedding"], "no client knows the embeddings of the round"
    updates = [tensors_of(reply, "arrays") for _, _, reply in wire.of("train.collect")]
    assert all(torch.count_nonzero(update["embedding.table.weight"]) > 0 for update in updates)


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"smashed_attacks": "TokenDecoder()"}, ("smashed-attacks: TokenDecoder() does not attack a table", "FieldReading")),
        ({"dataset": "mnist-5k", "model": "vit", "patch_size": 7}, ("FieldReading() does not attack images",)),
        ({"image_size": 8}, ("image-size is 8; allowed with dataset = 'census', a table: unset",)),
        ({"horizontal_flip": True}, ("horizontal-flip is True",)),
        ({"defenses": "VisualMixer()"}, ("VisualMixer", "protects pixels, and dataset = 'census' is a table")),
        ({"defenses": "SpectralShuffle()"}, ("protects pixels",)),
        ({"defenses": "AdversarialTraining()", "train_edge": True}, ("protects pixels",)),
        ({"auxiliary_data": "photos"}, ("auxiliary-data is 'photos'; allowed with a table: held-out or private",)),
    ],
)  # fmt: skip
def test_what_is_for_images_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], parts: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as refusal:
        table_experiment(tmp_path / "run", **changes)
    assert all(part in str(refusal.value) for part in parts), refusal.value


@pytest.mark.parametrize("scenario", ["federated", "outsourced"])
def test_other_scenarios_take_images_alone(scenario: str) -> None:
    with pytest.raises(
        ConfigError, match=f"dataset is 'census', a table; allowed with scenario = '{scenario}': images"
    ):
        Experiment.of(scenario=scenario, dataset="census")
