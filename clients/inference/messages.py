"""The messages of edge-cloud inference; as all others they carry a ``config`` record with the task and the watchdog's ``timeout``.

==================  ===================================================  =================================================
type                content                                              reply
==================  ===================================================  =================================================
``query.features``  ``config``: first batch and how many; ``client``:    ``features``: what travels, by number of the
                    weights of the client half at the round's cut;       batch; ``metrics``
                    ``learned``: tensors of the defences that learn
``evaluate``        ``answers``: logits of all queries; ``arrays``:      ``metrics``
                    weights of the whole model
==================  ===================================================  =================================================

A device keeps its half; here it comes with every message, so that a client needs no memory. The whole model comes with the
evaluation alone: it was trained on the server's own images, and tells the client what it would have been told without a defence.
"""

from __future__ import annotations

import time

from flwr.app import Context, Message

from attacks.queries.sender import QuerySender
from clients.inference.plan import InferencePlan, inference_plan
from clients.inference.queries import InferenceClient
from clients.node import book, client_as, reply_to
from clients.records import metrics, tensors_of, to_record, values_of
from clients.scenarios import ClientSide


def features(message: Message, context: Context) -> Message:
    """Sends batches of queries."""
    start = time.perf_counter()
    client, config = client_as(InferenceClient, message, context), values_of(message, "config")
    plan = inference_plan(client.task.plan)
    cut = plan.cut_of(client.task.round)
    first, count = int(config["first"]), int(config["count"])
    if count < 1:  # which would begin the queries anew and book nothing
        raise ValueError(f"{count} batches of queries were asked for; allowed: 1 or more")
    numbers = range(first, min(first + count, len(client.queries)))
    # At another cut the same image is sent again, under new noise: for the node that is a repetition.
    book(context, client, "a query", first, len(numbers), over_rounds=True)
    client.queries.begin(first, len(numbers))
    half = plan.build_client_half(cut, tensors_of(message, "client"))
    pipeline = client.pipeline.with_state(tensors_of(message, "learned"))
    sender = QuerySender(half, pipeline, client.data.card.mean, client.data.card.std)
    sent = {str(number): client.queries.latent(number, sender) for number in numbers}
    seconds = time.perf_counter() - start
    return reply_to(
        message,
        {
            "features": to_record(sent),
            "metrics": metrics({"num-examples": sum(map(len, sent.values())), "query-seconds": seconds}),
        },
    )


def judge(message: Message, context: Context) -> Message:
    """How good the answers were, by this client's own labels."""
    client = client_as(InferenceClient, message, context)
    plan = inference_plan(client.task.plan)
    model = plan.build_cut(plan.cut_of(client.task.round), tensors_of(message, "arrays"))
    numbers = client.judge(tensors_of(message, "answers")["0"], model)
    return reply_to(message, {"metrics": metrics({**numbers, "num-examples": int(numbers["num-examples"])})})


SIDE = ClientSide("inference", InferenceClient, InferencePlan, {"query.features": features, "evaluate": judge})
