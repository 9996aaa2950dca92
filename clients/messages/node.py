"""Shared parts of the ClientApp's message handlers: the watchdog, refusals, the addressed client, replies."""

import faulthandler
import json
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict

from clients.flower_private import SIMULATION_WORKER
from clients.process.machine import memory_of_machine
from clients.secrets.draws import Draws, Notebook, SecretError, default_folder, kept_secret
from clients.secrets.policy import (
    AnswerPolicy,
    RefusedError,
    RefusedModelError,
    may_download,
    not_again,
    require_own_code,
    require_own_files,
    require_pipeline,
)
from clients.task.local_data import Client, LocalData
from clients.task.scenarios import client_side, read_task
from clients.task.task import Plan
from clients.wire.records import MODEL_REFUSED, REFUSED, digest_of, to_tensors, values_of
from clients.wire.texts import RecordError, shortened
from defenses.spec import parse

GRACE_SECONDS = 10.0
AGAIN_SECONDS = 5.0
"""Between two alarms of a message that takes too long."""
LEAST_SECONDS, MOST_SECONDS = 1e-3, 1e8
"""A thousandth of a second to three years: what timers take."""
IMAGE_SHARE = 0.25
"""Largest share of a deployed node's memory for images, for any plan; larger data are read by batch, with the same results."""
STDERR = 2
"""Its file descriptor, whatever became of ``sys.stderr``."""
Call = Callable[[Message, Context], Message]
Mod = Callable[[Message, Context, Call], Message]
Records = dict[str, Any]
"""Of a reply, by name."""
C = TypeVar("C", bound=Client)


def watchdog(message: Message, context: Context, call_next: Call) -> Message:
    """Turn a client's work of more than ``config.timeout`` seconds into an error reply, and keep its worker alive.

    If a call that Python cannot interrupt hangs, the process is ended a little later, and its log shows the place. The runtime then
    tries once more, and reports the loss. The node's own ``max-seconds`` holds for any value of the server, and is the only limit
    of a real node under a defence with a bound: the server would learn from its own limits how long some examples take.
    """
    name, seconds = _limit(message, context)
    if seconds <= 0 or threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        return call_next(message, context)

    runs = True

    def expire(*_: object) -> None:
        if runs:  # else it came while it was being called off
            raise TimeoutError(f"client ran longer than {name} = {seconds:g} s")

    before, gradients = signal.signal(signal.SIGALRM, expire), torch.is_grad_enabled()
    ends_process = Path(sys.argv[0]).name == "default_worker.py"  # a Ray worker: the pool starts another
    try:
        if ends_process:
            # By a thread that is none of Python's: it costs microseconds, and needs no lock that the call may hold.
            faulthandler.dump_traceback_later(seconds + GRACE_SECONDS, exit=True, file=STDERR)
        # Again and again: code that catches every error may have caught the first.
        signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN_SECONDS)
        return call_next(message, context)
    finally:
        runs = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        torch.set_grad_enabled(gradients)  # the alarm may have come just inside ``no_grad``, before its end was sure
        if ends_process:
            faulthandler.cancel_dump_traceback_later()


def _limit(message: Message, context: Context) -> tuple[str, float]:
    """The setting that limits a message, the server's or the node's smaller one, and its seconds; 0: no limit."""
    limits = {
        "client-timeout": values_of(message, "config").get("timeout", 0.0),
        "max-seconds": context.node_config.get("max-seconds", 0.0),
    }
    for name, value in limits.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
            raise ValueError(f"{name} is {shortened(value)}; allowed: seconds, 0 for no limit")
    if not draws_from_seed(context):
        with suppress(RuntimeError, ValueError):  # which the message's handler refuses
            if parse(read_task(values_of(message, "config").get("task")).plan.pipeline).bounded:
                del limits["client-timeout"]
    seconds, name = min(((value, name) for name, value in limits.items() if value > 0), default=(0.0, ""))
    # A timer of less than a microsecond is none: a server that sets it would take the node's own limit away.
    return name, min(max(float(seconds), LEAST_SECONDS), MOST_SECONDS) if name else 0.0


def refusals(message: Message, context: Context, call_next: Call) -> Message:
    """Turn a refused request into an error reply with its own code, which the server distinguishes from a failure."""
    try:
        return call_next(message, context)
    except RefusedError as refused:
        code = MODEL_REFUSED if isinstance(refused, RefusedModelError) else REFUSED
        return Message(Error(code=code, reason=str(refused)), reply_to=message)


MODS: list[Mod] = [watchdog, refusals]
"""What every message passes on its way to its handler."""


def draws_from_seed(context: Context) -> bool:
    """Whether this node's random draws follow from the experiment's seed, which is right in a simulation only.

    The server cannot influence this. A node draws from the seed if it is a worker of Flower's simulation, or if its own
    configuration has ``randomness = "seed"``; otherwise, and with ``randomness = "secret"``, from a secret of its own.

    Raises:
        ValueError: When ``randomness`` is something else.
    """
    chosen = context.node_config.get("randomness")
    if chosen not in (None, "seed", "secret"):
        raise ValueError(f"randomness is {chosen!r} in the node's configuration; allowed: seed, secret")
    # The worker's program is Ray's, and it has loaded the actor that Flower's simulation sends it; a SuperNode has neither.
    in_worker = Path(sys.argv[0]).name == "default_worker.py" and SIMULATION_WORKER in sys.modules
    return chosen == "seed" or (chosen is None and in_worker)


