"""DP-SGD against a hand-written loop over examples, closed forms of the privacy bound, and known mistakes of others."""

import copy
import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import binom, logsumexp
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from defenses.base import DefenseError, Training
from defenses.neighbours import ADD_OR_REMOVE
from defenses.pipeline import Pipeline
from defenses.training.accounting import ORDERS, RDP, epsilon_spent
from defenses.training.dp_sgd import DPSGD
from defenses.training.watched_layers import remove_hooks
from tests.bounded import bounded

pytestmark = pytest.mark.filterwarnings("ignore:Optimal order is the")
DELTA = 1e-5
PUBLIC: dict[str, Any] = {"neighbours": ADD_OR_REMOVE, "sample_rate": 0.2}


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


def no_gradient(model: nn.Module, images: Tensor, targets: Tensor) -> Tensor:
    return 0 * model(images).mean()


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
        model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
        loader=DataLoader(data(count), batch_size=batch_size, shuffle=True), loss=cross_entropy, epochs=epochs,
        **{"total_epochs": epochs, **more},
    )  # fmt: skip


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


def moves(training: Training) -> Iterator[Tensor]:
    """What each step subtracts from all weights together, over the learning rate."""
    before = weights(training.model)
    for _ in run(training):
        after = weights(training.model)
        yield torch.cat([(before[name] - after[name]).flatten() for name in before]) / 0.5
        before = after


def one_step(protected: Training, images: Tensor, targets: Tensor) -> None:
    loss = protected.loss(protected.model, images, targets)
    protected.optimizer.zero_grad()
    loss.backward()
    protected.optimizer.step()


def mean_of_clipped(model: nn.Module, images: Tensor, targets: Tensor, most: float) -> dict[str, Tensor]:
    """The mean of gradients clipped to a norm, by a loop over the examples; leaves the model as it is."""
    reference = copy.deepcopy(model)
    summed = {name: torch.zeros_like(one) for name, one in reference.named_parameters()}
    for image, target in zip(images, targets, strict=True):
        loss = cross_entropy(reference, image[None], target[None])
        found = torch.autograd.grad(loss, [*reference.parameters()], materialize_grads=True)
        norm = float(torch.cat([one.flatten().double() for one in found]).norm())
        for name, gradient in zip(summed, found, strict=True):
            summed[name] += gradient * min(1.0, most / norm)
    return {name: one / len(images) for name, one in summed.items()}


def state_of(*steps: tuple[float, float, int]) -> dict[str, Any]:
    return {"accountant": {"steps": [list(entry) for entry in steps]}}


def test_without_noise_a_step_is_the_mean_of_clipped_per_example_gradients() -> None:
    for most in (0.05, 1.0, 1e6):
        training = set_up(count=7, batch_size=7)  # one batch per epoch: every example is in it with probability 1
        expected = torch.cat([one.flatten() for one in mean_of_clipped(build(), *data(7).tensors, most).values()])
        names, logits = list(training.model.state_dict()), training.model(data(4).tensors[0])
        protected = protect(DPSGD(noise_multiplier=0.0, max_grad_norm=most), training)
        assert protected.model is training.model
        assert list(protected.model.state_dict()) == names
        torch.testing.assert_close(protected.model(data(4).tensors[0]), logits)
        (moved,) = moves(protect(DPSGD(noise_multiplier=0.0, max_grad_norm=most), training))
        torch.testing.assert_close(moved, expected, rtol=1e-4, atol=1e-6, msg=f"max_grad_norm {most}")


@pytest.mark.numeric
def test_noise_has_the_promised_size_on_every_parameter() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 600), nn.Linear(600, 3)).train()
    training = replace(set_up(count=10, batch_size=5, model=model), loss=no_gradient)
    moved = list(moves(protect(DPSGD(noise_multiplier=2.0, max_grad_norm=0.3), training)))
    assert len(moved) == 2
    for noise in moved:  # z C / (q n), of 24,003 numbers: a standard error of 0.5 %
        assert noise.std().item() == pytest.approx(2.0 * 0.3 / 5, rel=0.025)
        assert noise.mean().item() == pytest.approx(0, abs=5 * noise.std().item() / len(noise) ** 0.5)
    training = replace(set_up(), loss=no_gradient)
    before = weights(training.model)
    list(run(protect(DPSGD(noise_multiplier=1.0), training)))
    assert before["scale"].shape == ()
    assert all((weights(training.model)[name] != before[name]).all() for name in before)


