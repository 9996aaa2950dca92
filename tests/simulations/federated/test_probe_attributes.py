"""A sensitive attribute, looked for in one-step probes of a federated run; in this process."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binomtest
from torch import Tensor

from attacks.attributes.property_inference import majority
from attacks.local_model import shared_tensors
from clients.federated.local_training import probes_alone
from clients.task.local_data import LocalData
from clients.task.scenarios import client_side
from clients.task.task import Task
from clients.wire.records import tensors_of
from defenses.base import Batch
from simulations.experiment.experiment import Experiment
from simulations.server_app import run_experiment
from tests.clients.data.data_files import write_mnist
from tests.lines import read_lines
from tests.local_grid import LocalGrid
from tests.simulations.attribute_scores import assert_scored_by_owners
from tests.simulations.short_runs import Wire

NOISE = "GaussianNoise(std=10.0, per='update')"
STATIC, RETRAINED = (
    f"PropertyInference({training}updates=160, size=128, iterations=100)" for training in ("training='static', ", "")
)


def garments(folder: Path) -> str:
    """Fashion-MNIST's files with 480 + 160 garments of four kinds, each a pattern of its own under noise."""
    draws = np.random.default_rng(0)
    patterns = draws.integers(40, 216, (10, 28, 28))
    parts = []
    for count in (480, 160):
        labels = np.array([0, 2, 4, 6], np.uint8)[np.arange(count) % 4]
        parts.append(((patterns[labels] + draws.integers(-30, 30, (count, 28, 28))).astype(np.uint8), labels))
    write_mnist(folder, *parts)
    return str(folder)


def probe_experiment(out: Path, **changes: Any) -> Experiment:
    """Three clients, sixteen probes of each; the server has 160 frames of its own, a garment and a digit, 0 or 1."""
    settings = {
        "output-dir": str(out), "dataset": "garment-digit:06-24,0-1", "data-dir": garments(out.parent / "garments"),
        "image-size": 28, "model": "lenet", "batch-size": 16, "learning-rate": 0.05, "train-limit": 400, "test-limit": 40,
        "auxiliary-fraction": 0.4, "num-clients": 3, "rounds": 1, "local-epochs": 1, "defenses": NOISE, "probe-attacks": "",
        "update-attacks": "", "attribute-attacks": STATIC, "probe-targets": 16, "attack-rounds": "first", "attack-workers": 0,
    }  # fmt: skip
    return Experiment.from_mapping(settings | changes)


Run = tuple[Path, list[dict[str, Any]], Wire]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    out, wire = tmp_path_factory.mktemp("probes") / "run", Wire()
    run_experiment(LocalGrid(3, wire), probe_experiment(out))
    return out, read_lines(out / "rows.jsonl"), wire


@pytest.mark.long
def test_guesses_are_scored_by_the_owners_of_the_probed_images(run: Run) -> None:
    _, rows, wire = run
    assert not [row for row in rows if row["status"] in ("failed", "refused")]
    indices = {at: tensors_of(request, "indices") for at, request, _ in wire.of("query.setup")}

    def truth(partition: int, task: Task, target: int) -> Tensor:
        mine = indices[partition]
        client = client_side("federated").client(
            LocalData(task, partition, mine["train"].tolist(), mine["test"].tolist())
        )
        return task.plan.load_data().train.sensitive[mine["train"][client.probed(target).positions]]  # type: ignore[index]

    observed = ("probe-attribute", "attributes of one-step probes")
    assert len(assert_scored_by_owners(rows, wire, observed, (STATIC, RETRAINED), 48, truth)) == 2 * 3


@pytest.mark.long
@pytest.mark.numeric
def test_without_a_defence_the_attribute_is_read_and_heavy_noise_hides_it(run: Run) -> None:
    _, rows, _ = run
    found = {(row["defense"], row["attack"]): row for row in rows if row["metric"] == "attribute-accuracy"}
    plain, noisy = "", next(defense for defense, _ in found if defense)
    assert found[plain, STATIC]["ci_low"] > found[plain, "majority"]["value"]
    assert found[plain, STATIC]["status"] == "ok"
    hidden = found[noisy, RETRAINED]
    assert binomtest(round(hidden["value"] * 48), 48, 0.5).pvalue > 0.001
    # The static adversary is trained without the defence: one and the same at one global model, unlike the retrained one.
    told = {(row["attack"], row["defense"]): row["value"] for row in rows if row["metric"] == "holdout_accuracy"}
    assert [len({told[attack, defense] for defense in (plain, noisy)}) for attack in (STATIC, RETRAINED)] == [1, 2]


def test_an_update_made_alone_is_the_one_that_a_client_would_send(tmp_path: Path) -> None:
    """Of the images that it names, by plain SGD written down by hand."""
    experiment = probe_experiment(tmp_path / "run", **{"probe-images": 2})
    task = experiment.plan(experiment.pipelines[0]).at(1)
    data = task.plan.load_data().train
    batch = Batch(data.images[:20].float() / 255, torch.nn.functional.one_hot(data.labels[:20], 2).float())
    weights = shared_tensors(task.plan.build_model())
    seen = set()
    for rows, update in probes_alone(task, weights, batch, 20, seed=3):
        model, card = task.plan.build_model(), task.plan.data_card()
        mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (card.mean, card.std))
        images = (batch.images[rows] - mean) / std
        loss = torch.nn.functional.cross_entropy(model(images), batch.targets[rows])
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        for (name, weight), gradient in zip(model.named_parameters(), gradients, strict=True):
            torch.testing.assert_close(update[name], -task.learning_rate * gradient, atol=1e-6, rtol=1e-4, msg=name)
            assert weight.shape == gradient.shape
        assert len(rows) == 2
        seen |= set(rows.tolist())
    assert len(seen) > 10
    again = [rows for rows, _ in probes_alone(task, weights, batch, 5, seed=3)]
    other = [rows for rows, _ in probes_alone(task, weights, batch, 5, seed=4)]
    assert all(len(rows) == 2 for rows in again)
    assert any(not torch.equal(one, two) for one, two in zip(again, other, strict=True))


def test_of_several_images_the_value_of_most_is_inferred(tmp_path: Path) -> None:
    experiment = probe_experiment(tmp_path / "run", **{"probe-images": 3, "probe-targets": 2})
    task = experiment.plan(experiment.pipelines[0]).at(1)
    client = client_side("federated").client(LocalData(task, 0, range(40), range(4)))
    values = task.plan.load_data().train.sensitive
    expected = [majority(values[client.probed(target).positions]) for target in range(2)]
    assert [int(one) for one in client.sensitive("probe-attribute")] == expected
    with pytest.raises(ValueError, match="know no attribute of 'update'"):
        client.sensitive("update")
