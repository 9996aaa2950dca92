"""Results of ``check_app`` about an app."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import isclose
from typing import Any, NamedTuple

from strategies.recording.files import BATCHES, EPOCHS, RATES, first_number


@dataclass(frozen=True)
class Setting:
    """A number of the clients' training, by the name that ``audited`` gives it.

    ``value`` is that of a client in the trial, else ``taken``; None where a person must give it. ``taken`` is what ``audited``
    takes without an argument, None for nothing; ``source`` says from where, or what is to be filled in. ``from_settings``: from the
    run configuration alone, which ``audited`` must then be given.
    """

    name: str
    value: float | int | None
    taken: float | int | None
    source: str
    from_settings: bool = False

    @property
    def given(self) -> bool:
        """Whether ``audited`` needs it as an argument."""
        return self.value is None or self.taken is None or not isclose(self.value, self.taken, rel_tol=1e-6)


def settings_of(
    message: Mapping[str, Any], run_config: Mapping[str, Any], training: TrainingFacts
) -> tuple[Setting, ...]:
    """The numbers that an audit needs: those that training showed, else of the message or the run configuration."""
    found = []
    for name, names, source in (
        ("learning_rate", RATES, "learning rate of the clients' optimizer"),
        ("local_epochs", EPOCHS, "passes over a client's data in a round"),
        ("batch_size", BATCHES, "batch size of the clients' training"),
    ):
        taken, alone = first_number([message, run_config], names), first_number([message], names) is None
        if taken is not None:
            key = next(one for one in names if one in (run_config if alone else message))
            source = f"`{key}` of the {'run configuration' if alone else 'message of training'}"
        value = training.settings.get(name, taken)
        found.append(Setting(name, value, taken, source, from_settings=alone and taken is not None))
    for name in ("momentum", "weight_decay", "nesterov") if training.sgd else ():
        value = training.settings.get(name, 0 if name == "nesterov" else None)
        found.append(Setting(name, value, 0, f"{name.replace('_', ' ')} of the clients' SGD, 0.0 for none"))
    return tuple(found)


class Addition(NamedTuple):
    """Lines to add: to which file, where in it, and the lines."""

    file: str
    where: str
    text: str


@dataclass(frozen=True)
class ServerFacts:
    """The ServerApp, as it began its first round in the trial.

    ``asked`` nodes are to train in round 1, and the strategy ``waits_for`` so many. ``message`` are the plain values of the message
    of training. ``start`` is where the rounds start: ``file``, ``line``, ``indent``, and the names of ``strategy`` and ``context``
    there. ``audited``: whether the file knows that function, ``declared`` the numbers that it was given. ``names`` are those of
    modules, classes and functions in the file.
    """

    strategy: Sequence[str] = ()
    rounds: int = 0
    asked: int = 0
    waits_for: int = 0
    message: Mapping[str, Any] | None = None
    start: Mapping[str, Any] = field(default_factory=dict)
    audited: bool = False
    declared: Mapping[str, float] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ClientFacts:
    """Mods of the ClientApp, whether it ``answers`` audits, and ``names`` in its file."""

    app_mods: Sequence[str] = ()
    train_mods: Sequence[str] = ()
    answers: bool = False
    names: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ModelFacts:
    """What builds the model that the arrays are of, as ``find_model`` of the trial gives it."""

    factory: str = ""
    call: str = ""
    home: str = ""
    images: str = ""


@dataclass(frozen=True)
class TrainingFacts:
    """A client's training, as torch's objects showed it in the trial; all is empty where none was seen.

    Attributes:
        failed: How it ended before its reply; "" for a reply.
        optimizer: Class of the optimizer; "" where none took a step.
        settings: By the names of ``audited``.
        private: Whether Opacus computed gradients for each example.
        losses: Functions of PyTorch; ``classes``: whether one of them took a class for each image.
        normalisations: Mean and standard deviation of each, a number for all channels or for each.
        outside: Whether images of a batch left [0, 1].
        augmentations: Classes of random transforms.
        image_key: Key of the images in a batch that is a mapping, as ``label_key``; ``pairs``: a batch is a pair instead.
        loading: ``function`` (``module:name``) that gave the loader of training, its ``arguments`` as text (None where one is not
            of the context), the ``parts`` of its answer, and which is of ``train`` and of ``held_out`` data (-1: none).
    """

    failed: str = ""
    optimizer: str = ""
    settings: Mapping[str, float | int] = field(default_factory=dict)
    private: bool = False
    losses: Sequence[str] = ()
    classes: bool = True
    normalisations: Sequence[Sequence[Sequence[float]]] = ()
    outside: bool = False
    augmentations: Sequence[str] = ()
    image_key: str = ""
    label_key: str = ""
    pairs: bool = False
    loading: Mapping[str, Any] = field(default_factory=dict)

    @property
    def sgd(self) -> bool:
        """Whether the clients may train with SGD: nothing else was seen."""
        return self.optimizer in ("", "SGD")

    @property
    def normalisation(self) -> Sequence[Sequence[float]] | None:
        """The only one; None where there are none or several."""
        return self.normalisations[0] if len(self.normalisations) == 1 else None


@dataclass(frozen=True)
class AppReport:
    """An app, and what an audit can and cannot do with it.

    Attributes:
        folder: Of the app, whose entry points are ``server_app`` and ``client_app``.
        refused: Reasons for which the app cannot be audited or checked; () for none.
        nodes: Of the federation.
        run_config: Of pyproject.toml.
        training: Of one client in the trial.
        settings: Numbers of training.
        cannot: Where probes differ from the training of this app.
        additions: Lines to add.
        to_decide: What is missing or unclear.
        isolated: Whether the system itself kept the app from the network; else code beside Python's sockets could reach it.
    """

    folder: str
    server_app: str
    client_app: str
    refused: tuple[str, ...]
    nodes: int
    run_config: Mapping[str, Any]
    server: ServerFacts
    client: ClientFacts
    model: ModelFacts
    training: TrainingFacts
    settings: tuple[Setting, ...]
    cannot: tuple[str, ...] = ()
    additions: tuple[Addition, ...] = ()
    to_decide: tuple[str, ...] = ()
    isolated: bool = False

    @property
    def exit_code(self) -> int:
        """0 for an app that is ready or becomes so by the added lines, 2 for one that cannot be audited or checked."""
        return 2 if self.refused else 0

    def to_json(self) -> dict[str, Any]:
        """Plain values, with the exit code."""
        return {**asdict(self), "exit_code": self.exit_code}
