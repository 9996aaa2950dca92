"""Columns of rows: the names that a writer may give, and the types of those that only some rows have."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Required, TypedDict

from attacks.metrics.names import Role


class Columns(TypedDict, total=False):
    """Columns of a row besides its metric and value; those below ``client`` are of some rows alone."""

    reference: str
    attack: str
    role: Role
    card: Any
    n: int
    status: str
    seconds: float
    computed_on: str
    ci_low: float | None
    ci_high: float | None
    worst: float | None
    failures: int
    message: str
    client: int | None
    clients: int | Mapping[str, str]
    unscored: int
    each: Sequence[int]
    each_of: Sequence[Sequence[int]]
    best_psnr: float | None
    best_structure: float | None
    without_client: dict[str, dict[str, Any]]
    roc: Sequence[Sequence[float]]
    audit: Mapping[str, Any]
    claims: Sequence[Mapping[str, Any]]
    reported: Mapping[str, Any]
    assumed: Sequence[str]
    warnings: Sequence[str]
    unusable: Sequence[str]
    examples: Sequence[int]
    local_steps: Sequence[int]
    scored: bool
    steps: Sequence[Sequence[str]]
    releases: int
    version: str
    axis: str
    position: float
    majority: float | None
    architecture: str


class Estimated(TypedDict, total=False):
    """A number, how many examples are behind it, and its interval."""

    value: Required[float | None]
    n: Required[int]
    ci_low: float | None
    ci_high: float | None


class Scored(Columns):
    """A whole row of a score."""

    metric: Required[str]
    value: Required[float | None]


@dataclass(frozen=True)
class OfClients:
    """What rows of scores say of the clients behind them.

    Attributes:
        clients: Their number.
        unscored: Attacked images without a usable score.
        each: 1 or 0 for each image, by client and place; ``each_of``: (client, place) of each.
        without_client: For each client, what would be other values without it.
    """

    clients: int | None = None
    unscored: int = 0
    each: tuple[int, ...] = ()
    each_of: tuple[tuple[int, int], ...] = ()
    without_client: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
