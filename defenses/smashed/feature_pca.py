"""Principal components of smashed data: the baseline of delta protection."""

from collections.abc import Iterator
from typing import Self

import torch
from torch import Tensor

from defenses.base import DefenseError
from defenses.checks import Examples, algorithm
from defenses.fitting import SHAPE, FitContext, FittedDefense, features_in_batches
from defenses.functional import widened
from defenses.tensors import Shape

_COLUMNS = 1 << 16
"""Features that are held in double precision at a time."""


@algorithm
class FeaturePCA(FittedDefense):
    """Send only the first k principal components of the features; the server restores approximate features from them.

        z = V (h - m),    h~ = V' z + m,    V: (k, D) orthonormal rows,  m: mean of the fit set,  D = C H W

    The components are those of N public images. They come from the Gram matrix (N, N) of the centred features, whose eigenvectors
    are the left singular vectors. A matrix (D, D) would be too large: D is 401,408 in the paper. The rank is at most N - 1.

    The projection hides directions of small variance and considers neither a task nor an adversary. The paper does not state
    whether features are centred; here they are.

    Args:
        components: k, at least 1 and at most the rank of the fit set.
    """

    components: Examples = 5

    adaptive_attacks = ("AttributeInference", "InverseNetwork")
    always_shown = ("components",)
    source = (
        "Higgins et al., Towards Privacy-Preserving Split Learning (ADP), baseline PCA; Malekzadeh et al. 2017; "
        "Osia et al. 2020"
    )

    @property
    def least_images(self) -> int:
        """``components`` + 1, because N centred images span at most N - 1 directions."""
        return self.components + 1

    def shapes(self, channels: int, height: int, width: int) -> dict[str, Shape]:
        """``mean`` (C, H, W) and ``basis`` (k, C, H, W), whose components are orthonormal; largest variance first."""
        if self.components > channels * height * width:
            raise DefenseError(
                f"{self}: {channels} x {height} x {width} features have at most {channels * height * width} components"
            )
        shape = (channels, height, width)
        return {"mean": shape, "basis": (self.components, *shape)}

    def latent_shape(self, channels: int, height: int, width: int) -> Shape:
        """(k,); see the base class."""
        self.shapes(channels, height, width)
        return (self.components,)

    def fit(self, context: FitContext, generator: torch.Generator) -> Self:
        """Compute the components of the features of ``context.images``; deterministic."""
        features = torch.cat([batch.cpu() for batch in features_in_batches(context.client, context.images)])
        self.shapes(*features.shape[1:])
        mean, basis = principal_components(features.flatten(1), self.components)
        shape = features.shape[1:]
        learned = {SHAPE: torch.tensor(shape), "mean": mean.view(shape), "basis": basis.view(-1, *shape)}
        return self.with_state(learned)

    def encode(self, features: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, k); see the base class."""
        self._require(features)
        exact = widened(features)
        tensors = self._tensors(exact)
        return ((exact - tensors["mean"]).flatten(1) @ tensors["basis"].flatten(1).T).to(features.dtype)

    def decode(self, latent: Tensor) -> Tensor:
        """(B, k) -> (B, C, H, W); see the base class."""
        self._require(latent, latent=True)
        exact = widened(latent)
        tensors = self._tensors(exact)
        return (torch.einsum("bk,kchw->bchw", exact, tensors["basis"]) + tensors["mean"]).to(latent.dtype)


def principal_components(rows: Tensor, components: int) -> tuple[Tensor, Tensor]:
    """Mean (D,) and the first principal components (k, D) of N rows (N, D), by the eigenvectors of their Gram matrix (N, N).

    X X' = U L U' for centred rows X, so that V = L^-1/2 U' X are the right singular vectors. All sums are in double precision, over
    blocks of columns. Each component's sign is that of its largest entry made positive: eigenvectors have none of their own.

    Raises:
        DefenseError: When the centred rows have a lower rank than ``components``.
    """
    gram = torch.zeros(len(rows), len(rows), dtype=torch.float64, device=rows.device)
    for block in _centred_blocks(rows):
        gram += block @ block.T
    values, vectors = torch.linalg.eigh(gram)
    values, vectors = values.flip(0), vectors.flip(1)
    # Eigenvalues are exact up to about N epsilon of the largest one; what is below is no direction of the data.
    rank = int((values > 10 * len(rows) * torch.finfo(torch.float64).eps * values[0].clamp(min=0)).sum())
    if components > rank:
        raise DefenseError(
            f"components is {components}; allowed: at most {rank}, the rank of the centred features of {len(rows)} images: use "
            "more images or fewer components"
        )
    scaled = (vectors[:, :components] / values[:components].sqrt()).T
    basis = torch.cat([scaled @ block for block in _centred_blocks(rows)], 1)
    largest = basis.gather(1, basis.abs().argmax(1, keepdim=True))
    mean = torch.cat([block.double().mean(0) for block in torch.split(rows, _COLUMNS, 1)])
    return mean.to(rows.dtype), (basis * largest.sign()).to(rows.dtype)


def _centred_blocks(rows: Tensor) -> Iterator[Tensor]:
    for block in torch.split(rows, _COLUMNS, 1):
        exact = block.double()
        yield exact - exact.mean(0)
