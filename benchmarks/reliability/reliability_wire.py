"""The piece of benchmarks/reliability/reliability.py about messages of ill will, from one client of a run and from the
server of a node.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from reliability_runs import require, rows_of, table

GIB = 2**30
BOMB = "[" * 1_000_000
WIDE = f"[{'[],' * 30_000_000}[]]"
"""90 MB of JSON, which would be 2 GiB and more of Python's objects."""
MARK = Path(tempfile.gettempdir()) / "fedveil-executed"


class Pickled:
    """Makes a file when it is unpickled."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return _execute, (str(MARK),)


def _execute(mark: str) -> None:
    Path(mark).touch()


def raw(data: bytes) -> Array:
    """An array of any bytes."""
    return Array(dtype="float32", shape=(1,), stype="numpy.ndarray", data=data)


def header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """An array that declares a shape, and holds nothing."""
    text = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape!r}}}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


def pickled() -> bytes:
    """An array of an object that makes a file when it is unpickled."""
    file = io.BytesIO()
    np.save(file, np.array([Pickled()], dtype=object), allow_pickle=True)
    return file.getvalue()


def all_arrays(array: Callable[[Array], Array]) -> Callable[[RecordDict], None]:
    """Changes every array of a message."""

    def change(content: RecordDict) -> None:
        for key, record in list(content.array_records.items()):
            content[key] = ArrayRecord({name: array(one) for name, one in record.items()})

    return change


def put(key: str, record: Any) -> Callable[[RecordDict], None]:
    """Puts a record into a message, in the place of another or beside it."""
    return lambda content: content.__setitem__(key, record())


def numbers(**more: Any) -> Callable[[RecordDict], None]:
    """Changes the metrics."""

    def change(content: RecordDict) -> None:
        content["metrics"] = MetricRecord({**content["metrics"], **{k.replace("_", "-"): v for k, v in more.items()}})  # type: ignore[dict-item]

    return change


FROM_CLIENTS: dict[str, Callable[[RecordDict], None]] = {
    "other names": put("arrays", lambda: ArrayRecord({"x": Array(np.ones(1))})),
    "other shapes": all_arrays(lambda _: Array(np.ones(7, np.float32))),
    "other types": all_arrays(lambda one: Array(one.numpy().astype(np.complex64))),
    "NaN": all_arrays(lambda one: Array(np.full_like(one.numpy(), np.nan))),
    "objects that run code when unpickled": all_arrays(lambda _: raw(pickled())),
    "a header of 4 TiB, and no values": all_arrays(lambda _: raw(header("<f4", (2**40,)))),
    "bytes that are no array": all_arrays(lambda _: raw(b"\x00" * 100)),
    "a tensor of 1 GiB": put("arrays", lambda: ArrayRecord({"x": Array(np.zeros(GIB // 4, np.float32))})),
    "one record more": put("more", lambda: MetricRecord({"x": 1.0})),
    "numbers as lists": numbers(train_loss=[1.0] * 9),
    "a name that others do not report": numbers(test_accuracy=1.0),
    "10^18 examples": numbers(num_examples=10**18),
    "no metrics": lambda content: content.pop("metrics"),
    "a JSON bomb as ledger": put("ledger", lambda: ConfigRecord({"": BOMB})),
}  # fmt: skip
"""What stands in the place of a client's update."""
OTHER_ANSWERS: dict[tuple[str, str], Callable[[RecordDict], None]] = {
    ("evaluate", "an accuracy of 2"): numbers(test_accuracy_original=2.0),
    ("evaluate", "NaN"): numbers(test_loss_original=math.nan),
    ("evaluate", "numbers as lists"): numbers(test_loss_original=[1.0] * 9),
    ("evaluate", "a tensor of 1 GiB besides"): put("x", lambda: ArrayRecord({"x": Array(np.zeros(GIB // 4, np.float32))})),
    ("evaluate", "no metrics"): lambda content: content.pop("metrics"),
    ("train.probe", "other shapes"): all_arrays(lambda _: Array(np.ones(7, np.float32))),
    ("train.probe", "objects that run code when unpickled"): all_arrays(lambda _: raw(pickled())),
    ("train.probe", "10^9 images"): numbers(num_examples=10**9),
    ("query.audit", "NaN"): numbers(psnr_original=[math.nan] * 9),
    ("query.audit", "a number for a list"): numbers(psnr_original=3.0),
    ("query.audit", "pictures of objects that run code when unpickled"): put(
        "pictures", lambda: ArrayRecord({"original-0": raw(pickled())})
    ),
}  # fmt: skip
"""(type of the message, what is done to the answer)."""


PROBED = ("train.probe", "query.audit")


class Watch:
    """The most memory that this process has while it is looked at, above what it had before."""

    def __enter__(self) -> Watch:
        self.start, self.before = time.process_time(), psutil.Process().memory_info().rss
        self.most, self._on = self.before, True
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    def _look(self) -> None:
        while self._on:
            self.most = max(self.most, psutil.Process().memory_info().rss)
            time.sleep(0.01)

    def __exit__(self, *_: object) -> None:
        self._on = False
        self._thread.join()
        self.gib, self.seconds = (self.most - self.before) / GIB, time.process_time() - self.start


def hostile(arguments: argparse.Namespace) -> None:
    """What a client and a server of ill will may send, and what becomes of it."""
    MARK.unlink(missing_ok=True)
    changes = {("train", name): change for name, change in FROM_CLIENTS.items()} | OTHER_ANSWERS
    rows = [_from_client(kind, name, change) for (kind, name), change in changes.items()]
    head = ["client 1 of 3 answers", "with", "in the rows", "accuracy of the run", "GiB more at most"]
    table("At the server", head, rows)
    sent = [_to_client(name, content) for name, content in _from_servers().items()]
    table("At a client", ["the server sends", "the node answers", "GiB more at most"], sent)
    require(not MARK.exists(), "something was executed")
    print(f"\nNothing was executed, in {len(rows)} runs and {len(sent)} messages (seed {arguments.seed}).")


def _from_client(kind: str, name: str, change: Callable[[RecordDict], None]) -> list[object]:
    from simulations.experiment.experiment import Experiment
    from simulations.runtime.local_grid import FIRST_NODE, LocalGrid
    from simulations.server_app import run_experiment

    class Hostile(LocalGrid):
        def answer(self, message: Message) -> Message | None:
            reply = super().answer(message)
            asked = message.metadata
            if reply and reply.has_content() and (asked.message_type, asked.dst_node_id) == (kind, FIRST_NODE + 1):
                change(reply.content)
            return reply

    with tempfile.TemporaryDirectory() as folder, Watch() as watch:
        out = Path(folder) / "run"
        run_experiment(Hostile(3), Experiment.of(
            dataset="mnist-5k", model="lenet", train_limit=300, test_limit=60, num_clients=3, rounds=2, local_epochs=4,
            batch_size=8, learning_rate=0.1, defenses="", attack_rounds="first" if kind in PROBED else "", attack_workers=0,
            probe_attacks="InvertingGradients(iterations=5)", update_attacks="", probe_targets=1, adaptive=False,
            output_dir=str(out),
        ))  # fmt: skip
        rows = rows_of(out)
    said = {
        row["message"].partition(": ")[2] for row in rows if row["metric"] == "client" and row["status"] == "failed"
    }
    finals = [
        row["value"]
        for row in rows
        if (row["metric"], row["reference"], row["round"]) == ("test-accuracy", "original", 2)
    ]
    made_up = {row["metric"] for row in rows if row["metric"] == "test-accuracy" and not row["reference"]}
    require(
        len(finals) == 1 and not made_up and len(said) <= 1 + (kind == "query.audit"),
        f"{name}: {finals}, {made_up}, {said}",
    )
    require(watch.gib < 6, f"{name}: {watch.gib:.1f} GiB")
    told = f"refused: {min(said)[:90]}" if said else "used without it"
    return [kind, name, told.replace("|", "/"), f"{finals[0]:.2f}", f"{watch.gib:.1f}"]


def _from_servers() -> dict[str, Callable[[dict[str, Any]], dict[str, Any]]]:
    """Name -> what it makes of the content of a good ``train`` message."""

    def task(change: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
        def changed(content: dict[str, Any]) -> dict[str, Any]:
            values = json.loads(content["config"]["task"])
            values = change(values) or values
            text = values if isinstance(values, str) else json.dumps(values)
            return content | {"config": ConfigRecord({**content["config"], "task": text})}

        return changed

    def weights(array: Callable[[Array], Array]) -> Callable[[dict[str, Any]], dict[str, Any]]:
        return lambda content: content | {"arrays": ArrayRecord({n: array(a) for n, a in content["arrays"].items()})}

    return {
        "a JSON bomb as task: deep": task(lambda _: BOMB),
        "a JSON bomb as task: wide": task(lambda _: WIDE),
        "a task that is no object": task(lambda _: "[1]"),
        "a plan without a model": task(lambda values: values["plan"].pop("model") and None),
        "text for a number": task(lambda values: values["plan"].update(batch_size="9" * 9)),
        "images of 10^12 pixels": task(lambda values: values["plan"]["card"].update(input_shape=[1, 10**6, 10**6])),
        "code as the model": task(lambda values: values["plan"].update(model="os:system")),
        "no task": lambda content: {"arrays": content["arrays"]},
        "other names": lambda content: content | {"arrays": ArrayRecord({"x": Array(np.ones(1))})},
        "other shapes": weights(lambda _: Array(np.ones(1, np.float32))),
        "NaN": weights(lambda one: Array(np.full_like(one.numpy(), np.nan))),
        "objects that run code when unpickled": weights(lambda _: raw(pickled())),
        "a header of 4 TiB, and no values": weights(lambda _: raw(header("<f4", (2**40,)))),
        "a tensor of 1 GiB": lambda content: (
            content | {"arrays": ArrayRecord({"x": Array(np.zeros(GIB // 4, np.float32))})}
        ),
        "a million passes, and no time limit": task(lambda values: values["plan"].update(local_epochs=10**6)),
    }


def _to_client(name: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> list[object]:
    from dataclasses import replace

    from attacks.local_model import shared_tensors
    from clients.data.card import DataCard
    from clients.wire.records import to_record
    from simulations.experiment.experiment import Experiment
    from simulations.runtime.local_grid import FIRST_NODE, LocalGrid
    from simulations.runtime.nodes import set_up
    from strategies.exchange.exchange import Exchange

    experiment = Experiment.of(
        dataset="mnist-5k", model="lenet", train_limit=100, test_limit=60, num_clients=1, defenses=""
    )
    grid = LocalGrid(1)
    grid.contexts[FIRST_NODE].node_config |= {
        "randomness": "secret",
        "max-seconds": 20.0,
        "secret-dir": tempfile.mkdtemp(),
    }
    exchange = Exchange(grid, {0: FIRST_NODE}, 0.0)  # no limit, says the server
    set_up(exchange, experiment)
    plan = experiment.plan()
    plan = replace(plan, card=DataCard.of(plan.load_data()))
    content = {"config": exchange.config(plan.at(1)), "arrays": to_record(shared_tensors(plan.build_model()))}
    with Watch() as watch:
        reply = exchange("train", {0: RecordDict(change(content))})[0]
    require(reply.has_error(), f"{name}: answered")
    require(watch.seconds < 60 and watch.gib < 6, f"{name}: {watch.seconds:.0f} processor seconds, {watch.gib:.1f} GiB")
    return [name, (reply.error.reason or "")[:110].replace("|", "/"), f"{watch.gib:.1f}"]
