"""DP-SGD against a hand-written loop over examples, closed forms of the privacy bound, and known mistakes of others."""

from __future__ import annotations

import copy
import json
import math
import re
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from opacus.accountants.analysis.rdp import compute_rdp
from scipy.special import logsumexp
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from defenses.base import DefenseError, Training
from defenses.pipeline import Pipeline
from defenses.random_draws import Key
from defenses.training.accounting import ORDERS, epsilon_spent
from defenses.training.dp_sgd import DPSGD
from defenses.training.example_gradients import HOOK_WARNING, remove_hooks
from defenses.training.noise_search import noise_for_budget
from tests.bounded import bounded

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook", "ignore:Optimal order is the")
DELTA = 1e-5
Array = NDArray[np.float64]


class Scaled(nn.Module):
    """A small convolutional classifier with group normalisation and a 0-d parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.GroupNorm(2, 4)
        self.act = nn.ReLU(inplace=True)
        self.out = nn.Linear(4 * 6 * 6, 3)
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.act(self.norm(self.conv(images)))
        return self.out(hidden.view(hidden.shape[0], -1)) * self.scale


def cross_entropy(model: nn.Module, images: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(model(images), targets)


def build(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Scaled().train()


def data(count: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(count, 1, 6, 6, generator=generator)
    return TensorDataset(images, F.one_hot(torch.randint(3, (count,), generator=generator), 3).float())


def set_up(
    count: int = 20, batch_size: int = 5, *, model: nn.Module | None = None, epochs: int = 1, **more: Any
) -> Training:
    model = model or build()
    return Training(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
        loader=DataLoader(data(count), batch_size=batch_size, shuffle=True),
        loss=cross_entropy,
        epochs=epochs,
        **{"total_epochs": epochs, **more},
    )


def run(training: Training) -> Iterator[int]:
    """Trains as a client does; yields the size of every batch after its step."""
    for _ in range(training.epochs):
        for images, targets in training.loader:
            loss = training.loss(training.model, images, targets)
            training.optimizer.zero_grad()
            loss.backward()
            training.optimizer.step()
            yield len(images)


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def protect(defense: DPSGD, training: Training, *key: int | str) -> Training:
    return Pipeline((defense,)).protect_training(training, key or ("test",))


def test_only_the_warning_about_first_layers_is_silenced() -> None:
    training = set_up()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        protected = protect(DPSGD(noise_multiplier=1.0), training)
        warnings.warn("another warning", UserWarning, stacklevel=1)
        assert any(run(protected))
    assert [str(one.message) for one in seen] == ["another warning"]
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")  # behind the defence: the warning is there, and torch's words are still these
        assert any(run(protected))
    assert any(str(one.message).startswith(HOOK_WARNING) for one in seen)


# ---- the mechanism


@pytest.mark.parametrize("max_grad_norm", [0.05, 1.0, 1e6])
def test_without_noise_a_step_is_the_mean_of_clipped_per_example_gradients(max_grad_norm: float):
    training = set_up(count=7, batch_size=7)  # one batch per epoch: every example is in it with probability 1
    reference, before = build(), weights(build())
    clipped = {name: torch.zeros_like(tensor) for name, tensor in before.items()}
    for image, target in data(7):
        reference.zero_grad()
        cross_entropy(reference, image[None], target[None]).backward()
        gradient = {name: parameter.grad for name, parameter in reference.named_parameters()}
        norm = math.sqrt(sum(float((g.double() ** 2).sum()) for g in gradient.values()))
        for name, tensor in gradient.items():
            clipped[name] += tensor * min(1.0, max_grad_norm / norm)
    protected = protect(DPSGD(noise_multiplier=0.0, max_grad_norm=max_grad_norm), training)
    assert list(run(protected)) == [7]
    for name, tensor in weights(training.model).items():
        torch.testing.assert_close(before[name] - tensor, 0.5 * clipped[name] / 7, rtol=1e-4, atol=1e-6)


def test_with_a_huge_bound_and_no_noise_it_is_plain_sgd():
    plain, private = set_up(count=8, batch_size=8, epochs=3), set_up(count=8, batch_size=8, epochs=3)
    list(run(plain))
    list(run(protect(DPSGD(noise_multiplier=0, max_grad_norm=1e9), private)))
    for name, tensor in weights(plain.model).items():
        torch.testing.assert_close(weights(private.model)[name], tensor, rtol=1e-4, atol=1e-6)


def no_gradient(model: nn.Module, images: Tensor, targets: Tensor) -> Tensor:
    return 0 * model(images).mean()


def test_noise_has_the_promised_size():
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 600), nn.Linear(600, 3)).train()
    training = replace(set_up(count=10, batch_size=5, model=model), loss=no_gradient)
    before = weights(model)
    steps = len(list(run(protect(DPSGD(noise_multiplier=2.0, max_grad_norm=0.3), training))))
    moved = torch.cat([(weights(model)[name] - before[name]).flatten() for name in before])
    # lr * z * C / (q n) in every step
    assert steps == 2
    assert moved.std().item() == pytest.approx(0.5 * 2.0 * 0.3 / 5 * steps**0.5, rel=0.02)
    assert moved.mean().item() == pytest.approx(0, abs=4 * moved.std().item() / len(moved) ** 0.5)


def test_every_parameter_gets_noise_scalars_too():
    training = replace(set_up(), loss=no_gradient)
    before = weights(training.model)
    list(run(protect(DPSGD(noise_multiplier=1.0), training)))
    assert before["scale"].shape == ()
    assert all((weights(training.model)[name] != before[name]).all() for name in before)


def test_the_model_keeps_its_identity_names_and_function():
    training = set_up()
    names = list(training.model.state_dict())
    images = data(4).tensors[0]
    logits = training.model(images)
    protected = protect(DPSGD(noise_multiplier=1.0), training)
    assert protected.model is training.model
    assert list(protected.model.state_dict()) == names
    torch.testing.assert_close(protected.model(images), logits)


def test_a_model_can_be_protected_again_and_used_without():
    model = build()
    for round_number in range(2):
        protected = protect(DPSGD(noise_multiplier=1.0), set_up(model=model), round_number)
        model(data(3).tensors[0])  # hooks remember a forward pass without backward; the next round must not
        protected = protect(DPSGD(noise_multiplier=1.0), set_up(model=model), round_number)
        assert len(list(run(protected))) == 4
    remove_hooks(model)
    fresh = copy.deepcopy(model)
    plain, other = set_up(count=5, model=model), set_up(count=5, model=fresh)
    list(run(plain))
    list(run(other))
    for name, tensor in weights(fresh).items():
        torch.testing.assert_close(weights(model)[name], tensor)
    assert not any(hasattr(parameter, "grad_sample") for parameter in model.parameters())


def test_batch_norm_is_refused_by_name():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(32, 3))
    with pytest.raises(DefenseError, match=r"BatchNorm \(1\) mixes examples.*use GroupNorm"):
        protect(DPSGD(noise_multiplier=1.0), set_up(model=model))


@pytest.mark.parametrize("model", [nn.Sequential(nn.Flatten(), nn.LSTM(36, 3)), build().eval()])
def test_models_without_per_example_gradients_are_refused(model: nn.Module):
    with pytest.raises(DefenseError, match="no gradients per example"):
        protect(DPSGD(noise_multiplier=1.0), set_up(model=model))


# ---- sampling


def test_batches_are_poisson_samples():
    protected = protect(DPSGD(noise_multiplier=1.0), set_up(count=30, batch_size=6, epochs=400))
    inclusions = torch.zeros(2000, 30)
    lookup = {image.sum().item(): i for i, image in enumerate(data(30).tensors[0])}
    batches = [images for _ in range(400) for images, _ in protected.loader]
    for row, images in enumerate(batches):
        inclusions[row, [lookup[image.sum().item()] for image in images]] = 1
    assert len(batches) == 2000
    sizes = inclusions.sum(1)
    assert sizes.mean().item() == pytest.approx(6, abs=4 * (30 * 0.2 * 0.8 / 2000) ** 0.5)
    assert sizes.var().item() == pytest.approx(30 * 0.2 * 0.8, rel=0.15)  # a permutation would have variance 0
    assert ((inclusions.mean(0) - 0.2).abs() < 5 * (0.16 / 2000) ** 0.5).all()
    correlation = torch.corrcoef(inclusions.T) - torch.eye(30)
    assert correlation.abs().max() < 5 / 2000**0.5


def test_empty_batches_count_add_noise_and_run_no_model():
    training = set_up(count=2, batch_size=1, epochs=20)
    protected = protect(DPSGD(noise_multiplier=1.0), training)
    states = [(0, weights(training.model))]
    states += [(size, weights(training.model)) for size in run(protected)]
    empty = [at for at in range(1, len(states)) if states[at][0] == 0]
    assert len(empty) >= 3
    for at in empty:
        for name, before in states[at - 1][1].items():
            assert torch.isfinite(states[at][1][name]).all()
            assert not torch.equal(states[at][1][name], before)
    assert sum(entry[2] for entry in protected.state["accountant"]["steps"]) == len(states) - 1 == 40


@pytest.mark.parametrize("zero_grad_first", [True, False])
def test_the_loss_of_an_empty_batch_is_zero_with_a_gradient(zero_grad_first: bool):
    def fails(*arguments: object) -> Tensor:
        raise AssertionError("the model must not run on no examples")

    protected = protect(DPSGD(noise_multiplier=0.0), replace(set_up(), loss=fails))
    before = weights(protected.model)
    images, targets = torch.zeros(0, 1, 6, 6), torch.zeros(0, 3)
    if zero_grad_first:
        protected.optimizer.zero_grad()
    loss = protected.loss(protected.model, images, targets)
    if not zero_grad_first:
        protected.optimizer.zero_grad()
    assert loss.item() == 0
    loss.backward()
    protected.optimizer.step()
    for name, tensor in weights(protected.model).items():
        assert torch.equal(tensor, before[name])
    assert epsilon_spent(protected.state, DELTA) == math.inf


@pytest.mark.parametrize(
    ("count", "batch_size", "steps"), [(49, 1, 49), (93, 1, 93), (98, 2, 49), (10, 4, 3), (5, 32, 1), (1, 1, 1)]
)
def test_odd_sizes_lose_no_step_and_divide_by_the_expected_batch(count: int, batch_size: int, steps: int):
    # 1 / (1 / 93) is 92.99..., and 49 * (1 / 49) is 0.99...: truncated, they lose a step and divide by zero.
    training = set_up(count, batch_size)
    protected = protect(DPSGD(noise_multiplier=1.0), training)
    assert len(list(run(protected))) == steps
    assert protected.optimizer.expected_batch_size == pytest.approx(count / steps)
    assert protected.state["accountant"]["steps"] == [[0.5, 1 / steps, steps]]
    assert all(torch.isfinite(tensor).all() for tensor in weights(training.model).values())


# ---- randomness


def trained(key: Key, global_seed: int) -> dict[str, Tensor]:
    torch.manual_seed(global_seed)
    training = set_up(epochs=2)
    list(run(protect(DPSGD(noise_multiplier=1.0), training, *key)))
    return weights(training.model)


def test_runs_repeat_bit_for_bit_and_depend_on_the_key_only():
    first, again, other = trained((0, 1), 5), trained((0, 1), 6), trained((0, 2), 5)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in first)


# ---- the privacy bound


def gaussian_epsilon(noise_multiplier: float, steps: int, delta: float) -> float:
    """Renyi bound of the Gaussian mechanism without sampling, alpha / (2 z^2) per step, in closed form."""
    return min(
        steps * a / (2 * noise_multiplier**2) + math.log1p(-1 / a) - (math.log(delta) + math.log(a)) / (a - 1)
        for a in ORDERS
    )


def sampled_epsilon(noise_multiplier: float, rate: float, steps: int, delta: float) -> float:
    """Renyi bound of the subsampled mechanism at whole orders (Mironov, Talwar and Zhang 2019, section 3.3)."""
    bounds = []
    for a in range(2, 64):
        terms = [
            math.log(math.comb(a, k))
            + (a - k) * math.log1p(-rate)
            + k * math.log(rate)
            + (k * k - k) / (2 * noise_multiplier**2)
            for k in range(a + 1)
        ]
        divergence = float(logsumexp(terms)) / (a - 1)
        bounds.append(steps * divergence + math.log1p(-1 / a) - (math.log(delta) + math.log(a)) / (a - 1))
    return min(bounds)


def state_of(*history: tuple[float, float, int]) -> dict[str, Any]:
    return {"accountant": {"steps": [list(entry) for entry in history]}}


@pytest.mark.parametrize(("noise_multiplier", "steps"), [(1.0, 1), (4.0, 30), (60.0, 500)])
def test_epsilon_without_sampling_is_the_closed_form(noise_multiplier: float, steps: int):
    spent = epsilon_spent(state_of((noise_multiplier, 1.0, steps)), DELTA)
    assert spent == pytest.approx(gaussian_epsilon(noise_multiplier, steps, DELTA), rel=1e-9)


@pytest.mark.parametrize(("noise_multiplier", "rate", "steps"), [(1.0, 0.01, 1000), (0.8, 0.1, 50), (2.0, 0.25, 200)])
def test_epsilon_with_sampling_is_the_published_sum(noise_multiplier: float, rate: float, steps: int):
    spent = epsilon_spent(state_of((noise_multiplier, rate, steps)), DELTA)
    bound = sampled_epsilon(noise_multiplier, rate, steps, DELTA)
    assert 0.95 * bound <= spent <= bound * (1 + 1e-9)  # fractional orders can only improve on whole ones
    assert spent < gaussian_epsilon(noise_multiplier, steps, DELTA)


def test_three_rounds_of_one_epoch_spend_what_three_epochs_spend():
    whole = protect(DPSGD(noise_multiplier=1.0), set_up(epochs=3))
    list(run(whole))
    state: dict[str, Any] = {}
    spent = []
    for round_number in range(3):
        training = set_up(epochs=1, total_epochs=3, state=json.loads(json.dumps(state)))
        protected = protect(DPSGD(noise_multiplier=1.0), training, round_number)
        list(run(protected))
        state = protected.state
        spent.append(epsilon_spent(state, DELTA))
    assert spent == sorted(set(spent))
    assert spent[-1] == epsilon_spent(whole.state, DELTA)
    from opacus.accountants import RDPAccountant

    accountant = RDPAccountant()
    for _ in range(12):
        accountant.step(noise_multiplier=1.0 / 2, sample_rate=0.25)  # an example replaced moves the sum by 2 C
    assert spent[-1] == pytest.approx(accountant.get_epsilon(DELTA), rel=1e-9)


@pytest.mark.parametrize(("target", "batch_size"), [(8.0, 5), (0.5, 20)])
def test_all_rounds_together_spend_the_target_and_the_noise_is_never_aimed_anew(target: float, batch_size: int):
    state: dict[str, Any] = {}
    noises = set()
    for round_number in range(5):
        training = set_up(20, batch_size, epochs=2, total_epochs=10, state=json.loads(json.dumps(state)))
        protected = protect(DPSGD(target_epsilon=target), training, round_number)
        list(run(protected))
        state = protected.state
        noises.add(state["noise_multiplier"])
        assert protected.optimizer.noise_multiplier == state["noise_multiplier"]
    assert len(noises) == 1
    assert 0.999 * target <= epsilon_spent(state, DELTA) <= target


def test_a_probe_uses_the_noise_of_the_training_and_is_accounted_for():
    real = protect(DPSGD(target_epsilon=4.0), set_up(count=100, batch_size=10, total_epochs=5))
    probe = protect(DPSGD(target_epsilon=4.0), set_up(count=2, batch_size=2, state=real.state, probe=True))
    list(run(probe))
    z = real.state["noise_multiplier"]
    assert probe.optimizer.noise_multiplier == z
    assert probe.state["accountant"]["steps"] == [[z / 2, 1.0, 1]]
    assert epsilon_spent(probe.state, DELTA) == pytest.approx(gaussian_epsilon(z / 2, 1, DELTA))


def test_the_given_state_is_left_alone_and_the_new_one_grows_with_every_step():
    given = state_of((0.5, 0.25, 4))
    kept = copy.deepcopy(given)
    protected = protect(DPSGD(noise_multiplier=1.0), set_up(state=given))
    for step, _ in enumerate(run(protected), start=1):
        assert protected.state["accountant"]["steps"] == [[0.5, 0.25, 4 + step]]
        json.dumps(protected.state)
    assert given == kept


def test_what_several_ledgers_spent_adds_up_as_one_history():
    training, probe = state_of((1.0, 0.1, 100)), state_of((1.0, 1.0, 2))
    together = epsilon_spent(state_of((1.0, 0.1, 100), (1.0, 1.0, 2)), 1e-6)
    defense = DPSGD(noise_multiplier=1.0, target_delta=1e-6)
    assert defense.privacy(training, probe) == {"epsilon": together, "delta": 1e-6}
    assert defense.privacy(training)["epsilon"] < together
    assert defense.privacy({}) == defense.privacy() == {"epsilon": 0.0, "delta": 1e-6}
    assert defense.privacy(training, state_of((0.0, 1.0, 1)))["epsilon"] == math.inf


def test_a_probe_is_one_step_whatever_a_round_has():
    """A public rate counts rounds in steps; a probe under it took all of them."""
    defense = DPSGD(noise_multiplier=2.0, neighbours="add-or-remove", sample_rate=0.2)
    probe = protect(defense, set_up(count=2, batch_size=2, total_steps=40, probe=True))
    assert len(list(run(probe))) == 1
    assert probe.state["accountant"]["steps"] == [[1.0, 1.0, 1]]


def test_an_empty_accountant_starts_a_new_history():
    protected = protect(DPSGD(noise_multiplier=1.0), set_up(state={"accountant": {}}))
    list(run(protected))
    assert protected.state["accountant"] == {"steps": [[0.5, 0.25, 4]]}


def test_nothing_spent_is_zero_and_no_noise_is_infinite():
    assert epsilon_spent({}, DELTA) == 0.0
    assert epsilon_spent({"noise_multiplier": 1.0}, DELTA) == 0.0
    assert epsilon_spent(state_of((1.0, 0.5, 3), (0.0, 0.5, 1)), DELTA) == math.inf


@pytest.mark.parametrize("delta", [0.0, 1.0, -1, float("nan")])
def test_a_delta_outside_of_0_to_1_is_refused(delta: float):
    with pytest.raises(ValueError, match="delta is"):
        epsilon_spent(state_of((1.0, 1.0, 1)), delta)


def test_more_steps_need_more_noise():
    needed = [noise_for_budget(2.0, DELTA, 1.0, steps) for steps in (10, 100, 1000)]
    assert needed == sorted(set(needed))


def test_a_budget_that_no_noise_meets_is_refused():
    with pytest.raises(DefenseError, match="no noise keeps 1000000 steps"):
        noise_for_budget(1e-6, 1e-12, 1.0, 10**6)


# ---- neighbours


def log_mixture(points: Array, rate: float, mean: Array, std: float) -> Array:
    """Log density of (1 - q) N(0, z^2 I) + q N(mean, z^2 I) at points (..., D)."""
    without, within = (-((points - m) ** 2).sum(-1) / (2 * std**2) for m in (np.zeros_like(mean), mean))
    scale = points.shape[-1] * math.log(std * math.sqrt(2 * math.pi))
    if rate == 1:
        return within - scale
    return np.logaddexp(math.log1p(-rate) + without, math.log(rate) + within) - scale


def replacement_divergence(rate: float, std: float, order: float, first: Array, second: Array) -> float:
    """Renyi divergence between a sampled sum with one example and with another in its place, by integration over a grid.

    The clipped gradients of the two examples are vectors of one or two dimensions; the rest of the sample cancels.
    """
    size = len(first)
    axis = np.linspace(-12 * std - 3 * order, 12 * std + 3 * order, 40_001 if size == 1 else 801)
    points = np.stack(np.meshgrid(*[axis] * size, indexing="ij"), -1)
    logs = order * log_mixture(points, rate, first, std) + (1 - order) * log_mixture(points, rate, second, std)
    return float(logsumexp(logs) + size * math.log(axis[1] - axis[0])) / (order - 1)


@pytest.mark.parametrize("rate", [0.001, 0.0625, 0.25, 0.9, 1.0])
@pytest.mark.parametrize("noise_multiplier", [0.7, 2.0, 8.0])
def test_a_replacement_is_never_further_than_twice_the_norm_added(rate: float, noise_multiplier: float):
    """What the accountant takes for it, against the integral for opposite gradients of full length."""
    for order in (1.1, 1.5, 2, 4, 8, 32):
        told = float(compute_rdp(q=rate, noise_multiplier=noise_multiplier / 2, steps=1, orders=[order])[0])
        exact = replacement_divergence(rate, noise_multiplier, order, np.array([1.0]), np.array([-1.0]))
        assert exact <= told * (1 + 1e-6) + 1e-12
        if rate == 1:
            assert exact == pytest.approx(told, rel=1e-4)


@pytest.mark.parametrize("angle", [0.25, 0.5, 0.75, 1.0])
@pytest.mark.parametrize("lengths", [(1.0, 1.0), (1.0, 0.5), (0.0, 1.0)])
def test_no_pair_of_gradients_is_further_apart_than_opposite_ones(angle: float, lengths: tuple[float, float]):
    turned = lengths[1] * np.array([math.cos(math.pi * angle), math.sin(math.pi * angle)])
    for order in (1.5, 4.0):
        worst = replacement_divergence(0.25, 2.0, order, np.array([1.0]), np.array([-1.0]))
        found = replacement_divergence(0.25, 2.0, order, np.array([lengths[0], 0.0]), turned)
        assert found <= worst * (1 + 1e-4)


def test_the_noise_of_the_default_audit_spends_more_when_an_example_is_replaced():
    """16 rounds of 6 passes of 7 steps: 8.0 with one example more or less is 21.95 with one in place of another."""
    added = noise_for_budget(8.0, DELTA, 1 / 7, 7 * 6 * 16)
    assert epsilon_spent(state_of((added, 1 / 7, 672)), DELTA) == pytest.approx(8.0, rel=1e-3)
    assert epsilon_spent(state_of((added / 2, 1 / 7, 672)), DELTA) == pytest.approx(21.95, abs=0.05)


def test_a_public_rate_decides_steps_divisor_and_what_is_reported():
    defense = DPSGD(noise_multiplier=1.0, neighbours="add-or-remove", sample_rate=0.2)
    for count in (3, 20, 77):
        protected = protect(defense, set_up(count=count, batch_size=6, epochs=2))
        assert len(list(run(protected))) == 10
        assert protected.optimizer.expected_batch_size == 6
        assert protected.state["accountant"]["steps"] == [[1.0, 0.2, 10]]
    assert defense.reported_examples(6) == 30
    assert DPSGD().reported_examples(6) is None
    # A round of so many steps has them, however few examples make an epoch.
    limited = protect(defense, set_up(count=3, batch_size=6, epochs=1, total_steps=40))
    assert limited.epochs * len(limited.loader) >= 40


def test_with_a_public_rate_examples_are_sampled_at_it():
    defense = DPSGD(noise_multiplier=1.0, neighbours="add-or-remove", sample_rate=0.2)
    protected = protect(defense, set_up(count=30, batch_size=6))
    sizes = torch.tensor([float(len(images)) for _ in range(200) for images, _ in protected.loader])
    assert len(sizes) == 1000
    assert sizes.mean().item() == pytest.approx(6, abs=5 * (30 * 0.2 * 0.8 / 1000) ** 0.5)
    assert sizes.var().item() == pytest.approx(30 * 0.2 * 0.8, rel=0.2)


@pytest.mark.long
def test_one_target_means_less_noise_where_an_example_is_added():
    replaced, added = (
        protect(DPSGD(target_epsilon=2.0, **more), set_up()).state["noise_multiplier"]
        for more in ({}, {"neighbours": "add-or-remove", "sample_rate": 0.25})
    )
    assert replaced == pytest.approx(2 * added)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"neighbours": "bounded"}, "neighbours is 'bounded'; allowed: replace-one | add-or-remove"),
        ({"neighbours": "add-or-remove"}, "sample_rate is None; allowed: a number from 1e-06 to 1"),
        ({"neighbours": "add-or-remove", "sample_rate": 1.5}, "sample_rate is 1.5; allowed: a number from 1e-06 to 1"),
        ({"neighbours": "add-or-remove", "sample_rate": True}, "sample_rate is True; allowed"),
        ({"sample_rate": 0.1}, "sample_rate is 0.1; allowed: None with neighbours='replace-one'"),
    ],
)
def test_a_sample_rate_belongs_to_one_kind_of_neighbours(arguments: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=re.escape(message)):
        DPSGD(**arguments)


@pytest.mark.parametrize("noise_multiplier", [1e-5, 1e-160, 1e-300, 5e-324])
def test_a_ledger_of_next_to_no_noise_has_no_finite_epsilon(noise_multiplier: float):
    """A ledger may come from elsewhere; Opacus divided by zero, or did not end in 300 s."""
    history = [[1.0, 0.25, 10], [noise_multiplier, 0.25, 1]]
    with bounded():
        assert epsilon_spent({"accountant": {"steps": history}}, 1e-5) == math.inf


@pytest.mark.parametrize("noise_multiplier", [1e-4, 1e-3, 0.01])
@pytest.mark.parametrize("steps", [1, 10**15])
def test_little_noise_has_the_epsilon_of_the_gaussian_mechanism(noise_multiplier: float, steps: int):
    """Renyi divergence of order a: a / (2 z^2) for each step on all examples (Mironov 2017); the smallest order is 1.1."""
    with bounded():
        spent = epsilon_spent({"accountant": {"steps": [[noise_multiplier, 1.0, steps]]}}, 1e-5)
    assert spent == pytest.approx(steps * 1.1 / (2 * noise_multiplier**2), rel=0.03)


@pytest.mark.parametrize(
    "entry",
    [
        *([1.0, 0.25], [1.0, 0.25, 1, 1], ["1", 0.25, 1], [None, 0.25, 1], None),
        *([math.nan, 0.25, 1], [-1.0, 0.25, 1], [1.0, 1.5, 1], [1.0, 0.25, 2**70], [1.0, 0.25, -1], [1.0, 0.25, 0.5]),
    ],
)
def test_a_ledger_of_no_steps_is_refused(entry: object):
    """Negative steps would give a budget back."""
    with pytest.raises(ValueError, match="the accountant's steps hold"):
        epsilon_spent({"accountant": {"steps": [entry]}}, 1e-5)


# ---- settings


def test_the_default_is_a_total_epsilon_of_8():
    assert DPSGD() == DPSGD(target_epsilon=8.0)
    assert repr(DPSGD()) == "DPSGD(target_epsilon=8.0)"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"target_epsilon": 1.0, "noise_multiplier": 1.0}, "target_epsilon is 1.0; allowed: None when"),
        ({"target_epsilon": 0.0}, "target_epsilon is 0.0; allowed"),
        ({"target_epsilon": math.inf}, "target_epsilon is inf; allowed"),
        ({"noise_multiplier": -1.0}, "noise_multiplier is -1.0; allowed"),
        ({"noise_multiplier": 1e-300}, "noise_multiplier is 1e-300; allowed: 0, or a number from 0.0001 to"),
        ({"noise_multiplier": 1e-160}, "noise_multiplier is 1e-160; allowed: 0, or a number from 0.0001 to"),
        ({"target_delta": 1.0}, "target_delta is 1.0; allowed"),
        ({"max_grad_norm": 0.0}, "max_grad_norm is 0.0; allowed"),
    ],
)
def test_bad_settings_are_refused(arguments: dict[str, float], message: str):
    with pytest.raises(ValueError, match=message):
        DPSGD(**arguments)


def test_a_client_without_examples_is_refused():
    training = set_up()
    empty = Training(training.model, training.optimizer, DataLoader(data(0)), cross_entropy, 1, 1)
    with pytest.raises(DefenseError, match="no examples"):
        protect(DPSGD(noise_multiplier=1.0), empty)
