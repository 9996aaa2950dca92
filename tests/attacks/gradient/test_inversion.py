"""Gradient inversion: exact where theory says so, at chance on noise, honest about choices and failures."""

import copy
from dataclasses import asdict, fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attacks
import tests.attacks.gradient.clients as client
from attacks.gradient.inversion import GradientInversion
from attacks.gradient.inversion_loop import agreement
from attacks.gradient.trial_gradients.matching import attackable
from attacks.guesses import Reconstruction
from attacks.image_measures import psnr
from attacks.observations import ClientUpdate
from attacks.scoring.metrics import blurred
from tests.attacks.gradient.clients import QUASI_NEWTON, blind, mean_psnr, null_psnr, psnrs, updates
from tests.attacks.wire import CLASSES, MEAN, SIDE, STD, generators, linear_net, observe, pictures, sigmoid_net


def guess(attack: GradientInversion, seen: ClientUpdate, seed: int = 0) -> Reconstruction:
    return attack(seen, generators(1, seed)[0])


def one(model: nn.Module | None = None) -> ClientUpdate:
    return updates(model or sigmoid_net(), 1)[0][0]


@pytest.mark.numeric
def test_a_linear_layer_with_bias_is_solved_as_by_its_closed_form() -> None:
    """Row i of the gradient is db_i x, so any class gives x = dW_i / db_i."""
    (seen,), image = updates(linear_net(), 1)
    gradient = seen.gradient()
    solution = (gradient["1.weight"][2] / gradient["1.bias"][2]).view(1, 1, SIDE, SIDE) * STD[0] + MEAN[0]
    assert torch.allclose(solution, image, atol=1e-4)
    attack = GradientInversion(iterations=150, restarts=4, total_variation=0.0, labels="infer", **QUASI_NEWTON)
    assert mean_psnr(attack, [seen], solution) > 40
    assert guess(attack, seen).labels.tolist() == seen.labels.tolist()


@pytest.mark.long
@pytest.mark.numeric
def test_a_small_sigmoid_network_is_broken_and_noise_is_not() -> None:
    seen, images = updates(sigmoid_net(), 4)
    grey, scale = null_psnr("grey", images), float(psnr(blurred(images), images).mean())
    for attack in (attacks.DLG(iterations=100, restarts=1), attacks.InvertingGradients(iterations=150)):
        found = psnrs(attack, seen, images)
        assert min(found) > 25, attack
        assert sum(found) / 4 > scale + 8 > grey + 8
        assert mean_psnr(attack, blind(seen), images) < grey + 1


def test_together_equals_one_by_one() -> None:
    model = sigmoid_net().double()
    (first, second, third), _ = updates(model, 3)
    everything = [first, updates(model, 1, batch=2)[0][0], second, third]
    for attack in (
        GradientInversion(iterations=6, restarts=2),
        GradientInversion(iterations=6, restarts=2, chunk=3),
        GradientInversion(iterations=6, optimizer="sgd", learning_rate=0.01, cost="l1"),
        # L-BFGS amplifies rounding, of which a difference has more; with few iterations it shows the same.
        attacks.DLG(iterations=8, chunk=3, second_order="exact"),
        attacks.DLG(iterations=6, chunk=3),
        attacks.InvertingGradients(iterations=6, labels="infer", init="black"),
    ):
        together = attack.attack_many(everything, generators(4))
        for seen, generator, expected in zip(everything, generators(4), together, strict=True):
            alone = attack(seen, generator)
            assert torch.allclose(alone.images, expected.images, atol=1e-6), attack
            assert alone.labels.tolist() == expected.labels.tolist()
            assert alone.diagnostics == pytest.approx(expected.diagnostics, rel=1e-6, abs=1e-9)


def test_nothing_that_an_attack_receives_holds_the_truth() -> None:
    assert {f.name for f in fields(ClientUpdate)}.isdisjoint({"images", "truth", "batch", "targets"})
    (seen,), image = updates(sigmoid_net(), 1)
    held = [*(value for value in vars(seen).values() if isinstance(value, Tensor)), *seen.update.values()]
    assert all(value.shape != image.shape and value.shape != image[0].shape for value in held)


def test_the_restart_is_chosen_by_its_own_objective() -> None:
    # In float64, because the signs of small entries depend on rounding, which depends on how many trials run together.
    seen, chosen = one(sigmoid_net().double()), set()
    for seed in range(4):
        stream = generators(1, seed)[0]
        alone = [GradientInversion(iterations=3)(seen, stream) for _ in range(4)]
        best = min(range(4), key=lambda at: alone[at].diagnostics["objective"])
        found = guess(GradientInversion(iterations=3, restarts=4), seen, seed)
        assert found.diagnostics["restart"] == best
        assert found.diagnostics["objective"] == pytest.approx(alone[best].diagnostics["objective"], rel=1e-6)
        assert torch.allclose(found.images, alone[best].images, atol=1e-6)
        chosen.add(best)
    # Always the first, or always the last, would say nothing about the rule.
    assert len(chosen) > 1


