"""Inversion that models what was done to the update: noise of known law, a mask of pruned entries."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from attacks import GradientInversion, InvertingGradients, Knowledge, MaskedInversion, NoiseModelInversion, score
from attacks.base import Attack
from attacks.gradient.costs import COSTS, cosine_distance, masked_cosine_distance
from attacks.gradient.noise_models import PIXEL_SCALE, gradient_noise
from attacks.gradient.trial_gradients.matching import GradientMatching, MatchingProblem
from attacks.observations import ClientUpdate
from defenses import parse
from defenses.base import Batch
from defenses.updates.pruning import prune_smallest
from tests.attacks.wire import MEAN, STD, classes, generators, observe, pictures, sigmoid_net

COUNT = 4


def knowledge(pipeline: str) -> Knowledge:
    def train(batch: Batch, seed: int) -> nn.Module:
        raise NotImplementedError

    return Knowledge(Batch(torch.zeros(0, 1, 12, 12), torch.zeros(0, 5)), parse(pipeline), MEAN, STD, train)


def defended(pipeline: str, decay: float = 0.0) -> tuple[list[ClientUpdate], torch.Tensor]:
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


def mean_psnr(attack: Attack, seen: list[ClientUpdate], images: torch.Tensor) -> float:
    guesses = attack.attack_many(seen, generators(COUNT))
    return sum(score(guess, images[i : i + 1])["psnr"][0] for i, guess in enumerate(guesses)) / COUNT


@pytest.mark.parametrize(
    ("pipeline", "cost", "strength"),
    [
        ("GaussianNoise(std=0.03, per={!r})", "l2", 0.03),
        ("GaussianNoise(std=0.03, per={0!r}) | GaussianNoise(std=0.04, per={0!r})", "l2", 0.05),
        ("LaplaceNoise(scale=0.02, per={!r})", "l1", 0.02),
        (
            "GaussianNoise(std=0.03, per={0!r}) | LaplaceNoise(scale=0.02, per={0!r})",
            "l2",
            (0.03**2 + 2 * 0.02**2) ** 0.5,
        ),
        ("", "l2", 0.0),
    ],
)
@pytest.mark.parametrize("per", ["step", "update"])
def test_fit_takes_the_law_and_strength_of_the_noise_from_the_pipeline(
    pipeline: str, cost: str, strength: float, per: str
) -> None:
    fitted = NoiseModelInversion().fit(knowledge(pipeline.format(per)), torch.Generator())
    known = {"update": fitted.noise_std, "step": fitted.step_noise_std}
    assert (fitted.cost, known.pop(per)) == (cost, pytest.approx(strength))
    assert set(known.values()) == {0.0}


@pytest.mark.parametrize("per", ["step", "update"])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_the_noise_in_the_gradient_is_what_the_attack_takes_it_for(per: str, decay: float) -> None:
    """Measured: the difference of what is read with and without noise."""
    pipeline = f"GaussianNoise(std=0.2, per={per!r})"
    fitted = NoiseModelInversion().fit(knowledge(pipeline), torch.Generator())
    noisy, plain = defended(pipeline, decay)[0][0], defended("", decay)[0][0]
    read = [torch.cat([value.flatten() for value in one.gradient().values()]) for one in (noisy, plain)]
    expected = gradient_noise(noisy, fitted.noise_std, fitted.step_noise_std)
    assert expected == pytest.approx(0.2 if per == "step" else 2.0)
    assert (read[0] - read[1]).std().item() == pytest.approx(expected, rel=0.05)


def test_the_prior_weighs_as_the_posterior_says() -> None:
    """2 s^2 times sum|dx| / scale, written with the mean over 144 pixels; s is the noise on the gradient."""
    (one, *_), _ = defended("")
    attack = NoiseModelInversion(noise_std=0.001)
    assert attack._prior(one) == pytest.approx(2 * (0.001 / 0.1) ** 2 * 144 / PIXEL_SCALE)
    assert replace(attack, cost="l1")._prior(one) == pytest.approx(0.001 / 0.1 * 144 / PIXEL_SCALE)
    assert NoiseModelInversion()._prior(one) == 0


@pytest.mark.long
def test_without_noise_it_is_plain_matching_and_near_exact() -> None:
    seen, images = defended("")
    attack = NoiseModelInversion(iterations=100, restarts=1, adam_iterations=0)
    names = (
        "cost",
        "optimizer",
        "signed",
        "learning_rate",
        "iterations",
        "total_variation",
        "step_decay",
        "line_search",
    )
    plain = GradientInversion(**{name: getattr(attack, name) for name in names})
    ours, theirs = (a.attack_many(seen, generators(COUNT)) for a in (attack, plain))
    assert all(torch.equal(a.images, b.images) for a, b in zip(ours, theirs, strict=True))
    assert mean_psnr(attack, seen, images) > 30


@pytest.mark.long
def test_knowing_the_noise_helps_under_noise() -> None:
    """n = 4, one seed; the same optimizer and iterations without the model of the noise."""
    pipeline = "GaussianNoise(std=0.3)"
    seen, images = defended(pipeline)
    attack = NoiseModelInversion(iterations=80, restarts=1)
    fitted = attack.fit(knowledge(pipeline), torch.Generator())
    assert mean_psnr(fitted, seen, images) > mean_psnr(attack, seen, images) + 1


@pytest.mark.long
def test_the_search_that_got_lower_decides_for_each_observation() -> None:
    """Noise free, a sigmoid network: L-BFGS gets far lower; after one iteration of it, Adam does."""
    seen, _ = defended("")
    for iterations, adam_iterations, winner in ((100, 1, "lbfgs"), (1, 100, "adam")):
        both = NoiseModelInversion(iterations=iterations, adam_iterations=adam_iterations, guide=0.0)
        searches = [search.attack_many(seen, generators(COUNT)) for search in map(alone, both._searches(0.0))]
        found = both.attack_many(seen, generators(COUNT))
        wanted = searches[["lbfgs", "adam"].index(winner)]
        assert all(torch.equal(ours.images, theirs.images) for ours, theirs in zip(found, wanted, strict=True))
        lowest = [min(a.diagnostics["objective"], b.diagnostics["objective"]) for a, b in zip(*searches, strict=True)]
        assert [guess.diagnostics["objective"] for guess in found] == lowest


def alone(search: NoiseModelInversion) -> NoiseModelInversion:
    return replace(search, adam_iterations=0)


def test_the_guide_grows_with_each_gradient_and_shrinks_to_the_prior() -> None:
    """It changes the way, not the goal."""
    gradients = {"weight": torch.stack([torch.full((3, 4), value) for value in (0.5, 2.0)])}
    objective = GradientMatching(
        MatchingProblem(nn.Linear(4, 3), (1, 1, 2, 2), 3, gradients, torch.tensor([[0], [1]]), COSTS["l2"], 0.0)
    )
    assert objective.from_zero().tolist() == [12 * 0.25, 12 * 4.0]
    search = replace(NoiseModelInversion()._searches(prior=0.02)[1], guide=0.1)
    weights = torch.stack([stage.objective.smoothing for stage in search._stages(objective)])  # type: ignore[attr-defined]
    torch.testing.assert_close(weights[:, 0], torch.tensor([0.3, 0.03, 0.02, 0.02]))
    torch.testing.assert_close(weights[:, 1], torch.tensor([4.8, 0.48, 0.048, 0.02]))
    flat = torch.stack([stage.objective.smoothing for stage in replace(search, guide=0.0)._stages(objective)])  # type: ignore[attr-defined]
    assert flat.tolist() == [[0.0, 0.0]] * 4


def test_a_masked_entry_is_missing_not_zero() -> None:
    gradient = {"a": torch.tensor([3.0, 4.0, 100.0])}
    pruned = {"a": torch.tensor([3.0, 4.0, 0.0])}
    assert masked_cosine_distance(gradient, pruned) == pytest.approx(0, abs=1e-6)
    assert cosine_distance(gradient, pruned) > 0.5
    assert masked_cosine_distance(gradient, gradient) == cosine_distance(gradient, gradient)


@pytest.mark.long
@pytest.mark.parametrize("per", ["step", "update"])
def test_knowing_the_mask_helps_under_pruning(per: str) -> None:
    """n = 4, one seed, 95 % of each tensor pruned; weight decay used to hide the mask (share of zeros 0.95 -> 0.00)."""
    seen, images = defended(f"Pruning(fraction=0.95, per={per!r})", decay=0.1)
    masked = mean_psnr(MaskedInversion(iterations=200), seen, images)
    assert masked > mean_psnr(InvertingGradients(iterations=200), seen, images) + 1


def true_mask() -> dict[str, torch.Tensor]:
    """What pruning per step takes from the first client's gradient."""
    clean = defended("")[0][0].gradient()
    return {name: prune_smallest(value, 0.95) == 0 for name, value in clean.items()}


