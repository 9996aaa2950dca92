"""Recovery of images from InstaHide's encodings, which mix images and flip the signs of pixels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from attacks.base import Knowledge, learned_field
from attacks.guesses import Reconstruction
from attacks.observations import AttackError, ClientUpdate
from attacks.refinement.base import Refinement
from defenses.base import Batch
from defenses.checks import examples_field, scale_field
from defenses.images.instahide import InstaHide


class _Map(NamedTuple):
    """Ridge regression: original = mean + (|encoded| - centre) @ into @ out, rows of D values."""

    mean: Tensor  # (D,)
    centre: Tensor  # (D,)
    into: Tensor  # (D, q) principal directions of |encoded|
    out: Tensor  # (q, D)


@dataclass(frozen=True, repr=False)
class EncodingInversion(Refinement):
    """Undo InstaHide in recovered images by linear regression: a simple form of its known break.

    An encoding is s * sum_j w_j x_j with pixels in [-1, 1] and secret signs s, so that |encoding| = |sum_j w_j x_j| has no
    secret sign left. The originals are then guessed from absolute values by linear regression, which is learned on auxiliary
    images that the server encodes itself, with the public number of images and law of weights. The paper's attack clusters many
    encodings of the same images and solves for these; this one uses a single encoding, and is far weaker.

    Attributes:
        components: Principal components of the absolute values that the regression sees.
        ridge: Penalty, as the assumed standard deviation of errors in recovered absolute values (0 to 1).
        repeats: Encodings per auxiliary image.
        batch_size: Auxiliary images that are mixed with each other.
        max_auxiliary: Auxiliary images that are used.
    """

    source = "Carlini 2021, section 4: absolute values; then ridge regression, our own"
    threat = "recovered encodings, InstaHide's parameters (never its draws), auxiliary images like the clients'"
    needs_auxiliary = True
    quick = {"repeats": 1, "batch_size": 8}

    components: int = examples_field(128)
    ridge: float = scale_field(0.1)
    repeats: int = examples_field(4)
    batch_size: int = examples_field(32, 2)
    max_auxiliary: int = examples_field(2000, 2)
    learned: tuple[_Map, ...] | None = learned_field()

    @torch.no_grad()
    def fit(self, knowledge: Knowledge, generator: torch.Generator) -> EncodingInversion:
        """Learn the regression for the pipeline's first InstaHide; without one, ``refine`` returns guesses unchanged."""
        defense = next((d for d in knowledge.pipeline.defenses if isinstance(d, InstaHide)), None)
        if defense is None:
            return replace(self, learned=())
        if len(knowledge.auxiliary) < 2:
            raise AttackError(f"EncodingInversion learns from auxiliary images, got {len(knowledge.auxiliary)}")
        seen, wanted = self._pairs(knowledge.auxiliary, defense, generator)
        mean, centre = wanted.mean(0), seen.mean(0)
        kept = min(self.components, *seen.shape)
        values, vectors = torch.linalg.eigh((seen - centre).T.double() @ (seen - centre).double() / len(seen))
        into = vectors.flip(1)[:, :kept].to(seen)
        variances = values.flip(0)[:kept].clamp(min=0).to(seen) + self.ridge**2
        out = into.T @ ((seen - centre).T @ (wanted - mean)) / len(seen) / variances[:, None]
        return replace(self, learned=(_Map(mean, centre, into, out),))

    def _pairs(self, auxiliary: Batch, defense: InstaHide, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """|encoded| and original pixels, (N, D) each."""
        seen, wanted = [], []
        for _ in range(self.repeats):
            order = torch.randperm(len(auxiliary), generator=generator)[: self.max_auxiliary]
            for rows in torch.split(order, self.batch_size):
                if len(rows) > 1:  # a lone image would be mixed with itself
                    batch = Batch(auxiliary.images[rows].float(), auxiliary.targets[rows])
                    seen.append(_absolute(defense.protect_batch(batch, generator).images))
                    wanted.append(batch.images.flatten(1))
        return torch.cat(seen), torch.cat(wanted)

    @torch.no_grad()
    def refine(self, observation: ClientUpdate, guess: Reconstruction, generator: torch.Generator) -> Reconstruction:
        """Apply the regression to every image; deterministic.

        The diagnostic "instahide" is added: whether the pipeline has an InstaHide.
        """
        learned = self.learned or ()
        notes = guess.diagnostics | {"instahide": float(len(learned))}
        if not learned:
            return replace(guess, diagnostics=notes)
        mean, centre, into, out = learned[0]
        if guess.images[0].numel() != len(mean):
            raise AttackError(f"images have shape {tuple(guess.images.shape[1:])}, auxiliary ones {len(mean)} values")
        images = guess.images.detach().to(mean)
        original = mean + (_absolute(images) - centre) @ into @ out
        return replace(guess, images=original.view(images.shape).clamp(0, 1).to(guess.images), diagnostics=notes)


def _absolute(images: Tensor) -> Tensor:
    """|2 x - 1| of images in [0, 1], (B, D): what sign flips leave."""
    return (2 * images - 1).abs().flatten(1)
