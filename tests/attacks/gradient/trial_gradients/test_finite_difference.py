"""Differences in place of second derivatives: against double backward, torch.func and hand-made kinks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from attacks.gradient.costs import COSTS
from attacks.gradient.inversion import GradientInversion
from attacks.gradient.trial_gradients.batch_statistics import StatisticsPrior
from attacks.gradient.trial_gradients.finite_difference import DifferencedMatching, agrees, full_precision
from attacks.gradient.trial_gradients.kinks import RecordKinks, ReplayKinks
from attacks.gradient.trial_gradients.matching import GradientMatching, MatchingProblem, PriorInput, attackable
from attacks.gradient.trial_gradients.trial_layers import TrialNetwork, expanded
from attacks.observations import AttackError
from clients.models.classifiers import build_model
from tests.attacks.gradient.trial_gradients.test_batch_statistics import sent
from tests.attacks.wire import classes, linear_net, observe, pictures

TRIALS, CLASSES = 3, 4


class Pieces(nn.Module):
    """Functional, method and module forms of what has a kink, and a layer that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.twice, self.out = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1), nn.Linear(36, 4)
        self.leaky, self.pool = nn.LeakyReLU(0.2, inplace=True), nn.MaxPool2d(2)

    def forward(self, images: Tensor) -> Tensor:
        features = F.relu(self.into(images), inplace=True)
        features = self.leaky(self.twice(features)) + torch.relu(self.twice(features))
        return self.out(F.leaky_relu(self.pool(features), 0.3).relu().flatten(1))


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm, self.out = nn.Linear(12, 8), nn.LayerNorm(8), nn.Linear(8, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        return self.out(F.gelu(self.norm(self.embed(images.permute(0, 2, 1, 3).flatten(2)))).mean(1))


NETS: dict[str, Callable[[], nn.Module]] = {
    "pieces": Pieces,
    "tokens": Tokens,
    "strided groups": lambda: nn.Sequential(
        nn.Conv2d(2, 4, 3, stride=2, padding=1, groups=2, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(36, CLASSES)
    ),
    "same": lambda: nn.Sequential(
        nn.Conv2d(2, 4, 3, padding="same", dilation=2), nn.Tanh(), nn.Flatten(), nn.Linear(144, CLASSES, bias=False)
    ),
    "group norm": lambda: nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(64, CLASSES)
    ),
    "batch norm": lambda: nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, CLASSES)
    ),
}


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def net(name: str) -> nn.Module:
    torch.manual_seed(0)
    model = NETS[name]().double().eval()
    for buffer in model.buffers():
        if buffer.is_floating_point():
            buffer.add_(random(*buffer.shape, seed=9).abs())
    return model


def objective(model: nn.Module, batch: int, cost: str = "cosine", *, joint: bool = False) -> GradientMatching:
    targets = {n: random(TRIALS, *p.shape, seed=i) for i, (n, p) in enumerate(model.named_parameters())}
    labels = None if joint else torch.arange(TRIALS * batch).view(TRIALS, batch) % CLASSES
    return GradientMatching(MatchingProblem(model, (batch, 2, 6, 6), CLASSES, targets, labels, COSTS[cost], 0.1))


def unknowns(batch: int, *, joint: bool = False) -> Tensor:
    return random(TRIALS, batch * (72 + (CLASSES if joint else 0)), seed=50)


