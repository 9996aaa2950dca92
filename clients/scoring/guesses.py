"""Guesses as tensors by name, for the message to the client that scores them."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from attacks.guesses import Attributes, Cells, Labels, Reconstruction, Representatives
from attacks.membership.federation.round_signals import PART, RoundsTest
from attacks.membership.loss_threshold import Membership
from clients.wire.texts import RecordError, shortened
from defenses.base import NamedTensors, Tensors

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


def guess_tensors(guess: Guess, target: int, recognised: Tensor | None) -> Tensors:
    """One guess under the number of its target (0 for a training update), with the classes (B,) that an oracle sees."""
    end = f"-{target}"
    if isinstance(guess, Membership):
        return {f"test{end}/{name}": tensor for name, tensor in guess.to_tensors().items()}
    if isinstance(guess, Labels):
        return {f"labels{end}": guess.classes}
    if isinstance(guess, Attributes):
        return {f"attributes{end}": guess.logits}
    if isinstance(guess, Cells):
        return {f"categories{end}": guess.categories, f"embeddings{end}": guess.embeddings.float()}
    classes = guess.labels if isinstance(guess, Reconstruction) else guess.classes
    seen = {} if recognised is None else {f"recognised{end}": recognised}
    return {f"labels{end}": classes, f"images{end}": guess.images.float(), **seen}


def read_guesses(
    kind: str, tensors: NamedTensors, count: int, model: nn.Module | None
) -> list[tuple[Guess, Tensor | None]]:
    """Invert ``guess_tensors`` for targets 0 to count - 1; each with the oracle's classes, if any.

    ``kind`` is one of ``GUESSES``; only tests of membership need the model, of the clients' architecture.

    Raises:
        ValueError: When a guess is missing, or is none of its kind.
    """
    found: list[tuple[Guess, Tensor | None]] = []
    for at in range(count):
        recognised = tensors.get(f"recognised-{at}")
        if kind == "membership":
            prefix = f"test-{at}/"
            assert model is not None
            mine = {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
            over_rounds = any(name.partition("/")[0] == PART for name in mine)
            found.append(((RoundsTest if over_rounds else Membership).from_tensors(mine, model), None))
        elif kind == "labels":
            found.append((Labels(tensors[f"labels-{at}"]), None))
        elif kind == "attributes":
            found.append((Attributes(tensors[f"attributes-{at}"]), None))
        elif kind == "cells":
            found.append((Cells(tensors[f"categories-{at}"], tensors[f"embeddings-{at}"]), None))
        elif kind not in GUESSES:
            raise RecordError(f"kind is {shortened(kind)}; allowed: {', '.join(GUESSES)}")
        else:
            images, classes = tensors[f"images-{at}"].float(), tensors[f"labels-{at}"]
            found.append((GUESSES[kind](images, classes), recognised))
    return found
