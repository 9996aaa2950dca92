"""Parsed values of the options of ``fedveil attack``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attacks import Attack, Membership
from defenses.pipeline import Pipeline
from defenses.spec import parse
from simulations.external_app.recorded.arguments.request import (
    Request,
    numbers_of,
    shape_of,
    whole_numbers,
    wrong_options,
)
from simulations.external_app.recorded.guesses import guess_type, require_usable
from simulations.settings.defaults import DEFAULT_ATTACKS
from simulations.settings.errors import ConfigError, naming
from strategies.federated.observations import UPDATE


@dataclass(frozen=True)
class Parsed:
    """Values of the texts of a request.

    Attributes:
        input_shape: (C, H, W).
        mean: Per channel, C numbers.
        std: Per channel, C positive numbers.
        labels: (num_examples,) int64, or None where unknown.
        attacks: In order, before they have learned anything.
        pipeline: The client's defences.
    """

    input_shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    labels: Tensor | None
    attacks: Sequence[Attack[Any, Any]]
    pipeline: Pipeline


def parse_request(request: Request) -> Parsed:
    """Reads the texts of a request and checks its numbers; opens no file.

    Raises:
        ConfigError: Naming every wrong option, what came and what is allowed.
    """
    wrong = wrong_options(request)
    shape = shape_of(request.input_shape)
    if request.num_classes == 0:  # a command line without it does not come as far as this
        wrong.append("--num-classes is 0; allowed: a whole number of at least 2")
    if wrong or shape is None:
        raise ConfigError(
            "; ".join(wrong) or "--input-shape is ''; allowed: channels, height and width, such as 1,28,28"
        )
    mean, std = (_per_channel(text, shape[0], one) for text, one in ((request.mean, 0.0), (request.std, 1.0)))
    labels = torch.tensor(whole_numbers(request.labels)) if request.labels else None
    attacks = _attacks(request)
    with naming("--defense"):
        pipeline = parse(request.defense)
    return Parsed(shape, mean, std, labels, attacks, pipeline)


def _per_channel(text: str, channels: int, default: float) -> tuple[float, ...]:
    values = numbers_of(text) if text else (default,)
    return values * channels if len(values) == 1 else values


def _attacks(request: Request) -> list[Attack[Any, Any]]:
    with naming("--attack"):
        attacks = UPDATE.parse(request.attacks)
        for attack in attacks:
            require_usable(attack, has_auxiliary=bool(request.auxiliary))
    if not attacks:
        raise ConfigError(
            f"--attack is {request.attacks!r}; allowed: names of `fedveil list attacks`, such as {DEFAULT_ATTACKS}"
        )
    if membership := [attack for attack in attacks if guess_type(attack) is Membership]:
        raise ConfigError(
            f"--attack: {membership[0]} judges records that only the client holds; audit it with `fedveil run`"
        )
    return attacks