@pytest.mark.parametrize("train_mode", [False, True])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("name", list(NETS))
def test_trial_network_gives_the_gradients_of_torch_func(name: str, batch: int, train_mode: bool) -> None:
    model = attackable(net(name), train_mode)
    images, labels = random(TRIALS, batch, 2, 6, 6, seed=1), torch.arange(TRIALS * batch).view(TRIALS, batch) % CLASSES
    shared = {n: p.detach() for n, p in model.named_parameters()}
    apart = {n: p + 0.1 * random(TRIALS, *p.shape, seed=2) for n, p in shared.items()}

    def loss(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(model, (weights, dict(model.named_buffers())), (x,)), y, reduction="sum")

    network = TrialNetwork(model)
    for weights, dims in ((shared, None), (apart, 0)):
        expected, by_images = vmap(grad(loss, (0, 1)), (dims, 0, 0))(weights, images, labels)
        given = {n: w.requires_grad_() for n, w in (expanded(weights, TRIALS) if dims is None else weights).items()}
        rows = images.clone().requires_grad_()
        logits = network(given, rows.flatten(0, 1))
        total = F.cross_entropy(logits, labels.flatten(), reduction="sum")
        found = torch.autograd.grad(total, [rows, *given.values()])
        torch.testing.assert_close(found[0], by_images)
        for key, value in zip(given, found[1:], strict=True):
            torch.testing.assert_close(value, expected[key])


@pytest.mark.parametrize("cost", list(COSTS))
@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("name", list(NETS))
def test_difference_is_the_derivative(name: str, joint: bool, cost: str) -> None:
    exact = objective(attackable(net(name), False), 2, cost, joint=joint)
    rows, some = unknowns(2, joint=joint)[1:], torch.tensor([1, 2])
    losses, gradients = exact(rows, some)
    other_losses, other = DifferencedMatching(exact)(rows, some)
    torch.testing.assert_close(other_losses, losses)
    assert ((other - gradients).norm(dim=1) / gradients.norm(dim=1)).max() < 1e-4


def test_float32_networks_of_the_papers_keep_the_direction() -> None:
    for name, width in (("lenet", 0), ("convnet", 4), ("resnet20", 1)):
        model = build_model(name, num_classes=CLASSES, input_shape=(2, 16, 16), width=width).eval()
        targets = {n: random(2, *p.shape, seed=i).float() for i, (n, p) in enumerate(model.named_parameters())}
        exact = GradientMatching(
            MatchingProblem(model, (1, 2, 16, 16), CLASSES, targets, torch.tensor([[0], [1]]), COSTS["cosine"], 0.0)
        )
        rows = random(2, 512, seed=3).float()
        gradients = [f(rows, torch.arange(2))[1] for f in (exact, DifferencedMatching(exact))]
        assert F.cosine_similarity(*gradients).min() > 0.999


def test_a_wide_network_in_float32_has_the_same_values() -> None:
    """Cosines over 2.9 million entries: they were off by up to 1e-3, so that no difference was used for such a network."""
    model = build_model("convnet", num_classes=CLASSES, input_shape=(2, 16, 16), width=64).eval()
    loss = F.cross_entropy(model(random(2, 2, 16, 16, seed=1).float()), torch.tensor([0, 1]))
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    targets = {n: g.expand(2, *g.shape) for (n, _), g in zip(model.named_parameters(), gradients, strict=True)}
    exact = GradientMatching(
        MatchingProblem(model, (1, 2, 16, 16), CLASSES, targets, torch.tensor([[0], [1]]), COSTS["cosine"], 0.0)
    )
    rows = random(2, 512, seed=3).float()
    values = [f(rows, torch.arange(2))[0] for f in (exact, DifferencedMatching(exact))]
    torch.testing.assert_close(*values, rtol=1e-5, atol=0)
    assert agrees(exact, rows)


