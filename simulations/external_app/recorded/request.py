"""Parsed values of the settings of ``fedveil attack``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attacks import Attack, Membership
from defenses.pipeline import Pipeline
from defenses.spec import parse
from simulations.external_app.recorded.arguments.settings import (
    AttackSettings,
    contradictions,
    mean_and_std,
    shape_of,
    whole_numbers,
)
from simulations.external_app.recorded.guesses import guess_type, require_usable
from simulations.settings.defaults import DEFAULT_ATTACKS
from simulations.settings.errors import ConfigError, naming
from strategies.federated.observations import UPDATE


@dataclass(frozen=True)
class Parsed:
    """Values of the texts of settings.

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


def parse_request(settings: AttackSettings) -> Parsed:
    """Reads the texts of settings of a single reply, and checks that they fit each other; opens no file.

    Raises:
        ConfigError: Naming every wrong setting, what came and what is allowed.
    """
    wrong, shape = contradictions(settings), shape_of(settings.input_shape)
    if wrong or shape is None or not settings.num_classes:  # the command checks earlier that nothing is missing
        raise ConfigError("; ".join(wrong) or "input-shape or num-classes is missing; set both")
    mean, std = (
        values * shape[0] if len(values) == 1 else values
        for values in mean_and_std(settings.normalisation) or [(0.0,), (1.0,)]
    )
    labels = torch.tensor(whole_numbers(settings.labels)) if settings.labels else None
    attacks = _attacks(settings)
    with naming("defenses"):
        pipeline = parse(settings.defenses)
    return Parsed(shape, mean, std, labels, attacks, pipeline)


def _attacks(settings: AttackSettings) -> list[Attack[Any, Any]]:
    with naming("update-attacks"):
        attacks = UPDATE.parse(settings.update_attacks)
        for attack in attacks:
            require_usable(attack, has_auxiliary=bool(settings.auxiliary_data))
    if not attacks:
        raise ConfigError(
            f"update-attacks is {settings.update_attacks!r}; allowed: names of `fedveil list attacks`, such as {DEFAULT_ATTACKS}"
        )
    if membership := [attack for attack in attacks if guess_type(attack) is Membership]:
        raise ConfigError(
            f"update-attacks: {membership[0]} judges records that only the client holds; audit it with `fedveil run`"
        )
    return attacks
