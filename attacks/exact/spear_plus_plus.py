"""SPEAR++: exact inputs of a linear layer followed by a ReLU, from a batch's gradient, noisy ones, or updates of several steps."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from attacks.exact.base import SolvingAttack, recovered
from attacks.exact.factors import ALONE, Factors, MissingExamples, believed, polished, repaired, solved
from attacks.exact.linear_layer import LinearLayer, Read, low_rank
from attacks.exact.sparse_directions import SparseDirections, complement, sampled_kernels, unit
from attacks.guesses import Reconstruction
from attacks.observations import ClientUpdate, NotApplicableError
from defenses.checks import Steps, algorithm
from defenses.tensors import ImageShape, Numbers

STEPS = 100
"""Fixed-point steps of one start."""
STEEPNESS = 2.0
"""Slope of the contrast's derivative, tanh, at 0; entries have a mean square of 1."""
SETTLED = 1e-7
"""Least change of a direction's cosine that counts as one."""
CLEAN = 1e-3
"""Noise over signal below which rounding is all that there is."""
FIXING = 0.95
"""Leverage from which a row alone keeps a second direction out of the kernel of a column's zeros."""
MORE = 0.01
"""Share of the rows that a column has as zeros besides those that it has in common with others, at least."""
MOST_SHARING = 6
"""Columns that are separated at most, where they have too many zeros in common."""
SETS = 256
"""Sets of rows from which columns with common zeros are separated."""
MOST_TRIES = 5
"""Factors that are compared at most, one from the learning, one with what components of images add to it, others from these."""
LEAST_GAP = 5.0
"""Ratio of the examples' smallest singular value to the largest of the noise, below which an example counts as noise. In 200
updates of FedAvg's 2NN (4, 8 and 16 digits, 1 and 4 steps, 10 levels of noise) nothing was found below 5."""