def test_without_fixed_kinks_the_difference_would_be_useless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Why ``attacks.gradient.trial_gradients.kinks`` exists: the same difference with ReLUs that may switch points elsewhere."""
    model = build_model("convnet", num_classes=CLASSES, input_shape=(2, 32, 32), width=8).eval()
    targets = {n: random(1, *p.shape, seed=i).float() for i, (n, p) in enumerate(model.named_parameters())}
    exact = GradientMatching(
        MatchingProblem(model, (1, 2, 32, 32), CLASSES, targets, torch.tensor([[0]]), COSTS["cosine"], 0.0)
    )
    rows = random(1, 2048, seed=3).float()
    assert agrees(exact, rows)
    monkeypatch.setattr("attacks.gradient.trial_gradients.finite_difference.ReplayKinks", lambda noted: RecordKinks())
    assert not agrees(exact, rows)


def test_replay_keeps_the_side_of_every_kink() -> None:
    with RecordKinks() as kinks:
        first = (torch.relu(torch.tensor([-1.0, 2.0])), F.max_pool2d(torch.tensor([[[[1.0, 3.0]]]]), (1, 2)))
    with ReplayKinks(kinks.noted):
        again = (torch.relu(torch.tensor([5.0, -4.0])), F.max_pool2d(torch.tensor([[[[7.0, 6.0]]]]), (1, 2)))
    assert [v.flatten().tolist() for v in first] == [[0.0, 2.0], [3.0]]
    assert [v.flatten().tolist() for v in again] == [[0.0, -4.0], [6.0]]


def test_a_slope_given_by_its_position_is_the_slope() -> None:
    values = torch.tensor([-1.0, 2.0])
    with RecordKinks() as kinks:
        first = F.leaky_relu(values, 0.3)
    with ReplayKinks(kinks.noted):
        again = F.leaky_relu(-values, 0.3)
    assert first.tolist() == pytest.approx([-0.3, 2.0])
    assert again.tolist() == pytest.approx([0.3, -2.0])


class Mixing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(72, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        rows = images.flatten(1)
        return self.out((rows - rows.mean(0)).square())


class OwnWeight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(72, CLASSES))

    def forward(self, images: Tensor) -> Tensor:
        return (images.flatten(1) @ self.weight).tanh()


def tied() -> nn.Module:
    first, second = nn.Linear(72, 72), nn.Linear(72, 72)
    second.weight = first.weight
    return nn.Sequential(nn.Flatten(), first, nn.Tanh(), second, nn.Linear(72, CLASSES))


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (OwnWeight, "OwnWeight has no form with one weight per trial"),
        (tied, "layers that share weights"),
        (lambda: nn.Sequential(nn.Conv2d(2, 2, 3, padding_mode="reflect", padding=1)), "Conv2d has no form"),
        (lambda: nn.Sequential(nn.Conv2d(2, 2, 2, padding="same")), "different amounts"),
    ],
)
def test_models_without_a_trial_form_are_refused(build: Callable[[], nn.Module], why: str) -> None:
    with pytest.raises(AttackError, match=why):
        TrialNetwork(build())


@pytest.mark.parametrize("build", [Mixing, OwnWeight, tied])
def test_what_cannot_be_differenced_is_noticed(build: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    exact = objective(attackable(build().double(), False), 2)
    assert torch.isfinite(exact(unknowns(2), torch.arange(TRIALS))[1]).all()
    assert not agrees(exact, unknowns(2))


def test_agreement_holds_where_it_should() -> None:
    for name in NETS:
        assert agrees(objective(attackable(net(name), True), 2), unknowns(2))


def test_an_attack_notices_a_model_that_mixes_its_trials() -> None:
    """BatchNorm without weights is no trial layer: its batch would be that of all trials."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4, affine=False), nn.Sigmoid(), nn.Flatten(), nn.Linear(400, 4)
    )
    images, labels = pictures(2, seed=1), torch.tensor([0, 1])
    seen = [sent(net, images[at : at + 1], labels[at : at + 1]) for at in range(2)]
    assert all(observation.train_mode for observation in seen)
    guesses = GradientInversion(iterations=3).attack_many(seen, [torch.Generator().manual_seed(at) for at in range(2)])
    assert [guess.diagnostics["differenced"] for guess in guesses] == [0.0, 0.0]


