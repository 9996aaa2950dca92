"""A client of an external Flower app: its images and labels, the steps of its probes, and the truth behind its updates."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from attacks.normalisation import normalise
from clients.data.card import DataCard
from clients.external_app.app_checks import PerChannel
from clients.external_app.plan import AppPlan, ModelFactory, built
from clients.federated.client import LocalClient
from clients.models.own import answer_of
from clients.secrets.draws import Draws
from clients.task.local_data import LocalData
from clients.task.task import Task
from clients.task.truths import Probed, Truths
from defenses.base import Batch
from defenses.pipeline import Pipeline
from defenses.tensors import NamedTensors, Tensors

Examples = Dataset[tuple[Tensor, int]]
"""Map-style: (image (C, H, W) in [0, 1], class) each, before any normalisation."""

Loss = Callable[[Tensor, Tensor], Tensor]
"""(logits (B, K), classes (B,)) -> mean loss."""


CROSS_ENTROPY = "cross entropy"


class DataMistake(ValueError):  # noqa: N818 (a mistake of the app's ``data``)
    """Examples that do not meet the requirements of an audit."""


class OwnExamples(LocalData):
    """Examples that the app's ``data`` returned: training and perhaps held-out ones; no defence of fedveil acts on them.

    ``batch`` holds images (N, C, H, W) in [0, 1] and one-hot targets (N, K): the trained examples, then ``num_held_out`` that were
    not trained on, the other candidates for identification.
    """

    def __init__(
        self, task: Task, partition: int, batch: Batch, card: DataCard, draws: Draws, num_held_out: int = 0
    ) -> None:
        self.task = task.but(card=card, pipeline="")
        self.partition, self.draws, self.card, self.pipeline = partition, draws, card, Pipeline()
        trained = len(batch) - num_held_out
        self._train, self._test = torch.arange(trained), torch.arange(trained, len(batch))
        self._batch = batch

    def plain(self, positions: Tensor) -> Batch:
        """The examples at ``positions`` (n,)."""
        return self._batch.rows(positions)

    def own_images(self, positions: Tensor) -> Tensor:
        """Images at positions (n,) among the trained examples, and behind them the held-out ones."""
        return self._batch.images[positions]

    def train_labels(self) -> Tensor:
        """Classes (N,) of the trained examples."""
        return self._batch.targets[: self.num_train].argmax(1)

    def test_labels(self) -> Tensor:
        """Classes (M,) of the held-out examples."""
        return self._batch.targets[self.num_train :].argmax(1)

    def test_plain(self, positions: Tensor) -> Batch:
        """The held-out examples at ``positions`` (n,)."""
        return self.plain(positions + self.num_train)


class AppClient(LocalClient):
    """Scores guesses about an app's updates. Augmentation of the app is not known: the truth is the images of ``data``."""

    def truths(self, observation: str) -> Truths:
        """One view for each target of "probe", or all trained examples for "update"."""
        if observation == "probe":
            return Truths([self.probed(target) for target in range(self.task.plan.probe_targets)])
        if observation == "update":
            return Truths([self._as_it_is(torch.arange(self.data.num_train))], whole_round=True)
        raise ValueError(f"an audited app shows no {observation!r}; it shows probe, update")

    def probed(self, target: int, question: int = 0) -> Probed:
        """The images of a probe: the same in every round."""
        del question
        return self._as_it_is(self.probed_positions(target))

    def one_step(self, factory: ModelFactory, weights: NamedTensors, batch: Batch, loss: Loss) -> Tensors:
        """The ``state_dict`` after one step of SGD in train mode on a batch, at the rate and decay that the server names.

        With momentum a first step is the same, but for Nesterov's, which looks ahead.
        """
        plan, model = AppPlan.narrow(self.task.plan), built(factory)
        model.load_state_dict(dict(weights))
        model.train()
        loss(model(normalise(batch.images, self.data.card)), batch.targets.argmax(1)).backward()  # type: ignore[no-untyped-call]
        ahead, rate = plan.momentum if plan.nesterov else 0.0, self.task.learning_rate
        torch.optim.SGD(model.parameters(), rate, ahead, weight_decay=plan.weight_decay, nesterov=ahead > 0).step()
        return {name: tensor.detach() for name, tensor in model.state_dict().items()}

    def _as_it_is(self, positions: Tensor) -> Probed:
        batch = self.data.plain(positions)
        return Probed(batch, batch, positions)


