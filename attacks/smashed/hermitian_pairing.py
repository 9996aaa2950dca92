"""Undoing a spectral shuffle: the spectrum of a real image holds every value twice, and the server receives both copies."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import torch
from torch import Tensor

from attacks.assignment import assigned
from attacks.base import Knowledge, learned_field
from attacks.guesses import Reconstruction
from attacks.sender import Sender
from attacks.smashed.base import SmashedAttack, SmashedData, check_features
from attacks.smashed.feature_inversion import FeatureInversion
from attacks.smashed.tokens.positions import TokenReader, images_of_patches, patches_of_tokens, place
from attacks.smashed.tokens.training import train_reader
from defenses.checks import Steps, algorithm
from defenses.smashed.spectral_shuffle import SpectralShuffle, from_spectrum, mirror, patch_side, to_planes, to_tokens
from defenses.tensors import Numbers

MOST_IMAGES = 3000
FREEDOM = 3.0
"""Degrees of freedom of the multivariate t distribution: spectra of images have heavy tails."""
STEPS = 2
RIDGE = 1e-6
LEAST = -200.0
"""Log-probabilities count no less."""


@dataclass(frozen=True)
class SpectralStatistics:
    """A multivariate t distribution of the received patches of each position, after division by an image's median energy.

    Attributes:
        mean: (N, D), of each position.
        factor: (N, D, D), Cholesky factors of the scale matrices.
        diagnostics: ``position_accuracy``, of the position that is most probable alone, on the images it was fitted to.
    """

    mean: Tensor
    factor: Tensor
    diagnostics: Numbers

    @classmethod
    def of(cls, sender: Sender, images: Tensor, generator: torch.Generator) -> SpectralStatistics:
        """Send auxiliary images (M, C, H, W) in [0, 1], and fit one distribution for each position by fixed-point iterations."""
        received, order = sender.send_with_order(images[:MOST_IMAGES], generator)
        slots = (order % order.shape[1]).argsort(1).to(received.device)
        ordered = scaled(received)[torch.arange(len(slots), device=slots.device).unsqueeze(1), slots]
        dim = ordered.shape[2]
        means, factors = [], []
        for values in ordered.unbind(1):
            mean = values.mean(0)
            centred = values - mean
            scale = _regular(centred.T @ centred / len(centred))
            for _ in range(STEPS):
                distance = (centred @ torch.linalg.inv(scale) * centred).sum(1, keepdim=True)
                weights = (FREEDOM + dim) / (FREEDOM + distance)
                scale = _regular((centred * weights).T @ centred / len(centred))
            means.append(mean)
            factors.append(torch.linalg.cholesky(scale))
        fitted = cls(torch.stack(means), torch.stack(factors), {})
        probable = fitted.scores(fitted(received[:32])).argmax(2).cpu()
        fitted.diagnostics["position_accuracy"] = float((probable == order[:32] % order.shape[1]).double().mean())
        return fitted

    def check(self, features: Tensor) -> None:
        """Raise ``AttackError`` unless smashed data (R, B, N, D) are those it was fitted to."""
        check_features(features, tuple(self.mean.shape))

    def __call__(self, features: Tensor) -> Tensor:
        """Log-probability of each position for each received patch, (B, N, D) -> (B, N, N)."""
        values, dim = scaled(features), self.mean.shape[1]
        densities = []
        for mean, factor in zip(self.mean, self.factor, strict=True):
            white = torch.linalg.solve_triangular(factor, (values.flatten(0, 1) - mean).T, upper=False)
            distance = white.square().sum(0).view(values.shape[:2])
            densities.append(-(FREEDOM + dim) / 2 * torch.log1p(distance / FREEDOM) - factor.diagonal().log().sum())
        return torch.stack(densities, 2).log_softmax(2).clamp_min(LEAST).float()

    def scores(self, reading: Tensor) -> Tensor:
        """The log-probabilities themselves, as ``TokenReader.scores`` gives them."""
        return reading


def scaled(features: Tensor) -> Tensor:
    """Patches (B, N, D) over the square root of their image's median energy, in double precision."""
    exact = features.double()
    energy = exact.square().sum(2).median(1).values.clamp_min(1e-24)
    return exact / energy.sqrt().view(-1, 1, 1)


