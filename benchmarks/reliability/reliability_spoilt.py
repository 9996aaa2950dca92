"""Ways to spoil a client's reply, drawn by a seeded generator: what the pieces of benchmarks/reliability/reliability.py
about replies send.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from reliability_wire import BOMB, header, pickled, raw

from clients.flower_private import error_code, from_wire, to_wire
from clients.wire.records import REFUSED, WITHHELD

TEXTS = {
    "line separators": "a\u2028b\u2029c\u0085d\x0be\x0cf\x1cg\x1dh\x1ei",
    "NUL": "a\x00b",
    "escape codes": "\x1b[31mred\x1b]0;t\x07\x9b2J",
    "right to left": "\u202eevil\u2066\u2069",
    "a new line": "a\r\nb\rc",
    "no characters": "\uffff\ufffe\ufdd0",
    "markup": "[red]</script><b>&[/]",
    "a formula": "=1+1",
    "an emoji": "\U0001f469\u200d\U0001f469\u200d\U0001f467",
    "marks that combine": "e" + "\u0301" * 500,
    "a long text": "x" * 1_000_000,
    "nothing": "",
    "JSON, nested deep": BOMB,
    "JSON of a lone surrogate": '{"a": "\\ud800"}',
    "JSON of infinity": '{"a": Infinity}',
    "JSON of a huge number": '{"a": 1e999}',
    "a long number": "9" * 10_000,
}
"""Kind -> text."""
NUMBERS: tuple[Any, ...] = (
    0,
    -1,
    1,
    2**31,
    2**62,
    2**63 - 1,
    -(2**63),
    2**64 - 1,
    1e300,
    -1e300,
    3e38,
    5e-324,
    0.5,
    -0.0,
    float("nan"),
    float("inf"),
    float("-inf"),
    [],
    [0],
    [1.0] * 3,
    [float("nan")],
    [float("inf")] * 2,
    [1e308] * 4,
    [2**63 - 1],
    [0.5] * 100_000,
)
MANY = 5000
"""Records, names or reasons where one or two are expected."""


@dataclass
class Drawn:
    """What one way needs to know, and what it says of itself.

    Attributes:
        draw: Where every choice comes from.
        others: (description, content) of replies that were sent before, of any type and client.
        said: What was done.
        bad: Whether nobody could use the result: it must be refused, or change nothing.
    """

    draw: random.Random
    others: list[tuple[str, RecordDict]]
    said: list[str] = field(default_factory=list)
    bad: bool = False

    def of(self, things: Any) -> Any:
        """One of several things."""
        return self.draw.choice(sorted(things))

    def text(self) -> str:
        """A text of one kind."""
        kind = self.of(TEXTS)
        self.said.append(f"text: {kind}")
        return TEXTS[kind]

    def number(self) -> Any:
        """A number, or a list of some."""
        value = self.draw.choice(NUMBERS)
        self.said.append(repr(value)[:40])
        return value


Way = Callable[[Drawn, RecordDict], bool]
"""Changes a reply's content; False: there is nothing of the kind in it."""


def _array_of(values: np.ndarray) -> Array:
    return Array(values)