@pytest.mark.parametrize("allowed", [True, False])
def test_coarse_convolutions_are_off_inside_and_afterwards_as_before(
    allowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", allowed)

    def leave() -> None:
        assert not torch.backends.cudnn.allow_tf32
        raise AttackError("left early")

    with pytest.raises(AttackError), full_precision():
        leave()
    assert torch.backends.cudnn.allow_tf32 == allowed


def test_an_inversion_runs_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    original = GradientInversion._invert

    def watched(*given: object) -> object:
        seen.append(torch.backends.cudnn.allow_tf32)
        return original(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    monkeypatch.setattr(GradientInversion, "_invert", watched)
    GradientInversion(iterations=2)(observe(linear_net(), pictures(1), classes(1)), torch.Generator())
    assert seen == [False]


@pytest.mark.parametrize("batch", [1, 2])
def test_batch_statistics_are_read_of_the_second_pass(batch: int) -> None:
    model = attackable(net("batch norm"), True)
    observed = PriorInput({"1": (random(TRIALS, 4, seed=20), random(TRIALS, 4, seed=21).abs() + 0.1)}, {})
    exact = objective(model, batch)
    without = exact(unknowns(batch), torch.arange(TRIALS))[1]
    exact.prior, exact.observed = StatisticsPrior(model, 3.0), observed
    rows, some = unknowns(batch)[1:], torch.tensor([1, 2])
    losses, gradients = exact(rows, some)
    assert ((gradients - without[1:]).norm(dim=1) > 0.1 * gradients.norm(dim=1)).all()  # The prior counts here.
    differenced = DifferencedMatching(exact)
    for objective_pair in ((exact, differenced), (exact.with_prior(0.5), differenced.with_prior(0.5))):
        (losses, gradients), (other_losses, other) = (one(rows, some) for one in objective_pair)
        torch.testing.assert_close(other_losses, losses, rtol=1e-6, atol=1e-6)
        assert ((other - gradients).norm(dim=1) / gradients.norm(dim=1)).max() < 1e-4


@pytest.mark.parametrize("batch", [1, 2])
def test_normalised_by_what_was_sent_is_a_network_with_these_constants(batch: int) -> None:
    sent_mean, sent_variance = random(TRIALS, 4, seed=20), random(TRIALS, 4, seed=21).abs() + 0.1
    rows, model = unknowns(batch), attackable(net("batch norm"), True)
    exact = objective(model, batch)
    exact.prior, exact.observed = StatisticsPrior(model, 3.0), PriorInput({"1": (sent_mean, sent_variance)}, {})
    differenced = DifferencedMatching(exact)
    losses, gradients = differenced.normalised()(rows, torch.arange(TRIALS))
    own = differenced(rows, torch.arange(TRIALS))[0]
    assert ((losses - own).abs() > 1e-3).all()  # And the original is as it was.
    torch.testing.assert_close(own, exact(rows, torch.arange(TRIALS))[0], rtol=1e-6, atol=1e-6)
    for trial in range(TRIALS):
        constant = attackable(net("batch norm"), False)
        constant[1].running_mean, constant[1].running_var = sent_mean[trial], sent_variance[trial]  # type: ignore[index]
        oracle = objective(constant, batch)
        oracle.prior, oracle.observed = StatisticsPrior(constant, 3.0), exact.observed
        loss, gradient = oracle(rows[trial : trial + 1], torch.tensor([trial]))
        torch.testing.assert_close(losses[trial : trial + 1], loss, rtol=1e-6, atol=1e-6)
        assert (gradients[trial] - gradient[0]).norm() < 1e-4 * gradient.norm()


def test_a_layer_with_a_sent_variance_of_zero_normalises_by_its_batch() -> None:
    exact = objective(attackable(net("batch norm"), True), 2)
    mean, variance = random(TRIALS, 4, seed=20), random(TRIALS, 4, seed=21).abs() + 0.1
    exact.prior, exact.observed = StatisticsPrior(exact.model, 3.0), PriorInput({"1": (mean, variance)}, {})
    assert DifferencedMatching(exact).normalised().constants == {"1"}
    variance[0, 2] = 0
    differenced = DifferencedMatching(exact)
    assert differenced.normalised() is differenced
    assert differenced.constants == frozenset()


def test_without_known_statistics_nothing_is_normalised_by_them() -> None:
    differenced = DifferencedMatching(objective(attackable(net("batch norm"), True), 2))
    assert differenced.normalised() is differenced