def test_labels_are_known_inferred_or_joint_as_the_setting_says() -> None:
    quick = GradientInversion(iterations=2)
    (pair,), _ = updates(sigmoid_net(), 1, batch=2)
    secret, flipped = replace(pair, labels=None), replace(pair, labels=pair.labels.flip(0))
    assert "labels='infer'" in guess(replace(quick, labels="known"), secret).failure
    assert not guess(quick, secret).failure
    for told in (pair, flipped):
        assert guess(quick, told).labels.tolist() == told.labels.tolist()
    assert guess(replace(quick, labels="joint"), secret).labels.shape == (2,)
    single = one()
    inferred = guess(replace(quick, labels="infer"), replace(single, labels=None))
    assert inferred.labels.tolist() == single.labels.tolist()


def test_more_examples_than_images_keeps_the_mix_of_classes() -> None:
    """Labels in the middles of equal parts of the sorted labels: here the third, seventh and eleventh."""
    labels = torch.tensor([4, 4, 4, 4, 4, 3, 2, 2, 2, 1, 0, 0])
    found = guess(GradientInversion(iterations=2, max_images=3), observe(sigmoid_net(), pictures(12), labels))
    assert found.images.shape == (3, 1, SIDE, SIDE)
    assert found.labels.tolist() == [1, 3, 4]


def test_starts_are_those_named_and_images_lie_in_the_unit_interval() -> None:
    seen, shape = one(), (1, 1, SIDE, SIDE)
    draw = torch.randn(shape, generator=generators(1)[0])
    for init, expected in {"black": torch.zeros(shape), "randn": (draw * STD[0] + MEAN[0]).clamp(0, 1)}.items():
        found = guess(GradientInversion(iterations=1, init=init, boxed=False), seen)
        assert torch.allclose(found.images, expected, atol=1e-6), init
    for boxed in (True, False):
        images = guess(GradientInversion(iterations=10, learning_rate=1.0, boxed=boxed), seen).images
        assert 0 <= images.min() <= images.max() <= 1


def test_the_weight_of_a_decaying_prior_shrinks_with_the_step_size() -> None:
    model = sigmoid_net()
    objective = client.matching(attackable(model, False), (1, 1, SIDE, SIDE), {n: p[None] for n, p in model.named_parameters()},
                         torch.tensor([[0]]), "cosine", 0.04)  # fmt: skip
    attack = GradientInversion(total_variation=0.04, prior_decay=True, learning_rate=0.2, iterations=16)
    stages = attack._stages(objective)
    assert [float(stage.objective.smoothing) for stage in stages] == pytest.approx([0.04, 0.004, 0.0004, 0.00004])
    assert [stage.learning_rate for stage in stages] == pytest.approx([0.2, 0.02, 0.002, 0.0002])
    assert [stage.iterations for stage in stages] == [6, 4, 4, 2]
    (flat,) = replace(attack, prior_decay=False, step_decay=False)._stages(objective)
    assert (flat.objective, flat.learning_rate, flat.iterations) == (objective, 0.2, 16)


def test_an_unknown_learning_rate_is_estimated() -> None:
    model = linear_net()
    with torch.no_grad():
        model[1].weight.zero_()  # where the estimate is exact
    # Of one image three times, whose labels are inferred exactly.
    seen = observe(model, pictures(1).expand(3, -1, -1, -1), torch.tensor([0, 1, 3]))
    unknown = replace(seen, learning_rate=None)
    norm = sum(float(value.square().sum()) for value in seen.gradient().values()) ** 0.5
    for labels in ("auto", "infer", "joint"):
        attack = GradientInversion(iterations=3, cost="l2", labels=labels)
        found, told = (guess(attack, case) for case in (unknown, seen))
        assert found.diagnostics["learning_rate"] == pytest.approx(0.1, rel=1e-3), labels
        assert "learning_rate" not in told.diagnostics
        assert found.labels.tolist() == told.labels.tolist()
        assert [one.diagnostics["gradient_norm"] for one in (found, told)] == pytest.approx([norm] * 2, rel=1e-3)


def test_one_bad_observation_fails_alone() -> None:
    (first, second, third), _ = updates(sigmoid_net(), 3)
    update = first.update
    bad = {
        "lacks": replace(first, update={n: v for n, v in update.items() if n != "0.bias"}),
        "shape": replace(first, update=update | {"0.bias": torch.zeros(3)}),
        "NaN": replace(first, update=update | {"0.bias": torch.full((8,), torch.nan)}),
        "zero": replace(first, update={n: torch.zeros_like(v) for n, v in update.items()}),
        "labels": replace(first, labels=torch.tensor([1, 2])),
        "5 classes": replace(first, labels=torch.tensor([CLASSES])), "learning rate": replace(first, learning_rate=0.0),
        "channels": replace(first, mean=(0.5, 0.5)), "at least 1": replace(first, num_examples=0),
    }  # fmt: skip
    attack = GradientInversion(iterations=3)
    guesses = attack.attack_many([second, *bad.values(), third], generators(len(bad) + 2))
    for (word, seen), found in zip(bad.items(), guesses[1:-1], strict=True):
        assert word in found.failure
        assert found.images.shape == (min(seen.num_examples, 8), 1, SIDE, SIDE)
        assert (found.images == 0.5).all()
        assert set(found.labels.tolist()) <= {-1}
        assert guess(attack, seen).failure == found.failure
    assert guesses[0].failure == guesses[-1].failure == ""
    assert torch.allclose(guesses[0].images, guess(attack, second).images, atol=1e-3)


