"""SPEAR++ against closed forms, on batches, noise and steps that theory lets it solve, and on updates that tell nothing."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import nn

from attacks import AttackError, SpearPlusPlus
from attacks.exact.factors import MissingExamples
from attacks.exact.linear_layer import Read, low_rank, unscaled_gradient
from attacks.exact.sparse_directions import SparseDirections
from attacks.guesses import Reconstruction
from attacks.normalisation import normalise
from attacks.observations import ClientUpdate
from attacks.refinement.base import Refinement
from defenses.module_calls import calls_of
from tests.attacks.exact import solving
from tests.attacks.gradient.clients import trained
from tests.attacks.wire import CLASSES, MEAN, STD, classes, drawings, linear_net, observe, pictures, relu_net

ATTACK = SpearPlusPlus()


def test_a_clipped_and_rounded_update_of_an_unknown_learning_rate_is_solved() -> None:
    whole = solving.in_single_precision(solving.sent(4, 60))
    clipped = {name: 0.01 * value for name, value in whole.update.items()}
    guess = ATTACK(replace(whole, update=clipped, learning_rate=None), solving.stream())
    assert solving.largest_error(guess, pictures(4, seed=3)) < 1e-3
    assert guess.diagnostics["sparsity_match"] > 0.99
    assert abs(guess.diagnostics["gradient_distance"]) < 1e-6


def drawn(batch: int, width: int, *, exact: bool = False, seed: int = 1) -> ClientUpdate:
    """An update of drawings, as a client sends it, or in double precision as in the paper's experiments."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Flatten(), nn.Linear(400, width), nn.ReLU(), nn.Linear(width, CLASSES))
    seen = observe(model.double() if exact else model, drawings(batch), classes(batch))
    return seen if exact else solving.in_single_precision(seen)


def test_a_batch_of_a_narrow_layer_is_exact_too() -> None:
    guess = ATTACK(drawn(20, 200), solving.stream())
    images, labels = solving.paired(guess, drawings(20))
    assert float((images - drawings(20)).abs().max()) < 1e-3
    assert torch.equal(labels, classes(20))
    assert abs(guess.diagnostics["gradient_distance"]) < 1e-6


def test_the_last_example_follows_from_the_others() -> None:
    """All columns but one are given; the missing one is exact without a search and without pixels."""
    batch, seen = 12, drawn(12, 200, exact=True)
    read = Read.of(seen)
    layer, gradient = read.layers[0], read.of_layer(read.layers[0])
    parts = low_rank(gradient, batch)
    directions = SparseDirections(parts.left, parts.gap)
    images = normalise(drawings(batch), seen).double().requires_grad_()
    with calls_of([layer.module]) as calls:
        loss = nn.functional.cross_entropy(read.model(images), classes(batch))
        (signals,) = torch.autograd.grad(loss, calls[0][2])
    columns = parts.left.T @ signals.T
    directions.near(columns[:, :-1].T)
    assert len(directions.sure()) == batch - 1
    MissingExamples(directions, parts, gradient.bias, layer).by_elimination()
    found = directions.sure()
    assert len(found) == batch
    missing = columns[:, -1] / columns[:, -1].norm()
    assert float((found @ missing).abs().max()) > 1 - 1e-9


def test_of_equal_examples_one_is_found_and_the_others_are_grey() -> None:
    """Three different examples of six leave a gradient of rank 3: theory gives these three, and no attack the multiplicities."""
    images, labels = pictures(3, seed=3)[[0, 1, 2, 2, 1, 2]], classes(3, seed=3)[[0, 1, 2, 2, 1, 2]]
    guess = ATTACK(observe(relu_net(80), images, labels), solving.stream())
    assert guess.failure.startswith("found 3 of 6 examples; ")
    assert (guess.found, guess.images.shape, guess.labels.shape) == (3, images.shape, (6,))
    assert solving.largest_error(guess.part(), images[:3]) < 1e-4
    assert torch.equal(guess.images[3:], torch.full_like(images[3:], 0.5))
    assert guess.labels[3:].tolist() == [-1] * 3
    # What refines it has the three found ones alone.
    (kept,) = Halved().refine_many([Any], [guess], [solving.stream()])  # type: ignore[list-item]
    assert torch.equal(kept.images[:3], guess.images[:3] / 2)
    assert (kept.found, kept.failure, kept.images[3:].tolist()) == (3, guess.failure, guess.images[3:].tolist())


