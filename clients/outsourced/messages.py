"""The messages of outsourced training; as all others they carry a ``config`` record with the task and the watchdog's ``timeout``.

=================  ==================================================  ==================================================
type               content                                             reply
=================  ==================================================  ==================================================
``train.upload``   ``config``: first batch and how many                ``images``, ``targets``: by number; ``metrics``
``evaluate``       ``arrays``: weights of the server's model           ``metrics``
=================  ==================================================  ==================================================
"""

from __future__ import annotations

import time

from flwr.app import Context, Message

from clients.messages.node import answers_of, book, client_as, reply_to
from clients.outsourced.plan import OutsourcedPlan
from clients.outsourced.uploads import UPLOAD_ROUND, OutsourcedClient
from clients.task.scenarios import ClientSide
from clients.task.task import load_weights
from clients.training.evaluation import device, evaluate
from clients.wire.records import metrics, tensors_of, to_record, values_of


def upload(message: Message, context: Context) -> Message:
    """Sends batches of protected images with their labels."""
    start = time.perf_counter()
    client, config = client_as(OutsourcedClient, message, context), values_of(message, "config")
    if client.task.round != UPLOAD_ROUND:
        raise ValueError(f"an upload was requested in round {client.task.round}; allowed: {UPLOAD_ROUND}")
    # Before anything is booked: fresh draws for each pass are more looks at one image, as repeats are.
    answers_of(context).require_upload_passes(OutsourcedPlan.narrow(client.task.plan).upload_passes)
    first, count = int(config["first"]), int(config["count"])
    if count < 1:  # which would begin the upload anew and book nothing
        raise ValueError(f"an upload of {count} batches was requested; allowed: 1 or more")
    numbers = range(first, min(first + count, len(client.uploads)))
    book(context, client, "an upload", first, len(numbers))
    if first == 0:
        client.uploads.begin()
    sent = {str(number): client.uploads.batch(number).seen for number in numbers}
    return reply_to(
        message,
        {
            "images": to_record({name: batch.images for name, batch in sent.items()}),
            "targets": to_record({name: batch.targets for name, batch in sent.items()}),
            "metrics": metrics(
                {"num-examples": sum(map(len, sent.values())), "train-seconds": time.perf_counter() - start}
            ),
        },
    )


def judge(message: Message, context: Context) -> Message:
    """Accuracy of the server's model on this client's share of the test data."""
    client = client_as(OutsourcedClient, message, context)
    model = load_weights(client.task.plan.build_model(), tensors_of(message, "arrays")).to(device())
    return reply_to(message, {"metrics": metrics(evaluate(client.data, model))})


SIDE = ClientSide("outsourced", OutsourcedClient, OutsourcedPlan, {"train.upload": upload, "evaluate": judge})
