"""The two scores against closed forms, NumPy and a plain loop."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clients.models.classifiers import build_model
from simulations.search import scores
from simulations.search.scorer import PATH_STEPS, Scorer
from simulations.search.settings import Search


class Slopes(nn.Module):
    """Logits whose sum has given gradients: row n of J is row n of ``slopes``."""

    def __init__(self, slopes: Tensor) -> None:
        super().__init__()
        self.slopes = slopes

    def forward(self, images: Tensor) -> Tensor:
        return (images.flatten(1) * self.slopes).unsqueeze(-1).sum(1)


def score_of(slopes: Tensor) -> float:
    """The sum over eigenvalues."""
    return len(slopes) * scores.accuracy_score(Slopes(slopes), torch.zeros(len(slopes), 1, 1, slopes.shape[1]).double())


def orthogonal(count: int, length: int = 128) -> Tensor:
    """Orthonormal rows of mean 0."""
    columns = torch.randn(length, count, generator=torch.Generator().manual_seed(0)).double()
    found, _ = torch.linalg.qr(torch.cat([torch.ones(length, 1).double(), columns], 1))
    return found[:, 1:].T


def test_uncorrelated_slopes_reach_the_highest_score_and_those_that_are_all_alike_the_published_ones() -> None:
    for count in (2, 10, 63):
        assert score_of(orthogonal(count)) == pytest.approx(-count, rel=1e-9)
    assert score_of(orthogonal(10)) == pytest.approx(-10.0000000005, abs=2e-10)  # the published value of the sum
    row = torch.randn(1, 50, generator=torch.Generator().manual_seed(0)).double()
    for count, known in ((10, -899_898.79), (63, -6_199_290.4), (2, -99_989.68)):
        assert score_of(row.repeat(count, 1)) == pytest.approx(known, rel=1e-7)


def test_two_images_are_scored_by_their_correlation_alone() -> None:
    """The eigenvalues are 1 + rho and 1 - rho; the score falls with the size of rho."""
    first, second = orthogonal(2)
    found = []
    for rho in (0.0, 0.3, -0.3, 0.6, 0.9):
        mixed = rho * first + math.sqrt(1 - rho**2) * second
        found.append(score_of(torch.stack([first, mixed])))
        closed = -sum(math.log(value + scores.EPSILON) + 1 / (value + scores.EPSILON) for value in (1 + rho, 1 - rho))
        assert found[-1] == pytest.approx(closed, rel=1e-9)
    assert found[1] == pytest.approx(found[2])
    assert found[0] > found[1] > found[3] > found[4]


def test_a_network_s_score_is_that_of_numpy() -> None:
    model = build_model("convnet", num_classes=10, input_shape=(3, 32, 32), width=4, norm="batch", seed=1).double()
    images = torch.randn(12, 3, 32, 32, generator=torch.Generator().manual_seed(0)).double()
    copy = images.clone().requires_grad_()
    model.eval()(copy).sum().backward()
    correlation = np.corrcoef(copy.grad.flatten(1).numpy())  # type: ignore[union-attr]
    values = np.linalg.eigvalsh(correlation) + 1e-5
    expected = -np.sum(np.log(values) + 1 / values)
    assert scores.accuracy_score(model.train(), images) == pytest.approx(expected / 12, rel=1e-7), "in either mode"
    assert expected < -12


def gradient_by_autograd(model: nn.Module, image: Tensor, target: Tensor) -> list[Tensor]:
    """Of the cross-entropy of one image (C, H, W), by each parameter tensor, flattened."""
    found = torch.autograd.grad(F.cross_entropy(model(image[None]), target[None]), list(model.parameters()))
    return [one.flatten() for one in found]


def released_by_loop(model: nn.Module, end: Tensor, start: Tensor, target: Tensor, steps: int) -> float:
    """What the authors' released code computes for one image: means of cosines of tensors, and the trapezoids between them."""
    wanted, heights = gradient_by_autograd(model, end, target), []
    for j in range(steps + 1):
        here = gradient_by_autograd(model, (1 - j / steps) * start + j / steps * end, target)
        cosines = [float(F.cosine_similarity(a, b, 0)) for a, b in zip(here, wanted, strict=True)]
        heights.append(sum(cosines) / len(cosines))
    return sum((before + after) / 2 for before, after in pairwise(heights)) / steps


@pytest.mark.parametrize("model", ["cnn", "resnet20"])
def test_a_policy_has_the_score_of_the_released_code(model: str) -> None:
    """BatchNorm is folded in resnet20, which keeps its four tensors apart."""
    search = Search(dataset="photos", model=model, images=2)
    scorer = Scorer(search, search.plan().build_model().state_dict())
    ways = list(zip(scorer.protected((3, 1, 7)), scorer.noise, scorer.targets, strict=True))
    slow = sum(released_by_loop(scorer.gradients.model, *one, PATH_STEPS) for one in ways) / 2
    assert scorer((3, 1, 7), None).privacy == pytest.approx(slow, abs=5e-5)
