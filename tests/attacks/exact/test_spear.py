"""SPEAR against closed forms, all supports tried one by one, and updates that tell nothing."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from attacks.exact.linear_layer import Read, low_rank
from attacks.exact.missing_examples import MissingExamples
from attacks.exact.sparse_directions import SparseDirections
from attacks.exact.spear import Spear
from attacks.guesses import Reconstruction
from attacks.image_measures import mse
from attacks.normalisation import normalise
from attacks.observations import ClientUpdate
from attacks.scoring.metrics import optimal_assignment
from defenses.module_calls import calls_of
from tests.attacks.wire import CLASSES, MEAN, STD, classes, drawings, linear_net, observe, pictures, relu_net

QUICK = Spear(max_samples=200_000, max_descents=1000)


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def sent(batch: int, width: int, *, rounded: bool = False, seed: int = 3, **changes: Any) -> ClientUpdate:
    """An update, as it is or as the difference of two models in single precision, which a client really sends."""
    seen = observe(relu_net(width), pictures(batch, seed=seed), classes(batch, seed=seed), **changes)
    return in_single_precision(seen) if rounded else seen


def in_single_precision(seen: ClientUpdate) -> ClientUpdate:
    """What a client really sends: the difference of two models."""
    before = dict(seen.model.named_parameters())
    return replace(seen, update={n: ((before[n] + d) - before[n]).detach() for n, d in seen.update.items()})


def largest_error(guess: Reconstruction, truth: Tensor) -> float:
    assert not guess.failure, guess.failure
    assert len(guess.images) == len(truth)
    own, theirs = optimal_assignment(guess.images, truth)
    return float((guess.images[own] - truth[theirs]).abs().max())


@pytest.mark.long
@pytest.mark.parametrize(("batch", "width"), [(2, 20), (4, 60), (10, 120)])
def test_batches_are_recovered_exactly_with_their_labels(batch: int, width: int) -> None:
    guess = QUICK(sent(batch, width), stream())
    truth, labels = pictures(batch, seed=3), classes(batch, seed=3)
    assert largest_error(guess, truth) < 1e-4
    own, theirs = optimal_assignment(guess.images, truth)
    assert torch.equal(guess.labels[own], labels[theirs])
    assert guess.diagnostics["sparsity_match"] > 0.99
    assert abs(guess.diagnostics["gradient_distance"]) < 1e-6
    assert guess.diagnostics["rank"] == batch


@pytest.mark.long
def test_rounding_of_a_real_update_costs_little() -> None:
    assert largest_error(QUICK(sent(8, 120, rounded=True), stream()), pictures(8, seed=3)) < 1e-3


@pytest.mark.parametrize("search", ["samples", "descent"])
def test_either_search_finds_all(search: str) -> None:
    guess = Spear(search=search)(sent(6, 100), stream())
    assert largest_error(guess, pictures(6, seed=3)) < 1e-4
    assert (guess.diagnostics["samples"] > 0) == (search == "samples")
    assert (guess.diagnostics["descents"] > 0) == (search == "descent")


def drawn(batch: int, width: int, *, exact: bool = False) -> ClientUpdate:
    """An update of drawings, as a client sends it, or in double precision as in the paper's experiments."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Flatten(), nn.Linear(400, width), nn.ReLU(), nn.Linear(width, CLASSES))
    seen = observe(model.double() if exact else model, drawings(batch), classes(batch))
    return seen if exact else in_single_precision(seen)


def samples_by_theory(seen: ClientUpdate, images: Tensor) -> float:
    """Samples in which the example that fewest neurons leave off is met once in the mean: 1 / P(R - 1 live rows are all off)."""
    first, rank = seen.model[1], len(images)  # type: ignore[index]
    with torch.no_grad():
        off = first(normalise(images, seen).flatten(1).to(first.weight)) <= 0
    live = int((~off).any(0).sum())
    fewest = int((off & (~off).any(0)).sum(1).min())
    return math.comb(live, rank - 1) / math.comb(fewest, rank - 1)