VALUES: dict[str, Callable[[np.ndarray], Array]] = {
    "NaN": lambda v: _array_of(np.full_like(v, np.nan)),
    "infinite": lambda v: _array_of(np.full_like(v, np.inf)),
    "one NaN": lambda v: _array_of(np.concatenate([[np.nan], v.ravel()[1:]]).astype(v.dtype).reshape(v.shape)),
    "3e38": lambda v: _array_of(np.full_like(v, 3e38)),
    "-3e38": lambda v: _array_of(np.full_like(v, -3e38)),
    "1e20": lambda v: _array_of(np.full_like(v, 1e20)),
    "denormal": lambda v: _array_of(np.full_like(v, 1e-45)),
    "zeros": lambda v: _array_of(np.zeros_like(v)),
    "-1": lambda v: _array_of(np.full_like(v, -1)),
    "2**31": lambda v: _array_of(np.full_like(v, 2**31)),
    "float64": lambda v: _array_of(v.astype(np.float64)),
    "float16": lambda v: _array_of(v.astype(np.float16)),
    "int8": lambda v: _array_of(v.astype(np.int8)),
    "complex": lambda v: _array_of(v.astype(np.complex64)),
    "truth values": lambda v: _array_of(v.astype(np.bool_)),
    "big-endian": lambda v: _array_of(v.astype(v.dtype.newbyteorder(">"))),
    "Fortran order": lambda v: _array_of(np.asfortranarray(v)),
    "one axis more": lambda v: _array_of(v[None]),
    "one entry less": lambda v: _array_of(v.ravel()[:-1]),
    "twice as long": lambda v: _array_of(np.concatenate([np.atleast_1d(v)] * 2)),
    "nothing in it": lambda v: _array_of(v.ravel()[:0]),
    "turned around": lambda v: _array_of(v.T),
    "bytes that are no array": lambda _: raw(b"\x00" * 100),
    "a header of 4 TiB": lambda _: raw(header("<f4", (2**40,))),
    "pickled objects": lambda _: raw(pickled()),
}
"""What stands in the place of an array."""
BAD = {"NaN", "infinite", "one NaN", "complex", "bytes that are no array", "a header of 4 TiB", "pickled objects"}
"""Of those, what is no value whatever it stands for (in arrays of whole numbers, NaN is some number)."""


def arrays(drawn: Drawn, content: RecordDict) -> bool:
    """Changes one array of a record, or all of them."""
    if not (records := {name: record for name, record in content.array_records.items() if record}):
        return False
    name, kind = drawn.of(records), drawn.of(VALUES)
    chosen = list(records[name]) if drawn.draw.random() < 0.5 else [drawn.of(records[name])]
    drawn.said.append(f"{len(chosen)} of {len(records[name])} arrays of {name!r}: {kind}")
    before = {one: records[name][one].numpy() for one in chosen}
    real = all(np.issubdtype(one.dtype, np.floating) and one.size for one in before.values())
    drawn.bad = kind in BAD and (real or ("N" not in kind and kind != "infinite"))
    with np.errstate(all="ignore"):
        changed = {one: VALUES[kind](values) for one, values in before.items()}
    content[name] = ArrayRecord({**records[name], **changed})
    return True


def names(drawn: Drawn, content: RecordDict) -> bool:
    """Leaves a name out of a record, puts another in, or many."""
    if not content:
        return False
    name = drawn.of(content)
    record: Any = content[name]
    kind, inner, how = type(record), dict(record), drawn.of(["less", "more", "renamed", "many", "none"])
    drawn.said.append(f"names of {name!r}: {how}")
    if how in ("less", "renamed"):
        if not inner:
            return False
        value = inner.pop(drawn.of(inner))
        if how == "renamed":
            inner[drawn.text()[:10_000]] = value
    one = {ArrayRecord: Array(np.ones(1)), MetricRecord: 1.0, ConfigRecord: "x"}[kind]
    if how == "more":
        inner[drawn.text()[:10_000]] = one
    if how == "many":
        inner |= {f"n{at}": one for at in range(MANY)}
    drawn.bad = how == "none" and kind is MetricRecord and "num-examples" in record
    content[name] = kind({} if how == "none" else inner)
    return True


def numbers(drawn: Drawn, content: RecordDict) -> bool:
    """Lies about a number, most often about how many examples there are."""
    if not (records := {name: record for name, record in content.metric_records.items() if record}):
        return False
    name = drawn.of(records)
    key = "num-examples" if "num-examples" in records[name] and drawn.draw.random() < 0.4 else drawn.of(records[name])
    drawn.said.append(f"{name!r} {key!r}")
    value = drawn.number()
    counted = key == "num-examples"
    drawn.bad = counted and (not isinstance(value, int) or value < 1 or value > 2**31)
    content[name] = MetricRecord({**records[name], key: value})
    return True


def texts(drawn: Drawn, content: RecordDict) -> bool:
    """Says something else where a text stands."""
    if not (records := {name: record for name, record in content.config_records.items() if record}):
        return False
    name = drawn.of(records)
    key = drawn.of(records[name])
    drawn.said.append(f"{name!r} {key!r}")
    value = drawn.text() if drawn.draw.random() < 0.8 else drawn.number()
    content[name] = ConfigRecord({**records[name], key: value})
    return True


