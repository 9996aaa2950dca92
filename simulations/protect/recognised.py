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
            else f" A copy and another picture have one first answer in {100 * self.other:.0f} % of pairs."
        )
        return (
            f"The pretrained network {self.network} gives {self._share(self.first)} the first answer that it gives their pictures; "
            f"among the first {FIRST} answers {self._share(self.among)} have it.{other} {CAVEAT}"
        )

    def _share(self, number: int) -> str:
        interval = binomial_interval(number, self.compared)
        low, high = (f"{100 * one:.0f}" for one in (interval.low, interval.high))
        return f"{number} of {self.compared} copies (95 % interval: {low} to {high} %)"

    @property
    def numbers(self) -> dict[str, object] | None:
        """For the manifest and for --json: the counts, or only why a wanted network was "missing"; None where none was wanted."""
        if self.missing:
            return {"missing": self.missing}
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
        ModelError: When the package is not installed, the model is unknown, or the file cannot be read or does not fit.
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


@dataclass(frozen=True)
class Judge:
    """The network that is to judge copies, loaded before any copy is made.

    Attributes:
        network: None where none is wanted, or none is there.
        missing: Why a wanted network is not there, as a sentence; else "".
    """

    network: Network | None = None
    missing: str = ""


def judge_for(text: str) -> Judge:
    """Load the network that --recogniser names. Only ``AUTO`` may go without one: a network that a user names must work.

    Args:
        text: See ``load_network``; ``NONE`` wants none.

    Raises:
        ConfigError: When a named network is not installed, is unknown, or does not fit its file.
    """
    if text == NONE:
        return Judge()
    try:
        return Judge(load_network(text))
    except ModelError as error:
        if text != AUTO:
            raise ConfigError(f"--recogniser is {text!r}, which cannot be loaded: {error}") from error
        return Judge(missing=f"No network judged whether the copies still show what they showed ({error}).")


def recognise(
    order: Order, done: Sequence[Copy], judge: Judge, progress: Callable[[int, int], object] = lambda *_: None
) -> Recognised:
    """Compare the network's answers on up to ``MOST_COMPARED`` delivered copies, read from their files, and on their pictures.

    The network sees the central square of each, scaled to ``SIDE`` pixels. A picture is first scaled to the copies' own size:
    else the detail that scaling loses would count as protection.

    Args:
        order: Where pictures and copies are.
        done: Lines of the manifest.
        judge: Without a network nothing is compared.
        progress: Called with the number of pictures that were judged, and how many there are.
    """
    copies = {one.source: one.output for one in done if not one.error}
    if judge.network is None or not copies:
        return Recognised(missing=judge.missing if copies else "")
    network = judge.network
    names, found = spaced(sorted(copies), MOST_COMPARED), list[Tensor]()
    for at, name in enumerate(names):
        progress(at, len(names))
        try:
            pair = [
                read(order.root / name, order.size, SIDE).image,
                read(order.out / copies[name], SIDE).image,
            ]
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