def test_what_cannot_be_optimised_is_a_failure_with_a_reason() -> None:
    overflowing = one()
    model = copy.deepcopy(overflowing.model)
    with torch.no_grad():
        model[-1].weight.fill_(torch.finfo(torch.float32).max)
    torch.manual_seed(0)
    kinked = nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 8), nn.Hardsigmoid(), nn.Linear(8, CLASSES))
    short = GradientInversion(iterations=3, restarts=2)
    for seen, attack, why in (
        (replace(overflowing, model=model), short, "all 2 restarts"),
        (one(kinked), short, "cannot be differentiated twice"),
    ):
        found = guess(attack, seen)
        assert why in found.failure
        assert found.diagnostics.get("failed_restarts", 2) == 2
        assert (found.images == 0.5).all()


BAD: dict[type[GradientInversion], list[dict[str, Any]]] = {
    GradientInversion: [
        {"cost": "euclid"}, {"cost": []}, {"optimizer": "adamw"}, {"labels": "guess"}, {"init": "noise"},
        {"line_search": True}, {"line_search": True, "optimizer": "lbfgs"},
        {"prior_decay": True, "step_decay": False}, {"prior_decay": True, "optimizer": "lbfgs"},
        {"restarts": 2, "init": "black"},
    ],
    attacks.SurrogateMatching: [{"labels": "joint"}, {"cost": "l2"}, {"max_unrolled_steps": 4}],
}  # fmt: skip


def test_bad_fields_are_refused_by_name() -> None:
    for cls, changes in BAD.items():
        for change in changes:
            with pytest.raises(ValueError, match=f"^{next(iter(change))} is .*; allowed: "):
                cls(**change)


def test_diagnostics_say_why() -> None:
    seen = one()
    update = seen.update | {"5.bias": torch.zeros(CLASSES), "5.weight": seen.update["5.weight"].clone()}
    update["5.weight"][:2] = 0
    found = guess(GradientInversion(iterations=1, init="black", labels="known"), replace(seen, update=update))
    zeros = CLASSES + 2 * update["5.weight"].shape[1]
    assert found.diagnostics["masked_share"] == pytest.approx(zeros / sum(v.numel() for v in update.values()))
    names = ("clipped_share", "labels_inferred", "restart_agreement")
    assert [found.diagnostics[name] for name in names] == [1, 0, 1]
    drawn = guess(GradientInversion(iterations=1, labels="infer"), seen)
    clipped = ((drawn.images == 0) | (drawn.images == 1)).float().mean().item()
    assert 0 < clipped < 1
    assert (drawn.diagnostics["clipped_share"], drawn.diagnostics["labels_inferred"]) == (pytest.approx(clipped), 1)
    several = guess(GradientInversion(iterations=3, restarts=4), seen)
    assert several.diagnostics["restart_agreement"] in (0.25, 0.5, 0.75, 1)
    assert several.diagnostics["evaluations"] == 12
    assert agreement(torch.tensor([1.0, 1.04, 1.06, torch.inf])) == 0.5
    assert agreement(torch.tensor([torch.inf, torch.inf])) == 0
    assert agreement(torch.tensor([0.0, 1e-13, 1e-11])) == pytest.approx(2 / 3)


NAMES = [
    "cost", "optimizer", "signed", "learning_rate", "iterations", "restarts", "total_variation", "boxed", "step_decay",
]  # fmt: skip
PUBLISHED = {
    attacks.AdamCosine: ("cosine", "adam", True, 0.1, 4800, 1, 1e-4, True, True),
    attacks.AdamL1: ("l1", "adam", True, 0.1, 4800, 1, 1e-4, True, True),
    attacks.AdamL2: ("l2", "adam", True, 0.1, 4800, 1, 1e-4, True, True),
    attacks.SGDCosine: ("cosine", "sgd", True, 0.01, 4800, 1, 1e-4, True, True),
    attacks.LBFGSCosine: ("cosine", "lbfgs", True, 1e-4, 300, 16, 1e-4, True, False),
    attacks.LBFGSL2: ("l2", "lbfgs", False, 1e-4, 300, 16, 1e-3, False, False),
}
"""Settings of Gao et al. 2021, section 6, in the order of ``NAMES``."""


def test_attacks_of_a_paper_have_its_settings() -> None:
    for preset, row in PUBLISHED.items():
        values = asdict(preset())
        assert tuple(values[name] for name in NAMES) == row, preset
        others = (values["labels"], values["init"], values["line_search"], values["prior_decay"])
        assert others == ("auto", "randn", False, False), preset
