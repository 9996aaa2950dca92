"""Training on the server's own examples is a client's training, from the first round to the last."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F
from torch.optim.optimizer import register_optimizer_step_post_hook

from attacks.local_model import shared_tensors
from attacks.normalisation import normalise
from attacks.observations import AttackError
from clients.federated.local_training import probes_alone, train_alone
from clients.task.task import WholeModelPlan
from defenses.spec import parse
from tests.clients.federated.test_client import TASK, client
from tests.clients.federated.test_recipe import TASK as RECIPE
from tests.clients.federated.test_recipe import client as recipe_client


def test_training_alone_is_a_client_s_whole_training_and_repeats() -> None:
    task = TASK.but(rounds=3, local_epochs=4)
    batch = client().data.originals()
    first, again, other = (train_alone(task.plan, batch, seed) for seed in (1, 1, 2))
    weight = [shared_tensors(model) for model in (first, again, other)]
    assert all(torch.equal(weight[0][name], weight[1][name]) for name in weight[0])
    assert any(not torch.equal(weight[0][name], weight[2][name]) for name in weight[0])
    assert not first.training


@pytest.mark.parametrize("count", [2, 5])
def test_training_alone_counts_the_limited_steps_of_all_rounds(count: int) -> None:
    taken = []
    hook = register_optimizer_step_post_hook(lambda *_: taken.append(1))
    train_alone(TASK.but(rounds=3, local_epochs=4, local_steps=count).plan, client().data.originals(), 1)
    hook.remove()
    assert len(taken) == 3 * count


def test_a_model_trained_alone_falls_with_the_milestones() -> None:
    """A factor near zero after the first of two rounds leaves what one round gives."""
    batch = recipe_client().data.originals()
    task = RECIPE.but(momentum=0.0, milestones=(1,), learning_rate_factor=1e-9)
    stopped, single = train_alone(task.plan, batch, 5), train_alone(task.but(rounds=1, milestones=()).plan, batch, 5)
    for (name, left), right in zip(stopped.named_parameters(), single.parameters(), strict=True):
        torch.testing.assert_close(left, right, atol=1e-6, rtol=1e-5, msg=name)


@pytest.mark.parametrize("pipeline", ["", "Downsample(factor=4)", "Clip(max_norm=0.001, per='update')"])
def test_training_alone_is_plain_descent_on_the_protected_examples(pipeline: str) -> None:
    """Batches of everyone leave no doubt about the order: two epochs in each of three rounds, written down by hand."""
    task = TASK.but(rounds=3, local_epochs=2, batch_size=40, weight_decay=0.0, pipeline=pipeline)
    batch, card = client().data.originals(), task.plan.data_card()
    model = train_alone(
        replace(WholeModelPlan.narrow(task.plan), learning_rate=1e-30), batch, 7
    )  # where the training of this seed begins
    seen = parse(pipeline).protect_once(batch, ("any",))
    for _ in range(task.plan.rounds):
        before = [parameter.detach().clone() for parameter in model.parameters()]
        for _ in range(task.plan.local_epochs):
            loss = F.cross_entropy(model(normalise(seen.images, card)), seen.targets)
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            with torch.no_grad():
                for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                    parameter -= task.learning_rate * gradient
        if "Clip" in pipeline:  # of a whole round's update, not of a step's
            length = torch.cat([(p - b).flatten() for p, b in zip(model.parameters(), before, strict=True)]).norm()
            assert length > 0.001
            with torch.no_grad():
                for parameter, old in zip(model.parameters(), before, strict=True):
                    parameter.copy_(old + (parameter - old) * (0.001 / length))
    trained = train_alone(task.plan, batch, 7)
    for (name, parameter), expected in zip(trained.named_parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(parameter, expected, atol=1e-5, rtol=1e-3, msg=name)


@pytest.mark.parametrize(
    "pipeline",
    [
        "VisualMixer()",
        "InstaHide()",
        "Pruning(fraction=0.5)",
        "GaussianNoise(std=0.1, per='update')",
        "DPSGD(target_epsilon=8.0)",
    ],
)
def test_updates_made_alone_are_protected_and_drawn_afresh(pipeline: str) -> None:
    """Of the whole batch each, and not two alike; and none is what it would be without the defence."""
    batch = client().data.originals()
    task = TASK.but(probe_images=len(batch), pipeline=pipeline)
    weights = shared_tensors(task.plan.build_model())
    made = [next(update for _, update in probes_alone(task, weights, batch, 1, seed)) for seed in range(3)]
    found = [torch.cat([t.flatten() for t in update.values()]) for update in made]
    plain = next(update for _, update in probes_alone(task.but(pipeline=""), weights, batch, 1, 1))
    assert all(torch.isfinite(one).all() for one in found)
    apart = [one - torch.cat([t.flatten() for t in plain.values()]) for one in found]
    assert all(one.abs().max() > 1e-6 for one in apart)
    if "Pruning" not in pipeline:  # which draws nothing
        assert (found[0] - found[1]).abs().max() > 1e-6
        assert (found[1] - found[2]).abs().max() > 1e-6


def test_an_update_of_more_images_than_there_are_is_refused() -> None:
    batch = client().data.originals()
    task = TASK.but(probe_images=len(batch) + 1)
    with pytest.raises(AttackError, match="raise auxiliary-fraction"):
        next(probes_alone(task, shared_tensors(task.plan.build_model()), batch, 1, 1))
