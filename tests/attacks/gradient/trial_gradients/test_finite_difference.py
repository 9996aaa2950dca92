"""The batched objective against plain autograd, one trial at a time; differences in place of its second derivatives."""

import copy
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacks.gradient.costs import COSTS, squared_by_products
from attacks.gradient.inversion import GradientInversion
from attacks.gradient.trial_gradients import finite_difference, trial_layers
from attacks.gradient.trial_gradients.batch_statistics import StatisticsPrior
from attacks.gradient.trial_gradients.matching import GradientMatching, attackable
from attacks.gradient.trial_gradients.trial_layers import TrialNetwork
from attacks.image_measures import total_variation
from attacks.observations import AttackError
from clients.models.classifiers import build_model
from tests.attacks.gradient.clients import matching, random, sent
from tests.attacks.wire import generators, pictures

TRIALS, BATCH, CLASSES = 3, 2, 4
EVERY = torch.arange(TRIALS)
SIZES = trial_layers.FEW_COLUMNS, trial_layers.FEWER


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


class Attention(nn.Module):
    """One fused attention over image rows: its fast kernels have no second derivative."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.head = nn.Linear(12, 36), nn.Linear(12, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        tokens = images.permute(0, 2, 1, 3).flatten(2)
        q, k, v = self.mix(F.layer_norm(tokens, (12,))).chunk(3, -1)
        return self.head(F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0].mean(1))


class Dense(nn.Module):
    """Linear layers alone, of which one is called twice and one has no bias."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.twice, self.out = nn.Linear(72, 8), nn.Linear(8, 8, bias=False), nn.Linear(8, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        features = self.twice(F.relu(self.into(images.flatten(1))))
        return self.out(features + self.twice(features.relu()))


def convolutional(*middle: nn.Module, features: int = 64, bias: bool = True, **settings: object) -> nn.Module:
    first = nn.Conv2d(2, 4, 3, **settings)  # type: ignore[arg-type]
    return nn.Sequential(first, *middle, nn.Flatten(), nn.Linear(features, CLASSES, bias=bias))


STRIDED = {"stride": 2, "padding": 1, "groups": 2, "bias": False}
NETS: dict[str, Callable[[], nn.Module]] = {
    "pieces": Pieces, "tokens": Tokens, "attention": Attention, "dense": Dense,
    "no bias": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(72, 8, bias=False), nn.SiLU(inplace=True), nn.Linear(8, CLASSES, bias=False)
    ),
    "strided groups": lambda: convolutional(nn.ReLU(inplace=True), features=36, **STRIDED),
    "same": lambda: convolutional(nn.Tanh(), features=144, bias=False, padding="same", dilation=2),
    "group norm": lambda: convolutional(nn.GroupNorm(2, 4), nn.ReLU()),
    "batch norm": lambda: convolutional(nn.BatchNorm2d(4), nn.ReLU()),
}  # fmt: skip


def net(name: str) -> nn.Module:
    torch.manual_seed(0)
    model = NETS[name]().double().eval()
    for buffer in model.buffers():
        if buffer.is_floating_point():
            buffer.add_(random(*buffer.shape, seed=9).abs())
    return model


def objective(model: nn.Module, batch: int = BATCH, cost: str = "cosine", *, joint: bool = False) -> GradientMatching:
    targets = {n: random(TRIALS, *p.shape, seed=i) for i, (n, p) in enumerate(model.named_parameters())}
    labels = None if joint else torch.arange(TRIALS * batch).view(TRIALS, batch) % CLASSES
    return matching(model, (batch, 2, 6, 6), targets, labels, cost, 0.1, CLASSES)


def unknowns(batch: int = BATCH, *, joint: bool = False) -> Tensor:
    return random(TRIALS, batch * (72 + (CLASSES if joint else 0)), seed=50)


def relative_error(found: Tensor, expected: Tensor) -> float:
    return float(((found - expected).norm(dim=1) / expected.norm(dim=1)).max())


def plain(model: nn.Module, exact: GradientMatching, x: Tensor, trial: int) -> tuple[Tensor, Tensor]:
    """One trial's loss and gradient by double backward, on a copy of the client's model in the mode that it is in."""
    x = x.clone().requires_grad_()
    images, logits = x[: BATCH * 72].view(BATCH, 2, 6, 6), x[BATCH * 72 :].view(-1, CLASSES)
    soft = logits.softmax(1) if exact.labels is None else exact.labels[trial]
    model = copy.deepcopy(model)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        loss = F.cross_entropy(model(images), soft)
    found = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
    dummy = {name: g for (name, _), g in zip(model.named_parameters(), found, strict=True)}
    distance = exact.cost.distance(dummy, {name: target[trial] for name, target in exact.targets.items()})
    total = distance + 0.1 * total_variation(images).mean()
    return total.detach(), torch.autograd.grad(total, x)[0]


