"""SPEAR: exact inputs of a linear layer followed by a ReLU, from the gradient of a whole batch."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

import torch
from torch import Tensor

from attacks.exact.base import SolvingAttack, recovered
from attacks.exact.linear_layer import GAP, LayerGradient, LinearLayer, LowRank, Read, low_rank
from attacks.exact.missing_examples import CLEAR, SURE_OF_ONE, MissingExamples
from attacks.exact.sparse_directions import SparseDirections
from attacks.guesses import Reconstruction
from attacks.observations import ClientUpdate, FoundNothingError, NotApplicableError
from defenses.checks import Steps, algorithm
from defenses.tensors import ImageShape, Numbers

SURE, ALONE = 0.97, 0.985
"""Share of neurons at which the sign of z and the zeros of dL/dz must agree for a column to be believed, beside others that agree
or not. Half agree by chance, and three quarters for the sum of two columns; rounding costs a neuron now and then."""
POLISHES = 5
SMALL = 0.05
"""Share of an example's largest signal from which a signal is no noise, however large the noise."""
Kind = TypeVar("Kind", bound=SparseDirections)


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


@algorithm
class Spear(
    SolvingAttack, selection="agreement of signs and zeros", quick={"max_samples": 20_000, "max_descents": 256}
):
    """Solve for a batch of images exactly, from the gradient of a linear layer on the pixels with a ReLU behind it.

    With Z = W X + b the gradient is dL/dW = dL/dZ X^T, of rank B. Its singular value decomposition L R leaves an invertible Q
    open: dL/dZ = L Q, X^T = Q^-1 R. The ReLU makes columns of dL/dZ sparse, so that a column of Q is a direction q for which L q
    has many zeros (``SparseDirections``), up to its length; dL/db = dL/dZ 1 gives the lengths. The R directions with the most zeros
    are chosen, and exchanged one by one as long as the signs of W X + b agree better with the zeros of dL/dZ.

    Examples come in any order, exact up to rounding if ``gradient_distance`` is near 0; otherwise a batch may be wrong without
    a failure. The attack uses no label, and no prior except that "components" or "all" start from properties of images. Each
    example gets the class that explains its gradient. A batch of one needs neither search nor ReLU: x = (dL/dW)_j / (dL/db)_j.

    Reports "does not apply" if no linear layer sees the pixels, if the layer has no bias or (for two or more examples) no ReLU, for
    an update of several steps, and under noise or pruning. A batch must also be clearly smaller than half of the layer's neurons.
    The number of samples doubles with every example: with half the neurons off, a sample of R - 1 rows hits a given column with
    probability 2^-(R - 1) (section 4). Properties of images (``MissingExamples``) allow larger batches. The guess has the
    examples that are believed, and fails if there is none (``believed``).

    Diagnostics: ``rank``; ``singular_gap`` (noise over signal), ``samples``, ``descents``, ``directions`` (all that were found),
    ``sparsity_match`` (the score: 1 where all signs agree), ``gradient_distance`` (1 - cosine of the gradients of guess and update;
    0 proves the guess), ``outside_share`` (pixels beyond [0, 1] by 0.01 or more: many mean a wrong solution).

    Attributes:
        search: "samples": kernels of random sets of rows, as published. "descent": a descent on the number of zeros, for wide
            layers. "both": the two in turn. "components": the descent, starting from the independent components of the images
            (``CocktailParty``), if the layer sees pixels. "all": first "components", then "both".
        max_samples: Largest number of sets of rows.
        max_descents: Largest number of starts of the descent.
    """

    source = (
        "Dimitrov, Baader, Mueller, Vechev, SPEAR: Exact Gradient Inversion of Batches in Federated Learning, NeurIPS 2024, "
        "Algorithm 1 and Theorems 3.1 to 3.3; batch 1: Phong et al. 2017, section 3"
    )

    search: Literal["all", "both", "samples", "descent", "components"] = "all"
    max_samples: Steps = 1_000_000
    max_descents: Steps = 5_000

    def solve(self, observation: ClientUpdate, generator: torch.Generator, numbers: Numbers) -> Reconstruction:
        """See ``SolvingAttack``."""
        return solved_images(self.factors, Read.of(observation), observation, generator, numbers)

    def factors(
        self, read: Read, layer: LinearLayer, observation: ClientUpdate, generator: torch.Generator, numbers: Numbers
    ) -> Factors:
        """The layer's inputs and signals; ``numbers`` get diagnostics, also where this fails.

        Of a layer that sees pixels, the components of the images are starts.
        """
        start = begun(read.of_layer(layer), layer, observation.num_examples, numbers, SparseDirections)
        if isinstance(start, Factors):
            return start
        directions, missing = start
        shape = observation.input_shape if layer.sees_pixels else None
        solution = self._searched(directions, missing, shape, generator)
        counts = {"samples": directions.samples, "descents": directions.descents, "directions": len(directions.found)}
        numbers |= {name: float(count) for name, count in counts.items()}
        where = (
            f"in {directions.samples} samples and {directions.descents} descents; raise max_samples and max_descents"
        )
        solution = believed(solution, f"{where}, or attack a smaller batch")
        numbers["sparsity_match"] = float(solution.agreement.mean())
        return solution

    def _searched(
        self,
        directions: SparseDirections,
        missing: MissingExamples,
        shape: ImageShape | None,
        generator: torch.Generator,
    ) -> Factors:
        """The factors as soon as all signs agree, else the best there are in the end."""
        parts, bias, layer = missing.parts, missing.bias, missing.layer
        samples = self.max_samples if self.search in ("all", "both", "samples") else 0
        descents = self.max_descents if self.search in ("all", "both", "descent") else 0
        tried: Tensor | None = None
        if self.search in ("all", "components"):
            missing.by_components(shape, generator)
        while True:
            chosen = directions.basis()
            basis = directions.found[chosen].T
            if len(chosen) == directions.rank and (tried is None or not torch.equal(tried, basis)):
                tried, solution = basis, solved(parts, basis, bias, layer)
                if solution.agreement.min() > SURE:
                    return polished(solution, parts, bias, layer)
            if directions.samples >= samples and directions.descents >= descents:
                break
            if directions.samples < samples:
                directions.sample(generator)
            if directions.descents < descents:
                directions.descend(generator)
            missing.by_elimination()
        return repaired(directions, missing)


