"""Inverting a client half that the server knows: the pixels of every token, in the order of the tokens, without any image.

The client's blocks commute with permutations. So tokens can be inverted in the order in which they were sent, whatever it is.
"""

import copy
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

from attacks.normalisation import Normalisation
from attacks.sender import ClientHalf
from attacks.smashed.tokens.positions import patch_embedding
from defenses.tensors import ImageShape, Numbers, TensorMap

Encode = TensorMap
MEMORY = 12
"""Earlier steps that the next step of the fixed-point iteration combines."""
FIXED_POINT_STEPS = 40
HOPELESS_STEPS, HOPELESS = 10, 0.1
"""The iteration ends after so many steps if every image's relative residual still exceeds this."""
EXACT = 1e-5
"""Relative residual below which the fixed point is taken for the tokens; the received numbers have single precision."""
PRECISION = 1e-6
"""Error assumed of exact tokens, relative to their root mean square."""
CONTRAST, SMOOTHNESS, COLOUR = 0.25, 0.97, 0.9
"""Of the prior of a patch: standard deviation of a pixel in [0, 1], and correlations of neighbouring pixels and of channels."""
NOISE_LEVELS = (0.2, 0.04, 0.01, 0.002, 0.0005, 0.0001)
"""Standard deviations of the error that the stages of the search allow, relative to the root mean square of received numbers."""
HISTORY = 30
FOUND = 1e-9
"""Relative residual at which the iteration ends."""


