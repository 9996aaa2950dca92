"""Updates as vectors of a fixed length: what a classifier of updates can be trained on, however large the model."""

from __future__ import annotations

import torch
from torch import Tensor

from attacks.base import AttackError
from defenses.base import Update

TINY = 1e-12


class UpdateSketch:
    """A fixed random projection of each tensor of an update, by feature hashing: every entry is added, with a random sign, to one
    of ``size`` bins. Inner products are kept in the mean, with an error that falls with the number of bins.

    Each tensor is scaled to length 1 first, so that neither the learning rate nor the size of the loss hides the others; the
    logarithm of its length stands beside it. The class of the task turns the sign of a whole update (with two classes that is all
    that it does), so the absolute values of the bins stand beside the bins.

    Args:
        like: An update of the model.
        size: Bins; a tensor with no more entries is kept as it is.
        generator: Draws bins and signs.

    Source: Weinberger, Dasgupta, Langford, Smola, Attenberg, "Feature Hashing for Large Scale Multitask Learning", ICML 2009.
    """

    def __init__(self, like: Update, size: int, generator: torch.Generator) -> None:
        self.size = size
        self.shapes = {name: tuple(like[name].shape) for name in sorted(like)}
        self._hashes: dict[str, tuple[Tensor, Tensor]] = {}
        for name in self.shapes:
            if (count := like[name].numel()) > size:
                bins = torch.randint(size, (count,), generator=generator)
                self._hashes[name] = bins, 2.0 * torch.randint(2, (count,), generator=generator) - 1

    def __call__(self, update: Update) -> Tensor:
        """(S,) float32 on the CPU.

        Raises:
            AttackError: When names or shapes are not those of the model, or a value is not finite.
        """
        if {name: tuple(tensor.shape) for name, tensor in update.items()} != self.shapes:
            raise AttackError("the update has other names or shapes than those that were learned from")
        parts = [self._of(name, update[name].detach().float().cpu().flatten()) for name in self.shapes]
        bins, lengths = torch.cat([part for part, _ in parts]), torch.stack([length for _, length in parts])
        if not torch.isfinite(lengths).all():
            raise AttackError("the update holds NaN or infinite values")
        return torch.cat([bins, bins.abs(), lengths])

    def _of(self, name: str, values: Tensor) -> tuple[Tensor, Tensor]:
        """Bins and the logarithm of the length."""
        length = values.norm()
        values = values / length.clamp(min=TINY)
        if name in self._hashes:
            bins, signs = self._hashes[name]
            values = torch.zeros(self.size).index_add(0, bins, signs * values)
        return values, (length + TINY).log()
