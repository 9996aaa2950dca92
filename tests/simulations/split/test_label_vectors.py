"""CelebA with several labels for each face, in its exact format, through the split scenario; in this process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from attacks.scoring.confusion import macro_mcc, micro_mcc
from clients.task.scenarios import read_task
from clients.wire.records import tensors_of
from simulations.experiment.experiment import Experiment
from simulations.settings.errors import ConfigError
from tests.clients.data.data_files import write_celeba
from tests.simulations.split.test_run import Wire, split_experiment, split_rows

SPLIT = {"scenario": "split", "model": "vit"}
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
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return celeba(tmp_path_factory.mktemp("faces"))


def vector_experiment(out: Path, data: Path, **changes: Any) -> Experiment:
    small = split_experiment(
        out, dataset="celeba:all", data_dir=str(data), image_size=16, patch_size=8, train_limit=0, test_limit=0, rounds=1,
        batch_size=8, auxiliary_fraction=0.3, defenses="", smashed_attacks="TokenDecoder(iterations=3, width=16, depth=1, heads=2)",
        attack_rounds="final", probe_images=4,
    )  # fmt: skip
    return replace(small, **changes)


@pytest.fixture(scope="module", params=["server", "client"])
def run(
    request: pytest.FixtureRequest, data: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[list[dict[str, Any]], Wire]:
    wire = Wire()
    out = tmp_path_factory.mktemp(request.param) / "run"
    return split_rows(vector_experiment(out, data, labels=request.param), wire), wire


def one(rows: list[dict[str, Any]], **wanted: Any) -> dict[str, Any]:
    (found,) = [row for row in rows if all(row[key] == value for key, value in wanted.items())]
    return found


@pytest.mark.long
def test_accuracy_loss_and_correlation_are_those_of_all_labels(run: tuple[list[dict[str, Any]], Wire]) -> None:
    """By hand, from the logits on the wire and the lists of the data set."""
    rows, wire = run
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
    found = {
        name: one(rows, metric=name, round=1, reference="original")
        for name in ("test-accuracy", "test-loss", "mcc-micro", "mcc-macro")
    }
    assert {row["n"] for row in found.values()} == {40}
    assert found["test-accuracy"]["value"] == pytest.approx(float(((said > 0) == (true == 1)).float().mean()))
    assert found["test-loss"]["value"] == pytest.approx(
        float(F.binary_cross_entropy_with_logits(said, true.float())), rel=1e-5
    )
    counts = [((said > 0) & (true == 1)), ((said > 0) & (true == 0)), ((said <= 0) & (true == 1))]
    tp, fp, fn = (count.sum(0).tolist() for count in counts)
    assert found["mcc-micro"]["value"] == pytest.approx(micro_mcc(tp, fp, fn, 40))
    assert found["mcc-macro"]["value"] == pytest.approx(macro_mcc(tp, fp, fn, 40))


@pytest.mark.long
def test_the_server_trains_by_binary_cross_entropy(run: tuple[list[dict[str, Any]], Wire]) -> None:
    """A head that has learned next to nothing is as wrong as a coin on each label, not as one of four classes would be."""
    rows, _ = run
    assert abs(one(rows, metric="train-loss", round=1)["value"] - np.log(2)) < 0.4
    assert one(rows, metric="test-loss", round=0, reference="original")["value"] < 1.2


@pytest.mark.long
def test_images_are_reconstructed_and_compared_by_features_and_nobody_is_a_class(
    run: tuple[list[dict[str, Any]], Wire],
) -> None:
    rows, _ = run
    attack = next(row["attack"] for row in rows if row["attack"].startswith("TokenDecoder"))
    metrics = {row["metric"] for row in rows if row["attack"] == attack}
    assert {"psnr", "feature-similarity", "identification", "oracle-accuracy"} <= metrics
    assert not metrics & {"recognition", "label-accuracy"}
    others = {row["attack"] for row in rows if row["role"] in ("null baseline", "scale")}
    assert others == {"grey", "mean", "blurred"}


@pytest.mark.long
def test_label_vectors_are_learned(data: Path, tmp_path: Path) -> None:
    """Faces that show their labels, one corner each: after some passes all of them are told better than by their frequency."""
    from PIL import Image

    folder = tmp_path / "faces"
    faces, draws = 160, np.random.default_rng(0)
    values = {name: draws.choice([-1, 1], faces).tolist() for name in NAMES}
    write_celeba(folder / "celeba", [0] * 120 + [2] * 40, values)
    for at in range(faces):
        pixels = np.zeros((218, 178, 3), dtype=np.uint8)
        # Attributes are told by colours, as a transformer without positions sees no corners.
        for channel, name in enumerate(NAMES[:3]):
            pixels[:, :, channel] = 60 + 120 * (values[name][at] == 1)
        pixels[:109] //= 1 + (values["Wearing_Hat"][at] == 1)
        Image.fromarray(pixels).save(folder / "celeba" / "img_align_celeba" / f"{at + 1:06d}.jpg")
    settings = vector_experiment(
        tmp_path / "run", folder, dataset="celeba:Male,Smiling,Young", rounds=6, attack_rounds="", smashed_attacks="",
        auxiliary_fraction=0.0, optimizer="adamw", learning_rate=0.01,
    )  # fmt: skip
    rows = split_rows(settings)
    assert one(rows, metric="test-accuracy", round=6, reference="original")["value"] > 0.9
    assert one(rows, metric="mcc-macro", round=6, reference="original")["value"] > 0.8


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"scenario": "federated"}, ("several labels each; allowed with scenario = 'federated': one class", "scenario = 'split'")),
        ({"scenario": "outsourced"}, ("several labels each", "'outsourced'")),
        ({"scenario": "inference"}, ("several labels each", "'inference'")),
        ({**SPLIT, "partition": "dirichlet(alpha=0.5)"}, ("partition is 'dirichlet(alpha=0.5)'", "iid or node")),
        ({**SPLIT, "smashed-attacks": "ServerPrediction()"}, ("smashed-attacks: ServerPrediction() is about the class",)),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("dataset", ["celeba:all", "celeba:Male,Smiling,Young"])
def test_what_needs_one_class_is_refused_before_any_work(
    dataset: str, changes: dict[str, Any], parts: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError) as refusal:
        Experiment.from_mapping({"dataset": dataset, "defenses": "", **changes})
    assert all(part in str(refusal.value) for part in parts), refusal.value
