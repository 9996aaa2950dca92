"""Guesses as tensors by name, for the message to the client that scores them."""

from typing import Any

from torch import Tensor, nn

from attacks.guesses import Attributes, Cells, Labels, Reconstruction, Representatives
from attacks.membership.gradient_alignment import PART, RoundsTest
from attacks.membership.loss_threshold import Membership
from clients.wire.texts import RecordError, shortened
from defenses.tensors import NamedTensors, Tensors, part_of

Guess = Reconstruction | Labels | Representatives | Membership | Attributes | Cells

GUESSES: dict[str, type[Any]] = {
    "images": Reconstruction,
    "labels": Labels,
    "representatives": Representatives,
    "membership": Membership,
    "attributes": Attributes,
    "cells": Cells,
}
"""The kind that an audit message names -> the type of its guesses."""

FIELDS = {
    "images": {"labels": "labels", "images": "images"},
    "labels": {"labels": "classes"},
    "representatives": {"labels": "classes", "images": "images"},
    "attributes": {"attributes": "logits"},
    "cells": {"categories": "categories", "embeddings": "embeddings"},
}
"""Kind -> name in a message -> attribute of the guess."""


def kind_of_guess(guess: Any) -> str:
    """The kind that an audit message names."""
    return next(name for name, cls in GUESSES.items() if isinstance(guess, cls))


def guess_tensors(guess: Guess, target: int, recognised: Tensor | None) -> Tensors:
    """One guess under the number of its target (0 for a training update), with the classes (B,) that an oracle sees."""
    end = f"-{target}"
    if isinstance(guess, Membership):
        return {f"test{end}/{name}": tensor for name, tensor in guess.to_tensors().items()}
    tensors = {name: getattr(guess, field) for name, field in FIELDS[kind_of_guess(guess)].items()}
    tensors |= {"recognised": recognised} if recognised is not None and "images" in tensors else {}
    return {
        name + end: tensor.float() if name in ("images", "embeddings") else tensor for name, tensor in tensors.items()
    }


def read_guesses(
    kind: str, tensors: NamedTensors, count: int, model: nn.Module | None
) -> list[tuple[Guess, Tensor | None]]:
    """Invert ``guess_tensors`` for targets 0 to count - 1; each with the oracle's classes, if any.

    ``kind`` is one of ``GUESSES``; only tests of membership need the model, of the clients' architecture.

    Raises:
        ValueError: When a guess is missing, or is none of its kind.
    """
    guesses: list[tuple[Guess, Tensor | None]] = []
    for at in range(count):
        if kind == "membership":
            assert model is not None
            mine = part_of(tensors, f"test-{at}/")
            over_rounds = any(name.partition("/")[0] == PART for name in mine)
            guesses.append(((RoundsTest if over_rounds else Membership).from_tensors(mine, model), None))
        elif kind not in GUESSES:
            raise RecordError(f"kind is {shortened(kind)}; allowed: {', '.join(GUESSES)}")
        else:
            fields = {field: tensors[f"{name}-{at}"] for name, field in FIELDS[kind].items()}
            if "images" in fields:
                fields["images"] = fields["images"].float()
            guesses.append((GUESSES[kind](**fields), tensors.get(f"recognised-{at}") if "images" in fields else None))
    return guesses
