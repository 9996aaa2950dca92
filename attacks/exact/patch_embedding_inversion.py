"""Pixels of a vision transformer's input, from the gradients of its patch projection and of its position embedding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from attacks.exact.base import SolvingAttack, recovered
from attacks.exact.linear_layer import one_step_gradient
from attacks.exact.patch_embedding import patch_embedding
from attacks.gradient.trial_gradients.matching import attackable
from attacks.guesses import Reconstruction
from attacks.observations import AttackError, ClientUpdate, require_trained

ROUNDING = 2.0**-24
"""Half the distance of single-precision numbers at 1: the least relative error of what a client computes."""


@dataclass(frozen=True, repr=False)
class PatchEmbeddingInversion(SolvingAttack):
    """Solve for all pixels of one image, from an update of a vision transformer with a trained position embedding.

    A token is e_t = W x_t + b + p_t, of patch x_t and position embedding p_t. So dL/dp_t = dL/de_t: the update holds the gradient
    of each token. The gradient of the patch projection, dL/dW = sum_t dL/de_t x_t^T, is then a linear system for the patches,

        G^T X = dL/dW,    G (T, D) with rows dL/dp_t,  X (T, P) with rows x_t,  dL/dW (D, P).

    It determines X if the rows of G are linearly independent, whatever follows the embedding (norm before or after attention, class
    token or mean of the tokens, any depth), and whether or not W has an inverse. A LayerNorm on the tokens leaves the rows of G
    orthogonal to the vector of ones, so that at most D - 1 patches are determined. For more patches, or under noise, X is the
    posterior mean for normalised pixels of variance 1 (ridge regression), with the error's variance from the part of dL/dW
    outside of the span of G.

    Exact for one example where ``rank`` equals ``tokens``, up to the rounding of weights, whose difference the update is, times
    ``condition``. ``gradient_distance`` near 0 shows that the image explains the whole update. For a batch G and dL/dW are sums
    over the examples, which have no exact solution: the attack returns one image, a mixture, and ``residual`` is far from 0. The
    mixture resembles an image whose gradient is much longer than the others'.

    Reports "does not apply" if no layer sees patches of pixels, if no trained position embedding is added to its outputs, and for
    an update of several steps. It also does so if the update leaves out one of the two, or if one of their gradients is zero:
    frozen parameters, or a head whose weights are still zero, as torchvision starts it.

    Diagnostics: ``tokens`` (T), ``rank`` (of G: below T pixels are missing) and ``condition`` (of G). ``residual`` is the length of
    dL/dW - G^T X over that of dL/dW. ``gradient_distance`` is 1 - cosine of the gradients of guess and update. ``outside_share``
    is that of pixels beyond [0, 1] by 0.01 or more.
    """

    reads_patch_embedding: ClassVar[bool] = True
    source: ClassVar[str] = (
        "Lu, Zhang, Zhao, He, Cheng, APRIL: Finding the Achilles' Heel on Privacy for Vision Transformers, CVPR 2022: the gradient "
        "of the position embedding is that of the tokens, and gives a linear system for them. The paper solves it at the first "
        "attention, of networks whose tokens are its very inputs; to solve it at the patch projection, and the ridge, are ours"
    )

    def solve(self, observation: ClientUpdate, generator: torch.Generator, numbers: dict[str, float]) -> Reconstruction:
        """See ``SolvingAttack``."""
        observation.require_one_step()
        model = attackable(observation.model, observation.train_mode)
        layer = patch_embedding(model, observation.input_shape, next(model.parameters()))
        pair = (("patch projection", layer.weight), ("position embedding", layer.positions))
        for what, name in pair:
            if name not in observation.update:
                raise AttackError(f"does not apply: the update leaves out the {what} {name!r}")
        gradient = one_step_gradient(observation)
        for what, name in pair:
            require_trained(gradient, f"the {what}", name)
        slopes, weight = layer.slopes(gradient[layer.positions]), gradient[layer.weight].double().cpu().flatten(1)
        for what, name, value in (
            ("patch projection", layer.weight, weight),
            ("position embedding", layer.positions, slopes),
        ):
            if not value.any():
                raise AttackError(
                    f"does not apply: the gradient of the {what} {name!r} is zero: it is frozen, or the weights of the head are "
                    "still zero"
                )
        patches = solved_patches(slopes, weight, numbers)
        return recovered(
            observation, model, gradient, layer.module, layer.image(patches), layer.signals(slopes), numbers
        )


def solved_patches(slopes: Tensor, weight: Tensor, numbers: dict[str, float]) -> Tensor:
    """The posterior mean of X (T, P) for slopes^T X = weight + error, with entries of X of mean 0 and variance 1.

    Args:
        slopes: (T, D), double precision.
        weight: (D, P), double precision.
        numbers: Receives ``tokens``, ``rank``, ``condition`` and ``residual``.
    """
    tokens, width = slopes.shape
    left, values, right = torch.linalg.svd(slopes, full_matrices=False)
    rank = int((values > max(tokens, width) * ROUNDING * values[0]).sum())
    inside = right @ weight
    # What the span of the tokens' gradients leaves of dL/dW is error. Where it leaves nothing, rounding is all that is known.
    error = weight - right[:rank].T @ inside[:rank]
    variance = float(error.square().sum()) / (max(width - rank, 1) * weight.shape[1])
    variance = max(variance, float((ROUNDING * weight).square().mean()))
    patches: Tensor = left @ ((values / (values.square() + variance))[:, None] * inside)
    residual = float((weight - slopes.T @ patches).norm() / weight.norm())
    numbers |= {
        "tokens": float(tokens),
        "rank": float(rank),
        "condition": float(values[0] / values[rank - 1]),
        "residual": residual,
    }
    return patches
