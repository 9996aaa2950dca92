"""The Flower ClientApp: reads messages, calls ``clients.training`` and ``clients.audit``, writes replies. Nothing else.

Messages, all carrying a ``config`` record with the task as JSON and a watchdog's ``timeout`` in seconds:

=================  ==================================================  ==================================================
type               content                                             reply
=================  ==================================================  ==================================================
``query.setup``    ``indices``: train and test indices                 ``metrics``: partition, sizes
``train``          ``arrays``: global weights; ``ledger`` on resume    ``arrays``: update; ``metrics``; ``ledger``
``train.probe``    ``arrays``: global weights                          ``target-0``, ...: updates; ``metrics``; ``ledger``
``evaluate``       ``arrays``: global weights                          ``metrics``
``query.audit``    ``guesses``: see ``clients.guesses``               ``metrics``: scores; ``pictures`` when shared
=================  ==================================================  ==================================================
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from clients.audit import Audited, audit_baselines, audit_guesses
from clients.guesses import read_guesses
from clients.records import metrics, tensors_of, to_record, values_of
from clients.task import Task
from clients.training import Ledger, LocalClient, LocalResult

GRACE_SECONDS = 10.0

app = ClientApp()
Call = Callable[[Message, Context], Message]


def watchdog(message: Message, context: Context, call_next: Call) -> Message:
    """Turns a client that runs longer than ``config.timeout`` seconds into an error reply, so that its worker lives on.

    If a call that Python cannot interrupt hangs, the process is ended a little later: the runtime then reports the loss.
    """
    seconds = float(values_of(message, "config").get("timeout", 0.0))
    if seconds <= 0 or threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        return call_next(message, context)

    def expire(*_: object) -> None:
        raise TimeoutError(f"client ran longer than client-timeout = {seconds:g} s")

    before = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    last_resort = threading.Timer(seconds + GRACE_SECONDS, os._exit, (1,))
    last_resort.daemon = True
    if Path(sys.argv[0]).name == "default_worker.py":  # a Ray worker: the pool starts another
        last_resort.start()
    try:
        return call_next(message, context)
    finally:
        last_resort.cancel()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@app.query("setup", mods=[watchdog])
def setup(message: Message, context: Context) -> Message:
    """Keeps this node's indices for the run and checks that its data can be read.

    Without indices (``partition = "node"``) everything in the node's own data directory is its own.
    """
    config = values_of(message, "config")
    partition = _partition(context)
    _check_bundle(str(config.get("app-dir", "")))
    if "indices" in message.content:
        context.state["indices"] = message.content["indices"]
    client = _client(message, context)
    sizes = {"partition": partition, "train-examples": client.num_train, "test-examples": client.num_test}
    if empty := [name for name, size in sizes.items() if name != "partition" and not size]:
        raise RuntimeError(f"partition {partition} has no {empty[0]}; use fewer clients or another partition")
    card = ConfigRecord({"card": json.dumps(asdict(client.card))})
    return _reply(message, {"metrics": metrics(sizes), "card": card})


@app.query("partition")
def partition(message: Message, context: Context) -> Message:
    """Says which partition this node holds: node ids are random, partitions are not."""
    return _reply(message, {"metrics": metrics({"partition": _partition(context)})})


@app.train(mods=[watchdog])
def train(message: Message, context: Context) -> Message:
    """One local round."""
    client = _client(message, context)
    result = client.train(tensors_of(message, "arrays"), _ledger(message, context, client.task.pipeline))
    return _reply(message, {"arrays": to_record(result.updates[0]), **_account(context, client, result)})


@app.train("probe", mods=[watchdog])
def probe(message: Message, context: Context) -> Message:
    """One-step updates for the attacks of the papers' strongest setting."""
    client = _client(message, context)
    result = client.probe(tensors_of(message, "arrays"), _ledger(message, context, client.task.pipeline))
    records: dict[str, Any] = {f"target-{at}": to_record(update) for at, update in enumerate(result.updates)}
    if values_of(message, "config").get("publish-labels"):
        labels = {f"target-{at}": client.probed(at).original.targets.argmax(1) for at in range(len(result.updates))}
        records["labels"] = to_record(labels)
    return _reply(message, {**records, **_account(context, client, result)})


