"""How scripts of this folder score guesses of a client's images: paired once, so that every measure compares the same pairs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.image_measures import psnr
from attacks.scoring.metrics import optimal_assignment, retrieved

CANDIDATES = 100
"""Images among which a guess has to identify its own."""
CEILING = 50.0
"""PSNR in dB that equal images count, so that they do not outweigh all others."""


@dataclass(frozen=True, eq=False)
class PairedGuesses:
    """Guesses beside the true images that they are compared with.

    Attributes:
        guess: (n, C, H, W) in [0, 1], single precision.
        truth: (n, C, H, W) in [0, 1], in the client's order, so that attacks are compared on the same images.
        client: (b, C, H, W), all images of the client.
        places: (n,) int64, the place of each true image among the client's.
    """

    guess: Tensor
    truth: Tensor
    client: Tensor
    places: Tensor

    @classmethod
    def of(cls, guess: Tensor, client: Tensor) -> PairedGuesses:
        """Pair guesses (m, C, H, W) with a client's images (b, C, H, W) by the smallest total error: n = min(m, b)."""
        rows, places = optimal_assignment(guess, client)
        order = places.argsort()
        rows, places = rows[order], places[order]
        return cls(guess[rows].float(), client[places], client, places)

    def psnr(self) -> Tensor:
        """See ``capped_psnr``."""
        return capped_psnr(self.guess, self.truth)

    def identified(self, others: Tensor) -> list[float]:
        """1 for each guess whose own image is nearest to it among ``CANDIDATES`` images, else 0.

        The candidates are the client's images and as many of ``others`` (k, C, H, W) as are needed.
        """
        candidates = torch.cat([self.client, others[: CANDIDATES - len(self.client)]])
        return retrieved(self.guess, candidates, self.places)


def capped_psnr(guess: Tensor, truth: Tensor) -> Tensor:
    """PSNR in dB of each pair, (n,), at most ``CEILING``."""
    return psnr(guess, truth).clamp(max=CEILING)
