"""Models of what is read: type, default, help and range are declared once, and one sentence says what is refused and why."""

import functools
from collections.abc import Mapping
from dataclasses import fields
from types import UnionType
from typing import Any, ClassVar, Literal, Self, TypeVar, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from clients.wire.texts import SHORT, one_line, require_short, shown
from defenses.checks import Length, words_of

T = TypeVar("T")
STRICT = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)
"""A whole number may stand for another number; nothing else is converted."""


def key_of(name: str) -> str:
    """The key that users write for a field: its name with hyphens."""
    return name.replace("_", "-")


class Settings(BaseModel):
    """Base of settings: keys are the names with hyphens; types and ranges are checked, then ``check_together``.

    Attributes:
        refused: The exception for a value that is refused.
        place: Where the values stand, for that exception; "" for settings of a run.
    """

    model_config: ClassVar[ConfigDict] = {**STRICT, "alias_generator": key_of, "defer_build": True}
    refused: ClassVar[type[ValueError]] = ValueError
    place: ClassVar[str] = ""

    def __init__(self, /, **values: Any) -> None:
        try:
            super().__init__(**{key_of(name): value for name, value in values.items()})
        except ValidationError as error:
            raise self.refused(refusal(error, fields_of(type(self)), self.place)) from None
        for name, text in vars(self).items():
            if isinstance(text, str) and text.encode(errors="ignore").decode() != text:
                raise self.refused(
                    f"{key_of(name)} is {shown(text)}; allowed: text in UTF-8, as messages and files hold it"
                )
        self.check_together()

    def check_together(self) -> None:
        """Raise ``refused`` for values that contradict each other; their types and ranges are right."""

    def but(self, **changes: Any) -> Self:
        """Copy with other values of some fields; the copy is checked, too."""
        return type(self)(**{name: getattr(self, name) for name in type(self).model_fields} | changes)

    def to_mapping(self) -> dict[str, Any]:
        """Key -> value, of all fields."""
        return self.model_dump(by_alias=True)


def setting(default: Any, about: str) -> Any:
    """A field of settings: its default and its meaning, which is the help text. Its annotation is its type and range."""
    return Field(default, description=about)


def fields_of(*settings: type[Settings]) -> dict[str, FieldInfo]:
    """Key -> field, of all given settings."""
    return {key_of(name): spec for kind in settings for name, spec in kind.model_fields.items()}


def fields_in(kind: type) -> dict[str, FieldInfo]:
    """Name -> field, of a dataclass."""
    hints = get_type_hints(kind, include_extras=True)
    return {spec.name: FieldInfo.from_annotation(hints[spec.name]) for spec in fields(kind)}


def allowed(spec: FieldInfo) -> str:
    """What a field's value may be besides its type, in words; "" for anything."""
    return words_of(spec.annotation, spec.metadata)


def parsed(kind: type[T], text: str, refused: type[ValueError]) -> T:
    """Read a dataclass from the JSON of a message, in which lists stand for tuples.

    Raises:
        RecordError: When the text is longer than any text of our own clients.
        ValueError: Of the type ``refused``: when the text is no JSON, or a value is missing, unknown, or not allowed.
    """
    require_short(text)
    try:
        instance: T = _adapter(kind).validate_json(text)  # type: ignore[arg-type]  # a type is hashable
    except ValidationError as error:
        raise refused(refusal(error, fields_in(kind))) from None
    return instance


def readable(kind: type[T], value: object) -> T | None:
    """Read a dataclass from a decoded JSON object, such as a part of a row; None where a value is missing or not allowed."""
    try:
        return _adapter(kind).validate_python(value)  # type: ignore[arg-type, no-any-return]  # a type is hashable
    except ValidationError:
        return None


@functools.cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def refusal(error: ValidationError, known: Mapping[str, FieldInfo], place: str = "") -> str:
    """The sentence for the first error: the key, its value and what is allowed; ``known`` are the fields by key."""
    if (count := error.error_count()) > MOST_ERRORS:
        return f"{count} values are not allowed"
    first = error.errors(include_url=False)[0]
    key = one_line(".".join(map(str, first["loc"])) or "the text", SHORT)
    if first["type"] == "missing":
        return f"{key} is missing"
    spec = known.get(key)
    if spec is None:  # of a part of a value, or of the whole
        known_key = first["type"] not in UNKNOWN
        return f"{key}: {first['msg']}; it is {shown(first['input'])}" if known_key else f"{key} is unknown"
    return f"{key} {_came(first, spec, place)}"


MOST_ERRORS = 1000
"""Errors of a text that are looked at: a megabyte of JSON can hold more of them than memory should."""
UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
"""Pydantic's errors for keys that no field has."""


def _came(error: ErrorDetails, spec: FieldInfo, place: str) -> str:
    value, kinds = error["input"], _kinds(spec)
    if type(value) not in kinds and not (float in kinds and type(value) is int):
        expected = "true or false" if bool in kinds else " or ".join(kind.__name__ for kind in kinds)
        such = "" if spec.is_required() or bool in kinds else f", such as {spec.default!r}"
        return f"is {shown(value)} ({type(value).__name__}){place}; expected {expected}{such}"
    if any(isinstance(entry, Length) for entry in spec.metadata):
        return f"has a length of {len(error['input'])}; allowed: {allowed(spec)}"
    return f"is {shown(value)}{place}; allowed: {allowed(spec) or 'finite numbers'}"


def _kinds(spec: FieldInfo) -> tuple[type, ...]:
    """The types of a field's values as they are written; lists stand for tuples."""
    origin, parts = get_origin(spec.annotation), get_args(spec.annotation)
    if origin in (Literal, UnionType):
        return parts if origin is UnionType else (type(parts[0]),)
    return (list if origin is tuple else spec.annotation if isinstance(spec.annotation, type) else dict,)
