"""Threat cards: the conditions of a measured number. The server fills them in, rows carry them, the report reads them."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError

from attacks.metrics.names import Role
from clients.task.task import Task
from clients.wire.texts import changed

MOST_VALUE, MOST_WHOLE = 1e100, 2**53
"""Largest finite number and largest count of cards and rows. Nothing that is measured comes near the first, and the square of a sum
of such numbers is still finite; beyond the second, numbers of JSON are no longer exact."""
Real = Annotated[float, Field(strict=True, ge=-MOST_VALUE, le=MOST_VALUE)]
Whole = Annotated[
    int,
    Field(strict=True, ge=-MOST_WHOLE, le=MOST_WHOLE),
    BeforeValidator(lambda value: int(value) if isinstance(value, float) and value.is_integer() else value),
]


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


@dataclass(frozen=True, kw_only=True)
class ThreatCard:
    """The attacker's observations, knowledge and effort.

    What decides something is a field; what is only shown is in ``more``. In a file the two are one object, without the fields that
    say nothing.

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
        in_vain: A search of the attack ended without any image, which is a result.
        members: Members among the records of a test of membership.
        others: Other records of that test.
        chance: Mean chance of a null guess that knows the class to identify an image, at most.
        claimed_privacy: What an external app says about its differential privacy, in sentences; fedveil proves no part of it.
        knows_defenses: The attack uses the defences.
        mode: Of the attacked model, "train" or "eval".
        batch_norm_statistics: What of them is sent.
        attribute_values: Values of the guessed attribute.
        mods: Of an external app, as far as they are known.
        reported_defence: Of a recording, what is known of a defence.
        caveats: What a reader must know besides.
        no_verdict: Why no verdict follows from the numbers; "" where one does.
        server: ``ACTIVE_SERVER`` where it did more than look: no result of an honest-but-curious server, and never beside one.
        more: Further facts, JSON values.
    """

    observation: str = ""
    round: Whole | None = None
    model_accuracy: Real | None = None
    num_classes: Whole | None = None
    images: Whole | None = None
    batch: Whole | None = None
    local_steps: Whole | None = None
    rung: str = ""
    labels: str = ""
    auxiliary_data: str = ""
    randomness: str = ""
    defense_strength: str = ""
    rounds_observed: Whole | None = None
    clients: Whole | None = None
    undefended: str = ""
    upper_bound: str = ""
    attack_failures: tuple[str, ...] = ()
    in_vain: bool = False
    members: Whole | None = None
    others: Whole | None = None
    chance: Real | None = None
    claimed_privacy: tuple[str, ...] = ()
    server: str = ""
    knows_defenses: bool = True
    mode: str = ""
    batch_norm_statistics: str = ""
    attribute_values: Whole | None = None
    mods: str = ""
    reported_defence: str = ""
    caveats: tuple[str, ...] = ()
    no_verdict: str = ""
    more: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "more", changed(self.more, _plain))

    def but(self, **facts: Any) -> ThreatCard:
        """A copy with other values: None removes one; a value without a matching field goes into ``more``."""
        known = {name: NOTHING[name] if facts[name] is None else facts[name] for name in facts if name in NOTHING}
        more = {**self.more, **{name: value for name, value in facts.items() if name not in NOTHING}}
        return replace(self, **known, more={name: value for name, value in more.items() if value is not None})

    @functools.cached_property  # rows share a card
    def lasting(self) -> ThreatCard:
        """The card without what changes by round or metric: the facts that one attack's numbers share.

        With ``members`` and ``others``, which only the scores of membership name, or ``chance``, which only the verdicts on images
        do, an attack's time would land on a card of its own.
        """
        return replace(self, **{name: NOTHING[name] for name in PASSING})

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
        return dict(self._flat)

    @functools.cached_property
    def _flat(self) -> Mapping[str, Any]:
        known = {name: getattr(self, name) for name, nothing in NOTHING.items() if getattr(self, name) != nothing}
        return {name: changed(value, _plain) for name, value in known.items()} | dict(self.more)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ThreatCard:
        """Read the output of ``to_json``; a value that its field cannot hold is kept in ``more``."""
        if not isinstance(data, Mapping):
            return cls()
        known = {name: value for name, value in data.items() if name in NOTHING}
        try:
            return replace(_READER.validate_python(known), more={n: v for n, v in data.items() if n not in known})
        except ValidationError as error:
            odd = {str(detail["loc"][0]) for detail in error.errors(include_url=False)}
        card = cls.from_json({name: value for name, value in data.items() if name not in odd})
        return replace(card, more={**card.more, **{name: data[name] for name in odd if data[name] is not None}})


NOTHING: dict[str, Any] = {spec.name: spec.default for spec in fields(ThreatCard) if spec.name != "more"}
"""Each field's value where the card does not say."""
PASSING = ("round", "model_accuracy", "attack_failures", "in_vain", "members", "others", "chance")
_READER = TypeAdapter(ThreatCard)


def strength(task: Task, requested: int | None) -> dict[str, Any]:
    """Facts for a threat card: whether accuracy was measured at the same strength of a defence of gradients or updates.

    ``requested``: the observation is an update of so many steps that the server requested, not one of training (None).
    """
    # A withheld average is withheld in every update alike.
    units = {defense.per for defense in task.plan.defenses.update_defenses if not defense.keeps_statistics}
    if not units:
        return {}
    if "update" not in units:
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
