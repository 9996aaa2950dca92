"""Malicious messages: from one client of a run, and from the server to a node. Pickled objects must stay pickled."""

from __future__ import annotations

import argparse
import io
import json
import math
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from reliability_runs import GIB, Case, Watch, accuracy, failures, require, rows_of

from attacks.local_model import shared_tensors
from clients.data.card import DataCard
from clients.wire.records import to_record
from simulations.experiment.experiment import Experiment
from simulations.runtime.local_grid import FIRST_NODE, LocalGrid
from simulations.runtime.nodes import set_up
from simulations.server_app import run_experiment
from strategies.exchange.exchange import Exchange

BOMB = "[" * 1_000_000
WIDE = f"[{'[],' * 30_000_000}[]]"
"""90 MB of JSON, at least 2 GiB as Python objects."""
MARK = Path(tempfile.gettempdir()) / "fedveil-executed"
MOST, SECONDS = 6.0, 60.0
"""GiB and processor seconds that one message may take at most."""


class Pickled:
    """Makes a file when it is unpickled."""

    def __reduce__(self) -> tuple[Any, tuple[Path]]:
        return Path.touch, (MARK,)


def raw(data: bytes) -> Array:
    """An array of any bytes."""
    return Array(dtype="float32", shape=(1,), stype="numpy.ndarray", data=data)


def headed(shape: tuple[int, ...]) -> Array:
    """An array that declares a shape, and holds nothing."""
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape!r}}}\n".encode()
    return raw(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text)


def pickled() -> Array:
    """An array of an object that makes a file when it is unpickled."""
    file = io.BytesIO()
    np.save(file, np.array([Pickled()], dtype=object), allow_pickle=True)
    return raw(file.getvalue())


def filled(one: Array, value: float) -> Array:
    """An array of one number, where it is of floats."""
    found = one.numpy()
    return Array(np.full_like(found, value)) if found.dtype.kind == "f" else one