def draws_of(context: Context, seed: int) -> Draws:
    """Start of this node's random draws; the server's ``seed`` counts in a simulation only. ``SecretError`` without a secret."""
    partition = partition_of(context)
    if draws_from_seed(context):
        return Draws.simulated(seed, partition)
    kept: Any = context.state.get("nonces") or {"text": ""}

    def keep(text: str) -> None:
        context.state["nonces"] = ConfigRecord({"text": text})

    return Draws(
        kept_secret(secret_folder(context) / f"partition-{partition}.secret"), Notebook(str(kept["text"]), keep)
    )


def secret_folder(context: Context) -> Path:
    """Folder of what the node keeps for itself; ``SecretError`` unless ``secret-dir`` is absolute."""
    folder = Path(str(context.node_config.get("secret-dir", default_folder())))
    if not folder.is_absolute():
        raise SecretError(f"secret-dir is {str(folder)!r} in the node's configuration; it must be absolute")
    return folder


def answers_of(context: Context) -> AnswerPolicy:
    """This node's policy: the requests that it answers."""
    return AnswerPolicy.of(context.node_config, simulated=draws_from_seed(context))


def client_of(message: Message, context: Context) -> Client:
    """The client that a message addresses, with this node's data.

    Raises:
        RefusedError: When the node's operator does not allow the task's pipeline, code or files.
        RuntimeError: When the node was not set up.
    """
    task = read_task(values_of(message, "config").get("task"))
    simulated = draws_from_seed(context)
    require_own_code(context.node_config, task.plan.model, task.plan.dataset, simulated=simulated)
    weights = str(getattr(task.plan, "weights", ""))
    require_own_files(context.node_config, task.plan.data_dir, weights, simulated=simulated)
    require_same_plan(context, task.plan)
    if message.metadata.message_type != "query.setup":  # which shows nothing of the images, and names no pipeline yet
        require_pipeline(context.node_config, task.plan.pipeline)
        # As understood: what is spent, drawn and kept for a pipeline is one account, however it is spelt.
        task = task.but(pipeline=str(parse(task.plan.pipeline)))
    if "data-dir" in context.node_config:
        task = task.but(data_dir=str(context.node_config["data-dir"]))
    if not simulated:
        task = task.but(image_memory=min(task.plan.image_memory, IMAGE_SHARE * memory_of_machine() / 2**30))
    task = task.but(download=task.plan.download and may_download(context.node_config, simulated=simulated))
    partition, draws = partition_of(context), draws_of(context, task.plan.seed)
    if task.plan.owns_data:
        data = task.plan.load_data()
        train, test = torch.arange(len(data.train)), torch.arange(len(data.test))
    elif "indices" not in context.state:
        raise RuntimeError("this node was not set up: it joined after the start, or its `query.setup` failed")
    else:
        train, test = _share(context.state["indices"])
    return client_side(task.plan.scenario).client(LocalData(task, partition, train, test, draws))


def require_same_plan(context: Context, plan: Plan) -> None:
    """Record the first plan of a run; raise ``RefusedError`` for another, which would show the same images in another form.

    Each pipeline has an account of its own, probes may have several sizes, and the card is known only after the set-up.
    """
    if not answers_of(context).has_account:
        return
    asked: dict[str, Any] = json.loads(json.dumps(asdict(replace(plan.of_training, pipeline=""))))
    kept: Any = context.state.get("plan")
    known = json.loads(kept["text"]) if kept else asked
    if None in (asked["card"], known["card"]):
        asked["card"] = known["card"] = asked["card"] or known["card"]
    if odd := [name for name, value in asked.items() if known.get(name) != value]:
        raise not_again(f"anything for another plan in the same run ({odd[0]} differs)")
    context.state["plan"] = ConfigRecord({"text": json.dumps(known)})


def keep_share(message: Message, context: Context) -> None:
    """Keep the indices of this node's examples; raise ``RefusedError`` for others than those that were dealt out at first."""
    dealt: Any = message.content["indices"]
    kept: Any = context.state.get("share") or {}
    digest = digest_of([dealt])
    if answers_of(context).has_account and kept.get("digest", digest) != digest:
        raise not_again("anything of other examples in the same run")
    context.state["indices"], context.state["share"] = dealt, ConfigRecord({"digest": digest})


def _share(record: Any) -> tuple[torch.Tensor, torch.Tensor]:
    rows = to_tensors(record) if isinstance(record, ArrayRecord) else {}
    if set(rows) != {"train", "test"} or any(
        row.ndim != 1 or row.dtype != torch.int64 or (row < 0).any() for row in rows.values()
    ):
        raise RecordError("indices: expected two rows of numbers from 0 on, 'train' and 'test'")
    return rows["train"], rows["test"]


def client_as(kind: type[C], message: Message, context: Context) -> C:
    """The addressed client of one scenario's message; ``RuntimeError`` for a task of another scenario. See ``client_of``."""
    client = client_of(message, context)
    if not isinstance(client, kind):
        raise RuntimeError(f"{message.metadata.message_type} is no message of the scenario {client.task.plan.scenario}")
    return client


def partition_of(context: Context) -> int:
    """The partition that this node holds; ``RuntimeError`` when it was started without one."""
    if "partition-id" not in context.node_config:
        raise RuntimeError(
            'this node does not know its partition: start it with --node-config "partition-id=0 num-partitions=2"'
        )
    return int(context.node_config["partition-id"])


def check_bundle(app_dir: str) -> None:
    """In a simulation every process must run the code that the server runs (Ray workers may find another checkout)."""
    here = Path(__file__).resolve()
    if app_dir and not here.is_relative_to(app_dir):
        raise RuntimeError(
            f"this worker runs {here}, not the bundle {app_dir}; stop Flower's local runtime and run again"
        )


def reply_to(message: Message, records: Records) -> Message:
    """A reply of named records."""
    return Message(RecordDict(records), reply_to=message)