def fixed_point(encode: Encode, received: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Find tokens x with encode(x) = received by Anderson's accelerated iteration.

    A transformer block adds to its input, so that x = received - (encode(x) - x) is a fixed-point equation. The iteration starts at
    the received tokens. Each next step combines earlier ones by least squares of their residuals, separately for every image.

    Args:
        encode: (B, N, D) -> (B, N, D), each image by itself.
        received: (B, N, D), finite, in double precision.
        steps: Most evaluations of ``encode``, at least 1.

    Returns:
        The tokens (B, N, D) of the least residual, and this residual |encode(x) - received| / |received| of every image, (B,).

    Source: Anderson, "Iterative Procedures for Nonlinear Integral Equations", Journal of the ACM 1965.
    """
    goal = received.flatten(1)
    size = goal.norm(dim=1).clamp_min(1e-300)
    current, best, least = goal, goal, torch.full_like(size, torch.inf)
    moves: list[Tensor] = []
    changes: list[Tensor] = []
    before: tuple[Tensor, Tensor] | None = None
    for step in range(steps):
        with torch.no_grad():
            residual = goal - encode(current.view_as(received)).flatten(1)
        finite = torch.isfinite(residual).all(1)
        relative = torch.where(finite, residual.norm(dim=1) / size, torch.inf)
        residual = torch.where(finite[:, None], residual, 0)
        best = torch.where((relative < least)[:, None], current, best)
        least = torch.minimum(relative, least)
        if bool((least <= FOUND).all()) or (step == HOPELESS_STEPS and bool((least > HOPELESS).all())):
            break
        if before is not None:
            moves, changes = [*moves[1 - MEMORY :], current - before[0]], [*changes[1 - MEMORY :], residual - before[1]]
        before = current, residual
        current = current + residual
        if changes:
            move, change = torch.stack(moves, 1), torch.stack(changes, 1)
            gram = change @ change.mT
            ridge = 1e-12 * gram.diagonal(dim1=1, dim2=2).mean(1).clamp_min(1e-300)
            gram = gram + ridge[:, None, None] * torch.eye(len(moves)).to(gram)
            weight = torch.linalg.solve(gram, change @ before[1][..., None])
            current = current - ((move + change).mT @ weight)[..., 0]
    return best.view_as(received), least


@dataclass(frozen=True)
class PatchPrior:
    """The client half's embedding, and a Gaussian prior of patches that uses no image: neighbouring pixels are alike.

    A patch is 1/2 + z @ root with z standard normal, and its token z @ weight + offset.

    Attributes:
        root: (P, P), of the covariance of a patch of pixels in [0, 1], in the order of ``to_patches``.
        left: (P, R), left singular vectors of ``weight``.
        values: (R,), singular values.
        right: (R, D), right singular vectors.
        offset: (D,), the token of a grey patch.
    """

    root: Tensor
    left: Tensor
    values: Tensor
    right: Tensor
    offset: Tensor

    @classmethod
    def of(cls, edge: ClientHalf, shape: ImageShape, known: Normalisation) -> Self:
        """The prior of patches of images of shape (C, H, W); raise ``AttackError`` if the embedding is not affine."""
        weight, offset = (part.double() for part in patch_embedding(edge, shape))
        repeated = [
            torch.tensor(statistic, dtype=torch.float64).repeat_interleave(edge.patch_size**2)
            for statistic in (known.mean, known.std)
        ]
        mean, std = (statistic.to(weight.device) for statistic in repeated)
        steps = torch.arange(edge.patch_size, dtype=torch.float64)
        near = SMOOTHNESS ** (steps[:, None] - steps).abs()
        channels = COLOUR + (1 - COLOUR) * torch.eye(shape[0], dtype=torch.float64)
        covariance = CONTRAST**2 * torch.kron(channels, torch.kron(near, near))
        spread, axes = torch.linalg.eigh(covariance.to(weight.device))
        root = (axes * spread.clamp_min(0).sqrt()).T
        left, values, right = torch.linalg.svd((root / std) @ weight, full_matrices=False)
        return cls(root, left, values, right, offset + ((0.5 - mean) / std) @ weight)

    def scales(self, noise: float) -> Tensor:
        """Posterior standard deviations (R,) along the left singular vectors where tokens have so much noise."""
        return (1 + (self.values / noise).square()).rsqrt()

    def patches(self, tokens: Tensor, noise: float) -> Tensor:
        """The most probable pixels (..., P) of embedded tokens (..., D) in double precision."""
        along = (tokens - self.offset) @ self.right.T * self.values / (self.values.square() + noise**2)
        return 0.5 + along @ self.left.T @ self.root

    def search(self, encode: Encode, received: Tensor, noise: float, evaluations: int) -> tuple[Tensor, float]:
        """The most probable patches (N, P) of one image's received tokens (N, D), and their relative residual.

        L-BFGS minimises |encode(tokens) - received|^2 / s^2 + |z|^2. The allowed error s falls in stages (``NOISE_LEVELS``), to the
        given noise at the least. In each stage the variables are scaled by ``scales``, with which the problem of an embedding
        without blocks would need a single step.

        Args:
            encode: (1, N, D) -> (1, N, D), differentiable, in the precision of ``received``.
            received: (N, D).
            noise: Standard deviation of the received numbers' noise, 0 if there is none.
            evaluations: Most evaluations of each stage.

        Source: Liu and Nocedal, "On the Limited Memory BFGS Method", Mathematical Programming 1989.
        """
        size = float(received.square().mean().sqrt().clamp_min(1e-12))
        along, residual = torch.zeros(len(received), len(self.values)).to(self.values), 1.0
        for level in NOISE_LEVELS:
            allowed = max(level * size, noise)
            along, error = self._stage(encode, received, along, allowed, evaluations)
            residual = error / size
            if allowed == noise:
                break
        return 0.5 + along @ self.left.T @ self.root, residual

    def _stage(
        self, encode: Encode, received: Tensor, along: Tensor, noise: float, evaluations: int
    ) -> tuple[Tensor, float]:
        """One stage of the search, from coordinates (N, R) along the left singular vectors; also its root mean square error."""
        scale = self.scales(noise)
        widths, axes, offset = (
            part.to(received) for part in (scale, (scale * self.values)[:, None] * self.right, self.offset)
        )
        inner = (along / scale).to(received).requires_grad_(True)
        optimizer = torch.optim.LBFGS(
            [inner],
            max_iter=evaluations,
            max_eval=evaluations,
            history_size=HISTORY,
            tolerance_grad=0.0,
            tolerance_change=1e-5,
            line_search_fn="strong_wolfe",
        )

        def closure() -> Tensor:
            error = encode((inner @ axes + offset)[None])[0] - received
            loss = (error.square().sum() / noise**2 + (inner * widths).square().sum()) / inner.numel()
            (inner.grad,) = torch.autograd.grad(loss, [inner])
            return loss

        optimizer.step(closure)  # type: ignore[no-untyped-call]
        with torch.no_grad():
            error = encode((inner @ axes + offset)[None])[0] - received
        return inner.detach().to(along) * scale, float(error.square().mean().sqrt())


def doubled(edge: Any) -> Any:
    """The client half in double precision; what is no module computes in the precision of its input."""
    return copy.deepcopy(edge).double().requires_grad_(False) if isinstance(edge, nn.Module) else edge


def decoded(
    edge: ClientHalf, shape: ImageShape, known: Normalisation, received: Tensor, noise: float, evaluations: int
) -> tuple[Tensor, Numbers]:
    """Pixels of received tokens, from the client half alone.

    The fixed-point iteration finds the tokens where blocks add less to a token than it holds, and where there is no noise. Their
    pixels are exact if a token is no shorter than a patch. ``PatchPrior.search`` decodes the other images.

    ``shape`` is (C, H, W) of an image, and ``received`` is (B, N, D), finite, with noise of this standard deviation; for
    ``evaluations`` see ``PatchPrior.search``.

    Returns:
        Patches (B, N, P) in [0, 1], and diagnostics: ``block_residual``, the largest relative residual of an image, and
        ``exact``, the share of images that the fixed-point iteration decoded.

    Raises:
        AttackError: If the embedding is not an affine map of single patches.
    """
    double = doubled(edge)
    prior = PatchPrior.of(double, shape, known)
    goal = received.double()
    size = float(goal.square().mean().sqrt().clamp_min(1e-12))
    tokens, residual = fixed_point(double.encode, goal, 1 if noise > EXACT * size else FIXED_POINT_STEPS)
    patches = prior.patches(tokens, max(PRECISION * size, noise))
    exact = residual <= EXACT
    for image in (~exact).nonzero().flatten().tolist():
        patches[image], misfit = prior.search(edge.encode, received[image].detach(), noise, evaluations)
        residual[image] = misfit
    numbers = {"block_residual": float(residual.max()), "exact": float(exact.double().mean())}
    return patches.clamp(0, 1).float(), numbers
