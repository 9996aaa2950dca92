"""Ways to corrupt a client's reply, drawn by a seeded generator."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from reliability_wire import ARRAYS, BOMB

from clients.flower_private import error_code, from_wire, to_wire
from clients.wire.records import REFUSED, WITHHELD

TEXTS = {
    "line separators": "a\u2028b\u2029c\u0085d\x0be\x0cf\x1cg\x1dh\x1ei", "NUL": "a\x00b",
    "escape codes": "\x1b[31mred\x1b]0;t\x07\x9b2J", "right to left": "\u202eevil\u2066\u2069", "a new line": "a\r\nb\rc",
    "no characters": "\uffff\ufffe\ufdd0", "markup": "[red]</script><b>&[/]", "a formula": "=1+1",
    "an emoji": "\U0001f469\u200d\U0001f469\u200d\U0001f467", "marks that combine": "e" + "\u0301" * 500,
    "a long text": "x" * 1_000_000, "nothing": "", "JSON, nested deep": BOMB, "JSON of a lone surrogate": '{"a": "\\ud800"}',
    "JSON of infinity": '{"a": Infinity}', "JSON of a huge number": '{"a": 1e999}', "a long number": "9" * 10_000,
}  # fmt: skip
NUMBERS: tuple[Any, ...] = (
    0, -1, 1, 2**31, 2**62, 2**63 - 1, -(2**63), 2**64 - 1, 1e300, -1e300, 3e38, 5e-324, 0.5, -0.0, float("nan"), float("inf"),
    float("-inf"), [], [0], [1.0] * 3, [float("nan")], [float("inf")] * 2, [1e308] * 4, [2**63 - 1], [0.5] * 100_000,
)  # fmt: skip
MANY = 5000
"""Records, names or reasons where one or two are expected."""
FILLED = {
    "infinite": np.inf, "3e38": 3e38, "-3e38": -3e38, "1e20": 1e20, "denormal": 1e-45, "zeros": 0, "-1": -1, "2**31": 2**31,
}  # fmt: skip
CHANGED: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "one NaN": lambda v: np.concatenate([[np.nan], v.ravel()[1:]]).astype(v.dtype).reshape(v.shape),
    "float64": lambda v: v.astype(np.float64),
    "float16": lambda v: v.astype(np.float16),
    "int8": lambda v: v.astype(np.int8),
    "truth values": lambda v: v.astype(np.bool_),
    "big-endian": lambda v: v.astype(v.dtype.newbyteorder(">")),
    "Fortran order": np.asfortranarray,
    "one axis more": lambda v: v[None],
    "one entry less": lambda v: v.ravel()[:-1],
    "twice as long": lambda v: np.concatenate([np.atleast_1d(v)] * 2),
    "nothing in it": lambda v: v.ravel()[:0],
    "turned around": lambda v: v.T,
}
NO_NUMBERS = {"NaN", "infinite", "one NaN"}
NO_ARRAYS = {"other types", "pickled objects", "a header of 4 TiB", "bytes that are no array"}
"""What must never be used; NaN only in place of real numbers, as among whole numbers it is some number."""


@dataclass
class Drawn:
    """What a way draws from, and what it says of itself.

    Attributes:
        draw: Source of every choice.
        others: (description, content) of earlier replies of any type and client.
        said: What was done.
        bad: Whether the result is unusable: it must be refused, or change nothing.
    """

    draw: random.Random
    others: list[tuple[str, RecordDict]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    bad: bool = False

    def of(self, things: Any) -> Any:
        """One of several things, which are ordered first."""
        return self.draw.choice(sorted(things))

    def text(self) -> str:
        """A text of some kind."""
        kind = self.of(TEXTS)
        self.said.append(f"text: {kind}")
        return TEXTS[kind]

    def number(self) -> Any:
        """A number, or a list of some."""
        value = self.draw.choice(NUMBERS)
        self.said.append(repr(value)[:40])
        return value


def _arrays(drawn: Drawn, content: RecordDict) -> bool:
    """Changes one array of a record, or all of them."""
    if not (records := {name: record for name, record in content.array_records.items() if record}):
        return False
    name, kind = drawn.of(records), drawn.of([*ARRAYS, *FILLED, *CHANGED])
    record = records[name]
    chosen = list(record) if drawn.draw.random() < 0.5 else [drawn.of(record)]
    drawn.said.append(f"{len(chosen)} of {len(record)} arrays of {name!r}: {kind}")
    real = all(np.issubdtype(record[one].numpy().dtype, np.floating) and record[one].numpy().size for one in chosen)
    drawn.bad = kind in NO_ARRAYS or (kind in NO_NUMBERS and real)
    with np.errstate(all="ignore"):
        content[name] = ArrayRecord({**record, **{one: _array(kind, record[one]) for one in chosen}})
    return True


def _array(kind: str, one: Array) -> Array:
    if kind in ARRAYS:
        return ARRAYS[kind](one)
    values = one.numpy()
    return Array(np.full_like(values, FILLED[kind]) if kind in FILLED else CHANGED[kind](values))


def _names(drawn: Drawn, content: RecordDict) -> bool:
    """Leaves a name out of a record, renames it, or adds one or many."""
    if not content:
        return False
    name = drawn.of(content)
    record: Any = content[name]
    kind, inner, how = type(record), dict(record), drawn.of(["less", "more", "renamed", "many", "none"])
    drawn.said.append(f"names of {name!r}: {how}")
    one = {ArrayRecord: Array(np.ones(1)), MetricRecord: 1.0, ConfigRecord: "x"}[kind]
    if how in ("less", "renamed"):
        if not inner:
            return False
        one = inner.pop(drawn.of(inner))
    if how in ("more", "renamed"):
        inner[drawn.text()[:10_000]] = one
    if how == "many":
        inner |= {f"n{at}": one for at in range(MANY)}
    drawn.bad = how == "none" and kind is MetricRecord and "num-examples" in record
    content[name] = kind({} if how == "none" else inner)
    return True


def _numbers(drawn: Drawn, content: RecordDict) -> bool:
    """Changes a number, most often the number of examples."""
    if not (records := {name: record for name, record in content.metric_records.items() if record}):
        return False
    record = records[drawn.of(records)]
    key = "num-examples" if "num-examples" in record and drawn.draw.random() < 0.4 else drawn.of(record)
    drawn.said.append(repr(key))
    value = record[key] = drawn.number()
    drawn.bad = key == "num-examples" and (not isinstance(value, int) or not 1 <= value <= 2**31)
    return True


def _texts(drawn: Drawn, content: RecordDict) -> bool:
    """Puts another text, or a number, in the place of a text."""
    if not (records := {name: record for name, record in content.config_records.items() if record}):
        return False
    record = records[drawn.of(records)]
    key = drawn.of(record)
    drawn.said.append(repr(key))
    record[key] = drawn.text() if drawn.draw.random() < 0.8 else drawn.number()
    return True


def _withheld(drawn: Drawn, content: RecordDict) -> bool:
    """Claims that something was left out, in odd words or very often."""
    count = drawn.draw.choice([1, 1, 1, 20, MANY])
    drawn.said.append(f"{count} withheld")
    key, reason = drawn.text()[:1000], drawn.text()
    content[WITHHELD] = ConfigRecord({f"{key}{at or ''}": reason[: 10**6 // count] for at in range(count)})
    return True


def _records(drawn: Drawn, content: RecordDict) -> bool:
    """Leaves records out, adds others, or gives one another type."""
    how, name = drawn.of(["none", "one less", "many", "another type", "a strange name"]), drawn.of(content or [""])
    drawn.said.append(f"records: {how} {name}")
    others: list[Any] = [ArrayRecord({"x": Array(np.ones(1))}), MetricRecord({"x": 1.0}), ConfigRecord({"x": "y"})]
    if how == "none":
        content.clear()
    elif how == "many":
        one = drawn.draw.choice(others)
        content.update({f"target-{at}": one for at in range(MANY)})
    elif how == "a strange name":
        content[drawn.text()[:1000]] = MetricRecord({"x": 1.0})
    elif name:
        removed = content.pop(name)
        if how == "another type":
            content[name] = drawn.draw.choice([one for one in others if type(one) is not type(removed)])
    return True


def _replayed(drawn: Drawn, content: RecordDict) -> bool:
    """Sends an earlier reply: of another round, another client, or to another request."""
    if not drawn.others:
        return False
    told, other = drawn.draw.choice(drawn.others)
    drawn.said.append(f"in its place {told}")
    content.clear()
    content.update(copy.deepcopy(other))
    return True


WAYS: dict[str, Callable[[Drawn, RecordDict], bool]] = {
    "arrays": _arrays, "names": _names, "numbers": _numbers, "texts": _texts, "withheld": _withheld, "records": _records,
    "replayed": _replayed,
}  # fmt: skip
"""Ways to change a content; they return False if it holds nothing of the kind."""
WHOLE = ("lost", "error", "refused", "flipped")
"""Ways to change the message itself."""


def spoilt(drawn: Drawn, reply: Message, request: Message) -> Message | None:
    """A corrupted reply, as it can cross the wire; ``drawn.said`` describes it.

    Ways are drawn until one applies. One in five replies gets a second change.
    """
    for _ in range(100):
        drawn.said, drawn.bad = [], False
        way = drawn.of([*WAYS, *WAYS, *WHOLE])
        try:
            found = _whole(drawn, way, reply, request) if way in WHOLE else _changed(drawn, way, reply)
            if found is None and way != "lost":
                continue
            return found and from_wire(to_wire(found))
        except Exception:  # it cannot be sent: the client's own process fails, or SuperLink refuses the bytes
            continue
    raise RuntimeError("no way applies")


def _changed(drawn: Drawn, way: str, reply: Message) -> Message | None:
    found = copy.deepcopy(reply)
    if not WAYS[way](drawn, found.content):
        return None
    if drawn.draw.random() < 0.2:
        bad = drawn.bad
        WAYS[drawn.of(set(WAYS) - {"replayed", "records", "names"})](drawn, found.content)
        drawn.bad = drawn.bad or (bad and way != "arrays")  # the second change may have replaced these arrays
    return found


def _whole(drawn: Drawn, way: str, reply: Message, request: Message) -> Message | None:
    drawn.said.append(way)
    drawn.bad = way != "flipped"
    if way == "lost":
        return None
    if way in ("error", "refused"):
        raised = error_code("CLIENT_APP_RAISED_EXCEPTION")
        code = REFUSED if way == "refused" else drawn.draw.choice([raised, 0, -5, 10**6])
        return Message(Error(code=code, reason=drawn.text()), reply_to=request)
    # A few bits of the content turn over; the addresses of the message stay, as SuperLink checks them.
    proto = to_wire(reply)
    data = bytearray(proto.content.SerializeToString())
    places = [drawn.draw.randrange(8 * len(data)) for _ in range(drawn.draw.choice([1, 1, 2, 5]))] if data else []
    for at in places:
        data[at // 8] ^= 1 << at % 8
    drawn.said.append(f"bits {places} of {8 * len(data)}")
    proto.content.ParseFromString(bytes(data))
    return from_wire(proto)