def large() -> ArrayRecord:
    """A tensor of 1 GiB."""
    return ArrayRecord({"x": Array(np.zeros(GIB // 4, np.float32))})


Change = Callable[[RecordDict], object]
"""Changes the content of a message."""
ARRAYS: dict[str, Callable[[Array], Array]] = {
    "other shapes": lambda _: Array(np.ones(7, np.float32)),
    "other types": lambda one: Array(one.numpy().astype(np.complex64)),
    **{value: partial(filled, value=float(value)) for value in ("NaN", "3e38", "1e30", "1e3")},
    "pickled objects": lambda _: pickled(),
    "a header of 4 TiB": lambda _: headed((2**40,)),
    "bytes that are no array": lambda _: raw(b"\x00" * 100),
}
"""What stands in the place of an array."""


def arrays(kind: str) -> Change:
    """Changes each array of a message."""

    def change(content: RecordDict) -> None:
        for key, record in list(content.array_records.items()):
            content[key] = ArrayRecord({name: ARRAYS[kind](one) for name, one in record.items()})

    return change


def put(key: str, record: Callable[[], Any]) -> Change:
    """Puts a record into a message, in the place of another or beside it."""
    return lambda content: content.__setitem__(key, record())


def numbers(**more: Any) -> Change:
    """Changes the metrics."""
    named = {name.replace("_", "-"): value for name, value in more.items()}
    return lambda content: content.__setitem__("metrics", MetricRecord({**content.metric_records["metrics"], **named}))


def task(change: Callable[[dict[str, Any]], Any]) -> Change:
    """Changes the task that the server sends; a text takes its place."""

    def changed(content: RecordDict) -> None:
        config = content.config_records["config"]
        values = json.loads(str(config["task"]))
        found = change(values)
        config["task"] = found if isinstance(found, str) else json.dumps(values)

    return changed


OTHER_NAMES = put("arrays", lambda: ArrayRecord({"x": Array(np.ones(1))}))
FROM_CLIENT: dict[tuple[str, str], Change] = {
    **{("train", kind): arrays(kind) for kind in ARRAYS},
    ("train", "other names"): OTHER_NAMES,
    ("train", "a tensor of 1 GiB"): put("arrays", large),
    ("train", "one record more"): put("more", lambda: MetricRecord({"x": 1.0})),
    ("train", "numbers as lists"): numbers(train_loss=[1.0] * 9),
    ("train", "a name that others do not report"): numbers(test_accuracy=1.0),
    ("train", "10^18 examples"): numbers(num_examples=10**18),
    ("train", "no metrics"): lambda content: content.pop("metrics"),
    ("train", "a JSON bomb as ledger"): put("ledger", lambda: ConfigRecord({"": BOMB})),
    ("evaluate", "an accuracy of 2"): numbers(test_accuracy_original=2.0),
    ("evaluate", "NaN"): numbers(test_loss_original=math.nan),
    ("evaluate", "numbers as lists"): numbers(test_loss_original=[1.0] * 9),
    ("evaluate", "a tensor of 1 GiB besides"): put("x", large),
    ("evaluate", "no metrics"): lambda content: content.pop("metrics"),
    ("train.probe", "other shapes"): arrays("other shapes"),
    ("train.probe", "pickled objects"): arrays("pickled objects"),
    ("train.probe", "10^9 images"): numbers(num_examples=10**9),
    ("query.audit", "NaN"): numbers(psnr_original=[math.nan] * 9),
    ("query.audit", "a number for a list"): numbers(psnr_original=3.0),
    ("query.audit", "pictures of pickled objects"): put("pictures", lambda: ArrayRecord({"original-0": pickled()})),
}  # fmt: skip
"""(Type of the message, what one of three clients replies)."""
TO_NODE: dict[str, Change] = {
    "a task of JSON, deep": task(lambda _: BOMB),
    "a task of JSON, wide": task(lambda _: WIDE),
    "a task that is no object": task(lambda _: "[1]"),
    "a plan without a model": task(lambda values: values["plan"].pop("model") and None),
    "text for a number": task(lambda values: values["plan"].update(batch_size="9" * 9)),
    "images of 10^12 pixels": task(lambda values: values["plan"]["card"].update(input_shape=[1, 10**6, 10**6])),
    "code as the model": task(lambda values: values["plan"].update(model="os:system")),
    "a million passes, no time limit": task(lambda values: values["plan"].update(local_epochs=10**6)),
    "no task": lambda content: content.pop("config"),
    "weights of other names": OTHER_NAMES,
    "a tensor of 1 GiB": put("arrays", large),
    **{f"weights: {kind}": arrays(kind) for kind in ("other shapes", "NaN", "pickled objects", "a header of 4 TiB")},
}  # fmt: skip
"""What the server requests training with."""


def hostile(_: argparse.Namespace) -> Iterator[Case]:
    """Malicious messages, each of which must be refused with a reason, or used without its addition."""
    for (kind, name), change in FROM_CLIENT.items():
        yield Case(f"a client's reply to {kind}", f"{kind}: {name}", partial(_from_client, kind, change))
    for name, change in TO_NODE.items():
        yield Case("a server's request for training", name, partial(_to_node, change))


def _from_client(kind: str, change: Change) -> str:
    class Hostile(LocalGrid):
        def answer(self, message: Message) -> Message | None:
            reply = super().answer(message)
            asked = message.metadata
            if reply and reply.has_content() and (asked.message_type, asked.dst_node_id) == (kind, FIRST_NODE + 1):
                change(reply.content)
            return reply

    attacked = kind in ("train.probe", "query.audit")
    with tempfile.TemporaryDirectory() as folder, Watch() as watch:
        out = Path(folder) / "run"
        run_experiment(Hostile(3), Experiment.of(
            dataset="mnist-5k", model="lenet", train_limit=300, test_limit=60, num_clients=3, rounds=2, local_epochs=4,
            batch_size=8, learning_rate=0.1, defenses="", attack_rounds="first" if attacked else "", attack_workers=0,
            probe_attacks="InvertingGradients(iterations=5)", update_attacks="", probe_targets=1, adaptive=False,
            output_dir=str(out),
        ))  # fmt: skip
        rows, refused = rows_of(out), {row["message"].partition(": ")[2] for row in failures(out, "client")}
    require(not any(row["metric"] == "test-accuracy" and not row["reference"] for row in rows), "a made-up metric")
    require(len(refused) <= 1 + (kind == "query.audit"), f"several reasons: {refused}")
    _require_bounded(watch)
    told = f"refused: {min(refused)[:90]}" if refused else "used without the addition: no row"
    return f"{told}; accuracy {accuracy(rows):.2f}, {watch.gib:.1f} GiB more"


def _to_node(change: Change) -> str:
    experiment = Experiment.of(
        dataset="mnist-5k", model="lenet", train_limit=100, test_limit=60, num_clients=1, defenses=""
    )
    with tempfile.TemporaryDirectory() as secrets:
        grid = LocalGrid(1)
        node = {"randomness": "secret", "max-seconds": 20.0, "secret-dir": secrets}
        grid.contexts[FIRST_NODE].node_config |= node
        exchange = Exchange(grid, {0: FIRST_NODE}, 0.0)  # the server sets no limit
        set_up(exchange, experiment.plan(), experiment.partition)
        plan = experiment.plan()
        plan = replace(plan, card=DataCard.of(plan.load_data()))
        weights = to_record(shared_tensors(plan.build_model()))
        content = RecordDict({"config": exchange.config(plan.at(1)), "arrays": weights})
        with Watch() as watch:
            change(content)
            reply = exchange("train", {0: content})[0]
    require(reply.has_error(), "the node trained")
    _require_bounded(watch)
    require(watch.seconds < SECONDS, f"{watch.seconds:.0f} processor seconds")
    return f"refused: {(reply.error.reason or '')[:110]}; {watch.gib:.1f} GiB more"


def _require_bounded(watch: Watch) -> None:
    require(watch.gib < MOST, f"{watch.gib:.1f} GiB more")
    require(not MARK.exists(), "a pickled object was executed")
