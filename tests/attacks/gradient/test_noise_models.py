"""Inversions that model what was done to the update: noise of known law, pruned entries, Soteria's layer, PRECODE's draw."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attacks import BottleneckInversion, InvertingGradients, MaskedInversion, NoiseModelInversion, OmittedLayerInversion
from attacks.gradient.inversion_target import Victim
from attacks.gradient.noise_models import PIXEL_SCALE, gradient_noise
from attacks.observations import ClientUpdate
from defenses import Precode, Soteria, parse
from defenses.random_draws import generator_for
from defenses.updates.pruning import prune_smallest
from tests.attacks.gradient.clients import blind, defended, knowledge, matching, mean_psnr, normalised, null_psnr
from tests.attacks.wire import classes, generators, observe, pictures, sigmoid_net

COUNT = 4


def fit(attack: Any, pipeline: str) -> Any:
    return attack.fit(knowledge(pipeline), torch.Generator())


def protected(pipeline: str, decay: float = 0.0) -> tuple[list[ClientUpdate], Tensor]:
    """One step of SGD with weight decay, as a client takes it: defences per step, decay, step, defences per update."""
    model, images, labels = sigmoid_net(), pictures(COUNT), classes(COUNT)
    weights, chain = dict(model.named_parameters()), parse(pipeline)
    seen = []
    for at in range(COUNT):
        one = observe(model, images[at : at + 1], labels[at : at + 1], weight_decay=decay)
        gradient = chain.protect_gradient({name: -sent / 0.1 for name, sent in one.update.items()}, ("noise", at))
        local = {name: w - 0.1 * (gradient[name] + decay * w) for name, w in weights.items()}
        update = {name: (local[name] - w).detach() for name, w in weights.items()}
        seen.append(replace(one, update=chain.protect_update(update, ("noise", at))))
    return seen, images


def test_fit_takes_the_law_and_strength_of_the_noise_from_the_pipeline() -> None:
    for pipeline, cost, strength in (
        ("GaussianNoise(std=0.03, per={!r})", "l2", 0.03),
        ("GaussianNoise(std=0.03, per={0!r}) | GaussianNoise(std=0.04, per={0!r})", "l2", 0.05),
        ("LaplaceNoise(scale=0.02, per={!r})", "l1", 0.02),
        ("LaplaceNoise(scale=0.03, per={0!r}) | LaplaceNoise(scale=0.04, per={0!r})", "l1", 0.05),
        ("GaussianNoise(std=0.03, per={0!r}) | LaplaceNoise(scale=0.02, per={0!r})", "l2", 0.0017**0.5),
        ("", "l2", 0.0),
    ):
        for per in ("step", "update"):
            fitted = fit(NoiseModelInversion(), pipeline.format(per))
            known = {"update": fitted.noise_std, "step": fitted.step_noise_std}
            assert (fitted.cost, known.pop(per)) == (cost, pytest.approx(strength)), pipeline
            assert set(known.values()) == {0.0}


def test_the_noise_in_the_gradient_is_what_the_attack_takes_it_for() -> None:
    for per, std in (("step", 0.2), ("update", 2.0)):
        pipeline = f"GaussianNoise(std=0.2, per={per!r})"
        fitted = fit(NoiseModelInversion(), pipeline)
        for decay in (0.0, 0.1):
            noisy, plain = protected(pipeline, decay)[0][0], protected("", decay)[0][0]
            read = [torch.cat([value.flatten() for value in one.gradient().values()]) for one in (noisy, plain)]
            assert gradient_noise(noisy, fitted.noise_std, fitted.step_noise_std) == pytest.approx(std)
            # Of 3,693 entries: a standard error of 1.2 %.
            assert (read[0] - read[1]).std().item() == pytest.approx(std, rel=0.06), (per, decay)
    one = protected("")[0][0]
    assert gradient_noise(replace(one, local_steps=4), 0.2, 0.3) == pytest.approx((2.0**2 + 4 * 0.3**2) ** 0.5 / 4)
    # Noise in the first of two steps with momentum moves the weights by 1 in it and by 1.5 at the end of both.
    heavy = replace(one, local_steps=2, momentum=0.5)
    assert gradient_noise(heavy, 0.0, 0.3) == pytest.approx(0.3 * (1.0 + 1.5**2) ** 0.5 / 2)
    assert gradient_noise(replace(one, momentum=0.5, nesterov=True), 0.2, 0.0) == pytest.approx(2.0 / 1.5)
    for nothing in ({"learning_rate": None}, {"learning_rate": 0.0}, {"local_steps": 0}):
        assert gradient_noise(replace(one, **nothing), 0.2, 0.3) == 0


def test_the_prior_weighs_as_the_posterior_says() -> None:
    """2 s^2 times sum|dx| / scale, written with the mean over 144 pixels of each image; s is the noise on the gradient."""
    (one, *_), _ = protected("")
    attack = NoiseModelInversion(noise_std=0.001)
    assert attack._prior(one) == pytest.approx(2 * (0.001 / 0.1) ** 2 * 144 / PIXEL_SCALE)
    assert replace(attack, cost="l1")._prior(one) == pytest.approx(0.001 / 0.1 * 144 / PIXEL_SCALE)
    assert attack._prior(replace(one, num_examples=99)) == pytest.approx(attack._prior(one) * attack.max_images)
    assert NoiseModelInversion()._prior(one) == 0


def test_the_guide_grows_with_each_gradient_and_shrinks_to_the_prior() -> None:
    gradients = {"weight": torch.stack([torch.full((3, 4), value) for value in (0.5, 2.0)])}
    objective = matching(nn.Linear(4, 3), (1, 1, 2, 2), gradients, torch.tensor([[0], [1]]), "l2", 0.0, 3)
    assert objective.from_zero().tolist() == [12 * 0.25, 12 * 4.0]
    stages = NoiseModelInversion()._searches(prior=0.02)[1]._stages(objective)
    weights = torch.stack([stage.objective.smoothing for stage in stages])
    torch.testing.assert_close(weights, torch.tensor([[0.3, 4.8], [0.03, 0.48], [0.02, 0.048], [0.02, 0.02]]))


def test_the_search_that_got_lower_decides_for_each_observation() -> None:
    seen, _ = protected("")
    for iterations, adam_iterations, winner in ((12, 1, 0), (1, 12, 1)):
        both = NoiseModelInversion(iterations=iterations, adam_iterations=adam_iterations)
        searches = [replace(one, adam_iterations=0).attack_many(seen, generators(COUNT)) for one in both._searches(0.0)]
        found = both.attack_many(seen, generators(COUNT))
        for ours, theirs, *ends in zip(found, searches[winner], *searches, strict=True):
            assert torch.equal(ours.images, theirs.images)
            assert ours.diagnostics["objective"] == min(one.diagnostics["objective"] for one in ends)


@pytest.mark.long
@pytest.mark.numeric
def test_knowing_what_was_done_helps() -> None:
    """Of noise with the same optimizer and iterations; of a mask of 95 % of each tensor, which weight decay hides."""
    for pipeline, decay, attack, plain in (
        ("GaussianNoise(std=0.3)", 0.0, *(NoiseModelInversion(iterations=80, restarts=1) for _ in "ab")),
        ("Pruning(0.95, per='step')", 0.1, MaskedInversion(iterations=200), InvertingGradients(iterations=200)),
        ("Pruning(0.95, per='update')", 0.1, MaskedInversion(iterations=200), InvertingGradients(iterations=200)),
    ):
        seen, images = protected(pipeline, decay)
        assert mean_psnr(fit(attack, pipeline), seen, images) > mean_psnr(plain, seen, images) + 1, pipeline


def true_mask() -> dict[str, Tensor]:
    clean = protected("")[0][0].gradient()
    return {name: prune_smallest(value, 0.95) == 0 for name, value in clean.items()}


def test_the_mask_is_read_exactly_whatever_the_weight_decay() -> None:
    for decay in (0.0, 0.01, 0.5):
        seen, _ = protected("Pruning(fraction=0.95, per='step')", decay)
        found = MaskedInversion().observed_gradient(seen[0])
        for name, pruned in true_mask().items():
            assert torch.equal(found[name] == 0, pruned), (decay, name)
        sent = protected("Pruning(fraction=0.95, per='update')", decay)[0][0]
        for name, value in MaskedInversion().observed_gradient(sent).items():
            assert torch.equal(value == 0, sent.update[name] == 0), (decay, name)
        guess = MaskedInversion(iterations=1)(sent, generators(1)[0])
        assert guess.diagnostics["masked_share"] == pytest.approx(0.95, abs=0.01)


def test_the_mask_of_several_steps_is_what_weight_decay_alone_has_moved() -> None:
    for recipe in ({"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}, {}):
        model, image, label = sigmoid_net(), pictures(1), classes(1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, weight_decay=0.05, **recipe)
        pruned = {n: torch.rand(w.shape, generator=generators(1)[0]) < 0.9 for n, w in model.named_parameters()}
        for _ in range(5):
            optimizer.zero_grad()
            F.cross_entropy(model(normalised(image)), label).backward()
            for name, weight in model.named_parameters():
                weight.grad.masked_fill_(pruned[name], 0)
            optimizer.step()
        start = dict(sigmoid_net().named_parameters())
        update = {name: (weight - start[name]).detach() for name, weight in model.named_parameters()}
        seen = observe(sigmoid_net(), image, label, update=update, local_steps=5, weight_decay=0.05, **recipe)
        found = MaskedInversion().observed_gradient(seen)
        right = torch.cat([((found[name] == 0) == pruned[name]).flatten() for name in found])
        assert right.double().mean() > 0.995, recipe


def test_noise_behind_the_pruning_erases_the_mask_and_it_is_guessed_by_size() -> None:
    """Noise of a tenth of what was kept: nine of ten kept entries are found. In front of the pruning it erases nothing."""
    for pipeline in (
        "GaussianNoise() | Pruning(fraction=0.95)",
        "GaussianNoise() | Pruning(0.95, per='update')",
        "Pruning(fraction=0.95) | GaussianNoise(std=0)",
    ):
        assert fit(MaskedInversion(), pipeline).pruned_fraction == 0, pipeline
    pipeline = "Pruning(fraction=0.95) | LaplaceNoise(scale=0.001)"
    attack = fit(MaskedInversion(), pipeline)
    assert attack.pruned_fraction == 0.95
    seen, _ = protected(pipeline, decay=0.0)
    assert all((value != 0).all() for value in seen[0].update.values()), "the mask is gone"
    found, truth = attack.observed_gradient(seen[0]), true_mask()
    kept = torch.cat([~truth[name].flatten() for name in found])
    hit = torch.cat([(found[name] != 0).flatten() for name in found])
    assert (kept & hit).sum() > 0.9 * kept.sum()


# ---- what a defence changes is left out, and the rest is matched as without it


DEFENSE = Precode(size=16)
SETTINGS: dict[str, Any] = {"iterations": 150, "total_variation": 1e-4, "prior_decay": False}


def net() -> nn.Module:
    return DEFENSE.extended(sigmoid_net(), generator_for("first"))


def test_at_the_true_image_what_is_matched_agrees_exactly_whatever_was_drawn() -> None:
    seen, images = defended(DEFENSE, net)
    for at, one in enumerate(seen):
        victim, truth = Victim.of(one), normalised(images[at : at + 1]).view(1, -1)
        losses = []
        for attack in (BottleneckInversion, InvertingGradients):
            plain = attack(total_variation=0.0, prior_decay=False)
            trials = [(plain.prepare(0, one, victim, torch.Generator()), 0)]
            losses.append(float(plain._objective(trials, victim)(truth, torch.tensor([0]))[0]))
        assert losses[0] < 1e-5
        assert losses[1] > 0.02


def test_labels_are_inferred_from_the_bias_and_several_examples_behind_a_bottleneck_are_refused() -> None:
    for attack, defense, build in (
        (BottleneckInversion, DEFENSE, net),
        (OmittedLayerInversion, Soteria(), sigmoid_net),
    ):
        hidden = [replace(one, labels=None) for one in defended(defense, build)[0]]
        guesses = attack(iterations=1).attack_many(hidden, generators(3))
        assert [int(guess.labels) for guess in guesses] == classes(3).tolist(), attack
    pair, _ = defended(DEFENSE, net, size=2)
    assert "covers 2 examples" in BottleneckInversion(iterations=2)(pair[0], generators(1)[0]).failure


def test_without_a_bottleneck_it_is_the_plain_attack() -> None:
    one = observe(sigmoid_net(), pictures(1), classes(1))
    found, plain = (of(iterations=20)(one, generators(1)[0]).images for of in (BottleneckInversion, InvertingGradients))
    assert torch.equal(found, plain)


LATE_NOISE = "GaussianNoise(std=0.001, per='update')"


@pytest.mark.long
@pytest.mark.numeric
def test_leaving_it_out_breaks_what_the_plain_attack_does_not_and_noise_gives_nothing() -> None:
    for cls, defense, build in ((BottleneckInversion, DEFENSE, net), (OmittedLayerInversion, Soteria(), sigmoid_net)):
        seen, images = defended(defense, build)
        plain, attack = InvertingGradients(**SETTINGS), cls(**SETTINGS)
        assert mean_psnr(attack, seen, images) > mean_psnr(plain, seen, images) + 5, cls
        assert mean_psnr(attack, blind(seen), images) < null_psnr("mean", images), cls


def test_it_finds_the_defended_layer_and_leaves_only_that_out() -> None:
    for decay in (0.0, 0.01):
        for fraction, expected in ((0.8, ["5.weight"]), (0.0, [])):
            for one in defended(Soteria(fraction=fraction), sigmoid_net, decay=decay)[0]:
                assert OmittedLayerInversion().defended(one) == expected, (decay, fraction)
                plain = one.gradient()
                for name, value in OmittedLayerInversion().observed_gradient(one).items():
                    assert value.any() != (name in expected)
                    if name not in expected:
                        assert (value != 0).all()
                        assert torch.equal(value, plain[name])
    # At least half of the columns: 144 of 288.
    (one, *_), _ = defended(Soteria(fraction=0.0), sigmoid_net)
    for columns, expected in ((144, ["5.weight"]), (143, [])):
        weight = one.update["5.weight"].clone()
        weight[:, :columns] = 0
        assert OmittedLayerInversion().defended(replace(one, update=one.update | {"5.weight": weight})) == expected


def test_a_named_layer_is_left_out_where_noise_has_erased_its_zeros() -> None:
    (seen, *_), _ = defended(Soteria(), sigmoid_net)
    noisy = replace(seen, update=parse(LATE_NOISE).protect_update(seen.update, ("n",)))
    assert OmittedLayerInversion().defended(noisy) == []
    for pipeline, layers in ((f"Soteria() | {LATE_NOISE}", ["5.weight"]), ("", [])):
        fitted = OmittedLayerInversion().fit(knowledge(pipeline), torch.Generator())
        assert fitted.defended(noisy) == layers, pipeline
        assert fitted == OmittedLayerInversion()
