"""The limits of a gate: from options, or from the ``[gate]`` table of a TOML file."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, Self

from clients.wire.schema import Settings, fields_of, setting
from defenses.checks import Limit
from simulations.settings.errors import ConfigError, require_known

FREE = -1.0
"""Of a limit that is not set."""
ALSO: dict[str, Any] = {"also": FREE, "word": "no entry for no limit"}
LargestShare = Annotated[float, Limit(0, 1, **ALSO)]
TABLE, BY_MESSAGE = "gate", "message"
"""A file's table of limits, and the table in it of limits for some messages alone."""
REAL = "real"
"""In place of a message's title: all that clients send without being asked."""


class ImageLimits(Settings):
    """Largest shares of the images that an attacker finds in messages of one kind and size."""

    refused: ClassVar[type[ValueError]] = ConfigError

    max_recognisable: LargestShare = setting(
        FREE, "largest share of the attacked images that guesses make recognisable"
    )
    max_identifiable: LargestShare = setting(FREE, "largest share of the attacked images that guesses identify")


class Limits(ImageLimits):
    """Limits on a defence of a run. Keys of files and options have hyphens.

    Raises:
        ConfigError: Naming the key, what came and what is allowed.
    """

    max_tpr: LargestShare = setting(FREE, "largest true positive rate of membership inference at 1 % false positives")
    max_epsilon: Annotated[float, Limit(0, 1e9, **ALSO)] = setting(FREE, "largest epsilon that training may spend")
    level: Literal["", "example", "client"] = setting("", "what that epsilon must protect; empty: either")
    min_accuracy: LargestShare = setting(FREE, "least test accuracy")

    def check_together(self) -> None:
        """Raise ``ConfigError`` for a level without a limit of epsilon."""
        if self.level and self.max_epsilon == FREE:
            raise ConfigError(f"level is {self.level!r}; it belongs to max-epsilon, which is not given")


@dataclass(frozen=True)
class GateLimits:
    """All limits of a gate.

    Attributes:
        every: On a defence, and on each kind and size of its messages.
        by_message: Title of a message -> its own limits on images, in place of those of ``every``.
    """

    every: Limits
    by_message: Mapping[str, ImageLimits] = field(default_factory=dict)

    @classmethod
    def read(cls, values: Mapping[str, Any], over: Mapping[str, Any] = MappingProxyType({})) -> Self:
        """Limits from hyphenated keys, with those of some messages in tables under ``message``; those ``over`` come before both.

        Raises:
            ConfigError: On an unknown key, a bad value, or where nothing is limited.
        """
        own = values.get(BY_MESSAGE, {})
        if not isinstance(own, Mapping) or not all(isinstance(of, Mapping) for of in own.values()):
            raise ConfigError(
                f'{BY_MESSAGE} is no table of tables; expected such as [{TABLE}.{BY_MESSAGE}."client\'s update"]'
            )
        if REAL in own:
            raise ConfigError(
                f"{BY_MESSAGE}.{REAL} is no title of a message; name each, or give the option --message {REAL}"
            )
        every = _read(Limits, {key: value for key, value in {**values, **over}.items() if key != BY_MESSAGE})
        left = {title: {key: value for key, value in of.items() if key not in over} for title, of in own.items()}
        limits = cls(every, {title: _read(ImageLimits, of) for title, of in left.items()})
        if all(of == type(of)() for of in (every, *limits.by_message.values())):
            raise ConfigError(
                f"no limit is given; allowed: {', '.join(f'--{key}' for key in fields_of(Limits) if key != 'level')}"
            )
        return limits

    def of(self, title: str) -> Mapping[str, float]:
        """Key -> the limit on the images of a message, its own or that of all; those that are set."""
        every, own = (of.to_mapping() if of else {} for of in (self.every, self.by_message.get(title)))
        limits = {key: own[key] if own.get(key, FREE) != FREE else every[key] for key in fields_of(ImageLimits)}
        return {key: limit for key, limit in limits.items() if limit != FREE}


def _read(kind: type[Any], values: Mapping[str, Any]) -> Any:
    for key, value in values.items():
        require_known("limit", key, fields_of(kind))
        if value == FREE:
            raise ConfigError(f"{key} is {value}; allowed: a number from 0, or no entry for no limit")
    return kind(**values)
