"""The server's training against descent written down by hand."""

import itertools
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attacks.local_model import shared_tensors
from attacks.normalisation import normalise
from clients.outsourced.plan import OutsourcedPlan
from clients.task.batches import local_batch
from clients.task.task import DECAY
from defenses.base import Batch
from strategies.training import central_training as module
from strategies.training.central_training import CentralTraining, DivergedError, train_alone
from tests.clients.outsourced.test_uploads import PLAN as UPLOADS

PLAN = replace(UPLOADS, local_epochs=2, batch_size=20, momentum=0.9, weight_decay=0.01, probe_images=2)
KEY = ("test", 1)


def examples(count: int = 20, first: int = 0) -> Batch:
    """Digits with soft labels, as a mixture would have them."""
    plain = local_batch(PLAN.load_data().train, torch.arange(first, first + count), 10)
    return Batch(plain.images, 0.7 * plain.targets + 0.3 * plain.targets.roll(1, 0))


def trained(plan: OutsourcedPlan, batch: Batch, rounds: int) -> CentralTraining:
    training = CentralTraining(plan, batch, KEY)
    for at in range(1, rounds + 1):
        training.run_round(plan.at(at))
    return training


def gradients_of(model: nn.Module, batch: Batch, plan: OutsourcedPlan) -> tuple[float, list[Tensor]]:
    """Loss and slopes of -sum_k y_k log p_k, mean over the examples."""
    logits = model(normalise(batch.images, plan.data_card()))
    loss = -(batch.targets * logits.log_softmax(1)).sum(1).mean()
    return float(loss.detach()), list(torch.autograd.grad(loss, list(model.parameters())))


class Shown:
    def __init__(self, training: CentralTraining, batch: Batch) -> None:
        self.steps: list[list[int]] = []
        loss, known = training.training.loss, normalise(batch.images, PLAN.data_card())

        def watched(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
            places = [int((known == one).flatten(1).all(1).nonzero().item()) for one in inputs]
            assert torch.equal(targets, batch.targets[places]), "each with its own label"
            self.steps.append(places)
            return loss(model, inputs, targets)

        training.training = replace(training.training, loss=watched)


@pytest.mark.parametrize(
    ("kind", "steps"),
    [
        ({"momentum": 0.0, "weight_decay": 0.1}, 2),
        ({"momentum": 0.9, "nesterov": True}, 2),
        ({"momentum": 0.5, "milestones": (1, 2)}, 2),
        ({"batch_size": 8, "local_epochs": 1}, 3),
        ({"batch_size": 8, "local_steps": 1}, 1),
        ({"batch_size": 8, "local_steps": 5}, 5),
    ],
)
def test_training_is_plain_descent_in_the_order_shown(kind: dict[str, Any], steps: int) -> None:
    """As many steps in each of three rounds; momentum lasts beyond a round."""
    plan, batch = replace(PLAN, **kind), examples()
    training, model, velocity, losses = CentralTraining(plan, batch, KEY), plan.build_model(), [], []
    shown, told = Shown(training, batch), []
    for at in range(1, plan.rounds + 1):
        shown.steps.clear()
        told.append(training.run_round(plan.at(at))[0])
        assert len(shown.steps) == steps
        assert len(set(itertools.chain(*shown.steps))) == (20 if steps > 1 else 8), "an epoch shows every example"
        rate = plan.learning_rate * DECAY ** len([m for m in plan.milestones if at > m])
        found = []
        for step in shown.steps:
            loss, slopes = gradients_of(model, Batch(batch.images[step], batch.targets[step]), plan)
            found.append((loss, len(step)))
            with torch.no_grad():
                decayed = [g + plan.weight_decay * w for g, w in zip(slopes, model.parameters(), strict=True)]
                velocity = (
                    [plan.momentum * v + g for v, g in zip(velocity, decayed, strict=True)] if velocity else decayed
                )
                ahead = [g + plan.momentum * v for v, g in zip(velocity, decayed, strict=True)]
                for weight, change in zip(model.parameters(), ahead if plan.nesterov else velocity, strict=True):
                    weight -= rate * change
        losses.append(sum(loss * count for loss, count in found) / sum(count for _, count in found))
    assert told == pytest.approx(losses, rel=1e-4)
    assert losses[-1] < losses[0]
    for (name, ours), expected in zip(training.model.named_parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-3, msg=name)


@pytest.mark.parametrize(
    "changes",
    [
        {"momentum": 0.0}, {"nesterov": True, "milestones": (1, 2)}, {"pipeline": "STAdam()"},
        pytest.param({"model": "resnet20", "norm": "batch", "image_size": 16, "local_epochs": 1}, marks=pytest.mark.long),
    ],
)  # fmt: skip
def test_what_is_taken_up_again_goes_on_bit_for_bit(changes: dict[str, Any]) -> None:
    kept = 1
    plan = replace(PLAN, batch_size=8, **changes)
    batch = local_batch(plan.load_data().train, torch.arange(20), 10)
    whole, begun = trained(plan, batch, 3), trained(plan, batch, kept)
    tensors = begun.tensors()
    frozen = {name: tensor.clone() for name, tensor in tensors.items()}
    again = CentralTraining(plan, batch, KEY)
    with torch.no_grad():  # what it was built with must not shine through
        for weight in again.model.parameters():
            weight.add_(1.0)
    again.restore(tensors)
    for at in range(kept + 1, 4):
        again.run_round(plan.at(at))
    assert whole.tensors().keys() == again.tensors().keys()
    assert all(torch.equal(tensor, again.tensors()[name]) for name, tensor in whole.tensors().items())
    assert all(torch.equal(tensor, frozen[name]) for name, tensor in tensors.items()), "a checkpoint stays as it is"


def test_training_that_diverges_says_what_to_change() -> None:
    plan = replace(PLAN, learning_rate=1e30)
    with pytest.raises(DivergedError, match=re.escape("round 1: training diverged, ")) as caught:
        trained(plan, examples(), 1)
    assert "is not finite; lower learning-rate (now 1e+30)" in str(caught.value)


@pytest.mark.parametrize("pipeline", ["", "VisualMixer(window_lower=4, window_upper=4) | STAdam()"])
def test_training_alone_repeats_and_touches_no_other_stream(monkeypatch: pytest.MonkeyPatch, pipeline: str) -> None:
    given: list[tuple[OutsourcedPlan, Batch]] = []
    monkeypatch.setattr(module, "CentralTraining", lambda *told: given.append(told[:2]) or CentralTraining(*told))
    batch = examples()
    plan, before = replace(PLAN, batch_size=8, pipeline=pipeline), torch.get_rng_state()
    first, again, other = (train_alone(plan, batch, seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert not first.training
    weights = [shared_tensors(model) for model in (first, again, other)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert all(not torch.equal(weights[0][name], weights[2][name]) for name in weights[0] if "weight" in name)
    plans, batches = zip(*given, strict=True)
    assert plans[0].seed == plans[1].seed != plans[2].seed
    assert plan.seed not in {one.seed for one in plans}, "its weights do not begin as the run's"
    assert torch.equal(batches[0].images, batches[1].images)
    assert torch.equal(batches[0].images, batches[2].images) == (not pipeline), "protected by draws of its own"