def read_data(data: Examples | tuple[Examples, Examples]) -> tuple[Tensor, Tensor, int]:
    """Images (N + M, C, H, W) and classes of N examples trained on and M held out, and M; ``DataMistake`` for other data."""
    if not isinstance(data, tuple):
        return *_read_examples(data), 0
    if len(data) != 2:
        raise DataMistake(f"data gives a tuple of {len(data)}; expected a data set, or a pair (trained, held out)")
    trained, held_out = map(_read_examples, data)
    if trained[0].shape[1:] != held_out[0].shape[1:]:
        raise DataMistake(
            f"data gives trained images {tuple(trained[0].shape[1:])} and held-out ones {tuple(held_out[0].shape[1:])}; "
            "expected one shape"
        )
    return torch.cat([trained[0], held_out[0]]), torch.cat([trained[1], held_out[1]]), len(held_out[1])


def _read_examples(data: Examples) -> tuple[Tensor, Tensor]:
    """Images (N, C, H, W) in [0, 1] and classes (N,) of a map-style data set."""
    if not all(hasattr(data, name) for name in ("__len__", "__getitem__")):
        raise DataMistake(
            f"data gives {type(data).__name__}; expected a map-style data set of pairs (image in [0, 1], class)"
        )
    pairs = [data[at] for at in range(len(data))]  # type: ignore[arg-type]
    if not pairs:
        raise DataMistake("data gives no examples")
    try:
        images = torch.stack([torch.as_tensor(image, dtype=torch.float32) for image, _ in pairs])
        labels = torch.tensor([_class(label) for _, label in pairs])
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataMistake(
            f"data gives no pairs of (image tensor, class): {error}; expected a data set of them, or a tuple of two such data sets"
        ) from error
    if images.dim() != 4 or images.shape[1] not in (1, 3):
        raise DataMistake(f"data gives images {tuple(images.shape[1:])}; expected (1 or 3, H, W)")
    low, high = float(images.min()), float(images.max())
    if not (low >= 0 and high <= 1):
        raise DataMistake(
            f"data gives images between {low:.3g} and {high:.3g}; expected [0, 1], before the normalisation of your transform, "
            "which mean and std state"
        )
    return images, labels


def _class(label: Any) -> int:
    if int(label) != float(label):
        raise ValueError(f"a class is {label!r}; expected a whole number")
    return int(label)


def card_of(images: Tensor, model: nn.Module, mean: PerChannel, std: PerChannel) -> DataCard:
    """The card of images (N, C, H, W), with as many classes as the model has logits.

    Raises:
        DataMistake: When the model gives no logits (1, K), or mean and std do not fit the channels.
        ModelError: When the model does not take such images.
    """
    shape = images.shape[1], images.shape[2], images.shape[3]
    channels = shape[0]
    means, stds = (value if isinstance(value, tuple) else (value,) * channels for value in (mean, std))
    if {len(means), len(stds)} != {channels}:
        raise DataMistake(
            f"mean is {mean}, std is {std}; expected a number each, or {channels}, as images have channels"
        )
    card = DataCard(2, shape, tuple(map(float, means)), tuple(map(float, stds)))
    with torch.no_grad():
        logits = answer_of("model", model.eval(), normalise(images[:1], card))
    if not isinstance(logits, Tensor) or logits.dim() != 2 or logits.shape[1] < 2:
        raise DataMistake(
            f"model gives {getattr(logits, 'shape', type(logits).__name__)}; expected logits (1, K) with K >= 2"
        )
    return replace(card, num_classes=int(logits.shape[1]))


def name_of_loss(loss: Loss) -> str:
    """Name of a loss: ``CROSS_ENTROPY``, which attacks on gradients assume, or the loss's own name."""
    plain = type(loss) is nn.CrossEntropyLoss and loss.weight is None and not loss.label_smoothing
    if loss is F.cross_entropy or (plain and loss.reduction == "mean"):  # type: ignore[attr-defined]
        return CROSS_ENTROPY
    return str(getattr(loss, "__name__", type(loss).__name__))


def examples_of(images: Tensor, labels: Tensor, card: DataCard) -> Batch:
    """Images with one-hot targets; ``DataMistake`` when a label is no class of the model."""
    if int(labels.min()) < 0 or int(labels.max()) >= card.num_classes:
        raise DataMistake(
            f"data gives labels {int(labels.min())} to {int(labels.max())}; the model has classes 0 to {card.num_classes - 1}"
        )
    return Batch(images, F.one_hot(labels, card.num_classes).float())
