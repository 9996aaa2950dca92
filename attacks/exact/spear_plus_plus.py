"""SPEAR++: batches beyond the reach of SPEAR's sampling, noisy updates and updates of several steps."""

import math

import torch
from torch import Tensor

from attacks.exact.base import SolvingAttack
from attacks.exact.linear_layer import LinearLayer, Read
from attacks.exact.missing_examples import MissingExamples
from attacks.exact.sparse_directions import SparseDirections, sampled_kernels, unit
from attacks.exact.spear import Factors, begun, believed, polished, repaired, solved_images
from attacks.guesses import Reconstruction
from attacks.observations import ClientUpdate
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
        """Learn the directions that are missing; return whether any was found."""
        before = len(self.sure())
        if before == self.rank:
            return False
        rest = self._rest()
        self.starts += 1
        noise = torch.randn(rest.shape[1], rest.shape[1], generator=generator, dtype=rest.dtype)
        learned = orthogonal_dictionary(self.columns @ rest, torch.linalg.qr(noise)[0])
        self.near(torch.linalg.solve_triangular(self.back, (learned @ rest.T).T, upper=True).T)
        self.separate(generator)
        return len(self.sure()) > before

    def scatter(self, generator: torch.Generator) -> bool:
        """Seek missing directions one at a time, from ``descend``'s starts; return whether any was found."""
        before = len(self.sure())
        if before < self.rank:
            self.descend(generator)
            self.separate(generator)
        return len(self.sure()) > before

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
            self._look(candidates[zeros > int(zero.sum()) + kernel.shape[1] + MORE * len(self.rows)] @ kernel.T)
        self._shared = []

    def sure(self) -> Tensor:
        """Independent directions (K, R), each the only one with its zeros."""
        return self.found[self.basis()]

    def _rest(self) -> Tensor:
        """(R, k), orthonormal and, in the whitened space, orthogonal to what was found."""
        known = self.sure()
        if not len(known):
            return torch.eye(self.rank, dtype=self.left.dtype)
        rest: Tensor = torch.linalg.qr(self.back @ known.T, mode="complete")[0][:, len(known) :]
        return rest

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
    """Solve for a batch of images as ``Spear`` does, with all sparse directions learned together (``SparseDictionary``).

    SPEAR tests kernels of random rows, of which it needs twice as many with every example. Here a column costs one descent from
    the start that the learning gives it. Wide layers and deep networks help: columns must be distinct, and a network of two layers
    gives examples of one class nearly the same signals. What is missing in the end is sought as by ``Spear`` from the components of
    images.

    An update of several steps is the sum over steps of the signals times the same inputs: its rank is the number of different
    examples, and a signal is zero where a neuron was off in every step. Noise is accepted as long as the singular values of the
    examples stand out from it. The last least squares, over all zeros of all examples, average over it.

    Reports "does not apply" if no linear layer sees the pixels, if the layer has no bias or (for two or more examples) no ReLU, if
    noise hides all examples, and for weight decay in several steps. If too few directions are found, see ``Spear``.

    Diagnostics: ``rank``; ``singular_gap`` (noise over signal), ``starts``, ``descents``, ``directions``, ``sparsity_match``,
    ``gradient_distance`` and ``outside_share`` as in ``Spear``. After noise or several steps ``gradient_distance`` proves nothing.

    Attributes:
        max_starts: Starts of the learning, at most, after the last one that found a new direction.
    """

    threat = "global model, one update, its number of examples; no labels, no auxiliary data"
    source = (
        "Bakarsky, Dimitrov, Baader, Vechev, SPEAR++: Scaling Gradient Inversion via Sparsely-Used Dictionary Learning, "
        "arXiv 2510.24200, 2025; the learning, the separation of similar columns and the last least squares are ours"
    )

    max_starts: Steps = 8

    def solve(self, observation: ClientUpdate, generator: torch.Generator, numbers: Numbers) -> Reconstruction:
        """See ``SolvingAttack``."""
        return solved_images(self.factors, Read.of(observation, several_steps=True), observation, generator, numbers)

    def factors(
        self, read: Read, layer: LinearLayer, observation: ClientUpdate, generator: torch.Generator, numbers: Numbers
    ) -> Factors:
        """The layer's inputs and signals; ``numbers`` get diagnostics, also where this fails."""
        start = begun(read.of_layer(layer), layer, observation.num_examples, numbers, SparseDictionary, LEAST_GAP)
        if isinstance(start, Factors):
            return start
        directions, missing = start
        shape, several = observation.input_shape if layer.sees_pixels else None, observation.local_steps > 1
        all_found = self._learned(directions, missing, shape, generator, numbers)
        solution = repaired(directions, missing)
        # Signs change from step to step, and noise hides them: there they can only be believed together.
        if not (all_found and (several or missing.parts.gap > CLEAN)):
            solution = believed(
                solution, f"in {directions.starts} starts; raise max_starts, or attack a smaller batch or a wider layer"
            )
        if not solution.failure:
            solution = polished(solution, missing.parts, missing.bias, layer, several_steps=several)
        numbers["sparsity_match"] = float(solution.agreement.mean())
        return solution

    def _learned(
        self,
        directions: SparseDictionary,
        missing: MissingExamples,
        shape: ImageShape | None,
        generator: torch.Generator,
        numbers: Numbers,
    ) -> bool:
        """Search until all directions are there, which is returned, or ``max_starts`` starts in a row have found none.

        Then the components of images of this ``shape`` may find the others, where the layer sees pixels.
        """
        left = self.max_starts
        while left and len(directions.sure()) < directions.rank:
            left = self.max_starts if directions.learn(generator) or directions.scatter(generator) else left - 1
            missing.by_elimination()
        if shape is not None and len(directions.sure()) < directions.rank:
            missing.by_components(shape, generator)
        counts = {"starts": directions.starts, "descents": directions.descents, "directions": len(directions.found)}
        numbers |= {name: float(count) for name, count in counts.items()}
        return len(directions.basis()) == directions.rank
