import pytest
import torch
from torch import nn
from torch.func import grad, grad_and_value, vmap
from torch.nn import functional as F

from attacks.gradient.lbfgs import minimize
from attacks.gradient.trial_gradients.local_steps import LocalSGD, local_orders, logits_of, simulated_training
from attacks.gradient.trial_gradients.matching import attackable
from attacks.guesses import Reconstruction
from attacks.scoring.metrics import score
from tests.attacks.wire import CLASSES, MEAN, STD, classes, pictures, seeded, sigmoid_net

ORDER = [[0, 2], [1, 3], [3, 0], [2, 1]]


def simulated(model, images, soft_labels, order, *sgd):
    weights = {name: p.detach() for name, p in model.named_parameters()}
    network = logits_of(model, dict(model.named_buffers()))
    return simulated_training(network, weights, images, soft_labels, order, LocalSGD(*sgd))[0]


def batch(count, dtype=torch.float64, seed=3):
    images = (pictures(count, seed=seed).to(dtype) - MEAN[0]) / STD[0]
    return images, F.one_hot(classes(count, seed=seed), CLASSES).to(dtype)


def real_update(model, images, soft_labels, order, **options):
    """A client's training loop."""
    client = attackable(model, train_mode=False)
    before = {name: p.detach().clone() for name, p in client.named_parameters()}
    optimizer = torch.optim.SGD(client.parameters(), **options)
    for indices in order:
        optimizer.zero_grad()
        F.cross_entropy(client(images[indices]), soft_labels[indices]).backward()
        optimizer.step()
    return {name: p.detach() - before[name] for name, p in client.named_parameters()}


@pytest.mark.parametrize(
    ("momentum", "weight_decay", "nesterov"),
    [(0, 0, False), (0.9, 0, False), (0, 0.1, False), (0.9, 0.1, False), (0.9, 0, True), (0.9, 0.1, True)],
)
def test_equals_torch_sgd(momentum, weight_decay, nesterov):
    model, (images, soft) = sigmoid_net().double(), batch(4)
    soft = 0.7 * soft + 0.3 / CLASSES
    guess = simulated(model, images, soft, ORDER, 0.5, momentum, weight_decay, nesterov)
    options = {"momentum": momentum, "weight_decay": weight_decay, "nesterov": nesterov}
    truth = real_update(model, images, soft, ORDER, lr=0.5, **options)
    for name, value in truth.items():
        assert torch.allclose(guess[name], value, atol=1e-10)
        assert value.abs().max() > 1e-4


def test_one_batch_size_of_several_and_none():
    model, (images, soft) = sigmoid_net().double(), batch(3)
    assert all(not v.any() for v in simulated(model, images, soft, [], 0.5).values())
    order = [[0, 1], [2]]
    guess = simulated(model, images, soft, order, 0.5)
    truth = real_update(model, images, soft, order, lr=0.5)
    assert all(torch.allclose(guess[name], value) for name, value in truth.items())


def test_batch_norm_of_the_batch_under_vmap():
    layers = [nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Sigmoid(), nn.Flatten(), nn.Linear(300, CLASSES)]
    model = attackable(seeded(nn.Sequential(*layers)).double(), train_mode=True)
    images, soft = batch(4)
    many = torch.stack([images, images.flip(0)])
    run = vmap(lambda x: simulated(model, x, soft, ORDER, 0.5))(many)
    for row, x in enumerate(many):
        truth = real_update(model, x, soft, ORDER, lr=0.5)
        assert all(torch.allclose(run[name][row], value, atol=1e-10) for name, value in truth.items())


def test_is_differentiable_twice():
    model, (images, soft) = seeded(nn.Sequential(nn.Flatten(), nn.Linear(4, CLASSES))).double(), batch(2)
    images = images[..., :2, :2].contiguous().requires_grad_()

    def size(x):
        update = simulated(model, x, soft, [[0], [1], [1], [0]], 0.5, 0.9, 0.1)
        return sum(value.square().sum() for value in update.values())

    assert torch.autograd.gradcheck(size, images)
    assert torch.autograd.gradgradcheck(size, images)
    # torch.func agrees with autograd.
    expected = torch.autograd.grad(size(images), images)[0]
    assert torch.allclose(grad(size)(images.detach()), expected)


def test_orders_are_epochs_of_batches():
    orders = local_orders(5, 2, 8, torch.Generator().manual_seed(0))
    assert orders[:3] == [[0, 1], [2, 3], [4]]
    assert [len(step) for step in orders] == [2, 2, 1, 2, 2, 1, 2, 2]
    assert sorted(index for step in orders[3:6] for index in step) == list(range(5))
    assert orders[3:6] != orders[:3]
    assert local_orders(5, 2, 8, torch.Generator().manual_seed(0)) == orders
    assert local_orders(2, 64, 2, torch.Generator())[0] == [0, 1]


def attacked(unrolled, images, soft, order, rate, iterations=80):
    """L-BFGS on the squared distance of updates; PSNR of both images."""
    model = sigmoid_net(seed=1).double()
    target = real_update(model, images, soft, order, lr=rate)
    # Treating the update as one mean gradient is one step on all examples, with the steps' total length.
    assumed = (order, rate) if unrolled else ([[0, 1]], rate * len(order))
    norm = sum(value.square().sum() for value in target.values())

    def loss(x):
        guess = simulated(model, x.view(images.shape), soft, *assumed)
        return sum((guess[name] - value).square().sum() for name, value in target.items()) / norm

    def objective(unknowns, _):
        gradients, losses = vmap(grad_and_value(loss))(unknowns)
        return losses.detach(), gradients.detach()

    pixels = images.numel()
    low, high = ((v - MEAN[0]) / STD[0] * torch.ones(pixels, dtype=torch.float64) for v in (0, 1))
    start = torch.randn(1, pixels, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = minimize(objective, start, (low, high), iterations).unknowns.view(images.shape)
    to_picture = [x * STD[0] + MEAN[0] for x in (found, images)]
    scores = score(Reconstruction(to_picture[0], torch.zeros(2)), to_picture[1])["psnr"]
    return sum(scores) / len(scores)


@pytest.mark.long
@pytest.mark.parametrize("seed", [3, 4])
def test_unrolling_recovers_what_a_mean_gradient_blurs(seed):
    images, soft = batch(2, seed=seed)
    soft = F.one_hot(torch.tensor([0, 1]), CLASSES).double()
    order = [[0], [1], [1], [0]]  # two epochs at batch 1
    unrolled, averaged = (attacked(way, images, soft, order, rate=0.1) for way in (True, False))
    print(f"psnr unrolled {unrolled:.1f} dB, as one mean gradient {averaged:.1f} dB")
    assert unrolled > averaged + 5
    assert unrolled > 25
