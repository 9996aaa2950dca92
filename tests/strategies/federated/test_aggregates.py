"""Sums of clients' updates: groups, weights, and that a sum of one-step updates is one step on everybody's images."""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacks.guesses import Reconstruction
from attacks.spec import ATTACKS, parse_attacks
from clients.models.classifiers import build_model
from clients.scoring.audit import NO_IMAGES
from defenses.tensors import Update
from strategies.audit.auditor import _failed_values
from strategies.federated.aggregates import groups_of, summed
from strategies.federated.audit import fewest_guesses
from strategies.federated.observations import AGGREGATE, SeenAggregate, SeenUpdate


def step(model: nn.Module, images: Tensor, classes: Tensor, rate: float) -> Update:
    """Minus the rate times the mean gradient."""
    loss = F.cross_entropy(model(images), classes)
    names, weights = zip(*model.named_parameters(), strict=True)
    return {n: -rate * g for n, g in zip(names, torch.autograd.grad(loss, weights), strict=True)}


def test_the_sum_of_steps_is_the_step_on_the_union_also_of_unequal_clients() -> None:
    generator = torch.Generator().manual_seed(0)
    model = build_model("cnn", num_classes=10, input_shape=(1, 28, 28))
    images, classes = torch.rand(6, 1, 28, 28, generator=generator), torch.arange(6)
    parts = [slice(0, 1), slice(1, 3), slice(3, 6)]
    found = summed([step(model, images[part], classes[part], 0.5) for part in parts], [1, 2, 3])
    wanted = step(model, images, classes, 0.5)
    for name, tensor in wanted.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=1e-6)
    evenly = summed([step(model, images[part], classes[part], 0.5) for part in parts], [1, 1, 1])
    assert max((evenly[name] - tensor).abs().max().item() for name, tensor in wanted.items()) > 1e-4


def test_each_client_scores_no_more_guesses_than_it_has_images() -> None:
    """A failed guess about 3 clients with 2 images each costs 6 values, whether it holds 6 images or 16; 4 where one is silent."""
    one = SeenAggregate(0, 0, 6, num_clients=3, scorers=torch.tensor([0, 4, 7]))
    for images in (6, 16):
        failed = Reconstruction(torch.zeros(images, 1, 2, 2), torch.zeros(images), failure="why")
        assert _failed_values([failed], [one], 6) == 6
        assert _failed_values([failed], [replace(one, scorers=torch.tensor([0, 7]))], 4) == 4


def test_only_attacks_that_guess_images_of_one_update_are_meant_for_sums() -> None:
    found = {name for name, cls in ATTACKS.items() if AGGREGATE.meant(cls())}
    assert {"InvertingGradients", "SpearPlusPlus", "NoiseModelInversion"} <= found
    assert not {"LabelInference", "LossThreshold"} & found


def test_groups_are_disjoint_full_and_drawn_from_the_seed_and_the_size() -> None:
    for clients, size in ((8, 1), (8, 2), (7, 3), (4, 4), (3, 4)):
        partitions = [10 + 3 * at for at in range(clients)]
        groups = groups_of(partitions, size, 5)
        members = [one for group in groups for one in group]
        assert len(groups) == clients // size
        assert all(len(group) == size and group == sorted(group) for group in groups)
        assert len(set(members)) == len(members)
        assert set(members) <= set(partitions)
        assert groups == groups_of(partitions, size, 5)
    assert len({str(groups_of(range(8), 2, seed)) for seed in range(10)}) > 5
    # Were one order cut into groups of every size, two groups of 2 would make each group of 4: a difference of sums shows a client.
    nested = [
        {one for pair in groups_of(range(16), 2, seed)[:2] for one in pair} == set(groups_of(range(16), 4, seed)[0])
        for seed in range(20)
    ]
    assert not any(nested)


def test_null_baselines_guess_as_many_images_as_the_attack_that_guesses_fewest() -> None:
    seen = [SeenUpdate(0, 0, 40), SeenUpdate(1, 0, 60)]
    for attacks, images in (
        ("LabelInference(); LossThreshold(); ShadowModels()", NO_IMAGES),
        ("InvertingGradients(max_images=5); LabelInference()", 5),
        ("InvertingGradients(max_images=5); InvertingGradients(max_images=3)", 3), ("HeadInversion()", 60),
    ):  # fmt: skip
        assert fewest_guesses(parse_attacks(attacks), seen) == images, attacks