@app.evaluate(mods=[watchdog])
def evaluate(message: Message, context: Context) -> Message:
    """Accuracy of the global model on this client's share of the test data."""
    numbers = _client(message, context).evaluate(tensors_of(message, "arrays"))
    return _reply(message, {"metrics": metrics({**numbers, "num-examples": int(numbers["num-examples"])})})


@app.query("audit", mods=[watchdog])
def audit(message: Message, context: Context) -> Message:
    """Scores the server's guesses against this client's images; only numbers leave, unless pictures are shared."""
    config = values_of(message, "config")
    client, observation = _client(message, context), str(config["observation"])
    kind = str(config["kind"])
    if kind == "baselines":
        return _audit_reply(message, audit_baselines(client, observation, pictures=bool(config["share-images"])))
    arrays = tensors_of(message, "guesses")
    guesses = read_guesses(kind, arrays, int(config["guesses"]), client.task.build_model())
    return _audit_reply(message, audit_guesses(client, observation, guesses))


def _client(message: Message, context: Context) -> LocalClient:
    task = Task.from_json(values_of(message, "config")["task"])
    if "data-dir" in context.node_config:
        task = replace(task, data_dir=str(context.node_config["data-dir"]))
    if task.owns_data:
        data = task.load_data()
        return LocalClient(task, _partition(context), range(len(data.train)), range(len(data.test)))
    if "indices" not in context.state:
        raise RuntimeError("this node was not set up: it joined after the start, or its `query.setup` failed")
    indices: Any = context.state["indices"]
    return LocalClient(task, _partition(context), *(indices[part].numpy().tolist() for part in ("train", "test")))


def _partition(context: Context) -> int:
    if "partition-id" not in context.node_config:
        raise RuntimeError(
            'this node does not know its partition: start it with --node-config "partition-id=0 num-partitions=2"'
        )
    return int(context.node_config["partition-id"])


def _check_bundle(app_dir: str) -> None:
    """In a simulation every process must run the code that the server runs (Ray workers may find another checkout)."""
    here = Path(__file__).resolve()
    if app_dir and not here.is_relative_to(app_dir):
        raise RuntimeError(
            f"this worker runs {here}, not the bundle {app_dir}; stop Flower's local runtime and run again"
        )


def _ledger(message: Message, context: Context, pipeline: str) -> Ledger:
    """The node's own ledger, else what the server kept of it when it resumes a run."""
    own: Any = context.state.get("ledger") or {}
    text = own.get(pipeline) or values_of(message, "ledger").get(pipeline)
    ledger: Ledger = json.loads(text) if text else {}
    return ledger


def _account(context: Context, client: LocalClient, result: LocalResult) -> dict[str, Any]:
    """Keeps the ledger in the node's state, and gives the records that every training reply carries."""
    numbers = {**result.metrics, "num-examples": result.num_examples, "local-steps": result.local_steps}
    records: dict[str, Any] = {"metrics": metrics(numbers)}
    if result.ledger:
        kept: Any = context.state.get("ledger") or {}
        text = json.dumps(result.ledger)
        context.state["ledger"] = ConfigRecord({**kept, client.task.pipeline: text})
        records["ledger"] = ConfigRecord({client.task.pipeline: text})
    return records


def _reply(message: Message, records: dict[str, Any]) -> Message:
    return Message(RecordDict(records), reply_to=message)


def _audit_reply(message: Message, audited: Audited) -> Message:
    records: dict[str, Any] = {"metrics": metrics(audited.scores)}
    if audited.pictures:
        records["pictures"] = to_record(audited.pictures)
    return _reply(message, records)
