"""Examples that a search for sparse directions has missed, recovered from the remainder after the found ones."""

from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.exact.cocktail_party import CocktailParty
from attacks.exact.linear_layer import LinearLayer, LowRank
from attacks.exact.sparse_directions import SparseDirections, complement
from attacks.observations import AttackError
from defenses.tensors import ImageShape

ROUNDS = 6
"""Times that independent components are sought, as long as directions are missing."""
CLEAR = 0.5
"""Share of the neurons with z < 0 that are taken to be off, those with the lowest z: an approximate input errs near zero."""
SURE_OF_ONE = 0.95
"""Share as ``CLEAR``, where one input alone was left: it is exact."""
ROWS = 2
"""Rows that a kernel is made from, at least, for each example."""


@dataclass(frozen=True)
class MissingExamples:
    """Find columns of dL/dZ from the inputs, where ``SparseDirections`` finds them from their zeros.

    With dL/dZ = L Q and the gradient L R = L Q X^T, let k columns of Q be missing and N (R, k) be orthogonal to all others. Then
    N^T R = N^T Q_k X_k^T: mixtures of the k missing inputs alone, as N^T L^T dL/db is of their lengths. Of one missing input
    nothing is left to find: it is N^T R over N^T L^T dL/db. Of more, independent components are near (``CocktailParty``). Either
    way the sign of z = W x + b shows which neurons were off, and the column is the kernel of their rows of L.

    Attributes:
        directions: What was found; what is found here is added to it.
        parts: L and R.
        bias: dL/db, (M,).
        layer: With its weights.

    Source: ours; signs of z as a check of columns are of Dimitrov et al. 2024, Theorem 3.3.
    """

    directions: SparseDirections
    parts: LowRank
    bias: Tensor
    layer: LinearLayer

    def by_components(self, shape: ImageShape, generator: torch.Generator) -> None:
        """Recover missing images of ``shape`` round after round."""
        for _ in range(ROUNDS):
            rest = self._rest()
            if not rest.shape[1]:
                break
            mixtures, unmixing = LowRank(self.parts.left @ rest, rest.T @ self.parts.right, self.parts.gap), None
            if rest.shape[1] > 1:
                try:
                    unmixing = CocktailParty(restarts=1).unmixing(mixtures, shape, generator, {})
                except AttackError:  # components that became one: the next start may do better
                    continue
                if rest.shape[1] == self.parts.rank:
                    self.directions.near(torch.linalg.inv(rest @ unmixing.T))
            self._look(rest if unmixing is None else rest @ unmixing.T)

    def by_elimination(self) -> None:
        """Recover the last example, where one alone is missing."""
        rest = self._rest()
        if rest.shape[1] == 1:
            self._look(rest)

    def _rest(self) -> Tensor:
        """N, (R, k)."""
        return complement(self.directions.sure().T)

    def _look(self, rows: Tensor) -> None:
        """Adds the columns of the inputs that unmixing rows (R, k), one in each column, make of R."""
        # An input that nothing but rounding stands before is right for all neurons.
        offered = self.columns(rows, CLEAR if rows.shape[1] > 1 else SURE_OF_ONE)
        if offered:
            self.directions.look(torch.stack(offered))
            self.directions.near(torch.stack(offered))

    def columns(self, rows: Tensor, share: float) -> list[Tensor]:
        """The columns (R,) of inputs by unmixing rows (R, k), each from this share of the neurons with z < 0."""
        inputs = (rows.T @ self.parts.right) / (rows.T @ (self.parts.left.T @ self.bias))[:, None]
        kernels = []
        for z in self.layer.outputs(inputs):
            z = torch.where(self.directions.live, z, torch.inf)
            negative = int((z < 0).sum())
            count = min(max(round(share * negative), ROWS * self.parts.rank), negative)
            if count >= self.parts.rank - 1:  # which a kernel asks for
                kernels.append(self.directions.kernel(z.argsort()[:count]))
        return kernels
