"""The messages of edge-cloud inference; as all others they carry a ``config`` record with the task and the watchdog's ``timeout``.

==================  ===================================================  =================================================
type                content                                              reply
==================  ===================================================  =================================================
``query.features``  ``config``: first batch, how many, ``version`` of    ``features``: what travels, by number of the
                    what was learned; ``client``: weights of the client  batch; ``metrics``
                    half at the round's cut; ``learned``: tensors of
                    the defences that learn
``evaluate``        ``answers``: logits of all queries; ``arrays``:      ``metrics``
                    weights of the whole model
==================  ===================================================  =================================================

A device keeps its half; here it comes with every message, so that a client needs no memory. The whole model comes with the
evaluation alone: it was trained on the server's own images, and gives the client the answers without a defence.

Within a phase a node works with one version of what the defences have learned: under two of them, what is sent of an image would
be two protected forms of it.
"""

from __future__ import annotations

import json
import time
from typing import Any

from flwr.app import ConfigRecord, Context, Message

from attacks.metrics.training import QUERY_SECONDS
from attacks.sender import Sender
from clients.inference.plan import InferencePlan
from clients.inference.queries import KIND, InferenceClient
from clients.messages.node import book, client_as, reply_to
from clients.secrets.policy import RefusedError
from clients.task.scenarios import ClientSide
from clients.task.task import load_weights
from clients.wire.records import metrics, tensors_of, to_record, values_of


def features(message: Message, context: Context) -> Message:
    """Sends batches of queries."""
    start = time.perf_counter()
    client, config = client_as(InferenceClient, message, context), values_of(message, "config")
    plan = InferencePlan.narrow(client.task.plan)
    cut = plan.cut_of(client.task.round)
    first, count = int(config["first"]), int(config["count"])
    if count < 1:  # which would begin the queries anew and book nothing
        raise ValueError(f"{count} batches of queries were requested; allowed: 1 or more")
    pipeline = client.pipeline.with_state(tensors_of(message, "learned"))
    require_version(context, client, pipeline.version, str(config["version"]))
    numbers = range(first, min(first + count, len(client.queries)))
    # At another cut the same image is sent again, under new noise: for the node that is a repetition.
    book(context, client, "a query", first, len(numbers), over_rounds=True)
    client.data.renew(KIND, first, len(numbers))
    half = load_weights(plan.build_cut(cut).client, tensors_of(message, "client"))
    sender = Sender(half, pipeline, client.data.card.mean, client.data.card.std)
    sent = {str(number): client.queries.latent(number, sender) for number in numbers}
    seconds = time.perf_counter() - start
    return reply_to(
        message,
        {
            "features": to_record(sent),
            "metrics": metrics({"num-examples": sum(map(len, sent.values())), QUERY_SECONDS.name: seconds}),
        },
    )


def require_version(context: Context, client: InferenceClient, version: str, stated: str) -> None:
    """Record which version of the learned defences protects a phase's queries; the node keeps the latest of each pipeline.

    Raises:
        RefusedError: When this phase has another one.
        ValueError: When the message's version is not that of its tensors.
    """
    if version != stated:
        raise ValueError(
            f"version is {stated!r}, but the tensors under learned are {version!r}; allowed: their own version"
        )
    kept: Any = context.state.get("versions") or {}
    name, now = str(client.pipeline), client.task.round
    phase, known = json.loads(kept[name]) if name in kept else (now, version)
    if phase == now and known != version:
        raise RefusedError(
            f"this node protects the queries of a phase with one version of {name}: in round {now} version is {version!r}; "
            f"allowed: {known!r}"
        )
    context.state["versions"] = ConfigRecord({**kept, name: json.dumps([now, version])})


def judge(message: Message, context: Context) -> Message:
    """Score the answers by this client's own labels."""
    client = client_as(InferenceClient, message, context)
    plan = InferencePlan.narrow(client.task.plan)
    model = plan.build_cut(plan.cut_of(client.task.round), tensors_of(message, "arrays"))
    return reply_to(message, {"metrics": metrics(client.judge(tensors_of(message, "answers")["0"], model))})


SIDE = ClientSide("inference", InferenceClient, InferencePlan, {"query.features": features, "evaluate": judge})
