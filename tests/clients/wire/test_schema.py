"""What is read by a declared model: the sentence for each kind of value that is refused."""

import json
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import pytest
from pydantic import ConfigDict

from clients.wire.schema import MOST_ERRORS, STRICT, Settings, fields_of, parsed, setting
from clients.wire.texts import RecordError
from defenses.checks import Examples, Length, Rate, Side


class Given(Settings):
    place: ClassVar[str] = " in a file"

    batch_size: Examples = setting(16, "examples of a step")
    mode: Literal["train", "eval"] = setting("train", "mode of the model")
    rate: Rate = setting(0.1, "learning rate")
    loud: bool = setting(False, "whether it says so")

    def check_together(self) -> None:
        if self.loud and self.mode == "eval":
            raise self.refused("loud is True, and mode is 'eval'")


def test_settings_are_refused_by_key_value_and_what_is_allowed() -> None:
    for values, told in (
        ({"batch-size": "16"}, "batch-size is '16' (str) in a file; expected int, such as 16"),
        ({"batch_size": True}, "batch-size is True (bool) in a file; expected int, such as 16"),
        ({"batch-size": 0}, "batch-size is 0 in a file; allowed: a whole number from 1 to 1048576"),
        ({"mode": "test"}, "mode is 'test' in a file; allowed: 'train' or 'eval'"),
        ({"mode": 1}, "mode is 1 (int) in a file; expected str, such as 'train'"),
        ({"rate": float("nan")}, "rate is nan in a file; allowed: a number from 1e-12 to 1e+06"),
        ({"loud": 1}, "loud is 1 (int) in a file; expected true or false"),
        ({"lout": True}, "lout is unknown"),
        ({"loud": True, "mode": "eval"}, "loud is True, and mode is 'eval'"),
    ):
        with pytest.raises(ValueError, match=r"\w") as caught:
            Given(**values)
        assert str(caught.value) == told
    one = Given(rate=1)
    assert one.but(**{"batch-size": 2}).to_mapping() == {"batch-size": 2, "mode": "train", "rate": 1.0, "loud": False}
    assert type(one.rate) is float
    with pytest.raises(ValueError, match="loud is True"):
        one.but(mode="eval").but(loud=True)
    assert fields_of(Given)["batch-size"].description == "examples of a step"


@dataclass(frozen=True)
class Part:
    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    sizes: tuple[Side, ...] = ()


@dataclass(frozen=True)
class Sent:
    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    name: str
    rounds: Annotated[tuple[int, ...], Length(3)] = ()
    part: Part | None = None


def test_what_was_sent_is_refused_by_the_place_in_it() -> None:
    whole: dict[str, Any] = {"name": "a", "rounds": [1, 2], "part": {"sizes": [2, 0]}}
    assert parsed(Sent, json.dumps(whole), ValueError) == Sent("a", (1, 2), Part((2, 0)))
    for text, told in (
        ("", "the text: Invalid JSON: EOF while parsing a value at line 1 column 0; it is ''"),
        ("[]", "the text: Input should be an object; it is []"), ("{}", "name is missing"),
        ('{"name": 3}', "name is 3 (int); expected str"), ('{"name": "a", "x": 1}', "x is unknown"),
        ('{"name": "a", "rounds": 1}', "rounds is 1 (int); expected list"),
        ('{"name": "a", "rounds": [1, 2, 3, 4]}', "rounds has a length of 4; allowed: at most 3"),
        ('{"name": "a", "rounds": [1.5]}', "rounds.0: Input should be a valid integer; it is 1.5"),
        ('{"name": "a", "part": {"y": 1}}', "part.y is unknown"),
        ('{"name": "a", "part": {"sizes": [1]}}', "part.sizes.0: Value error, 0, or a whole number from 2 to 4096; it is 1"),
        (json.dumps({str(at): at for at in range(MOST_ERRORS)}), f"{MOST_ERRORS + 1} values are not allowed"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"\w") as caught:
            parsed(Sent, text, ValueError)
        assert str(caught.value) == told
    with pytest.raises(RecordError, match="characters of JSON came"):
        parsed(Sent, " " * 2**21, ValueError)
