"""What somebody on the other side of the wire may send in place of what was asked for, as strategies of hypothesis."""

import io
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hypothesis import strategies as st

NAMES = ("arrays", "metrics", "ledger", "withheld", "labels", "pictures", "target-0", "target-1", "config")
NUMBERS = (
    "num-examples", "local-steps", "train-loss", "train-seconds", "attack//psnr/original", "test-accuracy-original",
)  # fmt: skip
BOMB = "[" * 100_000
"""JSON, nested deeper than Python follows."""
WIDE = f"[{'[],' * 10**6}[]]"
"""JSON of 3 MB that takes 60 MB and more as Python's objects."""


def npy(dtype: str, shape: object, body: bytes = b"", order: str = "False") -> bytes:
    """An array's bytes whose header says anything."""
    header = f"{{'descr': {dtype!r}, 'fortran_order': {order}, 'shape': {shape!r}}}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + body


def raw(data: bytes, stype: str = "numpy.ndarray") -> Array:
    return Array(dtype="float32", shape=(1,), stype=stype, data=data)


def pickled() -> Array:
    """An array of objects, as NumPy pickles them: whoever unpickles it is lost."""
    file = io.BytesIO()
    np.save(file, np.array([Pickled()], dtype=object), allow_pickle=True)
    return raw(file.getvalue())


class Pickled:
    """Sets a mark when it is unpickled."""

    executed = False

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        return _mark, ()


def _mark() -> None:
    Pickled.executed = True


dtypes = st.sampled_from([np.float32, np.float64, np.float16, np.int64, np.uint8, np.bool_, np.complex64, "S3", ">f4"])
shapes = st.lists(st.integers(0, 3), max_size=4).map(tuple)
values = st.sampled_from([0.0, 1.0, -1.0, np.nan, np.inf, 3e38, 1e-45])
HUGE = (2**40,)
headers = st.sampled_from(
    [
        npy("<f4", HUGE),  # 4 TiB, says the header
        npy("<f4", (2**20, 2**20, 2**20)),
        npy("<f4", (0, 2**62)),
        npy("<f4", (-1, 4), b"0" * 16),
        npy("<f4", (True,), b"0" * 4),
        npy("<f4", (1,) * 70, b"0" * 4),
        npy("<f4", (4,), b"0" * 15),
        npy("|O", (1,), b"\x80\x04N."),
        npy("<f16", (1,), b"0" * 16),
        npy("<f4" + "," * 50, (1,)),
        b"\x93NUMPY\x01\x00\xff\xff" + b"(" * 65_535,  # a header nested deeper than Python's parser goes
        b"\x93NUMPY\x09\x09",
        b"",
    ]
)
arrays = st.one_of(
    st.builds(lambda kind, shape, value: Array(np.full(shape, value).astype(kind)), dtypes, shapes, values),
    st.builds(raw, st.binary(max_size=40) | headers, st.sampled_from(["numpy.ndarray", "evil"])),
    st.builds(pickled),
)
any_name = st.sampled_from(NAMES + NUMBERS) | st.text(max_size=8)
numbers = st.one_of(
    st.integers(-(2**63), 2**63 - 1), st.floats(), st.lists(st.floats(), max_size=4), st.sampled_from([0, 1, -1])
)
plain = (
    numbers | st.booleans() | st.sampled_from(["", "{}", BOMB, "1" * 10_000, '{"train": 3}']) | st.binary(max_size=8)
)
array_records = st.dictionaries(any_name, arrays, max_size=4).map(ArrayRecord)
metric_records = st.dictionaries(any_name, numbers, max_size=4).map(MetricRecord)
config_records = st.dictionaries(any_name, plain, max_size=4).map(ConfigRecord)
records = array_records | metric_records | config_records


@st.composite
def contents(draw: st.DrawFn, valid: dict[str, Any]) -> RecordDict:
    """A valid content with a few things changed: records put in or left out, and what is in them."""
    found = dict(valid)
    for _ in range(draw(st.integers(0, 3))):
        name = draw(st.sampled_from([*valid, *NAMES]))
        record = found.get(name)
        match draw(st.sampled_from(["put", "drop", "change", "change"])):
            case "put":
                found[name] = draw(records)
            case "drop":
                found.pop(name, None)
            case "change" if isinstance(record, ArrayRecord):
                inner = draw(st.sampled_from(sorted(record)) | any_name) if record else draw(any_name)
                found[name] = ArrayRecord({**record, inner: draw(arrays)})
            case "change" if isinstance(record, MetricRecord):
                inner = draw(st.sampled_from(sorted(record)) | any_name) if record else draw(any_name)
                found[name] = MetricRecord({**record, inner: draw(numbers)})
            case "change" if isinstance(record, ConfigRecord):
                inner = draw(st.sampled_from(sorted(record)) | any_name) if record else draw(any_name)
                found[name] = ConfigRecord({**record, inner: draw(plain)})
    return RecordDict(found)