def test_a_model_can_be_protected_again_in_either_way_and_used_without() -> None:
    model = build()
    for clipping in ("per-example", "ghost", "per-example"):
        protected = protect(DPSGD(noise_multiplier=1.0, clipping=clipping), set_up(model=model), clipping)
        model(data(3).tensors[0])  # hooks remember a forward pass without backward; the next round must not
        protected = protect(DPSGD(noise_multiplier=1.0, clipping=clipping), set_up(model=model), clipping)
        assert len(list(run(protected))) == 4
    remove_hooks(model)
    fresh = copy.deepcopy(model)
    list(run(set_up(count=5, model=model)))
    list(run(set_up(count=5, model=fresh)))
    for name, tensor in weights(fresh).items():
        torch.testing.assert_close(weights(model)[name], tensor)
    assert not any(hasattr(parameter, "grad_sample") for parameter in model.parameters())


def test_what_has_no_gradients_per_example_is_refused() -> None:
    mixing = nn.Module()
    mixing.inner = nn.SyncBatchNorm(3)
    for model, message in (
        (nn.Sequential(nn.Flatten(), nn.BatchNorm1d(36), nn.Linear(36, 3)), r"BatchNorm \(1\) mixes .*use GroupNorm"),
        (mixing, r"BatchNorm \(inner\) mixes examples.*use GroupNorm"),
        (nn.Sequential(nn.Flatten(), nn.LSTM(36, 3)), "no gradients per example"),
        (build().eval(), "no gradients per example"),
    ):
        for clipping in ("per-example", "ghost"):
            with pytest.raises(DefenseError, match=message):
                protect(DPSGD(noise_multiplier=1.0, clipping=clipping), set_up(model=model))
    with pytest.raises(DefenseError, match="no examples"):
        protect(DPSGD(noise_multiplier=1.0), replace(set_up(), loader=DataLoader(data(0))))


# ---- sampling


@pytest.mark.numeric
def test_batches_are_poisson_samples_at_the_rate_of_the_batch_size_or_a_public_one() -> None:
    lookup = {image.sum().item(): i for i, image in enumerate(data(30).tensors[0])}
    for more in ({}, PUBLIC):
        protected = protect(DPSGD(noise_multiplier=1.0, **more), set_up(count=30, batch_size=6))
        batches = [images for _ in range(400) for images, _ in protected.loader]
        inclusions = torch.zeros(2000, 30)
        for row, images in enumerate(batches):
            inclusions[row, [lookup[image.sum().item()] for image in images]] = 1
        assert len(batches) == 2000
        sizes = inclusions.sum(1)
        assert sizes.mean().item() == pytest.approx(6, abs=5 * (30 * 0.2 * 0.8 / 2000) ** 0.5)
        assert sizes.var().item() == pytest.approx(30 * 0.2 * 0.8, rel=0.18)  # a permutation would have variance 0
        assert ((inclusions.mean(0) - 0.2).abs() < 5 * (0.16 / 2000) ** 0.5).all()
        correlation = torch.corrcoef(inclusions.T) - torch.eye(30)
        assert correlation.abs().max() < 5.5 / 2000**0.5


def test_empty_batches_count_add_noise_and_run_no_model() -> None:
    training = set_up(count=2, batch_size=1, epochs=20)
    protected = protect(DPSGD(noise_multiplier=1.0), training)
    before, empty = weights(training.model), 0
    for size in run(protected):
        after = weights(training.model)
        assert all(torch.isfinite(tensor).all() for tensor in after.values())
        assert not any(torch.equal(after[name], before[name]) for name in before) or size
        before, empty = after, empty + (not size)
    assert empty  # each of 40 steps is with probability 1/4
    assert sum(entry[2] for entry in protected.state["accountant"]["steps"]) == 40

    def fails(*arguments: object) -> Tensor:
        raise AssertionError("the model must not run on no examples")

    for early, clipping in itertools.product((True, False), ("per-example", "ghost")):
        protected = protect(DPSGD(noise_multiplier=0.0, clipping=clipping), replace(set_up(), loss=fails))
        before = weights(protected.model)
        _ = early and protected.optimizer.zero_grad()
        loss = protected.loss(protected.model, torch.zeros(0, 1, 6, 6), torch.zeros(0, 3))
        _ = early or protected.optimizer.zero_grad()
        assert loss.item() == 0
        loss.backward()
        protected.optimizer.step()
        assert all(torch.equal(tensor, before[name]) for name, tensor in weights(protected.model).items())
        assert epsilon_spent(protected.state, DELTA) == math.inf


