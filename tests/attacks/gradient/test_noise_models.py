"""Inversion that models what was done to the update: noise of known law, a mask of pruned entries."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attacks import InvertingGradients, MaskedInversion, NoiseModelInversion
from attacks.gradient.noise_models import PIXEL_SCALE, gradient_noise
from attacks.observations import ClientUpdate
from defenses import parse
from defenses.updates.pruning import prune_smallest
from tests.attacks.gradient.clients import knowledge, matching, mean_psnr, normalised
from tests.attacks.wire import classes, generators, observe, pictures, sigmoid_net

COUNT = 4


def fit(attack: Any, pipeline: str) -> Any:
    return attack.fit(knowledge(pipeline), torch.Generator())


def defended(pipeline: str, decay: float = 0.0) -> tuple[list[ClientUpdate], Tensor]:
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
    """Measured: the difference of what is read with and without noise. Over several steps the formula, by hand."""
    for per, std in (("step", 0.2), ("update", 2.0)):
        pipeline = f"GaussianNoise(std=0.2, per={per!r})"
        fitted = fit(NoiseModelInversion(), pipeline)
        for decay in (0.0, 0.1):
            noisy, plain = defended(pipeline, decay)[0][0], defended("", decay)[0][0]
            read = [torch.cat([value.flatten() for value in one.gradient().values()]) for one in (noisy, plain)]
            assert gradient_noise(noisy, fitted.noise_std, fitted.step_noise_std) == pytest.approx(std)
            # Of 3,693 entries: a standard error of 1.2 %.
            assert (read[0] - read[1]).std().item() == pytest.approx(std, rel=0.06), (per, decay)
    one = defended("")[0][0]
    assert gradient_noise(replace(one, local_steps=4), 0.2, 0.3) == pytest.approx((2.0**2 + 4 * 0.3**2) ** 0.5 / 4)
    # Noise in the first of two steps with momentum moves the weights by 1 in it and by 1.5 at the end of both.
    heavy = replace(one, local_steps=2, momentum=0.5)
    assert gradient_noise(heavy, 0.0, 0.3) == pytest.approx(0.3 * (1.0 + 1.5**2) ** 0.5 / 2)
    assert gradient_noise(replace(one, momentum=0.5, nesterov=True), 0.2, 0.0) == pytest.approx(2.0 / 1.5)
    for nothing in ({"learning_rate": None}, {"learning_rate": 0.0}, {"local_steps": 0}):
        assert gradient_noise(replace(one, **nothing), 0.2, 0.3) == 0


def test_the_prior_weighs_as_the_posterior_says() -> None:
    """2 s^2 times sum|dx| / scale, written with the mean over 144 pixels of each image; s is the noise on the gradient."""
    (one, *_), _ = defended("")
    attack = NoiseModelInversion(noise_std=0.001)
    assert attack._prior(one) == pytest.approx(2 * (0.001 / 0.1) ** 2 * 144 / PIXEL_SCALE)
    assert replace(attack, cost="l1")._prior(one) == pytest.approx(0.001 / 0.1 * 144 / PIXEL_SCALE)
    assert attack._prior(replace(one, num_examples=99)) == pytest.approx(attack._prior(one) * attack.max_images)
    assert NoiseModelInversion()._prior(one) == 0


def test_the_guide_grows_with_each_gradient_and_shrinks_to_the_prior() -> None:
    """It changes the way, not the goal."""
    gradients = {"weight": torch.stack([torch.full((3, 4), value) for value in (0.5, 2.0)])}
    objective = matching(nn.Linear(4, 3), (1, 1, 2, 2), gradients, torch.tensor([[0], [1]]), "l2", 0.0, 3)
    assert objective.from_zero().tolist() == [12 * 0.25, 12 * 4.0]
    search = replace(NoiseModelInversion()._searches(prior=0.02)[1], guide=0.1)
    for guide, expected in (
        (0.1, [[0.3, 4.8], [0.03, 0.48], [0.02, 0.048], [0.02, 0.02]]),
        (0.0, [[0.0, 0.0]] * 4),
    ):
        stages = replace(search, guide=guide)._stages(objective)
        weights = torch.stack([stage.objective.smoothing for stage in stages])  # type: ignore[attr-defined]
        torch.testing.assert_close(weights, torch.tensor(expected))


def test_the_search_that_got_lower_decides_for_each_observation() -> None:
    """Noise free, a sigmoid network: L-BFGS gets far lower; after one iteration of it, Adam does."""
    seen, _ = defended("")
    for iterations, adam_iterations, winner in ((12, 1, 0), (1, 12, 1)):
        both = NoiseModelInversion(iterations=iterations, adam_iterations=adam_iterations, guide=0.0)
        searches = [
            replace(search, adam_iterations=0).attack_many(seen, generators(COUNT)) for search in both._searches(0.0)
        ]
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
        seen, images = defended(pipeline, decay)
        assert mean_psnr(fit(attack, pipeline), seen, images) > mean_psnr(plain, seen, images) + 1, pipeline


def true_mask() -> dict[str, Tensor]:
    """What pruning per step takes from the first client's gradient."""
    clean = defended("")[0][0].gradient()
    return {name: prune_smallest(value, 0.95) == 0 for name, value in clean.items()}


def test_the_mask_is_read_exactly_whatever_the_weight_decay() -> None:
    for decay in (0.0, 0.01, 0.5):
        seen, _ = defended("Pruning(fraction=0.95, per='step')", decay)
        found = MaskedInversion().observed_gradient(seen[0])
        for name, pruned in true_mask().items():
            assert torch.equal(found[name] == 0, pruned), (decay, name)
        sent = defended("Pruning(fraction=0.95, per='update')", decay)[0][0]
        for name, value in MaskedInversion().observed_gradient(sent).items():
            assert torch.equal(value == 0, sent.update[name] == 0), (decay, name)
        guess = MaskedInversion(iterations=1)(sent, generators(1)[0])
        assert guess.diagnostics["masked_share"] == pytest.approx(0.95, abs=0.01)


def test_the_mask_of_several_steps_is_what_weight_decay_alone_has_moved() -> None:
    """Five steps of torch's SGD in which the same weights never have a gradient."""
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
    seen, _ = defended(pipeline, decay=0.0)
    assert all((value != 0).all() for value in seen[0].update.values()), "the mask is gone"
    found, truth = attack.observed_gradient(seen[0]), true_mask()
    kept = torch.cat([~truth[name].flatten() for name in found])
    hit = torch.cat([(found[name] != 0).flatten() for name in found])
    assert (kept & hit).sum() > 0.9 * kept.sum()
