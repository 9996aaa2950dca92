"""Directions q with many zeros in L q: each is, up to its length, a column of dL/dZ behind a ReLU."""

import math
from typing import ClassVar

import torch
from torch import Tensor

CHUNK = 2_000_000
"""Numbers in memory at once in one descent, in units of eight bytes."""
DESCENT_STEPS = 60
FAR, NEAR = 3.0, 0.3
"""Epsilon at the start of a descent, in the mean size of an entry: from anywhere, and from next to a column."""
DESCENT_DECAY = 0.85
"""Factor of epsilon in each step of the descent."""
COLUMN_ZEROS = 0.32
"""Share of the neurons that an example leaves off at least: half in the mean, of which sums of two columns have a half."""
SHARE_ABOVE = 0.12
"""How far from the zeros that any kernel has to those of a column that is off in half of the neurons a direction must be."""


class SparseDirections:
    """A search for sparse directions, with its results so far.

    With m live rows of L (M, R), a row of which is zero where no example was active, a random direction has no zeros and the kernel
    of R - 1 rows has these R - 1; a column of dL/dZ has about m / 2.

    Attributes:
        left: L (M, R), orthonormal columns.
        gap: Size of what noise adds to it, relative; see ``LowRank``.
        live: (M,) bool, rows that are not zero.
        rows: (m, R), these.
        found: (K, R), unit directions, those with the most zeros first.
        zeros: (K,) int64, how many zeros each has.
        descents: Starts of the descent.
    """

    always_live: ClassVar[float] = math.inf
    """Length of a row over that of the longest, above which it counts as live however large the noise."""

    def __init__(self, left: Tensor, gap: float) -> None:
        self.left, self.gap = left, gap
        norms = left.norm(dim=1)
        self.live = norms > min(max(1e-3, 30 * gap), self.always_live) * norms.max()
        self.rows = left[self.live]
        # The live rows are columns (m, R) @ back (R, R): where columns are orthonormal, lengths of L q do not depend on q.
        self.columns, self.back = torch.linalg.qr(self.rows)
        self.found, self.zeros = left.new_zeros(0, left.shape[1]), torch.zeros(0, dtype=torch.int64)
        self.descents = 0

    @property
    def rank(self) -> int:
        """Rank R of the gradient."""
        return self.left.shape[1]

    @property
    def zero(self) -> float:
        """Threshold for a zero in L q for a direction of many zeros: entries are 1 / sqrt(m) in the mean."""
        return min(max(self.gap, 1e-7), 0.05) / math.sqrt(len(self.rows))

    @property
    def nearly_zero(self) -> float:
        """Threshold for a zero where a direction follows from R - 1 rows alone and carries their noise."""
        return min(max(30 * self.gap, 1e-4), 0.1) / math.sqrt(len(self.rows))

    @property
    def last(self) -> float:
        """Epsilon at the end of a descent."""
        return 1e-2 * self.zero

    @property
    def fewest(self) -> int:
        """Number of zeros below which the rows that made a direction may explain them."""
        own = self.rank - 1
        return own + max(2, round(SHARE_ABOVE * (len(self.rows) / 2 - own)))

    @property
    def feasible(self) -> bool:
        """Whether a column that is zero on half of the rows has more zeros than a direction made from rows."""
        return len(self.rows) / 2 > self.fewest

    def descend(self, generator: torch.Generator) -> None:
        """Minimise sum_j log((L q)_j^2 + epsilon^2) on the unit sphere, epsilon falling, from sums of two random rows.

        Each step solves the problem with the weights 1 / ((L q)_j^2 + epsilon^2) of the one before. Where the layer is wide it
        finds columns that no sampling of rows would: the number of samples doubles with every example.

        Source: Chartrand and Yin, "Iteratively reweighted algorithms for compressive sensing", ICASSP 2008, for p = 0; for
        sparse vectors in a subspace Qu, Sun, Wright, "Finding a sparse vector in a subspace", NeurIPS 2014, from whom the starts
        are.
        """
        self._go_down(self._starts(max(1, min(64, CHUNK // self.columns.numel())), generator), FAR)

    def near(self, directions: Tensor) -> None:
        """Minimise as ``descend`` from directions (K, R) that are nearly right, such as independent components."""
        for some in torch.split(unit(directions @ self.back.T), 64):
            self._go_down(some, NEAR)

    def _go_down(self, directions: Tensor, first: float) -> None:
        """The descent from unit directions (K, R) of the orthonormal rows; ``first`` is epsilon over the mean size of an entry."""
        basis, count = self.columns, len(directions)
        epsilon = first * len(basis) ** -0.5
        squares = (basis[:, :, None] * basis[:, None, :]).flatten(1)
        for _ in range(DESCENT_STEPS):
            weights = 1 / ((directions @ basis.T).square() + epsilon**2)
            curvature = (weights @ squares).view(count, self.rank, self.rank)
            directions = unit(torch.linalg.solve(curvature, directions[:, :, None])[:, :, 0])
            epsilon = max(epsilon * DESCENT_DECAY, self.last)
        self.descents += count
        self.look(torch.linalg.solve_triangular(self.back, directions.T, upper=True).T)

    def _starts(self, count: int, generator: torch.Generator) -> Tensor:
        """Unit directions (count, R); once something was found, every second one is apart from it: what is missing lies there."""
        basis = self.columns
        pairs = torch.randint(len(basis), (2, count), generator=generator)
        share = 0.5 * torch.randn(count, 1, generator=generator, dtype=basis.dtype)
        starts = basis[pairs[0]] + share * basis[pairs[1]]
        if 0 < len(self.found) < self.rank:
            known = torch.linalg.qr(self.back @ self.found.T)[0]
            anywhere = torch.randn(starts[::2].shape, generator=generator, dtype=basis.dtype)
            starts[::2] = anywhere - anywhere @ known @ known.T
        return unit(starts)

    def look(self, directions: Tensor) -> None:
        """Keep those of directions (K, R) with enough zeros, each as the direction that all its zeros agree on."""
        directions = unit(directions[directions.isfinite().all(1)])
        counts = ((directions @ self.rows.T).abs() < self.nearly_zero).sum(1)
        order = counts.argsort(descending=True, stable=True)
        hits = directions[order[counts[order] >= self.fewest]]
        for known in self.found:
            hits = _others(hits, known)
        # The sparsest columns are hit again and again: what is next to one that was looked at is not looked at any more.
        for _ in range(2 * self.rank + 8):
            if not len(hits):
                break
            refined = self._refined(hits[0])
            self._keep(refined)
            hits = _others(_others(hits[1:], hits[0]), refined)

    def _refined(self, direction: Tensor) -> Tensor:
        """The unit direction (R,) with the most zeros next to this one: a descent as in ``descend``, from close by.

        Among the rows that a direction takes for zeros one or two are not: weights tell them apart, a plain fit would not.
        """
        epsilon = self.nearly_zero
        while epsilon > max(10 * self.last, 0.1 * self.zero):
            weights = 1 / ((self.rows @ direction).square() + epsilon**2)
            direction = torch.linalg.eigh(self.rows.T @ (weights[:, None] * self.rows))[1][:, 0]
            epsilon *= 0.25
        return direction

    def _zeros(self, directions: Tensor) -> Tensor:
        """Which rows are zero, (..., m) bool, for directions (..., R)."""
        return (directions @ self.rows.T).abs() < self.zero

    def _keep(self, direction: Tensor) -> None:
        own = self._zeros(direction)
        count = int(own.sum())
        same = self._same(own, count)
        if count < self.rank - 1 or not self._has_one_kernel(own):
            return
        if count < self.fewest or bool((self.zeros[same] >= count).any()):
            return
        self.found = torch.cat([self.found[~same], direction[None]])
        self.zeros = torch.cat([self.zeros[~same], torch.tensor([count])])
        order = self.zeros.argsort(descending=True, stable=True)[: 8 * self.rank]
        self.found, self.zeros = self.found[order], self.zeros[order]

    def _kernel_size(self, count: int) -> float:
        """Eigenvalue up to which a direction is in the kernel of ``count`` rows."""
        return count * (10 * self.zero) ** 2

    def _has_one_kernel(self, own: Tensor) -> bool:
        """Whether rows ``own`` (m,) bool are zero for one direction: where columns share many zeros, so do all their sums."""
        zeros = self.rows[own]
        return bool(torch.linalg.eigvalsh(zeros.T @ zeros)[1] > self._kernel_size(len(zeros)))

    def _same(self, own: Tensor, count: int) -> Tensor:
        """Which of those found (K,) are the direction with the zeros ``own`` (m,), met with more or less noise.

        They share nearly all zeros, and these have one kernel. Two columns can share as many, where one is off whenever the other
        is, but then both are in the kernel.
        """
        shared = self._zeros(self.found) & own
        same = shared.sum(1) >= 0.9 * self.zeros.clamp(max=count)
        for index in same.nonzero().flatten().tolist():
            rows = self.rows[shared[index]]
            same[index] = bool(torch.linalg.eigvalsh(rows.T @ rows)[1] > self._kernel_size(len(rows)))
        return same

    def sure(self) -> Tensor:
        """Independent directions (K, R) whose zeros show that each is one column, not a sum of two."""
        return self.found[[at for at in self.basis() if self.zeros[at] > COLUMN_ZEROS * len(self.rows)]]

    def kernel(self, zeros: Tensor) -> Tensor:
        """The unit direction (R,) for which L is nearest to zero on the rows ``zeros``, int64 indices."""
        rows = self.left[zeros]
        direction: Tensor = torch.linalg.eigh(rows.T @ rows)[1][:, 0]
        return direction

    def basis(self) -> list[int]:
        """Indices of independent directions, those with the most zeros first: R of them, or as many as there are."""
        chosen: list[int] = []
        spanned = self.left.new_zeros(0, self.rank)
        for index, direction in enumerate(self.found):
            rest = direction - spanned.T @ (spanned @ direction)
            if rest.norm() > max(1e-3, 10 * self.gap):
                chosen.append(index)
                # A second projection keeps the basis orthogonal where the rest was short.
                rest = rest - spanned.T @ (spanned @ rest)
                spanned = torch.cat([spanned, unit(rest[None])])
            if len(chosen) == self.rank:
                break
        return chosen


def sampled_kernels(rows: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Kernels (K, R) of random sets of R - 1 of the rows (m, R): of R rows B the columns of B^-1 are those of all its sets."""
    chosen = torch.rand(count, len(rows), generator=generator).topk(rows.shape[1], 1).indices
    inverses, singular = torch.linalg.inv_ex(rows[chosen])
    kernels: Tensor = inverses[singular == 0].transpose(1, 2).reshape(-1, rows.shape[1])
    return kernels


def unit(directions: Tensor) -> Tensor:
    """Directions (K, R), each scaled to length 1; zero stays zero."""
    lengths: Tensor = directions.norm(dim=1, keepdim=True)
    return directions / lengths.clamp_min(1e-300)


def _others(directions: Tensor, direction: Tensor) -> Tensor:
    """Those of unit directions (K, R) that are not next to one (R,)."""
    return directions[(directions @ direction).abs() < 1 - 1e-5]


def complement(columns: Tensor) -> Tensor:
    """(R, R - K), orthonormal and orthogonal to independent columns (R, K)."""
    rest: Tensor = torch.linalg.qr(columns, mode="complete")[0][:, columns.shape[1] :]
    return rest
