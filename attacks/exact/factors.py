"""The two factors of a layer's gradient of a batch, from sparse directions, and examples that the search for these has missed."""

from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.exact.cocktail_party import CocktailParty
from attacks.exact.linear_layer import LinearLayer, LowRank
from attacks.exact.sparse_directions import SparseDirections, complement
from attacks.observations import AttackError, FoundNothingError
from defenses.tensors import ImageShape

ALONE = 0.985
"""Share of neurons at which the sign of z and the zeros of dL/dz must agree for an example to be believed. Half agree by chance,
and three quarters for the sum of two columns; rounding costs a neuron now and then."""
POLISHES = 5
SMALL = 0.05
"""Share of an example's largest signal from which a signal is no noise, however large the noise."""
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


@dataclass(frozen=True)
class Factors:
    """The two factors of a layer's gradient, dL/dW = signals^T inputs.

    Attributes:
        signals: (R, M), dL/dz of each example, in the unit of the gradient.
        inputs: (R, N), what the layer saw of each.
        agreement: (R,), the share of neurons at which z = W x + bias is positive and dL/dz is not zero, or neither.
        failure: Why examples are missing, if any are.
    """

    signals: Tensor
    inputs: Tensor
    agreement: Tensor
    failure: str = ""


def solved(missing: MissingExamples, basis: Tensor) -> Factors:
    """The factors for Q = ``basis`` (R, R), whose columns get the lengths that the gradient of the bias asks for."""
    parts = missing.parts
    signals = parts.left @ basis
    lengths = torch.linalg.lstsq(signals, missing.bias[:, None]).solution[:, 0]
    # A column that the bias does not see has no length; any will do for one that is wrong anyway.
    lengths = torch.where(lengths.abs() < 1e-12 * lengths.abs().max(), lengths.abs().max(), lengths)
    signals, inputs = signals * lengths, torch.linalg.solve(basis * lengths, parts.right)
    return Factors(signals.T, inputs, _agreement(inputs, signals.T, missing))


def _agreement(inputs: Tensor, signals: Tensor, missing: MissingExamples) -> Tensor:
    return ((missing.layer.outputs(inputs) > 0) == _touched(signals, missing.parts.gap)).double().mean(1)


def _touched(signals: Tensor, gap: float) -> Tensor:
    """Which of the signals (R, M) are not zero, (R, M) bool."""
    return signals.abs() > min(max(10 * gap, 1e-7), SMALL) * signals.abs().amax(1, keepdim=True)


def polished(factors: Factors, missing: MissingExamples, several_steps: bool) -> Factors:
    """Both factors by least squares in turn, dL/dz zero where z <= 0: rounding counts less when all of the zeros are used.

    The bias is one more column of W, whose input is 1 for every example; each example's input is scaled to have it. In the sum of
    several steps signs of z may have changed: there an entry of dL/dz must also be nearly zero.
    """
    parts, layer = missing.parts, missing.layer
    gradient = torch.cat([parts.left @ parts.right, missing.bias[:, None]], 1)
    seen = torch.cat([factors.inputs, torch.ones(len(factors.inputs), 1, dtype=torch.float64)], 1)
    off = (layer.outputs(factors.inputs) <= 0).T.double()
    signals = factors.signals.T
    if several_steps:
        off *= ~_touched(signals.T, parts.gap).T
    for _ in range(POLISHES):
        # One small system for each neuron: those of its examples that are on, and an identity in place of the others.
        products = (1 - off[:, :, None]) * (seen @ seen.T) * (1 - off[:, None, :]) + torch.diag_embed(off)
        signals = torch.linalg.solve(products, ((gradient @ seen.T) * (1 - off))[:, :, None])[:, :, 0]
        seen = torch.linalg.lstsq(signals, gradient).solution
        signals, seen = signals * seen[:, -1], seen / seen[:, -1:]
    inputs = seen[:, :-1]
    better = Factors(signals.T, inputs, _agreement(inputs, signals.T, missing))
    return better if inputs.isfinite().all() and better.agreement.mean() >= factors.agreement.mean() else factors


def repaired(missing: MissingExamples) -> Factors:
    """The best factors by the mean agreement, from the directions with the most zeros, and any for those that are missing.

    A wrong column spoils the inputs of others. In the place of each column, the least sure one first, the one that the others
    leave is tried (``MissingExamples.columns``): if these are right, it is exact.

    Source: ours; Dimitrov et al. 2024, Algorithm 2 (greedy filtering), exchanges columns for others that were found.
    """
    rank, known = missing.parts.rank, missing.directions.found[missing.directions.basis()].T
    basis = torch.cat([known, complement(known)], 1)
    best, before = solved(missing, basis), -1.0
    while float(best.agreement.mean()) > before:
        before = float(best.agreement.mean())
        for place in best.agreement.argsort().tolist():
            others = basis[:, [at for at in range(rank) if at != place]]
            rest = complement(others)
            for column in (candidate for share in (SURE_OF_ONE, CLEAR) for candidate in missing.columns(rest, share)):
                trial = torch.cat([basis[:, :place], column[:, None], basis[:, place + 1 :]], 1)
                if torch.linalg.matrix_rank(trial, rtol=1e-6) == rank:
                    changed = solved(missing, trial)
                    if changed.agreement.mean() > best.agreement.mean():
                        best, basis = changed, trial
    return best


def believed(given: Factors, where: str) -> Factors:
    """The examples whose signs of z agree with their zeros; ``where`` says after which search others are missing.

    Raises:
        FoundNothingError: When there is none.
    """
    sure = given.agreement > ALONE
    failure = f"found {int(sure.sum())} of {len(sure)} examples {where}"
    if not sure.any():
        raise FoundNothingError(failure)
    return given if sure.all() else Factors(given.signals[sure], given.inputs[sure], given.agreement[sure], failure)
