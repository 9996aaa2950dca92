"""The messages of split learning; as all others they carry a ``config`` record with the task and the watchdog's ``timeout``.

====================  =====================================================  ===============================================
type                  content                                                reply
====================  =====================================================  ===============================================
``train.step``        ``config``: ``first``, ``count`` of batches to send,   ``features``: one (B, N, D) a batch; with
                      ``applied``: first batch of the gradients; ``edge``:   labels at the server ``examples``, else
                      weights to begin the round with; ``gradients`` of      ``targets``; ``metrics``
                      batches sent before
``train.backward``    ``gradients`` of the last batches, ``applied``         ``metrics``
``train.collect``     ``edge``: the weights the round began with             ``arrays``: update of the client half;
                                                                             ``metrics``
``train.smash``       ``config``: ``transmissions`` to make,                 ``target-0``, ...: (R, B, N, D) of an audit
                      ``reveal-order``, ``since`` and ``until``, rounds;     batch; ``targets``; ``exposure``: how often
                      ``edge``                                               these rounds sent each image; ``orders`` on request
``train.audit_step``  ``gradients`` of audit batches; ``edge``               ``target-0``, ...: one-step updates
``evaluate.smash``    ``config``: ``first``, ``count``; ``edge``             ``features`` of test images
``evaluate``          ``logits`` of all test images                          ``metrics``: counts
====================  =====================================================  ===============================================

What is on the wire of a training step is tokens: no order, no class token. A frozen client half never crosses it: it follows from
the seed. What a trained half needs between messages is kept in the node's state. ``train.smash`` and ``train.audit_step`` are
answered as the node's configuration allows (``clients.secrets.policy``).
"""

import time
from typing import Any

from flwr.app import ConfigRecord, Context, Message
from torch import Tensor

from clients.messages.account import answer_once, book, require_same
from clients.messages.node import Records, answers_of, client_as, reply_to
from clients.secrets.policy import refusal
from clients.split.plan import SplitPlan
from clients.split.training import EdgeState, SplitClient
from clients.task.scenarios import ClientSide
from clients.wire.records import digest_of, metrics, tensors_of, to_record, to_tensors, values_of, withheld
from defenses.tensors import Tensors


def step(message: Message, context: Context) -> Message:
    """Trains on the gradients that came with the message, then sends the next batches."""
    start = time.perf_counter()
    client, config = client_as(SplitClient, message, context), values_of(message, "config")
    first, count = int(config["first"]), int(config["count"])
    book(context, client, "a batch", first, min(count, max(len(client.batches) - first, 0)))
    edge = client.load_edge(_advance(client, message, context).weights).requires_grad_(False)
    sent = client.batches.send(edge, first, count)
    records: Records = {"features": to_record(_numbered([batch.features for batch in sent]))}
    if config["labels"] == "server":
        records["examples"] = to_record(_numbered([batch.examples for batch in sent]))
    else:
        records["targets"] = to_record(_numbered([batch.targets for batch in sent]))
    return _answer(message, records, sum(len(batch.examples) for batch in sent), start)


def backward(message: Message, context: Context) -> Message:
    """Trains on the gradients of the round's last batches."""
    start = time.perf_counter()
    client = client_as(SplitClient, message, context)
    return _answer(message, {}, _advance(client, message, context).steps, start)


def collect(message: Message, context: Context) -> Message:
    """Sends the update of the client half."""
    start = time.perf_counter()
    client = client_as(SplitClient, message, context)
    book(context, client, "an update of the client half")
    before, after = _received(client, message, context), _kept(client, context)
    update = client.edge_update(before, after.weights)
    examples = min(client.data.num_train, after.steps * client.task.plan.batch_size)
    return _answer(message, {"arrays": to_record(update)}, max(examples, 1), start, **{"local-steps": after.steps})


def smash(message: Message, context: Context) -> Message:
    """Send audit batches repeatedly: as training sends them in so many passes, with the same defences."""
    start = time.perf_counter()
    client, answers = client_as(SplitClient, message, context), answers_of(context)
    config = values_of(message, "config")
    transmissions, targets = int(config["transmissions"]), range(client.task.plan.probe_targets)
    kept: Any = context.state.get("transmissions") or {"sent": 0}
    wanted, so_far = transmissions * len(targets), int(kept["sent"])
    if wanted < 1:
        raise ValueError(f"{wanted} transmissions were requested; allowed: 1 or more")
    what = f"{wanted} more transmissions of audit batches"
    answers.require_times("transmissions", what, so_far + wanted, f", {so_far} of them used")
    received = _received(client, message, context)
    context.state["transmissions"] = ConfigRecord({"sent": so_far + wanted})
    edge = client.load_edge(received).requires_grad_(False)
    sent = {f"target-{at}": client.audits.send(edge, at, transmissions) for at in targets}
    records: Records = {name: to_record({"features": features}) for name, features in sent.items()}
    records["targets"] = to_record({f"target-{at}": client.audits.targets(at) for at in targets})
    rounds = int(config["since"]), int(config["until"])
    records["exposure"] = to_record({f"target-{at}": client.audits.transmissions(at, *rounds) for at in targets})
    if config["reveal-order"] and not answers.reveal_orders:
        records |= withheld({"reveal-orders": refusal("reveal_orders", "the true order of its tokens")})
    elif config["reveal-order"]:
        orders = {f"target-{at}": client.audits.orders(at, transmissions, edge.num_tokens) for at in targets}
        records["orders"] = to_record(orders)
    return _answer(message, records, client.task.plan.probe_images, start)