def _regular(matrix: Tensor) -> Tensor:
    return matrix + RIDGE * matrix.diagonal().mean() * torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)


def pairing_costs(tokens: Tensor, patch: int) -> Tensor:
    """How badly two spectral patches are each other's conjugate mirror image: (B, N, 2D) -> (B, N, N), 0 to 2.

    Only entries whose mirror image lies in a single patch are compared: all p^2 where p times the grid is odd, and (p - 1)^2
    where it is even, because the zero frequency is then not in the middle of the plane. The cost is the squared distance
    over the sum of both energies.
    """
    batch, num_tokens, dim = tokens.shape
    side = math.isqrt(num_tokens) * patch
    # Of the last patch, the rows that mirror into one and the same patch; all patches have the same.
    rows = torch.arange(side - patch, side)
    inside = [(i, int(mirror(int(i), side))) for i in rows if mirror(int(i), side) < patch]
    own, other = (torch.tensor(part) % patch for part in zip(*inside, strict=True))
    real, imaginary = tokens.view(batch, num_tokens, patch, patch, dim // patch**2).chunk(2, -1)

    def compared(kept: Tensor, sign: int) -> Tensor:
        values = torch.cat([real, sign * imaginary], -1)
        return values[:, :, kept][:, :, :, kept].flatten(2)

    here, there = compared(own, 1), compared(other, -1)
    energy = here.square().sum(-1, keepdim=True) + there.square().sum(-1).unsqueeze(1)
    # Twice the inner product, not cdist: its rounding error is that of the sum of squares either way.
    distance = energy - 2 * here @ there.transpose(1, 2)
    return distance.clamp_min(0) / energy.clamp_min(1e-12)


def pair_slots(costs: Tensor, self_paired: int) -> list[tuple[int, int]]:
    """Pairs the slots of one image greedily, cheapest first: (N, N) symmetric costs -> pairs (s, t), s <= t.

    ``self_paired`` slots are their own mirror image: N mod 2, the middle of an odd grid.
    """
    num_tokens = len(costs)
    pairs: list[tuple[int, int]] = []
    free = set(range(num_tokens))
    for flat in costs.triu().masked_fill(torch.ones_like(costs).tril(-1).bool(), math.inf).flatten().argsort().tolist():
        slot, partner = divmod(flat, num_tokens)
        if slot > partner:  # only the part below the diagonal is left
            break
        if slot in free and partner in free and (slot != partner or self_paired > 0):
            self_paired -= slot == partner
            free -= {slot, partner}
            pairs.append((slot, partner))
    return pairs


def place_pairs(scores: Tensor, pairs: list[tuple[int, int]]) -> Tensor:
    """The best positions (N,) of one image's slots when paired slots must get positions that mirror each other, n and N - 1 - n.

    ``scores`` (N, N) are log-probabilities of each position for each slot; every slot is in exactly one pair.
    """
    num_tokens = len(scores)
    positions = torch.empty(num_tokens, dtype=torch.int64)
    for alone in (True, False):
        group = [pair for pair in pairs if (pair[0] == pair[1]) == alone]
        if not group:
            continue
        middle = num_tokens // 2
        first = torch.tensor([middle]) if alone else torch.arange(middle)
        slots = torch.tensor(group)
        straight = scores[slots[:, 0]][:, first] + scores[slots[:, 1]][:, num_tokens - 1 - first]
        turned = scores[slots[:, 1]][:, first] + scores[slots[:, 0]][:, num_tokens - 1 - first]
        for pair, column in enumerate(assigned(-torch.maximum(straight, turned)).tolist()):
            low, high = slots[pair].tolist()
            if turned[pair, column] > straight[pair, column]:
                low, high = high, low
            positions[low], positions[high] = first[column], num_tokens - 1 - first[column]
    return positions


@algorithm
class HermitianPairing(
    SmashedAttack[Reconstruction],
    needs_auxiliary=True,
    effort={"iterations": "training_iterations"},
    quick={"iterations": 12},
):
    """Undo a spectral shuffle: pair patches that are conjugate mirror images, place the pairs, and transform back.

    1. The spectrum of a real image satisfies X(-f) = conj X(f). So the patch at row a and column b of a g x g grid is that at
       g - 1 - a, g - 1 - b mirrored and conjugated, wherever the shuffle puts the two (``pairing_costs``).
    2. A network that reads the patches of auxiliary images gives every slot log-probabilities of positions
       (``tokens.positions``). Pairs of slots are assigned to pairs of mirrored positions, each in its better orientation.
    3. The inverse transform gives tokens, and least squares gives the pixels whose embedding they are.

    Diagnostics: ``pairing_cost``, the mean cost of the chosen pairs, 0 for exact mirror images and about 1 for unrelated patches;
    ``position_accuracy``, of the network alone on held-out auxiliary images. If the clients send no spectra, ``FeatureInversion``
    inverts the smashed data, with the diagnostic ``nothing_to_undo``, as a positive control.

    Attributes:
        iterations: Training steps of the network.
        reader: "network", or "statistics" for ``SpectralStatistics`` in its place, which need no training and place more of many
            patches.
        learned: Set by ``fit``: what gives the log-probabilities, or the inversion if there is nothing to undo.
    """

    source = "Hermitian symmetry of the Fourier transform of real signals; attack on Yao et al., ICDM 2022, PS+"
    threat = "one transmission of smashed data; the defences' algorithm; auxiliary images like the clients'"

    iterations: Steps = 500
    reader: Literal["network", "statistics"] = "network"
    learned: TokenReader | SpectralStatistics | FeatureInversion = learned_field()

    def fit(self, knowledge: Knowledge, generator: torch.Generator) -> Self:
        """Train the network."""
        sender = knowledge.require_sender()
        if not any(isinstance(stage, SpectralShuffle) for stage in knowledge.pipeline.defenses):
            return replace(self, learned=FeatureInversion().fit(knowledge, generator))
        if self.reader == "statistics":
            return replace(self, learned=SpectralStatistics.of(sender, knowledge.auxiliary.images, generator))
        reader = train_reader(
            sender, knowledge.auxiliary.images, generator, iterations=self.iterations, shows_patches=False
        )
        return replace(self, learned=reader)

    def attack_one(self, observation: SmashedData, generator: torch.Generator) -> Reconstruction:
        """Recover the images of the first transmission."""
        if isinstance(self.learned, FeatureInversion):
            guess = self.learned.attack_one(observation, generator)
            return replace(guess, diagnostics=guess.diagnostics | {"nothing_to_undo": 1.0})
        self.learned.check(observation.features)
        received = observation.features[0][: observation.num_targets]
        patch = patch_side(received.shape[2] // 2)
        positions, cost = self.positions(received)
        tokens = to_tokens(from_spectrum(to_planes(place(received, positions), patch)), patch)
        edge, shape = observation.edge, observation.input_shape
        images = images_of_patches(patches_of_tokens(tokens, edge, shape), edge, shape, observation)
        return Reconstruction.unlabelled(images, {"pairing_cost": cost} | self.learned.diagnostics)

    def positions(self, received: Tensor) -> tuple[Tensor, float]:
        """The position in the spectrum of every received patch (B, N, 2D), as (B, N) int64; and the mean cost of the pairs."""
        reader: Any = self.learned  # each scores its own readings
        costs = pairing_costs(received, patch_side(received.shape[2] // 2))
        paired = [pair_slots(image, self_paired=received.shape[1] % 2) for image in costs]
        scores = reader.scores(reader(received))
        positions = torch.stack([place_pairs(*both) for both in zip(scores, paired, strict=True)])
        chosen = [float(image[s, t]) for image, pairs in zip(costs, paired, strict=True) for s, t in pairs]
        return positions, sum(chosen) / len(chosen)
