"""The two scores of a policy: how little its gradients reveal (S_pri), and how well a model distinguishes its images (S_acc).

Two scores go under the name S_pri, and they rank policies differently. The paper defines one; the code that its authors released,
in every version since March 2021, computes another and ranks policies by it, so that the other one chose the authors' policies:

- ``paper_score``: Eq. 5, the cosine of the whole gradients; Eq. 7, the sum at K points without the end of the way;
- ``released_score``: the unweighted mean over parameter tensors of their own cosines, so that the bias of a norm counts as much as
  the largest weight; the trapezoid rule, which counts the end.

Source: Gao et al., Privacy-preserving Collaborative Learning with Automatic Transformation Search, CVPR 2021, Eqs. 5 to 10, and
github.com/gaow0007/ATSPrivacy, benchmark/search_transform_attack.py and searchalg/search_best.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from simulations.search.gradients import ExampleGradients, Similarities

EPSILON = 1e-5
"""Of Eq. 10, for numerical stability."""


def similarity_curves(
    gradients: ExampleGradients,
    protected: Tensor,
    noise: Tensor,
    targets: Tensor,
    steps: int,
    starts: Sequence[Tensor] | None = None,
) -> Similarities:
    """GradSim(x'(j / steps), T(x)) on the straight path from noise to the protected image, of each image (Eq. 6), by both measures.

    Args:
        gradients: Of the semi-trained model.
        protected: T(x), (I, C, H, W), normalised.
        noise: x_0, the same shape, normalised.
        targets: (I, K), class probabilities.
        steps: K of Eq. 7.
        starts: The gradients at the noise, which no policy changes.

    Returns:
        (I, steps) of each measure: at j = 0 .. steps - 1. At j = steps it is 1.
    """
    first = 0 if starts is None else 1
    share = torch.arange(first, steps + 1, device=protected.device, dtype=protected.dtype).view(-1, 1, 1, 1) / steps
    points = torch.lerp(noise.unsqueeze(1), protected.unsqueeze(1), share)
    return gradients.similarities(points, targets, starts)


def paper_score(curves: Similarities) -> Tensor:
    """S_pri (I,) in [-1, 1] of curves (I, K) by the paper's Eqs. 5 and 7; lower is more private."""
    return curves.whole.mean(1)


def released_score(curves: Similarities) -> Tensor:
    """S_pri (I,) in [-1, 1] of curves (I, K) by the authors' released code: tensor by tensor, and by the trapezoid rule."""
    steps = curves.per_tensor.shape[1]
    return curves.per_tensor.mean(1) + (1 - curves.per_tensor[:, 0]) / (2 * steps)


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