def audit_step(message: Message, context: Context) -> Message:
    """Sends the client half's update after one plain step on each audit batch."""
    start = time.perf_counter()
    answers_of(context).require("probes", "updates after one step on an audit batch")
    client = client_as(SplitClient, message, context)
    edge, gradients = client.load_edge(_received(client, message, context)), tensors_of(message, "gradients")
    updates = {name: client.audits.step(edge, int(name.rpartition("-")[2]), g) for name, g in gradients.items()}
    return _answer(message, {name: to_record(u) for name, u in updates.items()}, client.task.plan.probe_images, start)


def smash_test(message: Message, context: Context) -> Message:
    """Sends test images as smashed data."""
    start = time.perf_counter()
    client, config = client_as(SplitClient, message, context), values_of(message, "config")
    first, count = int(config["first"]), int(config["count"])
    received = _received(client, message, context, client.task.round + 1)
    book(context, client, "a test image", first, min(count, max(client.data.num_test - first, 0)))
    features = client.smash_test(client.load_edge(received).requires_grad_(False), first, count)
    return _answer(message, {"features": to_record({"0": features})}, len(features), start)


def judge(message: Message, context: Context) -> Message:
    """Count how often the server's logits are right."""
    client = client_as(SplitClient, message, context)
    logits = tensors_of(message, "logits").get("0")
    if logits is None:
        raise RuntimeError("the evaluation of a split model needs the server's logits")
    return answer_once(message, context, client, lambda: client.judge(logits))


def _advance(client: SplitClient, message: Message, context: Context) -> EdgeState:
    """The client half after the gradients of this message; kept in the node's state where it is trained."""
    if not client.plan.trains_edge:
        return EdgeState({})
    if begin := _received(client, message, context):
        about: Any = context.state.get("edge-about")
        same = about is not None and about["pipeline"] == client.task.plan.pipeline
        state = client.begin_round(begin, _read(context) if same else EdgeState({}))
    else:
        state = _kept(client, context)
    if gradients := tensors_of(message, "gradients"):
        ordered = [gradients[name] for name in sorted(gradients, key=int)]
        state = client.apply_gradients(state, int(values_of(message, "config")["applied"]), ordered)
    _keep(client, context, state)
    return state


def _received(client: SplitClient, message: Message, context: Context, at: int | None = None) -> Tensors:
    """The weights of the client half with which round ``at`` (default: the task's) begins, the same in all its messages."""
    if edge := tensors_of(message, "edge"):
        require_same(context, client, "client half", digest_of([to_record(edge)]), at)
    return edge


def _keep(client: SplitClient, context: Context, state: EdgeState) -> None:
    task = client.task
    context.state["edge"] = to_record(state.weights)
    context.state["edge-optimizer"] = to_record(state.optimizer)
    context.state["edge-about"] = ConfigRecord(
        {"round": task.round, "pipeline": task.plan.pipeline, "steps": state.steps}
    )


def _kept(client: SplitClient, context: Context) -> EdgeState:
    about: Any = context.state.get("edge-about")
    if about is None or (about["round"], about["pipeline"]) != (client.task.round, client.task.plan.pipeline):
        raise RuntimeError(
            f"this node does not hold the client half of round {client.task.round}; it missed its beginning"
        )
    return _read(context)


def _read(context: Context) -> EdgeState:
    kept: Any = context.state
    return EdgeState(to_tensors(kept["edge"]), to_tensors(kept["edge-optimizer"]), int(kept["edge-about"]["steps"]))


def _numbered(tensors: list[Tensor]) -> Tensors:
    return {str(at): tensor.detach() for at, tensor in enumerate(tensors)}


def _answer(message: Message, records: Records, examples: int, start: float, **more: int) -> Message:
    numbers = {"num-examples": examples, "train-seconds": time.perf_counter() - start, **more}
    return reply_to(message, {**records, "metrics": metrics(numbers)})


SIDE = ClientSide(
    "split",
    SplitClient,
    SplitPlan,
    {
        "train.step": step,
        "train.backward": backward,
        "train.collect": collect,
        "train.smash": smash,
        "train.audit_step": audit_step,
        "evaluate.smash": smash_test,
        "evaluate": judge,
    },
)
