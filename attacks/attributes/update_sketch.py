"""Updates as vectors of a fixed length: what a classifier of updates can be trained on, however large the model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor, nn

from attacks.base import Knowledge
from attacks.observations import AttackError, NotApplicableError
from attacks.refinement.restoration import HOLDOUT
from defenses.base import DefenseError
from defenses.random_draws import seed_of
from defenses.tensors import Numbers, Shape, TensorMap, Update

TINY = 1e-12
FEWEST = 2 * HOLDOUT
"""Simulated updates to learn from."""


class UpdateSketch:
    """A fixed random projection of each tensor of an update, by feature hashing: every entry is added, with a random sign, to one
    of ``size`` bins. Inner products are kept in the mean, with an error that falls with the number of bins; a tensor with no more
    entries is kept as it is.

    Each tensor is scaled to length 1 first, so that neither the learning rate nor the size of the loss hides the others; the
    logarithm of its length stands beside it. The class of the task turns the sign of a whole update (with two classes that is all
    that it does), so the absolute values of the bins stand beside the bins.

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
        """(S,) float32 on the host: a card adds in no fixed order, so that its bins would differ from run to run."""
        if {name: tuple(tensor.shape) for name, tensor in update.items()} != self.shapes:
            raise AttackError("the update's names or shapes differ from those of the updates in training")
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


@dataclass(frozen=True)
class UpdateReader:
    """What an attack keeps that has learned to read updates.

    Attributes:
        network: Sketches (M, S) -> what it reads of each, (M, ...); in eval mode, on the CPU.
        sketch: Makes sketches of updates.
        shape: Of the truth about one update.
        diagnostics: How well it reads updates of examples that were held out.
    """

    network: nn.Module
    sketch: UpdateSketch
    shape: Shape
    diagnostics: Numbers

    def __call__(self, update: Update) -> Tensor:
        """What it reads of an update: (1, ...)."""
        with torch.no_grad():
            read: Tensor = self.network(self.sketch(update)[None].to(next(self.network.parameters())))
        return read


class StandardiseSketches(nn.Module):
    """To mean 0 and standard deviation 1 on what it was made of; what never changes there is left out."""

    def __init__(self, values: Tensor) -> None:
        super().__init__()
        std = values.std(0)
        self.mean = nn.Buffer(values.mean(0))
        self.scale = nn.Buffer(torch.where(std > 1e-6, 1 / std.clamp(min=1e-6), 0.0))

    def forward(self, values: Tensor) -> Tensor:
        """(M, S) -> (M, S)."""
        return (values - self.mean) * self.scale


def made_by(
    knowledge: Knowledge, rows: Tensor, count: int, generator: torch.Generator
) -> Iterator[tuple[Tensor, Update]]:
    """Updates of auxiliary examples in some rows, as a client would send them: positions of its images among the rows, update."""
    if knowledge.probes is None:
        raise NotApplicableError(
            "the attack learns from one-step updates, which only probes of federated learning provide"
        )
    own = knowledge.auxiliary.rows(rows)
    try:
        yield from knowledge.probes(own, count, seed_of(generator, 31))
    except DefenseError as error:
        raise AttackError(f"the defences refuse auxiliary images: {error}") from error


def simulated(
    knowledge: Knowledge, rows: Tensor, count: int, size: int, truth: TensorMap, generator: torch.Generator
) -> tuple[UpdateSketch, Tensor, Tensor]:
    """A new sketch with projections of length ``size``, and ``sketched`` of ``made_by`` by it."""
    made = made_by(knowledge, rows, count, generator)
    first = next(made)
    sketch = UpdateSketch(first[1], size, generator)
    return sketch, *sketched(sketch, chain([first], made), truth)


def sketched(sketch: UpdateSketch, made: Iterable[tuple[Tensor, Update]], truth: TensorMap) -> tuple[Tensor, Tensor]:
    """Sketches (M, S) of updates, and the truth about each, (M, ...), by the positions of its images."""
    found = [(sketch(update), truth(rows.cpu())) for rows, update in made]
    return torch.stack([one for one, _ in found]), torch.stack([true for _, true in found])