def solved_images(
    factors: Callable[..., Factors], read: Read, observation: ClientUpdate, generator: torch.Generator, numbers: Numbers
) -> Reconstruction:
    """The images that the factors of the layer on the pixels hold."""
    layer = read.on_pixels()
    solution = factors(read, layer, observation, generator, numbers)
    return recovered(observation, read, layer.module, solution.inputs, solution.signals, numbers, solution.failure)


def begun(
    gradient: LayerGradient,
    layer: LinearLayer,
    num_examples: int,
    numbers: Numbers,
    kind: type[Kind],
    least_gap: float = GAP,
) -> Factors | tuple[Kind, MissingExamples]:
    """The factors of a gradient of rank 1, or a search of this kind for the columns of another; ``numbers`` get rank and gap."""
    if gradient.bias is None:
        raise NotApplicableError(f"layer {layer.name!r} has no bias, whose gradient gives the lengths")
    parts = low_rank(gradient, num_examples, least_gap)
    numbers |= {"rank": float(parts.rank), "singular_gap": parts.gap}
    if parts.rank == 1:
        return solved(parts, torch.ones(1, 1, dtype=torch.float64), gradient.bias, layer)
    if not layer.rectified:
        raise NotApplicableError(
            f"no ReLU follows layer {layer.name!r}, so the columns of a batch of {num_examples} are not sparse"
        )
    directions = kind(parts.left, parts.gap)
    if not directions.feasible:
        raise NotApplicableError(
            f"{len(directions.rows)} active neurons are too few for {parts.rank} examples; an example must leave "
            f"more than {directions.fewest} of them inactive"
        )
    return directions, MissingExamples(directions, parts, gradient.bias, layer)


def solved(parts: LowRank, basis: Tensor, bias: Tensor, layer: LinearLayer) -> Factors:
    """The factors for Q = ``basis`` (R, R), whose columns get the lengths that the gradient of the bias asks for."""
    signals = parts.left @ basis
    lengths = torch.linalg.lstsq(signals, bias[:, None]).solution[:, 0]
    # A column that the bias does not see has no length; any will do for one that is wrong anyway.
    lengths = torch.where(lengths.abs() < 1e-12 * lengths.abs().max(), lengths.abs().max(), lengths)
    signals, inputs = signals * lengths, torch.linalg.solve(basis * lengths, parts.right)
    return Factors(signals.T, inputs, _agreement(inputs, signals.T, parts.gap, layer))


def _agreement(inputs: Tensor, signals: Tensor, gap: float, layer: LinearLayer) -> Tensor:
    return ((layer.outputs(inputs) > 0) == _touched(signals, gap)).double().mean(1)


def _touched(signals: Tensor, gap: float) -> Tensor:
    """Which of the signals (R, M) are not zero, (R, M) bool."""
    return signals.abs() > min(max(10 * gap, 1e-7), SMALL) * signals.abs().amax(1, keepdim=True)


def polished(
    factors: Factors, parts: LowRank, bias: Tensor, layer: LinearLayer, *, several_steps: bool = False
) -> Factors:
    """Both factors by least squares in turn, dL/dz zero where z <= 0: rounding counts less when all of the zeros are used.

    The bias is one more column of W, whose input is 1 for every example; each example's input is scaled to have it. In the sum of
    several steps signs of z may have changed: there an entry of dL/dz must also be nearly zero.
    """
    gradient = torch.cat([parts.left @ parts.right, bias[:, None]], 1)
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
    better = Factors(signals.T, inputs, _agreement(inputs, signals.T, parts.gap, layer))
    return better if inputs.isfinite().all() and better.agreement.mean() >= factors.agreement.mean() else factors


def repaired(directions: SparseDirections, missing: MissingExamples) -> Factors:
    """The best factors by the mean agreement, from the directions with the most zeros, and any for those that are missing.

    A wrong column spoils the inputs of others. In the place of each column, the least sure one first, the one that the others
    leave is tried (``MissingExamples.columns``): if these are right, it is exact.

    Source: ours; Dimitrov et al. 2024, Algorithm 2 (greedy filtering), exchanges columns for others that were found.
    """
    parts, bias, layer = missing.parts, missing.bias, missing.layer
    known = directions.found[directions.basis()].T
    basis = torch.cat([known, torch.linalg.qr(known, mode="complete")[0][:, known.shape[1] :]], 1)
    best, before = solved(parts, basis, bias, layer), -1.0
    while float(best.agreement.mean()) > before:
        before = float(best.agreement.mean())
        for place in best.agreement.argsort().tolist():
            others = basis[:, [at for at in range(parts.rank) if at != place]]
            rest = torch.linalg.qr(others, mode="complete")[0][:, -1:]
            for column in (candidate for share in (SURE_OF_ONE, CLEAR) for candidate in missing.columns(rest, share)):
                trial = torch.cat([basis[:, :place], column[:, None], basis[:, place + 1 :]], 1)
                if torch.linalg.matrix_rank(trial, rtol=1e-6) == parts.rank:
                    changed = solved(parts, trial, bias, layer)
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
