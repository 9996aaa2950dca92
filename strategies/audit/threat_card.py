"""Threat cards: the conditions of a measured number. The server fills them in, rows carry them, the report reads them."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

from attacks.metrics.names import Role
from clients.task.task import Task
from strategies.audit.json_values import changed

MOST_VALUE, MOST_WHOLE = 1e100, 2**53
"""Largest finite number and largest count of cards and rows. Nothing that is measured comes near the first, and the square of a sum
of such numbers is still finite; beyond the second, numbers of JSON are no longer exact."""


class KnownLabels(StrEnum):
    """The attacker's knowledge of the labels of the attacked images."""

    UNKNOWN = "unknown"
    SOME = "known for some updates"
    KNOWN = "known"
    UPLOADED = "uploaded with the images"


ACTIVE_SERVER = "active"
"""``ThreatCard.server`` of a server that sends models of its own making; "" is honest but curious."""


KEPT_STATISTICS = "kept by the client"
"""``batch_norm_statistics`` of a card where BatchNorm's running averages stay at the client."""


FROM_SEED, OWN_SECRET = "follows from the seed (simulation)", "each node's own secret"
"""``ThreatCard.randomness`` where all clients agree."""


class Strength(StrEnum):
    """How a defence of gradients or updates acts on the attacked data, compared with training."""

    STEP = "per step, as in training"
    UPDATE = "per update, as in training"
    ONE_STEP = "per update, here on a single step"
    FEW_STEPS = "per update, here on few steps"


@dataclass(frozen=True, kw_only=True, eq=False)
class ThreatCard:
    """The attacker's observations, knowledge and effort.

    What every scenario can say is a field; what belongs to one kind of observation or to one attack is in ``more``. In a file the
    two are one object, without the fields that say nothing. Cards are equal when they say the same there.

    Attributes:
        observation: What was attacked, the ``title`` of its kind.
        model_accuracy: Of the attacked model, on clean test images; None also where clients judge it with running averages of their
            own, because an attack reads the published model.
        images: Most images that entered one observation.
        batch: Images of one step.
        local_steps: Optimizer steps behind an update.
        rung: Size of the probes, such as "1x4", behind the first size of a ladder; else "".
        labels: What was known of them, one of ``KnownLabels``.
        auxiliary_data: What examples the attacker had of its own.
        randomness: Where the clients' draws come from; see ``Clients.randomness``.
        defense_strength: One of ``Strength``; "" without a defence of gradients or updates.
        rounds_observed: Rounds that an attack on a history saw.
        clients: Clients whose updates were attacked as one sum; None where each was attacked by itself.
        undefended: What the observation is without a defence, where it is the images themselves.
        upper_bound: What the attack was given that no server of the run has; "" for real attacks.
        attack_failures: Why guesses failed.
        members: Members among the records of a test of membership.
        others: Other records of that test.
        chance: Mean chance of a null guess that knows the class to identify an image, at most.
        claimed_privacy: What an external app says about its differential privacy, in sentences; fedveil proves no part of it.
        server: ``ACTIVE_SERVER`` where it did more than look: no result of an honest-but-curious server, and never beside one.
        more: Further facts, JSON values.
    """

    observation: str = ""
    round: int | None = None
    model_accuracy: float | None = None
    num_classes: int | None = None
    images: int | None = None
    batch: int | None = None
    local_steps: int | None = None
    rung: str = ""
    labels: str = ""
    auxiliary_data: str = ""
    randomness: str = ""
    defense_strength: str = ""
    rounds_observed: int | None = None
    clients: int | None = None
    undefended: str = ""
    upper_bound: str = ""
    attack_failures: tuple[str, ...] = ()
    members: int | None = None
    others: int | None = None
    chance: float | None = None
    claimed_privacy: tuple[str, ...] = ()
    server: str = ""
    more: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "more", changed(self.more, _plain))

    @functools.cached_property
    def _key(self) -> str:
        return json.dumps(self.to_json(), sort_keys=True, default=str)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ThreatCard) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def but(self, **facts: Any) -> ThreatCard:
        """A copy with other values: None removes one; a value without a matching field goes into ``more``."""
        merged = self.to_json() | facts
        return ThreatCard.from_json({name: value for name, value in merged.items() if value is not None})

    def lasting(self) -> ThreatCard:
        """The card without results and without fields that change by round or metric: the facts that one attack's numbers share."""
        return ThreatCard.from_json({name: value for name, value in self.to_json().items() if name not in PASSING})

    @property
    def role(self) -> Role:
        """Role of the rows of an attack under these conditions."""
        return Role.UPPER_BOUND if self.upper_bound else Role.ATTACK

    @property
    def chance_of_recognition(self) -> float | None:
        """How often a null guess of the class is right; None where the number of classes is unknown."""
        return 1 / self.num_classes if self.num_classes and self.num_classes >= 1 else None

    def to_json(self) -> dict[str, Any]:
        """One flat object of JSON values."""
        found = {name: changed(getattr(self, name), _plain) for name in _READ}
        return {name: value for name, value in found.items() if value not in (None, "", [])} | dict(self.more)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ThreatCard:
        """Read the output of ``to_json``; a value that its field cannot hold is kept in ``more``."""
        found = {name: _READ[name](value) for name, value in data.items() if name in _READ}
        known: dict[str, Any] = {name: value for name, value in found.items() if value is not None}
        more = {
            name: value for name, value in data.items() if name not in known and not (name in _READ and value is None)
        }
        return cls(more=more, **known)


def strength(task: Task, requested: int | None) -> dict[str, Any]:
    """Facts for a threat card: whether accuracy was measured at the same strength of a defence of gradients or updates.

    ``requested``: the observation is an update of so many steps that the server requested, not one of training (None).
    """
    # A withheld average is withheld in every update alike.
    found = {one.per for one in task.plan.defenses.update_defenses if not one.keeps_statistics}
    if not found:
        return {}
    if "update" not in found:
        return {"defense_strength": Strength.STEP}
    if requested in (None, task.plan.local_steps):
        return {"defense_strength": Strength.UPDATE}
    return {
        "defense_strength": Strength.ONE_STEP if requested == 1 else Strength.FEW_STEPS,
        "in_training": f"once on {task.plan.local_steps or 'all'} local steps",
    }


def _plain(value: Any) -> Any:
    """Text for numbers that are not finite, plain text for words of an enumeration."""
    if isinstance(value, StrEnum):
        return value.value
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _text(value: Any) -> str | None:
    return str(value) if isinstance(value, str) else None


def _whole(value: Any) -> int | None:
    number = _number(value)
    return int(number) if number is not None and float(number).is_integer() and abs(number) <= MOST_WHOLE else None


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # A whole number of JSON may be too large for a float to be compared with at all.
    return value if -MOST_VALUE <= value <= MOST_VALUE else None


def _texts(value: Any) -> tuple[str, ...] | None:
    return (value,) if isinstance(value, str) else tuple(map(str, value)) if isinstance(value, list | tuple) else None


_OF_TYPE: dict[str, Callable[[Any], Any]] = {
    "str": _text,
    "int | None": _whole,
    "float | None": _number,
    "tuple[str, ...]": _texts,
}
_READ = {spec.name: _OF_TYPE[str(spec.type)] for spec in fields(ThreatCard) if spec.name != "more"}
PASSING = ("round", "model_accuracy", "attack_failures", "members", "others", "chance")
"""What changes from round to round, or with the metric.

With ``members`` and ``others``, which only the scores of membership name, or ``chance``, which only the verdicts on images do, an
attack's time would land on a card of its own."""
