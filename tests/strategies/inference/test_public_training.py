"""The server's training of the whole model from given weights, against descent by hand; and which files are a whole model."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from attacks.local_model import shared_tensors
from attacks.normalisation import normalise
from clients.data.card import DataCard
from clients.models.classifiers import build_model
from clients.task.auxiliary import Auxiliary
from strategies.inference.public_model import PublicTraining, read_weights
from tests.clients.inference.test_queries import PLAN as QUERIES

# One step on all of the server's 20 digits.
PLAN = replace(
    QUERIES, train_limit=40, test_limit=10, width=4, norm="batch", batch_size=20, auxiliary_fraction=0.5,
    card=DataCard(10, (1, 28, 28), (0.4,), (0.3,)),
)  # fmt: skip


def weights(classes: int, seed: int = 7) -> dict[str, Tensor]:
    """Of a model that has seen images: its running statistics are not those of a new one."""
    shape = PLAN.data_card().input_shape
    model = build_model("vgg_small", num_classes=classes, input_shape=shape, width=4, norm="batch", seed=seed)
    model(torch.rand(16, *shape, generator=torch.Generator().manual_seed(seed)))
    return model.state_dict()


def test_a_step_from_given_weights_is_one_by_hand() -> None:
    """Every layer by one learning rate, in train mode: normalised by the batch, and running statistics move to it."""
    start = weights(10)
    training = PublicTraining(PLAN, start)
    assert all(torch.equal(tensor, start[name]) for name, tensor in training.weights().items())
    loss, _ = training.run_round(PLAN.at(1))

    model = PLAN.build_model().train()
    model.load_state_dict(start)
    batch = Auxiliary(PLAN).examples()
    assert len(batch) == 20
    value = F.cross_entropy(model(normalise(batch.images, PLAN.data_card())), batch.targets.argmax(1))
    slopes = torch.autograd.grad(value, list(model.parameters()))
    with torch.no_grad():
        for parameter, slope in zip(model.parameters(), slopes, strict=True):
            parameter -= 0.1 * slope
    assert loss == pytest.approx(float(value.detach()), rel=1e-5)
    expected = shared_tensors(model)
    moved = [name for name in expected if "running" in name and not torch.allclose(expected[name], start[name])]
    assert len(moved) == 12, "mean and variance of six layers"
    for name, tensor in training.weights().items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-4, atol=1e-5, msg=name)


def test_other_classes_get_a_new_last_layer_and_as_many_the_files(tmp_path: Path) -> None:
    """A new one begins at the loss of guessing, and learns."""
    for classes, whole in ((10, True), (7, False)):
        file, expected = tmp_path / f"{classes}.pt", weights(classes)
        torch.save(expected, file)
        found = read_weights(PLAN, str(file))
        assert found.is_complete == whole
        new = {} if whole else {"24.weight": torch.zeros(10, 32), "24.bias": torch.zeros(10)}
        assert found.tensors.keys() == shared_tensors(PLAN.build_model()).keys()
        for name, tensor in found.tensors.items():
            assert torch.equal(tensor, new.get(name, expected[name])), name
    training = PublicTraining(PLAN, found.tensors)
    first, second = (training.run_round(PLAN.at(at))[0] for at in (1, 2))
    assert second < first == pytest.approx(math.log(10), rel=1e-5)


def test_what_a_checkpoint_holds_besides_is_left_alone(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    training = PublicTraining(replace(PLAN, momentum=0.9))
    training.run_round(PLAN.at(1))
    kept = training.tensors()
    assert any(name.startswith("optimizer/") for name in kept)
    save_file(kept, tmp_path / "checkpoint.safetensors")
    found = read_weights(PLAN, str(tmp_path / "checkpoint.safetensors"))
    assert found.is_complete
    assert all(torch.equal(tensor, training.weights()[name]) for name, tensor in found.tensors.items())
