"""The options of ``fedveil attack``, and the values that they stand for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attacks import Attack, Membership
from defenses.pipeline import Pipeline
from defenses.spec import parse
from simulations.external_app.recorded.guesses import guess_type, require_usable
from simulations.settings.defaults import DEFAULT_ATTACKS
from simulations.settings.errors import ConfigError, naming
from strategies.federated.observations import UPDATE

MAX_EXAMPLES = 1_000_000


@dataclass(frozen=True)
class Request:
    """The options of ``fedveil attack``, as its help explains them, unchecked (``parse_request``).

    ``update`` is a file of updates, or of local weights with ``local``. Without ``weights`` the model starts from the initial ones
    of ``seed``. A ``batch_size`` of 0 stands for all examples, an empty text for the default or for nothing.
    """

    update: Path
    model: str
    num_classes: int
    input_shape: str
    learning_rate: float
    weights: Path | None = None
    local: bool = False
    width: int = 0
    norm: str = "group"
    mean: str = ""
    std: str = ""
    num_examples: int = 1
    local_steps: int = 1
    batch_size: int = 0
    weight_decay: float = 0.0
    momentum: float = 0.0
    nesterov: bool = False
    labels: str = ""
    eval_mode: bool = False
    attacks: str = DEFAULT_ATTACKS
    auxiliary: str = ""
    data_dir: str = ""
    defense: str = ""
    truth: Path | None = None
    seed: int = 0


@dataclass(frozen=True)
class Parsed:
    """What the texts of a request stand for.

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
        ConfigError: Naming the option, what came and what is allowed.
    """
    _check_numbers(request)
    shape = _shape(request.input_shape)
    mean, std = _per_channel("mean", request.mean, shape[0], 0.0), _per_channel("std", request.std, shape[0], 1.0)
    if min(std) <= 0:
        raise ConfigError(f"--std is {request.std!r}; allowed: positive numbers")
    labels, attacks = _labels(request), _attacks(request)
    with naming("--defense"):
        pipeline = parse(request.defense)
    return Parsed(shape, mean, std, labels, attacks, pipeline)


def _check_numbers(request: Request) -> None:
    least = {"num_classes": 2, "num_examples": 1, "local_steps": 1, "batch_size": 0, "width": 0, "seed": 0}
    rules = [(name, getattr(request, name) >= low, f"a whole number of at least {low}") for name, low in least.items()]
    rules += [
        ("num_examples", request.num_examples <= MAX_EXAMPLES, f"at most {MAX_EXAMPLES}"),
        ("seed", request.seed < 2**63, "below 2^63"),
        ("batch_size", request.batch_size <= request.num_examples, f"at most --num-examples, {request.num_examples}"),
        ("learning_rate", 0 < request.learning_rate < math.inf, "a positive number"),
        ("weight_decay", 0 <= request.weight_decay < math.inf, "a number of at least 0"),
        ("momentum", 0 <= request.momentum < 1, "from 0, below 1"),
    ]
    for name, fits, allowed in rules:
        if not fits:
            raise ConfigError(f"--{name.replace('_', '-')} is {getattr(request, name)}; allowed: {allowed}")
    if request.nesterov and not request.momentum:
        raise ConfigError("--nesterov needs a --momentum above 0: there is nothing to look ahead by")


def _shape(text: str) -> tuple[int, int, int]:
    sizes = _whole_numbers(text)
    if len(sizes) != 3 or min(sizes) < 1:
        raise ConfigError(f"--input-shape is {text!r}; allowed: channels, height and width, such as 1,28,28")
    return sizes[0], sizes[1], sizes[2]


def _labels(request: Request) -> Tensor | None:
    if not request.labels:
        return None
    classes = _whole_numbers(request.labels)
    if not classes or max(classes) >= request.num_classes:
        raise ConfigError(
            f"--labels is {request.labels!r}; allowed: classes from 0 to {request.num_classes - 1}, such as 3,5"
        )
    if len(classes) != request.num_examples:
        raise ConfigError(
            f"--labels holds {len(classes)} classes; --num-examples is {request.num_examples}, and one each is needed"
        )
    return torch.tensor(classes)


def _whole_numbers(text: str) -> list[int]:
    """The numbers of "3,5"; none when it is no list of whole numbers that fit into 64 bits."""
    parts = text.replace(" ", "").split(",")
    return [int(part) for part in parts] if all(part.isdecimal() and len(part) < 19 for part in parts) else []


def _per_channel(key: str, text: str, channels: int, default: float) -> tuple[float, ...]:
    if not text:
        return (default,) * channels
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        values = ()
    if len(values) not in (1, channels) or not all(map(math.isfinite, values)):
        raise ConfigError(
            f"--{key} is {text!r}; allowed: one number, or one for each of {channels} channels, such as 0.5,0.5"
        )
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
