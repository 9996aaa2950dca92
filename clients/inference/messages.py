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

Within a phase a node with an account (``clients.messages.account``) works with one client half and one version of what the
defences have learned: under two of them, what is sent of an image would be two protected forms of it.
"""

import time

import torch
from flwr.app import Context, Message
from torch import Tensor, nn
from torch.nn import functional as F

from attacks.local_model import shared_tensors
from attacks.metrics.training import AGREEMENT, ANSWERS_GAINED, ANSWERS_LOST, QUERY_SECONDS
from attacks.normalisation import normalise
from attacks.sender import Sender
from clients.inference.plan import CutModel, InferencePlan
from clients.messages.account import answer_once, book, require_same
from clients.messages.agreed_model import require_agreed
from clients.messages.node import client_as, reply_to
from clients.task.batches import CHUNK, chunks
from clients.task.local_data import Client, LocalData
from clients.task.scenarios import ClientSide
from clients.task.task import load_weights
from clients.task.truths import Probed, Truths, rows
from clients.training.evaluation import device, evaluate
from clients.wire.records import digest_of, metrics, tensors_of, to_record, values_of
from defenses.tensors import Numbers

KIND = "message:query"
"""Of the draws that protect the features of a batch of queries."""


class Queries:
    """One client's queries in batches, whose content and draws follow from the client's own streams.

    A batch matters to defences that mix examples. One example that is left over joins the last batch.
    """

    def __init__(self, data: LocalData) -> None:
        self.data = data
        self._batches = chunks(data.num_test, data.task.plan.batch_size)

    def __len__(self) -> int:
        return len(self._batches)

    def view(self, number: int) -> Probed:
        """Images of batch ``number``: the originals, and as they enter the client half."""
        positions = self._batches[number]
        clean = self.data.test_plain(positions)
        shown = self.data.protected_test("test", clean, int(positions[0]))
        return Probed(clean, shown, self.data.num_train + positions)

    def latent(self, number: int, sender: Sender) -> Tensor:
        """Features sent for batch ``number``: (B, ...), on the CPU."""
        with torch.no_grad():
            images = self.view(number).seen.images.to(device())
            return sender.latent(images, self.data.key(KIND, number, number=number)).cpu()


class InferenceClient(Client):
    """One client of edge-cloud inference; ``queries`` are its requests."""

    def __init__(self, data: LocalData) -> None:
        super().__init__(data)
        self.queries = Queries(data)

    def truths(self, observation: str) -> Truths:
        """The attacked images of the first batches, row by row, for the kind "query"."""
        if observation == "query":
            count = slice(self.task.plan.probe_images)
            return Truths(
                [rows(self.queries.view(at), count) for at in range(self.task.plan.probe_targets)],
                paired=True,
                at_many_scales=True,
            )
        return super().truths(observation)

    def sensitive(self, observation: str) -> list[Tensor]:
        """Sensitive values of the test examples for the kind "attribute"."""
        if observation == "attribute":
            return [self.data.test_sensitive()]
        return super().sensitive(observation)

    def judge(self, answers: Tensor, model: CutModel) -> Numbers:
        """Score the answers to all queries: the server's logits (num_test, K) in the order of the test images.

        Returns:
            As ``clients.training.evaluation.evaluate``, where "original" is of the whole model on clean images and "transformed"
                of the answers, "agreement", the share of test images whose most likely class is the same in both, and
                "answers-lost" and "answers-gained", the shares for which only the whole model's, or only the answer, is right.

        Raises:
            ValueError: When there is not one answer for each test image.
        """
        if answers.shape != (self.data.num_test, self.data.card.num_classes):
            raise ValueError(
                f"answers have shape {tuple(answers.shape)}; expected {(self.data.num_test, self.data.card.num_classes)}"
            )
        measured, labels = evaluate(self.data, model.whole), self.data.test_labels()
        plain = torch.cat([self._plain(positions, model) for positions in chunks(self.data.num_test, CHUNK)])
        classes = answers.argmax(1)
        right, was_right = classes == labels, plain == labels
        served = {
            "test-accuracy-transformed": right.float().mean(),
            "test-loss-transformed": F.cross_entropy(answers, labels),
            AGREEMENT.name: (classes == plain).float().mean(),
            ANSWERS_LOST.name: (was_right & ~right).float().mean(),
            ANSWERS_GAINED.name: (right & ~was_right).float().mean(),
        }
        return measured | {name: self.data.reported(float(value)) for name, value in served.items()}

    def _plain(self, positions: Tensor, model: CutModel) -> Tensor:
        """Classes (n,) that the whole model sees in clean test images."""
        images = self.data.test_plain(positions).images.to(device())
        with torch.no_grad():
            logits: Tensor = model.whole(normalise(images, self.data.card))
        return logits.argmax(1).cpu()


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
    if pipeline.version != (stated := str(config["version"])):
        raise ValueError(
            f"version is {stated!r}, but the tensors under learned are {pipeline.version!r}; allowed: their own version"
        )
    half = load_weights(plan.build_cut(cut).client, tensors_of(message, "client"))
    require_half(context, client, half)
    require_same(context, client, "version of what the defences learned", pipeline.version)
    numbers = range(first, min(first + count, len(client.queries)))
    # At another cut the same image is sent again, under new noise: for the node that is a repetition.
    book(context, client, "a query", first, len(numbers), over_rounds=True)
    client.data.renew(KIND, first, len(numbers))
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


def require_half(context: Context, client: InferenceClient, half: nn.Module) -> None:
    """Refuse a second client half within a phase: under two of them, what is sent of an image would be two views of it."""
    require_same(context, client, "client half", digest_of([to_record(shared_tensors(half))]))


def judge(message: Message, context: Context) -> Message:
    """Score the answers by this client's own labels."""
    client, sent = client_as(InferenceClient, message, context), tensors_of(message, "arrays")
    plan = InferencePlan.narrow(client.task.plan)
    model = plan.build_cut(plan.cut_of(client.task.round), sent)

    def require() -> None:
        require_agreed(context, client, sent, plan.rounds + 1)  # every cut is one of the same trained model
        require_half(context, client, model.client)

    return answer_once(
        message, context, client, lambda: client.judge(tensors_of(message, "answers")["0"], model), require
    )


SIDE = ClientSide("inference", InferenceClient, InferencePlan, {"query.features": features, "evaluate": judge})
