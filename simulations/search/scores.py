"""The two scores of a policy: how little its gradients reveal (S_pri), and how well a model distinguishes its images (S_acc).

S_pri is that of the code which the authors released, by which they chose their policies; it ranks policies differently from the
paper's. GradSim of two gradients is the unweighted mean over parameter tensors of their own cosines, so that the bias of a norm
counts as much as the largest weight (Eq. 5: the cosine of the whole gradients). The mean over the path is by the trapezoid rule,
which counts the end (Eq. 7: the sum at K points without the end).

Source: Gao et al., Privacy-preserving Collaborative Learning with Automatic Transformation Search, CVPR 2021, Eqs. 5 to 10, and
github.com/gaow0007/ATSPrivacy, benchmark/search_transform_attack.py and searchalg/search_best.py.
"""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from defenses.tensors import Tensors
from simulations.settings.errors import ConfigError

EPSILON = 1e-5
"""Of Eq. 10, for numerical stability."""
MOST_BYTES = 1 << 27
"""Of the gradients of one pass."""
MOST_EXAMPLES = 32
"""Of one pass: more are no faster."""


class ExampleGradients:
    """Gradients of the cross-entropy of single examples by all parameters, of one model in eval mode.

    ``torch.func`` computes one gradient for each example of a pass: a loop over examples spends its time on overhead.

    Args:
        model: Copied; later changes of its weights change nothing here.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = copy.deepcopy(model).requires_grad_(True).eval()
        self._weights = {name: weight.detach() for name, weight in self.model.named_parameters()}
        self._each = vmap(grad(self._loss), in_dims=(None, 0, 0))
        size = 4 * sum(weight.numel() for weight in self._weights.values())
        self._at_once = min(MOST_EXAMPLES, max(1, MOST_BYTES // size))
        self._reached: tuple[str, ...] = ()

    def _loss(self, weights: Tensors, image: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(self.model, weights, (image[None],)), target[None])

    def verify(self, shape: Sequence[int], classes: int) -> None:
        """Raise ``ConfigError`` where the model does what ``torch.func.vmap`` cannot follow, on images (C, H, W)."""
        images = torch.randn(2, *shape, generator=torch.Generator().manual_seed(0))
        try:
            self.of(images, F.one_hot(torch.arange(2) % classes, classes).float())
        except (RuntimeError, ValueError) as error:
            raise ConfigError(f"the gradients of single examples cannot be computed by torch.func: {error}") from error

    def of(self, images: Tensor, targets: Tensor) -> list[Tensor]:
        """The gradients at images (B, C, H, W), normalised, with targets (B, K), class probabilities.

        Returns:
            (B, numbers in the tensor) for each parameter tensor that the loss reaches, in the model's order.
        """
        # The zeros that torch.func gives for the others would count as dissimilar gradients.
        self._reached = self._reached or self._names_reached(images[0], targets[0])
        passes = zip(torch.split(images, self._at_once), torch.split(targets, self._at_once), strict=True)
        gradients = [self._each(self._weights, *some) for some in passes]
        return [torch.cat([part[name] for part in gradients]).reshape(len(images), -1) for name in self._reached]

    def _names_reached(self, image: Tensor, target: Tensor) -> tuple[str, ...]:
        weights = {name: weight.clone().requires_grad_(True) for name, weight in self._weights.items()}
        gradients = torch.autograd.grad(self._loss(weights, image, target), list(weights.values()), allow_unused=True)
        return tuple(name for name, gradient in zip(weights, gradients, strict=True) if gradient is not None)

    def along(self, path: Tensor, target: Tensor) -> Tensor:
        """GradSim of the gradients at the points of an image's path with that at its last point.

        Args:
            path: (J, C, H, W), normalised. Points are taken from the end, so that one pass holds few gradients.
            target: (K,), class probabilities, the same for all points.

        Returns:
            (J - 1,), in [-1, 1]; a cosine is 0 where a gradient vanishes.
        """
        products, squares, last = list[Tensor](), list[Tensor](), list[Tensor]()
        for some in torch.split(path.flip(0), self._at_once):
            rows = self.of(some, target.expand(len(some), -1))
            last = last or [row[0] for row in rows]
            products.append(torch.stack([row @ end for row, end in zip(rows, last, strict=True)], 1).double())
            squares.append(torch.stack([torch.linalg.vector_norm(row, dim=1).square() for row in rows], 1).double())
        dots, norms = torch.cat(products)[1:].flip(0), torch.cat(squares)
        return _cosine(dots, norms[1:].flip(0), norms[:1]).mean(1)


def _cosine(products: Tensor, norms: Tensor, last: Tensor) -> Tensor:
    length = (norms * last).sqrt()
    return torch.where(length > 0, products / length.clamp(min=torch.finfo(length.dtype).tiny), 0.0).clamp(-1, 1)


def similarity_curves(
    gradients: ExampleGradients,
    protected: Tensor,
    noise: Tensor,
    targets: Tensor,
    steps: int,
) -> Tensor:
    """GradSim(x'(j / steps), T(x)) on the straight path from noise to the protected image, of each image (Eq. 6).

    Args:
        gradients: Of the semi-trained model.
        protected: T(x), (I, C, H, W), normalised.
        noise: x_0, the same shape, normalised.
        targets: (I, K), class probabilities.
        steps: K of Eq. 7.

    Returns:
        (I, steps): at j = 0 .. steps - 1. At j = steps it is 1.
    """
    share = torch.arange(steps + 1, device=protected.device, dtype=protected.dtype).view(-1, 1, 1, 1) / steps
    paths = zip(noise, protected, targets, strict=True)
    return torch.stack([gradients.along(torch.lerp(start, end, share), target) for start, end, target in paths])


def privacy_score(curves: Tensor) -> Tensor:
    """S_pri (I,) in [-1, 1] of curves (I, K), by the trapezoid rule; lower is more private."""
    return curves.mean(1) + (1 - curves[:, 0]) / (2 * curves.shape[1])


def accuracy_score(model: nn.Module, images: Tensor) -> float:
    """S_acc of a batch (Eqs. 8 to 10): how far the model's slopes at its images are from being all alike.

    The rows of the Jacobian are the gradients of the sum of an image's logits by its pixels; their correlation matrix has the
    eigenvalues s_i, and the score is -(1 / N) sum_i log(s_i + e) + 1 / (s_i + e), at most -1 (reached where all rows are
    uncorrelated). The paper prints it without the minus, with which alone "at least a threshold" keeps the good policies, and
    centres rows by 1 / N, where only their own mean gives a correlation; its thresholds are of the sum, not of the mean.

    Args:
        model: Randomly initialised; scored in eval mode, in which no example depends on the others of its batch.
        images: (N, C, H, W), normalised, N of 2 or more, of different classes.
    """
    images = images.detach().requires_grad_()
    model.eval()
    with torch.enable_grad():
        (rows,) = torch.autograd.grad(model(images).sum(), images)
    rows = rows.flatten(1).double()
    rows = rows - rows.mean(1, keepdim=True)
    rows = rows / rows.norm(dim=1, keepdim=True).clamp(min=torch.finfo(rows.dtype).tiny)
    values = torch.linalg.eigvalsh(rows @ rows.T) + EPSILON
    return -float((values.log() + 1 / values).mean())