@dataclass(frozen=True, repr=False)
class Halved(Refinement):
    """Halves images."""

    def refine(self, observation: ClientUpdate, guess: Reconstruction, generator: torch.Generator) -> Reconstruction:
        return replace(guess, images=guess.images / 2)


def test_one_example_is_a_quotient_whatever_the_activation() -> None:
    for model in (linear_net(), relu_net(12), solving.smooth()):
        seen = observe(model, pictures(1, seed=4), classes(1, seed=4))
        weight, bias = (seen.update[name] for name, _ in list(model.named_parameters())[:2])
        at = int(bias.abs().argmax())
        closed = (weight[at] / bias[at]).view(1, *seen.input_shape) * STD[0] + MEAN[0]
        guess = ATTACK(seen, solving.stream())
        assert torch.allclose(guess.images, closed.clamp(0, 1), atol=1e-5)
        assert solving.largest_error(guess, pictures(1, seed=4)) < 1e-4
        assert torch.equal(guess.labels, classes(1, seed=4))


def test_where_it_does_not_apply_it_says_so() -> None:
    whole = solving.sent(4, 60)
    convolution = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(200, CLASSES))
    cases = (
        (convolution, {}, "no linear layer of Sequential sees the pixels"), (solving.without_bias(), {}, "has no bias"),
        (solving.smooth(), {}, "no ReLU follows layer '1'"),
        (relu_net(4), {}, "a batch of 4 fills the rank of a layer of 144 inputs and 4 outputs"),
        (relu_net(9), {}, "too few for 4 examples"), (relu_net(60), {"learning_rate": None, "weight_decay": 1e-3}, "weight decay"),
        (relu_net(60), {"update": solving.noise_for(whole)}, "without a gap there, noise"),
    )  # fmt: skip
    solving.assert_refused(
        ATTACK, ((observe(model, pictures(4), classes(4), **changes), why) for model, changes, why in cases)
    )


def deep(width: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        layers = [nn.Linear(400, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, CLASSES)]
        return nn.Sequential(nn.Flatten(), *layers).double()


def test_a_batch_beyond_the_reach_of_samples_is_exact() -> None:
    batch, model = 32, deep(600)
    seen = observe(model, drawings(batch), classes(batch))
    guess = SpearPlusPlus()(seen, solving.stream())
    assert solving.largest_error(guess, drawings(batch)) < 1e-3
    assert guess.diagnostics["starts"] < 20


def test_several_steps_leave_the_inputs_exact() -> None:
    seen = trained(deep(400), drawings(8), classes(8), [list(range(8))] * 5, rate=0.01)
    guess = SpearPlusPlus()(seen, solving.stream())
    assert solving.largest_error(guess, drawings(8)) < 1e-3
    assert guess.diagnostics["rank"] == 8


def test_spear_plus_plus_says_where_it_does_not_apply() -> None:
    several = {"local_steps": 3, "weight_decay": 0.1}
    seen = observe(relu_net(60), pictures(4), classes(4), **several)
    solving.assert_refused(
        SpearPlusPlus(), [(solving.sent(4, 9), "too few"), (seen, "weight decay of several local steps")]
    )
    # Too few directions: the failure says how many were found.
    assert "of 14 examples in" in SpearPlusPlus(max_starts=1)(solving.sent(14, 60), solving.stream()).failure
    seen = observe(relu_net(60), pictures(2), classes(2), weight_decay=0.1)
    assert unscaled_gradient(seen).keys() == seen.update.keys()
    with pytest.raises(AttackError, match="several local steps"):
        unscaled_gradient(replace(seen, local_steps=2))