def test_the_objective_equals_plain_autograd_and_a_difference_is_its_derivative(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cases = [(name, mode, joint, "cosine") for name in NETS for mode, joint in ((True, True), (False, False))]
    for name, train_mode, joint, cost in [*cases, *(("pieces", True, True, cost) for cost in COSTS)]:
        case, model = f"{name}, train mode {train_mode}, joint {joint}, {cost}", net(name).train(train_mode)
        exact, rows = objective(attackable(model, train_mode), cost=cost, joint=joint), unknowns(joint=joint)
        for chosen in (EVERY, torch.tensor([0, 2])):
            losses, gradients = exact(rows[chosen], chosen)
            for trial, loss, gradient in zip(chosen.tolist(), losses, gradients, strict=True):
                expected, derivative = plain(model, exact, rows[trial], trial)
                assert loss.item() == pytest.approx(expected.item(), rel=1e-8), case
                assert torch.allclose(gradient, derivative, rtol=1e-6, atol=1e-10), case
            # Either way of a convolution with one weight per trial, and of a linear layer with shared weights.
            for few, fewer in ((0, 0), SIZES):
                monkeypatch.setattr(trial_layers, "FEW_COLUMNS", few)
                monkeypatch.setattr(trial_layers, "FEWER", fewer)
                values, differenced = finite_difference.DifferencedMatching(exact)(rows[chosen], chosen)
                torch.testing.assert_close(values, losses)
                assert relative_error(differenced, gradients) < 1e-4, (case, few)
        assert finite_difference.agrees(exact, rows), case


def test_gradients_in_factors_serve_the_costs_of_their_products(monkeypatch: pytest.MonkeyPatch) -> None:
    for cost in ("cosine", "l2"):
        exact, rows = objective(attackable(net("dense"), True), cost=cost), unknowns()
        exact.cost = replace(exact.cost, by_products=exact.cost.by_products or squared_by_products)
        formed = finite_difference.DifferencedMatching(exact)(rows, EVERY)
        with monkeypatch.context() as patch:
            patch.setattr(trial_layers, "FEWER", 0)
            seen = []
            patch.setattr(
                trial_layers.GradientFactors, "products", _counted(trial_layers.GradientFactors.products, seen)
            )
            factored = finite_difference.DifferencedMatching(exact)(rows, EVERY)
        assert len(seen) == 3, "one of each layer, whatever its calls"
        torch.testing.assert_close(formed[0], factored[0])
        assert relative_error(factored[1], formed[1]) < 1e-4


def test_gradients_in_factors_keep_the_digits_of_formed_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32, where products cancel or leave its range: beside the truth, of confident networks, and without a gradient."""
    model, images, labels = net("dense").float(), random(1, 2, 2, 6, 6, seed=0).float(), torch.tensor([[1, 2]])
    gradient = torch.autograd.grad(F.cross_entropy(model(images[0]), labels[0]), list(model.parameters()))
    for cost, scale, away in (
        ("cosine", 1, 0),
        ("l2", 1, 1e-3),
        ("cosine", 1e-13, 0.3),
        ("cosine", 0, 0.3),
        ("l2", 0, 1),
    ):
        target = {name: scale * g[None] for (name, _), g in zip(model.named_parameters(), gradient, strict=True)}
        exact = matching(attackable(model, True), (2, 2, 6, 6), target, labels, cost, 0.0, CLASSES)
        exact.cost = replace(
            exact.cost, by_products=exact.cost.by_products or squared_by_products, squared=cost == "l2"
        )
        rows = images.flatten(1) + away * random(1, 144, seed=3).float()
        values, slopes = finite_difference.DifferencedMatching(exact)(rows, torch.tensor([0]))
        with monkeypatch.context() as patch:
            patch.setattr(trial_layers, "FEWER", 0)
            found, moved = finite_difference.DifferencedMatching(exact)(rows, torch.tensor([0]))
        torch.testing.assert_close(found, values, rtol=1e-4, atol=1e-6)
        assert moved.isfinite().all(), (cost, scale)
        assert (moved - slopes).norm() <= 1e-2 * slopes.norm() + 1e-3 * (away == 0), (cost, scale)


def _counted(method: Callable[..., object], seen: list[object]) -> Callable[..., object]:
    def counting(*given: object) -> object:
        seen.append(given)
        return method(*given)

    return counting


def test_a_dead_network_has_a_finite_gradient() -> None:
    model = net("pieces")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert objective(model, joint=True)(unknowns(joint=True), EVERY)[1].isfinite().all()


@pytest.mark.numeric
def test_float32_networks_of_the_papers_keep_the_direction() -> None:
    for name, side, width in (("lenet", 16, 0), ("resnet20", 16, 1), ("convnet", 32, 8)):
        model = build_model(name, num_classes=CLASSES, input_shape=(2, side, side), width=width).eval()
        targets = {n: random(2, *p.shape, seed=i).float() for i, (n, p) in enumerate(model.named_parameters())}
        exact = matching(model, (1, 2, side, side), targets, torch.arange(2)[:, None], "cosine", 0.0, CLASSES)
        rows = random(2, 2 * side**2, seed=3).float()
        assert finite_difference.agrees(exact, rows), name


def tied() -> nn.Module:
    first, second = nn.Linear(72, 72), nn.Linear(72, 72)
    second.weight = first.weight
    return nn.Sequential(nn.Flatten(), first, nn.Tanh(), second, nn.Linear(72, CLASSES))


def test_models_without_a_trial_form_are_refused_and_what_cannot_be_differenced_is_noticed() -> None:
    torch.manual_seed(0)
    for build, why in (
        (lambda: nn.Sequential(nn.Conv1d(2, 2, 3)), "Conv1d has no form with one weight per trial"),
        (tied, "layers that share weights"),
        (lambda: nn.Sequential(nn.Conv2d(2, 2, 3, padding_mode="reflect", padding=1)), "Conv2d has no form"),
        (lambda: nn.Sequential(nn.Conv2d(2, 2, 2, padding="same")), "different amounts"),
    ):
        with pytest.raises(AttackError, match=why):
            TrialNetwork(build())
    exact = objective(attackable(tied().double(), False))
    assert torch.isfinite(exact(unknowns(), EVERY)[1]).all()
    assert not finite_difference.agrees(exact, unknowns())
    # BatchNorm without weights is no trial layer: its batch would be that of all trials.
    norm = nn.BatchNorm2d(4, affine=False)
    mixing = nn.Sequential(nn.Conv2d(1, 4, 3), norm, nn.Sigmoid(), nn.Flatten(), nn.Linear(400, 4))
    seen = [sent(mixing, pictures(1, seed=at), torch.tensor([at])) for at in range(2)]
    guesses = GradientInversion(iterations=3).attack_many(seen, generators(2))
    assert [guess.diagnostics["differenced"] for guess in guesses] == [0.0, 0.0]


def with_statistics(model: nn.Module, batch: int) -> GradientMatching:
    exact = objective(model, batch)
    mean, variance = random(TRIALS, 4, seed=20), random(TRIALS, 4, seed=21).abs() + 0.1
    exact.prior, exact.observed = StatisticsPrior(model, 3.0), {"1": (mean, variance)}
    return exact


def test_batch_statistics_are_read_of_the_second_pass() -> None:
    model = attackable(net("batch norm"), True)
    for batch in (1, 2):
        exact, rows, some = with_statistics(model, batch), unknowns(batch)[1:], torch.tensor([1, 2])
        gradients, without = exact(rows, some)[1], objective(model, batch)(rows, some)[1]
        assert ((gradients - without).norm(dim=1) > 0.1 * gradients.norm(dim=1)).all()  # The prior counts here.
        differenced = finite_difference.DifferencedMatching(exact)
        for pair in ((exact, differenced), (exact.with_prior(0.5), differenced.with_prior(0.5))):
            (losses, gradients), (other_losses, other) = (one(rows, some) for one in pair)
            torch.testing.assert_close(other_losses, losses, rtol=1e-6, atol=1e-6)
            assert relative_error(other, gradients) < 1e-4


def test_normalised_by_what_was_sent_is_a_network_with_these_constants() -> None:
    for batch in (1, 2):
        rows, exact = unknowns(batch), with_statistics(attackable(net("batch norm"), True), batch)
        differenced = finite_difference.DifferencedMatching(exact)
        assert differenced.normalised().constants == {"1"}
        losses, gradients = differenced.normalised()(rows, EVERY)
        own = differenced(rows, EVERY)[0]
        assert ((losses - own).abs() > 1e-3).all()  # And the original is as it was.
        torch.testing.assert_close(own, exact(rows, EVERY)[0], rtol=1e-6, atol=1e-6)
        for trial in range(TRIALS):
            constant = attackable(net("batch norm"), False)
            mean, variance = (values[trial] for values in exact.observed["1"])
            constant[1].running_mean, constant[1].running_var = mean, variance  # type: ignore[index]
            loss, gradient = with_statistics(constant, batch)(rows[trial : trial + 1], torch.tensor([trial]))
            torch.testing.assert_close(losses[trial : trial + 1], loss, rtol=1e-6, atol=1e-6)
            assert relative_error(gradients[trial : trial + 1], gradient) < 1e-4
    # Without statistics, or with a variance of 0, a layer normalises by its batch.
    exact.observed["1"][1][0, 2] = 0
    for one in (exact, objective(attackable(net("batch norm"), True))):
        differenced = finite_difference.DifferencedMatching(one)
        assert differenced.normalised() is differenced
        assert differenced.constants == frozenset()