class SparseDictionary(SparseDirections):
    """A search that learns the columns of dL/dZ together, in place of one at a time from many starts.

    The whitened rows Y (m, R) have the second moment of independent entries. In that space the sparse columns are nearly
    orthogonal, so that the orthogonal matrix A with the sparsest Y A^T is near all of them at once. Sparsity is the mean of
    -log cosh(STEEPNESS y): its maximum over orthogonal matrices needs no sampling, and a step costs O(m R^2). From each row of A
    the descent of ``SparseDirections.near`` reaches an exact column. What is found is removed, and the rest is learned again in
    the orthogonal complement.

    Columns of similar images have most zeros in common. The kernel of these zeros has a dimension for each such column, and one row
    that happens to be zero besides makes a sum of columns look like a column. A row that alone excludes a second direction is
    therefore left out, and a kernel of a few dimensions is searched for its columns by samples of rows.

    Source: complete dictionary learning by an orthogonal matrix after whitening: Zhai, Yang, Liao, Wright, Ma, "Complete dictionary
    learning via l4-norm maximization over the orthogonal group", JMLR 2020, Algorithm 2 (MSP). log cosh in place of the fourth
    power, and the fixed point: Hyvarinen, "Fast and robust fixed-point algorithms for independent component analysis", IEEE
    Transactions on Neural Networks 1999, Eq. 20, with symmetric decorrelation. Use on gradients: Bakarsky et al. 2025 (SPEAR++).
    """

    always_live = 0.1

    def __init__(self, left: Tensor, gap: float) -> None:
        super().__init__(left, gap)
        self.starts = 0
        self._shared: list[Tensor] = []

    @property
    def zero(self) -> float:
        """Threshold for a zero: ``gap`` is about a standard deviation of its noise, in units of the mean entry."""
        return min(max(2 * self.gap, 1e-7), 0.3) / math.sqrt(len(self.rows))

    @property
    def nearly_zero(self) -> float:
        """Threshold for a zero of a direction that is not refined yet: at least 1.5 times ``zero``."""
        return max(min(max(30 * self.gap, 1e-4), 0.1) / math.sqrt(len(self.rows)), 1.5 * self.zero)

    @property
    def last(self) -> float:
        """See ``SparseDirections``; with noise, a descent below it would follow the noise of single rows."""
        return (1e-2 if self.gap < CLEAN else 0.3) * self.zero

    def learn(self, generator: torch.Generator) -> bool:
        """Learn the directions that are missing together, or else seek them one at a time; return whether any was found."""
        before = len(self.sure())
        for search in (self._learn_together, self.descend):
            search(generator)
            self.separate(generator)
            if len(self.sure()) > before:
                return True
        return False

    def _learn_together(self, generator: torch.Generator) -> None:
        rest = complement(self.back @ self.sure().T)  # in the whitened space
        self.starts += 1
        noise = torch.randn(rest.shape[1], rest.shape[1], generator=generator, dtype=rest.dtype)
        learned = orthogonal_dictionary(self.columns @ rest, torch.linalg.qr(noise)[0])
        self.near(torch.linalg.solve_triangular(self.back, (learned @ rest.T).T, upper=True).T)

    def separate(self, generator: torch.Generator) -> None:
        """Find the columns whose common zeros hid them from the search so far."""
        shared, self._shared = self._shared, []
        for kernel in shared:
            known = self.sure()
            if len(known) and ((known @ kernel).norm(dim=1) > 1 - 1e-6).sum() >= kernel.shape[1]:
                continue
            rows = self.rows @ kernel
            zero = rows.norm(dim=1) < self.nearly_zero
            if (~zero).sum() < kernel.shape[1]:
                continue
            candidates = unit(sampled_kernels(rows[~zero], SETS, generator))
            zeros = ((candidates @ rows.T).abs() < self.nearly_zero).sum(1)
            self.look(candidates[zeros > int(zero.sum()) + kernel.shape[1] + MORE * len(self.rows)] @ kernel.T)
        self._shared = []

    def sure(self) -> Tensor:
        """Independent directions (K, R), each the only one with its zeros."""
        return self.found[self.basis()]

    def _kernel_size(self, count: int) -> float:
        return count * ((10 if self.gap < CLEAN else 2) * self.zero) ** 2

    def _kernel_of(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The kernel (R, k) of rows, and eigenvalues and eigenvectors of their products."""
        values, vectors = torch.linalg.eigh(rows.T @ rows)
        return vectors[:, values <= self._kernel_size(len(rows))], values, vectors

    def _has_one_kernel(self, own: Tensor) -> bool:
        rows = self.rows[own]
        kernel, values, vectors = self._kernel_of(rows)
        if kernel.shape[1] < 2:
            # The leverage of a row is 1 where the others leave open what it fixes.
            leverage = ((rows @ vectors[:, 1:]).square() / values[1:]).sum(1)
            kernel, _, _ = self._kernel_of(rows[leverage < FIXING])
        if 1 < kernel.shape[1] <= MOST_SHARING:
            self._shared.append(kernel)
        return bool(kernel.shape[1] < 2)


def orthogonal_dictionary(rows: Tensor, start: Tensor) -> Tensor:
    """The orthogonal matrix A (R, R) from ``start`` for which rows A^T is sparse; rows (m, R) have orthonormal columns.

    Up to signs and order of its rows, A is the dictionary if rows = S A with sparse independent entries of S.
    """
    scaled, matrix = rows * len(rows) ** 0.5, start
    for _ in range(STEPS):
        bent = torch.tanh(STEEPNESS * (scaled @ matrix.T))
        slopes = STEEPNESS * (1 - bent.square()).mean(0)
        left, _, right = torch.linalg.svd(slopes[:, None] * matrix - bent.T @ scaled / len(rows))
        following = left @ right
        settled = float((1 - (following * matrix).sum(1).abs()).max()) < SETTLED
        matrix = following
        if settled:
            break
    return matrix


@algorithm
class SpearPlusPlus(SolvingAttack, selection="agreement of signs and zeros", quick={"max_starts": 2}):
    """Solve for a batch of images exactly, from the gradient of a linear layer on the pixels with a ReLU behind it.

    With Z = W X + b the gradient is dL/dW = dL/dZ X^T, of rank B. Its singular value decomposition L R leaves an invertible Q
    open: dL/dZ = L Q, X^T = Q^-1 R. The ReLU makes columns of dL/dZ sparse, so that a column of Q is a direction q for which L q
    has many zeros, up to its length; dL/db = dL/dZ 1 gives the lengths. SPEAR tests kernels of random rows, of which it needs twice
    as many with every example. Here all directions are learned together (``SparseDirections``). Wide layers and deep networks help:
    columns must be distinct, and a network of two layers gives examples of one class nearly the same signals. What is missing or
    contradicts the signs in the end is sought from the components of images (``MissingExamples``).

    An update of several steps is the sum over steps of the signals times the same inputs: its rank is the number of different
    examples, and a signal is zero where a neuron was off in every step. Noise is accepted as long as the singular values of the
    examples stand out from it. The last least squares, over all zeros of all examples, average over it.

    Examples come in any order, exact up to rounding if ``gradient_distance`` is near 0; otherwise a batch may be wrong without
    a failure. The attack uses no label, and no prior but the components of images. Each example gets the class that explains its
    gradient. A batch of one needs neither search nor ReLU: x = (dL/dW)_j / (dL/db)_j.

    Reports "does not apply" if no linear layer sees the pixels, if the layer has no bias or (for two or more examples) no ReLU, if
    noise or pruning hides all examples, if a batch is not clearly smaller than half of the layer's neurons, and for weight decay in
    several steps. The guess has the examples that are believed, and fails if there is none (``believed``).

    Diagnostics: ``rank``; ``singular_gap`` (noise over signal), ``starts``, ``descents``, ``directions`` (all that were found),
    ``sparsity_match`` (the score: 1 where all signs agree), ``gradient_distance`` (1 - cosine of the gradients of guess and update;
    0 proves the guess, but after noise or several steps nothing), ``outside_share`` (pixels beyond [0, 1] by 0.01 or more: many
    mean a wrong solution).

    Attributes:
        max_starts: Starts of the learning, at most, after the last one that found a new direction.
    """

    threat = "global model, one update, its number of examples; no labels, no auxiliary data"
    source = (
        "Bakarsky, Dimitrov, Baader, Vechev, SPEAR++: Scaling Gradient Inversion via Sparsely-Used Dictionary Learning, "
        "arXiv 2510.24200, 2025; its base: Dimitrov et al., SPEAR, NeurIPS 2024, Theorems 3.1 to 3.3; batch 1: Phong et al. 2017, "
        "section 3; the learning, the separation of similar columns and the last least squares are ours"
    )

    max_starts: Steps = 8

    def solve(self, observation: ClientUpdate, generator: torch.Generator, numbers: Numbers) -> Reconstruction:
        """See ``SolvingAttack``."""
        read = Read.of(observation, several_steps=True)
        layer = read.on_pixels()
        found = self.factors(read, layer, observation, generator, numbers)
        return recovered(observation, read, layer.module, found.inputs, found.signals, numbers, found.failure)

    def factors(
        self, read: Read, layer: LinearLayer, observation: ClientUpdate, generator: torch.Generator, numbers: Numbers
    ) -> Factors:
        """The layer's inputs and signals; ``numbers`` get diagnostics, also where this fails."""
        gradient, batch = read.of_layer(layer), observation.num_examples
        if gradient.bias is None:
            raise NotApplicableError(f"layer {layer.name!r} has no bias, whose gradient gives the lengths")
        parts = low_rank(gradient, batch, LEAST_GAP)
        numbers |= {"rank": float(parts.rank), "singular_gap": parts.gap}
        directions = SparseDictionary(parts.left, parts.gap)
        missing = MissingExamples(directions, parts, gradient.bias, layer)
        if parts.rank == 1:
            return solved(missing, torch.ones(1, 1, dtype=torch.float64))
        if not layer.rectified:
            raise NotApplicableError(
                f"no ReLU follows layer {layer.name!r}, so the columns of a batch of {batch} are not sparse"
            )
        if not directions.feasible:
            raise NotApplicableError(
                f"{len(directions.rows)} active neurons are too few for {parts.rank} examples; an example must leave "
                f"more than {directions.fewest} of them inactive"
            )
        several, shape = observation.local_steps > 1, observation.input_shape if layer.sees_pixels else None
        self._learn(directions, missing, generator)
        found, whole = [repaired(missing)], len(directions.basis()) == parts.rank
        if shape is not None and not (whole and (several or found[0].agreement.min() > ALONE)):
            missing.by_components(shape, generator)
            found.insert(0, repaired(missing))
            while len(found) < MOST_TRIES and max(one.agreement.min() for one in found) <= ALONE:
                found.append(self._from_components(missing, shape, generator))
        counts = {"starts": directions.starts, "descents": directions.descents, "directions": len(directions.found)}
        numbers |= {name: float(count) for name, count in counts.items()}
        solution = max(found, key=lambda one: int((one.agreement > ALONE).sum()))
        # Signs change from step to step, and noise hides them: there they can only be believed together.
        if len(directions.basis()) == parts.rank and (several or parts.gap > CLEAN):
            solution = solution if solution.agreement.min() > ALONE else found[0]
        else:
            where = f"in {directions.starts} starts; raise max_starts, or attack a smaller batch or a wider layer"
            solution = believed(solution, where)
        if not solution.failure:
            solution = polished(solution, missing, several)
        numbers["sparsity_match"] = float(solution.agreement.mean())
        return solution

    @staticmethod
    def _from_components(missing: MissingExamples, shape: ImageShape, generator: torch.Generator) -> Factors:
        """The factors from independent components of the images alone, as narrow layers have false directions."""
        own = replace(missing, directions=SparseDirections(missing.parts.left, missing.parts.gap))
        own.by_components(shape, generator)
        return repaired(own)

    def _learn(self, directions: SparseDictionary, missing: MissingExamples, generator: torch.Generator) -> None:
        """Search until all directions are there, or ``max_starts`` starts in a row have found none."""
        left = self.max_starts
        while left and len(directions.sure()) < directions.rank:
            left = self.max_starts if directions.learn(generator) else left - 1
            missing.by_elimination()
