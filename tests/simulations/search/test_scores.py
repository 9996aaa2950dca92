"""The two scores against closed forms, NumPy and a plain loop."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clients.models.classifiers import build_model
from simulations.search.gradients import ExampleGradients
from simulations.search.scores import EPSILON, accuracy_score, privacy_score, similarity_curves


class Slopes(nn.Module):
    """Logits whose sum has given gradients: row n of J is row n of ``slopes``."""

    def __init__(self, slopes: Tensor) -> None:
        super().__init__()
        self.slopes = slopes

    def forward(self, images: Tensor) -> Tensor:
        return (images.flatten(1) * self.slopes).unsqueeze(-1).sum(1)


def score_of(slopes: Tensor, reduction: str = "sum") -> float:
    return accuracy_score(Slopes(slopes), torch.zeros(len(slopes), 1, 1, slopes.shape[1]).double(), reduction)


def orthogonal(count: int, length: int = 128) -> Tensor:
    """Orthonormal rows of mean 0."""
    columns = torch.randn(length, count, generator=torch.Generator().manual_seed(0)).double()
    found, _ = torch.linalg.qr(torch.cat([torch.ones(length, 1).double(), columns], 1))
    return found[:, 1:].T


@pytest.mark.parametrize("count", [2, 10, 63])
def test_uncorrelated_slopes_reach_the_highest_score(count: int) -> None:
    assert score_of(orthogonal(count)) == pytest.approx(-count, rel=1e-9)
    assert score_of(orthogonal(count), "mean") == pytest.approx(-1, rel=1e-9)
    if count == 10:  # the published value of the sum
        assert score_of(orthogonal(count)) == pytest.approx(-10.0000000005, abs=2e-10)


@pytest.mark.parametrize(("count", "known"), [(10, -899_898.79), (63, -6_199_290.4), (2, -99_989.68)])
def test_slopes_that_are_all_alike_have_the_published_scores(count: int, known: float) -> None:
    row = torch.randn(1, 50, generator=torch.Generator().manual_seed(0)).double()
    assert score_of(row.repeat(count, 1)) == pytest.approx(known, rel=1e-7)


def test_two_images_are_scored_by_their_correlation_alone() -> None:
    """The eigenvalues are 1 + rho and 1 - rho; the score falls with the size of rho."""
    first, second = orthogonal(2)
    found = []
    for rho in (0.0, 0.3, -0.3, 0.6, 0.9):
        mixed = rho * first + math.sqrt(1 - rho**2) * second
        found.append(score_of(torch.stack([first, mixed])))
        closed = -sum(math.log(value + EPSILON) + 1 / (value + EPSILON) for value in (1 + rho, 1 - rho))
        assert found[-1] == pytest.approx(closed, rel=1e-9)
    assert found[1] == pytest.approx(found[2])
    assert found[0] > found[1] > found[3] > found[4]


def test_scale_and_shift_of_a_row_change_nothing() -> None:
    slopes = torch.randn(6, 40, generator=torch.Generator().manual_seed(0)).double()
    changed = slopes * torch.arange(1, 7).double().unsqueeze(1) + torch.arange(6).double().unsqueeze(1)
    assert score_of(changed) == pytest.approx(score_of(slopes), rel=1e-9)


def test_a_network_s_score_is_that_of_numpy() -> None:
    model = build_model("convnet", num_classes=10, input_shape=(3, 32, 32), width=4, norm="batch", seed=1).double()
    images = torch.randn(12, 3, 32, 32, generator=torch.Generator().manual_seed(0)).double()
    copy = images.clone().requires_grad_()
    model.eval()(copy).sum().backward()
    correlation = np.corrcoef(copy.grad.flatten(1).numpy())  # type: ignore[union-attr]
    values = np.linalg.eigvalsh(correlation) + 1e-5
    expected = -np.sum(np.log(values) + 1 / values)
    assert accuracy_score(model, images, "sum") == pytest.approx(expected, rel=1e-7)
    assert accuracy_score(model, images) == pytest.approx(expected / 12, rel=1e-7)
    assert expected < -12


def test_no_example_of_a_batch_changes_the_slopes_at_another() -> None:
    """In train mode BatchNorm would: the score of a pair depends on nothing but the pair, whatever mode the model came in."""
    model = build_model("resnet20", num_classes=10, input_shape=(3, 32, 32), norm="batch", seed=1).double().train()
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0)).double()
    slopes = []
    for image in images:
        copy = image[None].clone().requires_grad_()
        model.eval()(copy).sum().backward()
        slopes.append(copy.grad.flatten())  # type: ignore[union-attr]
    rho = float(np.corrcoef(torch.stack(slopes).numpy())[0, 1])
    values = np.array([1 - rho, 1 + rho]) + 1e-5
    assert accuracy_score(model.train(), images, "sum") == pytest.approx(-np.sum(np.log(values) + 1 / values), rel=1e-9)


def curves_by_loop(model: nn.Module, protected: Tensor, noise: Tensor, targets: Tensor, steps: int) -> Tensor:
    """GradSim image by image and step by step, with two backward passes each."""
    parameters = list(model.eval().parameters())

    def gradient(image: Tensor, target: Tensor) -> Tensor:
        found = torch.autograd.grad(F.cross_entropy(model(image[None]), target[None]), parameters)
        return torch.cat([g.flatten() for g in found])

    rows = []
    for end, start, target in zip(protected, noise, targets, strict=True):
        wanted = gradient(end, target)
        shares = [j / steps for j in range(steps)]
        rows.append([F.cosine_similarity(gradient((1 - i) * start + i * end, target), wanted, 0) for i in shares])
    return torch.stack([torch.stack(row) for row in rows])


@pytest.fixture(scope="module")
def way() -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    model = build_model("cnn", num_classes=4, input_shape=(3, 32, 32), seed=2).double()
    protected, noise = (torch.randn(3, 3, 32, 32, generator=generator).double() for _ in range(2))
    return model, protected, noise, torch.eye(4)[:3].double()


@pytest.mark.parametrize("shared", [False, True])
def test_curves_and_scores_are_those_of_a_plain_loop(
    way: tuple[nn.Module, Tensor, Tensor, Tensor], shared: bool
) -> None:
    model, protected, noise, targets = way
    engine = ExampleGradients(model)
    starts = list(engine.of(noise, targets)) if shared else None
    found = similarity_curves(engine, protected, noise, targets, 5, starts)
    expected = curves_by_loop(model, protected, noise, targets, 5)
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(privacy_score(found), expected.mean(1))
    with_end = torch.cat([expected, torch.ones(3, 1).double()], 1)
    torch.testing.assert_close(privacy_score(found, "trapezoid"), torch.trapezoid(with_end, dx=1 / 5, dim=1))
    assert (privacy_score(found).abs() <= 1).all()


def test_who_starts_at_the_image_itself_has_no_privacy_and_the_sum_approaches_the_integral(
    way: tuple[nn.Module, Tensor, Tensor, Tensor],
) -> None:
    model, protected, noise, targets = way
    engine = ExampleGradients(model)
    same = similarity_curves(engine, protected, protected, targets, 4)
    torch.testing.assert_close(privacy_score(same), torch.ones(3).double())
    fine = privacy_score(similarity_curves(engine, protected, noise, targets, 400), "trapezoid")
    coarse = [privacy_score(similarity_curves(engine, protected, noise, targets, steps)) for steps in (10, 40, 160)]
    errors = [float((one - fine).abs().max()) for one in coarse]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 0.01
