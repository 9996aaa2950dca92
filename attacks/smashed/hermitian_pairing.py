"""Undoing a spectral shuffle: the spectrum of a real image holds every value twice, and the server receives both copies."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from attacks.assignment import assigned
from attacks.base import Knowledge
from attacks.guesses import Reconstruction
from attacks.smashed.base import SmashedAttack, SmashedData
from attacks.smashed.feature_inversion import FeatureInversion
from attacks.smashed.patch_embedding import images_of_patches, patches_of_tokens
from attacks.smashed.spectral_statistics import SpectralStatistics
from attacks.smashed.tokens.positions import TokenReader, place
from attacks.smashed.tokens.training import train_reader
from defenses.checks import choice_field, steps_field
from defenses.smashed.spectral_shuffle import SpectralShuffle, from_spectrum, mirror, patch_side, to_planes, to_tokens

READERS = ("network", "statistics")


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
    cells = tokens.view(batch, num_tokens, patch, patch, dim // patch**2)
    real, imaginary = cells.chunk(2, -1)

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


@dataclass(frozen=True, repr=False)
class HermitianPairing(SmashedAttack[Reconstruction]):
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

    source: ClassVar[str] = (
        "Hermitian symmetry of the Fourier transform of real signals; attack on Yao et al., ICDM 2022, PS+"
    )
    threat: ClassVar[str] = (
        "one transmission of smashed data; the defences' algorithm; auxiliary images like the clients'"
    )
    needs_auxiliary: ClassVar[bool] = True
    effort: ClassVar[Mapping[str, str]] = {"iterations": "training_iterations"}
    quick: ClassVar[Mapping[str, Any]] = {"iterations": 12}

    iterations: int = steps_field(500)
    reader: str = choice_field("network", READERS)
    learned: TokenReader | SpectralStatistics | FeatureInversion | None = field(default=None, repr=False, compare=False)

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
        assert self.learned is not None
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
        numbers = {"pairing_cost": cost} | self.learned.diagnostics
        return Reconstruction(images, torch.full((len(images),), -1), numbers)

    def positions(self, received: Tensor) -> tuple[Tensor, float]:
        """The position in the spectrum of every received patch (B, N, 2D), as (B, N) int64; and the mean cost of the pairs."""
        reader: Any = self.learned  # each scores its own readings
        costs = pairing_costs(received, patch_side(received.shape[2] // 2))
        paired = [pair_slots(image, self_paired=received.shape[1] % 2) for image in costs]
        scores = reader.scores(reader(received))
        positions = torch.stack([place_pairs(*both) for both in zip(scores, paired, strict=True)])
        chosen = [float(image[s, t]) for image, pairs in zip(costs, paired, strict=True) for s, t in pairs]
        return positions, sum(chosen) / len(chosen)