def withheld(drawn: Drawn, content: RecordDict) -> bool:
    """Says that something was left out, in odd words or very often."""
    count = drawn.draw.choice([1, 1, 1, 20, MANY])
    drawn.said.append(f"{count} withheld")
    key, reason = drawn.text()[:1000], drawn.text()
    content[WITHHELD] = ConfigRecord({f"{key}{at or ''}": reason[: 10**6 // count] for at in range(count)})
    return True


def records(drawn: Drawn, content: RecordDict) -> bool:
    """Leaves records out, puts others in, or gives one another type."""
    how = drawn.of(["none", "one less", "many arrays", "many numbers", "another type", "a strange name"])
    drawn.said.append(f"records: {how}")
    name = drawn.of(content) if content else ""
    if how == "none":
        for one in list(content):
            del content[one]
    elif how == "one less" and name:
        drawn.said.append(name)
        del content[name]
    elif how == "many arrays":
        for at in range(MANY):
            content[f"target-{at}"] = ArrayRecord({"x": Array(np.ones(1, np.float32))})
    elif how == "many numbers":
        for at in range(MANY):
            content[f"m{at}"] = MetricRecord({"x": 1.0})
    elif how == "another type" and name:
        drawn.said.append(name)
        kinds: list[Any] = [ArrayRecord({"x": Array(np.ones(1))}), MetricRecord({"x": 1.0}), ConfigRecord({"x": "y"})]
        content[name] = drawn.draw.choice([one for one in kinds if type(one) is not type(content[name])])
    elif how == "a strange name":
        content[drawn.text()[:1000]] = MetricRecord({"x": 1.0})
    return True


def replayed(drawn: Drawn, content: RecordDict) -> bool:
    """Sends what was sent before: in another round, by another client, or for another question."""
    if not drawn.others:
        return False
    told, other = drawn.draw.choice(drawn.others)
    drawn.said.append(f"in its place {told}")
    for name in list(content):
        del content[name]
    for name, record in copy.deepcopy(other).items():
        content[name] = record
    return True


WAYS: dict[str, Way] = {
    "arrays": arrays,
    "names": names,
    "numbers": numbers,
    "texts": texts,
    "withheld": withheld,
    "records": records,
    "replayed": replayed,
}
"""What changes a content."""
WHOLE = ("lost", "error", "refused", "flipped")
"""What changes more than that."""


def spoilt(drawn: Drawn, reply: Message, request: Message) -> Message | None:
    """A reply in another state, as it can cross the wire; ``drawn.said`` describes it.

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
        except Exception:  # it cannot be sent at all: the client's own process fails, or SuperLink refuses the bytes
            continue
    raise RuntimeError("no way applies")


def _changed(drawn: Drawn, way: str, reply: Message) -> Message | None:
    found = copy.deepcopy(reply)
    if not WAYS[way](drawn, found.content):
        return None
    if drawn.draw.random() < 0.2:
        bad = drawn.bad
        WAYS[drawn.of(set(WAYS) - {"replayed", "records", "names"})](drawn, found.content)
        drawn.bad = drawn.bad or (bad and way != "arrays")  # whose record may have been changed again
    return found


def _whole(drawn: Drawn, way: str, reply: Message, request: Message) -> Message | None:
    drawn.said.append(way)
    if way == "lost":
        drawn.bad = True
        return None
    if way in ("error", "refused"):
        drawn.bad = True
        raised = error_code("CLIENT_APP_RAISED_EXCEPTION")
        code = REFUSED if way == "refused" else drawn.draw.choice([raised, 0, -5, 10**6])
        return Message(Error(code=code, reason=drawn.text()), reply_to=request)
    return _flipped(drawn, reply)


def _flipped(drawn: Drawn, reply: Message) -> Message:
    """A few bits of the content turn over; what addresses the message stays, as SuperLink checks that."""
    proto = to_wire(reply)
    data = bytearray(proto.content.SerializeToString())
    places = [drawn.draw.randrange(8 * len(data)) for _ in range(drawn.draw.choice([1, 1, 2, 5]))] if data else []
    for at in places:
        data[at // 8] ^= 1 << at % 8
    drawn.said.append(f"bits {places} of {8 * len(data)}")
    proto.content.ParseFromString(bytes(data))
    return from_wire(proto)