def test_odd_sizes_lose_no_step_and_divide_by_the_expected_batch() -> None:
    # 1 / (1 / 93) is 92.99..., and 49 * (1 / 49) is 0.99...: truncated, they lose a step and divide by zero.
    for count, batch_size, steps in ((49, 1, 49), (93, 1, 93), (98, 2, 49), (10, 4, 3), (5, 32, 1), (1, 1, 1)):
        training = set_up(count, batch_size, model=nn.Sequential(nn.Flatten(), nn.Linear(36, 3)).train())
        protected = protect(DPSGD(noise_multiplier=1.0), training)
        assert len(list(run(protected))) == steps
        assert protected.optimizer.expected_batch_size == pytest.approx(count / steps)
        assert protected.state["accountant"]["steps"] == [[0.5, 1 / steps, steps]]
        assert all(torch.isfinite(tensor).all() for tensor in weights(training.model).values())


def test_a_public_rate_decides_steps_divisor_and_what_is_reported() -> None:
    defense = DPSGD(noise_multiplier=1.0, **PUBLIC)
    for count in (3, 20, 77):
        protected = protect(defense, set_up(count=count, batch_size=6, epochs=2))
        assert len(list(run(protected))) == 10
        assert protected.optimizer.expected_batch_size == 6
        assert protected.state["accountant"]["steps"] == [[1.0, 0.2, 10]]
    assert (defense.reported_examples(6), DPSGD().reported_examples(6)) == (30, None)
    # A round of so many steps has them, however few examples make an epoch; a probe is one step all the same.
    limited = protect(defense, set_up(count=3, batch_size=6, epochs=1, total_steps=40))
    assert limited.epochs * len(limited.loader) >= 40
    probe = protect(replace(defense, noise_multiplier=2.0), set_up(2, 2, total_steps=40, probe=True))
    assert len(list(run(probe))) == 1
    assert probe.state["accountant"]["steps"] == [[1.0, 1.0, 1]]


# ---- the privacy bound


def renyi_epsilon(divergence: Callable[[float], float], steps: int, delta: float, orders: Iterable[float]) -> float:
    """Of Renyi divergences of one step, by order (Canonne, Kamath and Steinke 2020, Prop. 12)."""
    return min(steps * divergence(a) + math.log1p(-1 / a) - (math.log(delta) + math.log(a)) / (a - 1) for a in orders)


def gaussian_epsilon(noise: float, steps: int, delta: float) -> float:
    """Of the Gaussian mechanism without sampling, whose divergence is alpha / (2 z^2) per step."""
    return renyi_epsilon(lambda a: a / (2 * noise**2), steps, delta, ORDERS)


def sampled_divergence(noise: float, rate: float, order: int) -> float:
    """Renyi divergence of the subsampled mechanism at a whole order (Mironov, Talwar and Zhang 2019, section 3.3)."""
    k = np.arange(order + 1)
    mixed = (order - k) * math.log1p(-rate) + k * math.log(rate) + (k * k - k) / (2 * noise**2)
    return float(logsumexp(np.log(binom(order, k)) + mixed)) / (order - 1)


def test_epsilon_is_the_closed_form_without_sampling_and_the_published_sum_with_it() -> None:
    for noise, steps in ((1.0, 1), (4.0, 30), (60.0, 500)):
        spent = epsilon_spent(state_of((noise, 1.0, steps)), DELTA, RDP)
        assert spent == pytest.approx(gaussian_epsilon(noise, steps, DELTA), rel=1e-9)
    for noise, rate, steps in ((1.0, 0.01, 1000), (0.8, 0.1, 50), (2.0, 0.25, 200)):
        spent = epsilon_spent(state_of((noise, rate, steps)), DELTA, RDP)
        bound = renyi_epsilon(lambda a, z=noise, q=rate: sampled_divergence(z, q, a), steps, DELTA, range(2, 64))
        assert 0.95 * bound <= spent <= bound * (1 + 1e-9)  # fractional orders can only improve on whole ones
        assert spent < gaussian_epsilon(noise, steps, DELTA)
    for noise in (1e-4, 1e-3, 0.01):
        for steps in (1, 10**15):  # the smallest order is 1.1 (Mironov 2017)
            spent = epsilon_spent(state_of((noise, 1.0, steps)), DELTA, RDP)
            assert spent == pytest.approx(steps * 1.1 / (2 * noise**2), rel=0.03)


