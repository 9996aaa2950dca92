"""Whether a pretrained network gives protected copies the answers that it gives their pictures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from attacks.scoring.roc import binomial_interval
from clients.data.images import DataError
from clients.models.library import ModelError
from clients.models.packaged_weights import PACKAGED, normalisation
from simulations.protect.copies import Copy, Order
from simulations.protect.identified import MOST_COMPARED, spaced
from simulations.protect.pictures import read
from simulations.settings.errors import ConfigError

AUTO, NONE = "auto", "none"
USUAL = "efficientnet-lite0"
"""The network that "auto" loads where its package is installed."""
SIDE, CLASSES = 224, 1000
"""Pixels and classes of ImageNet, which the networks were trained on."""
FIRST = 5
"""Answers of a copy among which the first answer of its picture is sought as well."""
CAVEAT = (
    "It was trained on clear pictures: where it fails, people and networks trained on copies may still recognise them."
)


@dataclass(frozen=True)
class Network:
    """A pretrained classifier in eval mode: normalised images (B, 3, ``SIDE``, ``SIDE``) -> logits (B, ``CLASSES``)."""

    name: str
    model: nn.Module
    mean: tuple[float, ...]
    std: tuple[float, ...]
    device: torch.device = torch.device("cpu")  # noqa: RUF009

    @torch.no_grad()
    def answers(self, images: Sequence[Tensor]) -> Tensor:
        """The classes with the largest logits, largest first, (N, ``FIRST``), of images (1 or 3, ``SIDE``, ``SIDE``) in [0, 1]."""
        mean, std = (torch.tensor(values).view(3, 1, 1) for values in (self.mean, self.std))
        batch = torch.stack([(one.expand(3, -1, -1) - mean) / std for one in images])
        answers: Tensor = self.model(batch.to(self.device)).topk(FIRST).indices.cpu()
        return answers


@dataclass(frozen=True)
class Recognised:
    """How many copies a network answers as their pictures.

    Attributes:
        network: Its name; "" where none was there.
        compared: Copies that were compared.
        first: Copies whose first answer is the first answer of their picture.
        among: Copies with the first answer of their picture among their first ``FIRST``.
        other: Share of all pairs of a copy and another picture with the same first answer, in [0, 1]; None of a single picture.
        missing: Why no network was there; "" where one was.
    """

    network: str = ""
    compared: int = 0
    first: int = 0
    among: int = 0
    other: float | None = None
    missing: str = ""

    @property
    def finding(self) -> str:
        """The measurement, or why there is none, as a sentence; "" where none was wanted."""
        if not self.compared:
            return self.missing
        other = (
            ""
            if self.other is None
            else f" A copy and another picture have one first answer in {self.other:.0%} of pairs."
        )
        return (
            f"The pretrained network {self.network} gives {self._share(self.first)} the first answer that it gives their pictures; "
            f"among the first {FIRST} answers {self._share(self.among)} have it.{other} {CAVEAT}"
        )

    def _share(self, number: int) -> str:
        interval = binomial_interval(number, self.compared)
        return f"{number} of {self.compared} copies (95 % interval: {interval.low:.0%} to {interval.high:.0%})"

    @property
    def numbers(self) -> dict[str, object] | None:
        """For the manifest and for --json; None where nothing was measured."""
        if not self.compared:
            return None
        found: dict[str, object] = {"network": self.network, "compared": self.compared, "other_pictures": self.other}
        for name, number in (("first", self.first), (f"among_{FIRST}", self.among)):
            interval = binomial_interval(number, self.compared)
            found |= {name: number, f"{name}_interval": [interval.low, interval.high]}
        return found


def require_network(text: str) -> None:
    """Refuse a --recogniser that names neither a network nor a file; nothing is loaded.

    Raises:
        ConfigError: Naming what is allowed.
    """
    if text not in (AUTO, NONE, *PACKAGED) and not _file(text)[1].is_file():
        allowed = ", ".join((AUTO, NONE, *PACKAGED))
        raise ConfigError(f"--recogniser is {text!r}; allowed: {allowed}, FILE (weights of {USUAL}) or MODEL=FILE")


def load_network(text: str) -> Network:
    """The network that --recogniser names.

    Args:
        text: ``AUTO``, a name of ``PACKAGED``, a file of weights for that of ``USUAL``, or MODEL=FILE with a model of
            ``clients.models.classifiers.build_model``. All have ImageNet's ``CLASSES``.

    Raises:
        ModelError: When the package is not installed, or the file cannot be read or does not fit.
    """
    # Imported here: they take seconds, and most commands load no network.
    from clients.models.classifiers import build_model
    from clients.models.pretrained_classifier import load_classifier
    from clients.training.evaluation import device

    name = USUAL if text == AUTO else text
    known = PACKAGED.get(name)
    model_name, path = (known.model, known.path()) if known else _file(name)
    model = build_model(model_name, num_classes=CLASSES, input_shape=(3, SIDE, SIDE), norm="batch")
    if not load_classifier(model, str(path), ported=known is not None):
        raise ModelError(f"weights: the last layer in {path} is not for {CLASSES} classes, as of ImageNet")
    of_usual = model_name == PACKAGED[USUAL].model
    mean, std = normalisation(USUAL if of_usual else "imagenet", 3)
    shown = name if known else f"{model_name} ({path.name})"
    return Network(shown, model.eval().to(device()), mean, std, device())


def recognise(
    order: Order, done: Sequence[Copy], text: str, progress: Callable[[int, int], object] = lambda *_: None
) -> Recognised:
    """Compare the network's answers on up to ``MOST_COMPARED`` delivered copies, read from their files, and on their pictures.

    The network sees the central square of each, scaled to ``SIDE`` pixels.

    Args:
        order: Where pictures and copies are.
        done: Lines of the manifest.
        text: See ``load_network``; ``NONE`` compares nothing.
        progress: Called with the number of pictures that were judged, and how many there are.
    """
    copies = {one.source: one.output for one in done if not one.error}
    if text == NONE or not copies:
        return Recognised()
    try:
        network = load_network(text)
    except ModelError as error:
        return Recognised(missing=f"No network judged whether the copies still show what they showed ({error}).")
    names, found = spaced(sorted(copies), MOST_COMPARED), list[Tensor]()
    for at, name in enumerate(names):
        progress(at, len(names))
        try:
            pair = [read(path, SIDE).image for path in (order.root / name, order.out / copies[name])]
        except DataError:  # a file has changed since its copy was made
            continue
        found.append(network.answers(pair))
    return agreement(network.name, *torch.stack(found).unbind(1)) if found else Recognised()


def agreement(name: str, originals: Tensor, copies: Tensor) -> Recognised:
    """Count equal answers.

    Args:
        name: Of the network.
        originals: (N, ``FIRST``), as ``Network.answers`` gives them.
        copies: The same of the copies, in the same order.
    """
    own, count = originals[:, 0], len(originals)
    first, among = (int((found == own[:, None]).any(1).sum()) for found in (copies[:, :1], copies))
    pairs = int((copies[:, :1] == own).sum()) - first
    return Recognised(name, count, first, among, pairs / (count * (count - 1)) if count > 1 else None)


def _file(text: str) -> tuple[str, Path]:
    """Model and file of FILE or MODEL=FILE."""
    model, equals, file = text.rpartition("=")
    if not equals or Path(text).expanduser().is_file():
        return PACKAGED[USUAL].model, Path(text).expanduser()
    return model, Path(file).expanduser()
