"""The batched objective against plain autograd, one trial at a time."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attacks.gradient.costs import COSTS
from attacks.gradient.trial_gradients.matching import GradientMatching, MatchingProblem, attackable, count_classes
from attacks.image_measures import total_variation

TRIALS, BATCH, CLASSES = 3, 2, 4
SHAPE = (BATCH, 2, 6, 6)


class Attention(nn.Module):
    """One fused attention over image rows: its fast kernels have no second derivative."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(12, 36)
        self.head = nn.Linear(12, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        tokens = images.permute(0, 2, 1, 3).flatten(2)
        q, k, v = self.mix(F.layer_norm(tokens, (12,))).chunk(3, -1)
        return self.head(F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0].mean(1))


NETS = {
    "conv": lambda: nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, CLASSES)
    ),
    "group": lambda: nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Sigmoid(), nn.Flatten(), nn.Linear(64, CLASSES)
    ),
    "batch": lambda: nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Sigmoid(), nn.Flatten(), nn.Linear(64, CLASSES)
    ),
    "attention": Attention,
}


def net(name: str) -> nn.Module:
    torch.manual_seed(0)
    return NETS[name]().double()


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def plain(model: nn.Module, images: Tensor, labels: Tensor, *, create_graph: bool = False) -> dict[str, Tensor]:
    """Gradient of the mean soft-label cross-entropy, by plain autograd on a copy in the mode of ``model``."""
    loss = F.cross_entropy(model(images), labels)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        loss = F.cross_entropy(model(images), labels)
    names, parameters = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, parameters, create_graph=create_graph), strict=True))


def distance(cost: str, gradient: dict[str, Tensor], target: dict[str, Tensor]) -> Tensor:
    a, b = (torch.cat([g[name].flatten() for name in gradient]) for g in (gradient, target))
    if cost == "cosine":
        return 1 - F.cosine_similarity(a, b, dim=0)
    return (a - b).abs().sum() if cost == "l1" else (a - b).square().sum()


@pytest.mark.parametrize("cost", ["cosine", "l2", "l1"])
@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize(
    ("name", "train_mode"), [("conv", True), ("group", True), ("batch", True), ("batch", False), ("attention", True)]
)
def test_equals_plain_autograd(name, train_mode, joint, cost):
    model = net(name).train(train_mode)
    targets = [
        plain(copy.deepcopy(model), random(*SHAPE, seed=t), random(BATCH, CLASSES, seed=9).softmax(1))
        for t in range(TRIALS)
    ]
    stacked = {n: torch.stack([t[n] for t in targets]) for n in targets[0]}
    labels = torch.tensor([[0, 1], [2, 3], [3, 3]])
    objective = GradientMatching(
        MatchingProblem(
            attackable(model, train_mode), SHAPE, CLASSES, stacked, None if joint else labels, COSTS[cost], 0.1
        )
    )
    pixels = torch.Size(SHAPE).numel()
    unknowns = random(TRIALS, pixels + (BATCH * CLASSES if joint else 0), seed=5)
    rows = torch.tensor([0, 2])
    for chosen in (torch.arange(TRIALS), rows):
        losses, gradients = objective(unknowns[chosen], chosen)
        for row, loss, gradient in zip(chosen.tolist(), losses, gradients, strict=True):
            x = unknowns[row].clone().requires_grad_()
            images, logits = x[:pixels].view(SHAPE), x[pixels:].view(-1, CLASSES)
            soft = logits.softmax(1) if joint else F.one_hot(labels[row], CLASSES).double()
            matched = plain(copy.deepcopy(model), images, soft, create_graph=True)
            expected = distance(cost, matched, targets[row]) + 0.1 * total_variation(images).mean()
            assert loss.item() == pytest.approx(expected.item(), rel=1e-8)
            assert torch.allclose(gradient, torch.autograd.grad(expected, x)[0], rtol=1e-6, atol=1e-10)


def test_objective_is_zero_at_the_truth():
    model, images, labels = net("conv"), random(*SHAPE, seed=0), torch.tensor([1, 2])
    target = {name: g[None] for name, g in plain(model, images, F.one_hot(labels, CLASSES).double()).items()}
    for cost in ("cosine", "l2", "l1"):
        objective = GradientMatching(
            MatchingProblem(attackable(model, True), SHAPE, CLASSES, target, labels[None], COSTS[cost], 0.0)
        )
        assert objective(images.flatten()[None], torch.tensor([0]))[0].abs().item() < 1e-12


def test_cosine_of_a_dead_network_is_one_with_a_finite_gradient():
    model = net("conv")
    target = {name: torch.ones_like(p)[None] for name, p in model.named_parameters()}
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
        model[4].bias.copy_(torch.tensor([1e4, 0, 0, 0]))
    objective = GradientMatching(
        MatchingProblem(
            attackable(model, True), SHAPE, CLASSES, target, torch.zeros(1, BATCH).long(), COSTS["cosine"], 0.0
        )
    )
    loss, gradient = objective(random(1, torch.Size(SHAPE).numel(), seed=0), torch.tensor([0]))
    assert loss.tolist() == [1]
    assert gradient.isfinite().all()


def test_prior_can_be_changed_without_touching_the_original():
    model, x = net("conv"), random(1, torch.Size(SHAPE).numel(), seed=0)
    target = {name: torch.ones_like(p)[None] for name, p in model.named_parameters()}
    objective = GradientMatching(
        MatchingProblem(attackable(model, True), SHAPE, CLASSES, target, torch.zeros(1, BATCH).long(), COSTS["l2"], 0.5)
    )
    row = torch.tensor([0])
    before = objective(x, row)[0]
    without = objective.with_prior(0.0)(x, row)[0]
    assert (before - without).item() == pytest.approx(0.5 * total_variation(x.view(SHAPE)).mean().item())
    assert torch.equal(objective(x, row)[0], before)


def test_attackable_uses_batch_statistics_only_where_the_client_did_and_changes_nothing():
    model = net("batch").train()
    before = copy.deepcopy(model.state_dict())
    images = random(*SHAPE, seed=0)
    assert torch.allclose(attackable(model, True)(images), copy.deepcopy(model)(images))
    assert torch.allclose(attackable(model, False)(images), copy.deepcopy(model).eval()(images))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(module.training for module in model.modules())
    assert count_classes(attackable(model, True), (2, 6, 6), images) == CLASSES