def test_all_rounds_together_spend_the_target_and_the_noise_is_never_aimed_anew() -> None:
    for target, batch_size in ((8.0, 5), (0.5, 20)):
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
    # A probe uses this noise, and its step is accounted for.
    probe = protect(DPSGD(target_epsilon=target), set_up(count=2, batch_size=2, state=state, probe=True))
    z, before = state["noise_multiplier"], copy.deepcopy(state["accountant"]["steps"])
    list(run(probe))
    assert probe.optimizer.noise_multiplier == z
    assert before == [[z / 2, 1.0, 10]]
    assert probe.state["accountant"]["steps"] == [[z / 2, 1.0, 11]]


def test_what_several_ledgers_spent_adds_up_as_one_history() -> None:
    training, probe = state_of((1.0, 0.1, 100)), state_of((1.0, 1.0, 2))
    together = epsilon_spent(state_of((1.0, 0.1, 100), (1.0, 1.0, 2)), 1e-6)
    defense = DPSGD(noise_multiplier=1.0, target_delta=1e-6)
    assert defense.privacy(training, probe).items() >= {"epsilon": together, "delta": 1e-6}.items()
    assert defense.privacy(training)["epsilon"] < together
    assert defense.privacy({}) == defense.privacy({"noise_multiplier": 1.0}) == {"epsilon": 0.0, "delta": 1e-6}
    assert defense.privacy(training, state_of((0.0, 1.0, 1)))["epsilon"] == math.inf


def test_a_ledger_from_elsewhere_is_refused_or_has_no_finite_epsilon() -> None:
    """Of next to no noise Opacus divided by zero, or did not end in 300 s; negative steps would give a budget back."""
    for noise in (1e-5, 1e-160, 1e-300, 5e-324):
        with bounded():
            assert epsilon_spent(state_of((1.0, 0.25, 10), (noise, 0.25, 1)), DELTA) == math.inf
    wrong = (
        [1.0, 0.25], [1.0, 0.25, 1, 1], ["1", 0.25, 1], [None, 0.25, 1], None, [math.nan, 0.25, 1], [-1.0, 0.25, 1],
        [1.0, 1.5, 1], [1.0, -0.1, 1], [1.0, 0.25, 2**63], [1.0, 0.25, -1], [1.0, 0.25, 0.5],
    )  # fmt: skip
    for entry in wrong:
        with pytest.raises(ValueError, match="the accountant's steps hold"):
            epsilon_spent({"accountant": {"steps": [entry]}}, DELTA)
    for delta in (0.0, 1.0, -1, math.nan):
        with pytest.raises(ValueError, match="delta is"):
            epsilon_spent(state_of((1.0, 1.0, 1)), delta)


REFUSED: tuple[tuple[dict[str, Any], str], ...] = (
    ({"target_epsilon": 1.0, "noise_multiplier": 1.0}, "target_epsilon is 1.0; allowed: None when"),
    ({"neighbours": ADD_OR_REMOVE}, "sample_rate is None; allowed: a number from 1e-06 to 1"),
    ({**PUBLIC, "sample_rate": 1.5}, "sample_rate is 1.5; allowed: a number from 1e-06 to 1"),
    ({"sample_rate": 0.1}, "sample_rate is 0.1; allowed: None with neighbours='replace-one'"),
)


def test_settings_without_a_meaning_are_refused() -> None:
    for arguments, message in REFUSED:
        with pytest.raises(ValueError, match="; allowed: ") as refusal:
            DPSGD(**arguments)
        assert message in str(refusal.value)
    for rate in (1, 1e-6):
        DPSGD(**{**PUBLIC, "sample_rate": rate})
