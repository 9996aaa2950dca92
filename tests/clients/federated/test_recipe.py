"""The training recipe: Nesterov's momentum, falling learning rates, crops and flips, probes in eval mode."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.transforms import functional as TF  # type: ignore[import-untyped]

from attacks import InvertingGradients
from attacks.local_model import shared_tensors
from attacks.normalisation import normalise
from clients.data.augmentation import random_crop_and_flip
from clients.federated.client import LocalClient
from clients.federated.plan import FederatedPlan
from clients.task.local_data import LocalData
from clients.task.scenarios import read_task
from clients.task.task import Task, load_weights
from clients.training.evaluation import set_eval
from defenses.base import Batch
from strategies.audit.jobs import AttackJob
from strategies.audit.kinds import Observed
from strategies.audit.threat_card import ThreatCard
from strategies.federated.observations import PROBE, SeenUpdate

TASK = FederatedPlan(
    scenario="federated",
    dataset="mnist-5k", data_dir="", download=False, image_size=0, train_limit=200, test_limit=50, model="lenet", width=0,
    norm="group", pipeline="", seed=3, rounds=2, local_epochs=1, batch_size=16, learning_rate=0.1, momentum=0.9,
    weight_decay=0.01, probe_targets=2, probe_images=2,
).at(1)  # fmt: skip
NORMED = {"model": "resnet20", "norm": "batch", "image_size": 16}


def client_of(task: Task) -> LocalClient:
    return LocalClient(LocalData(task, 0, range(0, 40), range(0, 20)))


def client(**changes: object) -> LocalClient:
    return client_of(TASK.but(**changes))


def weights(task: Task = TASK) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in shared_tensors(task.plan.build_model()).items()}


def gradient(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    loss = F.cross_entropy(model(normalise(batch.images, TASK.plan.data_card())), batch.targets)
    names, parameters = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))


def torchvision_views(image: Tensor, padding: int, *, flip: bool) -> list[Tensor]:
    """All results of RandomCrop(size, padding) and RandomHorizontalFlip."""
    padded, (height, width) = TF.pad(image, [padding]), image.shape[-2:]
    places = [(top, left) for top in range(2 * padding + 1) for left in range(2 * padding + 1)]
    crops = [TF.crop(padded, top, left, height, width) for top, left in places]
    return crops + [TF.hflip(crop) for crop in crops] * flip


@pytest.mark.parametrize(("padding", "flip"), [(1, True), (2, False), (0, True)])
def test_crops_and_flips_are_those_of_torchvision_each_equally_often(padding: int, flip: bool) -> None:
    image = torch.rand(3, 6, 5)
    possible = torch.stack(torchvision_views(image, padding, flip=flip))
    views = random_crop_and_flip(image.expand(9000, -1, -1, -1), padding, flip, torch.Generator().manual_seed(1))
    same = (views[:, None] == possible[None]).flatten(2).all(2)
    assert bool((same.sum(1) == 1).all())
    counts = same.sum(0).double()
    expected = 9000 / len(possible)
    # 99.99 % of a chi-square with as many degrees of freedom stays below mean + 5 standard deviations.
    freedom = len(possible) - 1
    assert float(((counts - expected) ** 2 / expected).sum()) < freedom + 5 * (2 * freedom) ** 0.5
    assert views.shape == (9000, 3, 6, 5)


def test_every_image_has_draws_of_its_own_and_the_input_is_left_alone() -> None:
    images = torch.rand(64, 1, 8, 8)
    before = images.clone()
    views = random_crop_and_flip(images, 3, True, torch.Generator().manual_seed(0))
    assert torch.equal(images, before)
    again = random_crop_and_flip(images, 3, True, torch.Generator().manual_seed(0))
    assert torch.equal(views, again)
    assert torch.equal(random_crop_and_flip(images, 0, False, torch.Generator()), images)


def test_rounds_are_torch_sgd_with_nesterov_and_multi_step_lr() -> None:
    """A batch of everyone leaves no doubt about the order; the optimizer starts anew in every round, as clients do."""
    recipe = {"nesterov": True, "milestones": (1, 3), "learning_rate_factor": 0.2, "batch_size": 40, "local_epochs": 2}
    state, reference = weights(), TASK.plan.build_model()
    schedule_of = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=TASK.learning_rate)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(schedule_of, milestones=[1, 3], gamma=0.2)
    for server_round in range(1, 6):
        one = client_of(TASK.but(**recipe, rounds=5).plan.at(server_round))
        update = one.train(state, {}).updates[0]
        rate = scheduler.get_last_lr()[0]
        assert one.task.learning_rate == pytest.approx(rate, rel=1e-12)
        optimizer = torch.optim.SGD(
            reference.parameters(), lr=rate, momentum=0.9, weight_decay=TASK.plan.weight_decay, nesterov=True
        )
        for _ in range(2):
            optimizer.zero_grad()
            images = normalise(one.data.originals().images, TASK.plan.data_card())
            F.cross_entropy(reference(images), one.data.originals().targets).backward()
            optimizer.step()
        schedule_of.step()
        scheduler.step()
        state = {name: weight + update[name] for name, weight in state.items()}
        for name, value in shared_tensors(reference).items():
            torch.testing.assert_close(state[name], value, atol=2e-5, rtol=1e-3)
    assert read_task(one.task.to_json()) == one.task


@pytest.mark.parametrize("probe_mode", ["train", "eval"])
def test_a_probe_is_the_gradient_by_hand_in_its_mode_and_attacks_are_told(probe_mode: str) -> None:
    task = TASK.but(**NORMED, nesterov=True, milestones=(1,), probe_mode=probe_mode).plan.at(2)  # type: ignore[arg-type]
    one = LocalClient(LocalData(task, 0, range(0, 40), range(0, 20)))
    # Running statistics that are not those of any batch, as after training.
    start = {name: value + 0.3 if "running" in name else value for name, value in weights(task).items()}
    update = one.probe(start, {}).updates[1]
    model = load_weights(task.plan.build_model(), start).train(probe_mode == "train")
    expected = gradient(model, one.probed(1).original)
    seen = SeenUpdate(0, 1, 2, update, 1, train_mode=probe_mode == "train")
    observed = Observed.of(Observed(task, start, [seen]).about(), Observed(task, start, [seen]).tensors(), SeenUpdate)
    (observation,) = PROBE.observations(observed)
    assert observation.train_mode == (probe_mode == "train")
    for name, value in observation.gradient().items():
        torch.testing.assert_close(value, expected[name], atol=2e-4, rtol=1e-3)
    moved = [name for name in update if "running" in name and update[name].any()]
    assert bool(moved) == (probe_mode == "train")


def test_the_two_modes_differ_with_batch_norm() -> None:
    task = TASK.but(**NORMED)  # type: ignore[arg-type]
    updates = []
    for mode in ("train", "eval"):
        one = LocalClient(LocalData(task.but(probe_mode=mode), 0, range(0, 40), range(0, 20)))
        update = one.probe(weights(task), {}).updates[0]
        updates.append(torch.cat([update[name].flatten() for name, _ in task.plan.build_model().named_parameters()]))
    assert float(F.cosine_similarity(*updates, dim=0)) < 0.9


def test_eval_mode_leaves_hooked_layers_to_opacus_and_turns_dropout_off() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.GroupNorm(2, 4)).train()
    set_eval(model, keep_hooked=True)
    assert [module.training for module in model] == [True, False, True]
    set_eval(model)
    assert not any(module.training for module in model.modules())
    private = {"pipeline": "DPSGD(noise_multiplier=0.0, max_grad_norm=1e6)", "probe_mode": "eval", "momentum": 0.0}
    update = client(**private).probe(weights(), {}).updates[0]
    plain = client(momentum=0.0).probe(weights(), {}).updates[0]
    for name, value in update.items():
        torch.testing.assert_close(value, plain[name], atol=1e-6, rtol=1e-4)


AUGMENTED = {"crop_padding": 4, "horizontal_flip": True, "momentum": 0.0}


@pytest.mark.parametrize("pipeline", ["", "ATS(policies='42-28-42+14-48-48')", "Downsample(factor=4)", "ImageNoise()"])
def test_crops_come_before_the_defences_and_the_audit_knows_them(pipeline: str) -> None:
    one = client(**AUGMENTED, pipeline=pipeline, batch_size=40)
    views = one.trained_views()
    update = one.train(weights(), {}).updates[0]
    for name, value in gradient(TASK.plan.build_model(), views.seen).items():
        start = weights()[name]
        torch.testing.assert_close(update[name], -0.1 * (value + 0.01 * start), atol=1e-6, rtol=1e-4)
    held = one.data.originals().images
    for at in range(5):
        assert any(torch.equal(views.original.images[at], v) for v in torchvision_views(held[at], 4, flip=True))
    assert not torch.equal(views.original.images, held)
    assert torch.equal(views.seen.images, views.original.images) == (pipeline == "")
    if pipeline.startswith("Downsample"):
        by_hand = one.pipeline.protect_once(views.original, ("any",)).images
        assert torch.equal(views.seen.images, by_hand)
    other = client(**AUGMENTED, pipeline=pipeline, batch_size=40, round=2).trained_views()
    assert not torch.equal(other.original.images, views.original.images)


@pytest.mark.parametrize("pipeline", ["", "ATS(policies='42-28-42+14-48-48')"])
def test_a_probe_is_one_step_on_the_view_that_its_truth_names(pipeline: str) -> None:
    one = client(**AUGMENTED, pipeline=pipeline)
    update, probed = one.probe(weights(), {}).updates[1], one.probed(1)
    for name, value in gradient(TASK.plan.build_model(), probed.seen).items():
        torch.testing.assert_close(update[name], -0.1 * (value + 0.01 * weights()[name]), atol=1e-6, rtol=1e-4)
    plain = client(momentum=0.0).probed(1)
    for at in range(2):
        views = torchvision_views(plain.original.images[at], 4, flip=True)
        assert any(torch.equal(probed.original.images[at], view) for view in views)


def test_views_of_a_round_of_several_batches_are_the_first_that_were_trained_on() -> None:
    """One step from each batch: its examples' views, and nobody else's, explain the update."""
    one = client(**AUGMENTED, pipeline="ATS(policies='42-28-42+14-48-48')", local_steps=1, weight_decay=0.0)
    used, views = one.trained_on(), one.trained_views()
    assert len(used) == len(views.seen) == 16
    update = one.train(weights(), {}).updates[0]
    for name, value in gradient(TASK.plan.build_model(), views.seen).items():
        torch.testing.assert_close(update[name], -0.1 * value, atol=1e-6, rtol=1e-4)
    assert len(client(**AUGMENTED, local_epochs=2).trained_views().seen) == 40


def test_training_and_evaluation_repeat_and_test_images_stay_whole() -> None:
    first, second = (client(**AUGMENTED, local_epochs=2).train(weights(), {}).updates[0] for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert client(**AUGMENTED).evaluate(weights()) == client(momentum=0.0).evaluate(weights())


def test_a_kept_job_remembers_the_mode(tmp_path: object) -> None:
    from pathlib import Path

    folder = Path(str(tmp_path))
    seen = SeenUpdate(0, 0, 1, weights(), 1, train_mode=False)
    AttackJob("job", (InvertingGradients(),), PROBE, Observed(TASK, weights(), [seen]), ThreatCard()).save(folder)
    assert not AttackJob.load(folder / "job.safetensors").observed.seen[0].train_mode