def test_sampling_needs_as_many_samples_as_theory_says() -> None:
    seen, images = drawn(9, 60), drawings(9)
    theory = samples_by_theory(seen, images)
    assert 2e3 < theory < 1e5
    # One of nine that were met in the mean 8 times is missing with probability 9 exp(-8) at most.
    enough = Spear(search="samples", max_samples=math.ceil(8 * theory))
    assert largest_error(enough(seen, stream()), images) < 1e-3
    few = Spear(search="samples", max_samples=1)(drawn(20, 200), stream())
    assert "of 20 examples in" in few.failure
    # Why sampling alone ends near batch 20: more than the default samples, whatever the precision.
    assert samples_by_theory(drawn(20, 200), drawings(20)) > Spear().max_samples


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("batch", [20, 25, 32])
def test_batches_beyond_sampling_are_exact_too(batch: int, exact: bool) -> None:
    guess = Spear(search="components")(drawn(batch, 200, exact=exact), stream())
    assert largest_error(guess, drawings(batch)) < 1e-3
    own, theirs = optimal_assignment(guess.images, drawings(batch))
    assert torch.equal(guess.labels[own], classes(batch)[theirs])
    assert abs(guess.diagnostics["gradient_distance"]) < 1e-6


def test_the_last_example_follows_from_the_others() -> None:
    """All but one column given: no search, no pixels, and the missing one is exact."""
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
    assert gradient.bias is not None
    MissingExamples(directions, parts, gradient.bias, layer).by_elimination()
    found = directions.sure()
    assert len(found) == batch
    missing = columns[:, -1] / columns[:, -1].norm()
    assert float((found @ missing).abs().max()) > 1 - 1e-9


def by_all_supports(seen: ClientUpdate, batch: int) -> np.ndarray:
    """The slow obvious way, in numpy: every set of B - 1 rows, its kernel, and of all kernels those with the most zeros."""
    gradient = {name: value.double().numpy() for name, value in seen.gradient().items()}
    weight, bias = gradient["1.weight"], gradient["1.bias"]
    left, values, right = np.linalg.svd(weight, full_matrices=False)
    left, right = left[:, :batch], values[:batch, None] * right[:batch]
    live = left[np.abs(left).max(1) > 1e-4]
    kernels: list[tuple[int, np.ndarray]] = []
    for rows in itertools.combinations(range(len(live)), batch - 1):
        kernel = np.linalg.svd(live[list(rows)])[2][-1]
        zeros = int((np.abs(live @ kernel) < 1e-3 * np.abs(live).max()).sum())
        if not any(abs(kernel @ other) > 1 - 1e-5 for _, other in kernels):
            kernels.append((zeros, kernel))
    kernels.sort(key=lambda found: -found[0])
    basis = np.stack([kernel for _, kernel in kernels[:batch]], 1)
    lengths = np.linalg.lstsq(left @ basis, bias, rcond=None)[0]
    inputs: np.ndarray = np.linalg.solve(basis * lengths, right)
    return inputs


def test_it_agrees_with_trying_every_support() -> None:
    batch, seen = 3, sent(3, 24)
    slow = torch.from_numpy(by_all_supports(seen, batch)).view(batch, *seen.input_shape) * STD[0] + MEAN[0]
    assert largest_error(Reconstruction(slow.float(), torch.zeros(batch)), pictures(batch, seed=3)) < 1e-3
    assert largest_error(QUICK(seen, stream()), slow.float().clamp(0, 1)) < 1e-3


def smooth() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(144, 60), nn.Sigmoid(), nn.Linear(60, CLASSES))


@pytest.mark.parametrize("model", [linear_net(), relu_net(12), smooth()])
def test_one_example_is_a_quotient_whatever_the_activation(model: nn.Module) -> None:
    seen = observe(model, pictures(1, seed=4), classes(1, seed=4))
    names = [name for name, _ in model.named_parameters()]
    weight, bias = seen.update[names[0]], seen.update[names[1]]
    at = int(bias.abs().argmax())
    closed = (weight[at] / bias[at]).view(1, *seen.input_shape) * STD[0] + MEAN[0]
    guess = QUICK(seen, stream())
    assert torch.allclose(guess.images, closed.clamp(0, 1), atol=1e-5)
    assert largest_error(guess, pictures(1, seed=4)) < 1e-4
    assert torch.equal(guess.labels, classes(1, seed=4))


