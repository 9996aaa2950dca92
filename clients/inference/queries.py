"""A client's queries: its private test images, each once, as protected features of its half of the model."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from attacks.metrics.training import AGREEMENT, ANSWERS_GAINED, ANSWERS_LOST
from attacks.normalisation import normalise
from attacks.sender import Sender
from clients.inference.plan import CutModel
from clients.task.batches import CHUNK, chunks
from clients.task.client import Client
from clients.task.local_data import LocalData
from clients.task.truths import Probed, Truths, rows
from clients.training.evaluation import device, evaluate

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

    def judge(self, answers: Tensor, model: CutModel) -> dict[str, float]:
        """Score the answers to all queries.

        Args:
            answers: (num_test, K), the server's logits in the order of the test images.
            model: The whole model, which gives the answers without a defence.

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
        found, labels = evaluate(self.data, model.whole), self.data.test_labels()
        plain = torch.cat([self._plain(positions, model) for positions in chunks(self.data.num_test, CHUNK)])
        classes = answers.argmax(1)
        right, was_right = classes == labels, plain == labels
        return found | {
            "test-accuracy-transformed": float(right.float().mean()),
            "test-loss-transformed": float(F.cross_entropy(answers, labels)),
            AGREEMENT.name: float((classes == plain).float().mean()),
            ANSWERS_LOST.name: float((was_right & ~right).float().mean()),
            ANSWERS_GAINED.name: float((right & ~was_right).float().mean()),
        }

    def _plain(self, positions: Tensor, model: CutModel) -> Tensor:
        """Classes (n,) that the whole model sees in clean test images."""
        images = self.data.test_plain(positions).images.to(device())
        with torch.no_grad():
            logits: Tensor = model.whole(normalise(images, self.data.card))
        return logits.argmax(1).cpu()