@pytest.mark.parametrize("decay", [0.0, 0.01, 0.5])
def test_the_mask_is_read_exactly_whatever_the_weight_decay(decay: float) -> None:
    seen, _ = defended("Pruning(fraction=0.95, per='step')", decay)
    found = MaskedInversion().observed_gradient(seen[0])
    for name, pruned in true_mask().items():
        assert torch.equal(found[name] == 0, pruned)
    sent = defended("Pruning(fraction=0.95, per='update')", decay)[0][0]
    found = MaskedInversion().observed_gradient(sent)
    for name, value in found.items():
        assert torch.equal(value == 0, sent.update[name] == 0)
    guess = MaskedInversion(iterations=1).attack_many([sent], generators(1))[0]
    assert guess.diagnostics["masked_share"] == pytest.approx(0.95, abs=0.01)


@pytest.mark.parametrize("recipe", [{"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}, {}])
def test_the_mask_of_several_steps_is_what_weight_decay_alone_has_moved(recipe: dict[str, Any]) -> None:
    """Five steps of torch's SGD in which the same weights never have a gradient."""
    model, (image, label) = sigmoid_net(), (pictures(1), classes(1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, weight_decay=0.05, **recipe)
    start = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    pruned = {name: torch.rand(w.shape, generator=generators(1)[0]) < 0.9 for name, w in start.items()}
    for _ in range(5):
        optimizer.zero_grad()
        F.cross_entropy(model((image - MEAN[0]) / STD[0]), label).backward()
        for name, weight in model.named_parameters():
            weight.grad.masked_fill_(pruned[name], 0)
        optimizer.step()
    update = {name: weight.detach() - start[name] for name, weight in model.named_parameters()}
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(start[name])
    seen = observe(model, image, label, update=update, local_steps=5, weight_decay=0.05, **recipe)
    found = MaskedInversion().observed_gradient(seen)
    right = torch.cat([((found[name] == 0) == pruned[name]).flatten() for name in found])
    assert right.double().mean() > 0.995


def test_noise_behind_the_pruning_erases_the_mask_and_it_is_guessed_by_size() -> None:
    """Noise of a tenth of what was kept: nine of ten kept entries are found. In front of the pruning it erases nothing."""
    fit = MaskedInversion().fit
    assert fit(knowledge("GaussianNoise() | Pruning(fraction=0.95)"), torch.Generator()).pruned_fraction == 0
    assert fit(knowledge("GaussianNoise() | Pruning(0.95, per='update')"), torch.Generator()).pruned_fraction == 0
    assert fit(knowledge("Pruning(fraction=0.95) | GaussianNoise(std=0)"), torch.Generator()).pruned_fraction == 0
    pipeline = "Pruning(fraction=0.95) | LaplaceNoise(scale=0.001)"
    attack = fit(knowledge(pipeline), torch.Generator())
    assert attack.pruned_fraction == 0.95
    seen, _ = defended(pipeline, decay=0.0)
    assert all((value != 0).all() for value in seen[0].update.values()), "the mask is gone"
    found, truth = attack.observed_gradient(seen[0]), true_mask()
    kept = torch.cat([~truth[name].flatten() for name in found])
    hit = torch.cat([(found[name] != 0).flatten() for name in found])
    assert (kept & hit).sum() > 0.9 * kept.sum()


def test_bad_strength_is_refused() -> None:
    with pytest.raises(ValueError, match="noise_std"):
        NoiseModelInversion(noise_std=-1.0)
