"""The messages of outsourced training; as all others they carry a ``config`` record with the task and the watchdog's ``timeout``.

=================  ==================================================  ==================================================
type               content                                             reply
=================  ==================================================  ==================================================
``train.upload``   ``config``: first batch and how many                ``images``, ``targets``: by number; ``metrics``
``evaluate``       ``arrays``: weights of the server's model           ``metrics``
=================  ==================================================  ==================================================
"""

import copy
import time
from dataclasses import dataclass, replace

import torch
from flwr.app import Context, Message

from clients.messages.account import answer_once, book
from clients.messages.agreed_model import require_agreed
from clients.messages.node import answers_of, client_as, reply_to
from clients.task.batches import chunks
from clients.task.local_data import Client, LocalData
from clients.task.scenarios import ClientSide
from clients.task.task import WholeModelPlan
from clients.task.truths import Probed, Truths, rows
from clients.training.evaluation import evaluate_weights
from clients.wire.records import metrics, tensors_of, to_record, values_of
from defenses.checks import Rounds
from defenses.random_draws import generator_for


@dataclass(frozen=True)
class OutsourcedPlan(WholeModelPlan):
    """A plan of outsourced training: the plan of a whole model, trained by the server.

    Attributes:
        upload_passes: How often a client uploads each image, under fresh draws wherever a defence draws afresh at every use.
    """

    upload_passes: Rounds = 1


KIND = "message:upload"
"""Of the draws that protect an upload."""

UPLOAD_ROUND = 1
"""Round in which clients upload; later requests are about the same upload."""


class Uploads:
    """One client's upload in batches, whose content and draws follow from the client's own streams.

    Every pass holds each example once. A batch matters to defences that mix examples. One example that is left over joins the
    last batch of its pass.
    """

    def __init__(self, data: LocalData) -> None:
        self.data = copy.copy(data)
        self.data.task = replace(data.task, round=UPLOAD_ROUND)
        self._batches = chunks(data.num_train, data.task.plan.batch_size)
        self._passes = OutsourcedPlan.narrow(data.task.plan).upload_passes

    def __len__(self) -> int:
        return self._passes * len(self._batches)

    def begin(self) -> None:
        """Draw the protection of the whole upload once; call it before the first batch is sent."""
        self.data.renew(KIND, 0, len(self))

    def batch(self, number: int) -> Probed:
        """Batch ``number``: the originals, and as uploaded."""
        turn, at = divmod(number, len(self._batches))
        stream = self.data.key("order", "upload", *([turn] if turn else []))
        order = torch.randperm(self.data.num_train, generator=generator_for(*stream))
        return self.data.view(order[self._batches[at]], self.data.key(KIND, number, number=number))


class OutsourcedClient(Client):
    """One client of outsourced training, with its ``uploads``."""

    def __init__(self, data: LocalData) -> None:
        super().__init__(data)
        self.uploads = Uploads(data)

    def truths(self, observation: str) -> Truths:
        """Attacked images of the first batches, row by row, for "upload"; all uploaded images for "collection" and "model"."""
        if observation == "upload":
            count = slice(self.task.plan.probe_images)
            return Truths(
                [rows(self.uploads.batch(at), count) for at in range(self.task.plan.probe_targets)], paired=True
            )
        if observation in ("collection", "model"):
            every = torch.arange(self.data.num_train)
            return Truths([self.data.view(every, self.data.key("mean-transformed", observation))], whole_round=True)
        return super().truths(observation)


def upload(message: Message, context: Context) -> Message:
    """Sends batches of protected images with their labels."""
    start = time.perf_counter()
    client, config = client_as(OutsourcedClient, message, context), values_of(message, "config")
    if client.task.round != UPLOAD_ROUND:
        raise ValueError(f"an upload was requested in round {client.task.round}; allowed: {UPLOAD_ROUND}")
    # Before anything is booked: fresh draws for each pass are more looks at one image, as repeats are.
    passes = OutsourcedPlan.narrow(client.task.plan).upload_passes
    answers_of(context).require_times("upload_passes", f"uploads of an image in {passes} passes", passes)
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
    client, sent = client_as(OutsourcedClient, message, context), tensors_of(message, "arrays")

    def require() -> None:
        require_agreed(context, client, sent, client.task.round + 1)

    return answer_once(message, context, client, lambda: evaluate_weights(client.data, sent), require)


SIDE = ClientSide("outsourced", OutsourcedClient, OutsourcedPlan, {"train.upload": upload, "evaluate": judge})