@pytest.mark.long
def test_equal_examples_count_as_one() -> None:
    images = pictures(3, seed=5)[[0, 1, 1, 2]]
    guess = QUICK(observe(relu_net(60), images, torch.tensor([0, 1, 1, 2])), stream())
    assert largest_error(guess, pictures(3, seed=5)) < 1e-4


@pytest.mark.long
def test_an_unknown_learning_rate_does_no_harm() -> None:
    guess = QUICK(sent(4, 60, learning_rate=None), stream())
    assert largest_error(guess, pictures(4, seed=3)) < 1e-4
    clipped = sent(4, 60)
    guess = QUICK(replace(clipped, update={name: 0.01 * value for name, value in clipped.update.items()}), stream())
    assert largest_error(guess, pictures(4, seed=3)) < 1e-4  # a whole update clipped, whose factor nobody knows
    decayed = QUICK(sent(4, 60, learning_rate=None, weight_decay=1e-3), stream())
    assert "weight decay" in decayed.failure


def without_bias() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(144, 60, bias=False), nn.ReLU(), nn.Linear(60, CLASSES))


def convolution() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(200, CLASSES))


@pytest.mark.parametrize(
    ("model", "changes", "why"),
    [
        (convolution(), {}, "no linear layer of Sequential sees the pixels"),
        (without_bias(), {}, "has no bias"),
        (smooth(), {}, "no ReLU follows layer '1'"),
        (relu_net(4), {}, "a batch of 4 fills the rank of a layer of 144 inputs and 4 outputs"),
        (relu_net(9), {}, "too few for 4 examples"),
        (relu_net(60), {"local_steps": 3}, "the update has 3 local steps"),
    ],
)
def test_where_it_does_not_apply_it_says_so(model: nn.Module, changes: dict[str, Any], why: str) -> None:
    seen = observe(model, pictures(4), classes(4), **changes)
    guess = QUICK(seen, stream())
    assert guess.failure.startswith("does not apply")
    assert why in guess.failure
    assert torch.equal(guess.images, torch.full((4, 1, 12, 12), 0.5))


def test_a_noisy_update_is_refused_and_fresh_noise_too() -> None:
    seen = sent(4, 60)
    for std in (1e-3, 1.0):
        noisy = {n: u + std * torch.randn(u.shape, generator=stream(7)) for n, u in seen.update.items()}
        guess = QUICK(replace(seen, update=noisy), stream())
        assert "without a gap there, noise" in guess.failure
        # Grey: whoever scores it finds it at chance.
        assert float(mse(guess.images, torch.full_like(guess.images, 0.5)).max()) == 0


@pytest.mark.long
def test_low_rank_noise_gives_no_picture() -> None:
    """Noise that looks like a batch: the search ends without directions, or with what is no picture of the batch."""
    seen, gen = sent(4, 60), stream(8)
    left, right = torch.randn(60, 4, generator=gen), torch.randn(4, 144, generator=gen)
    update = {**seen.update, "1.weight": left @ right, "1.bias": left.sum(1)}
    guess = QUICK(replace(seen, update=update), stream())
    own, theirs = optimal_assignment(guess.images, pictures(4, seed=3))
    blind = mse(torch.full((4, 1, 12, 12), 0.5), pictures(4, seed=3)).mean()
    assert mse(guess.images[own], pictures(4, seed=3)[theirs]).mean() > 0.8 * blind


def test_too_few_samples_end_in_a_failure_that_says_how_many_were_found() -> None:
    guess = Spear(search="samples", max_samples=1)(sent(14, 60), stream())
    assert "of 14 examples in" in guess.failure
    assert guess.diagnostics["rank"] == 14


def test_configuration() -> None:
    assert repr(Spear(max_samples=5)) == "Spear(max_samples=5)"
    for values in ({"max_samples": 0}, {"max_descents": 0}, {"search": "some"}):
        with pytest.raises(ValueError, match=next(iter(values))):
            Spear(**values)  # type: ignore[arg-type]
