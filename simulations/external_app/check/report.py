"""Results of ``check_app`` about an app."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from strategies.recording.files import BATCHES, EPOCHS, RATES, first_number


@dataclass(frozen=True)
class Setting:
    """A number of the clients' training, by the name that ``audited`` gives it.

    ``value`` is None where a person must give it; ``source`` says where it comes from, or what is to be filled in.
    ``from_settings``: ``audited`` finds it in the run configuration alone, which it must then be given.
    """

    name: str
    value: float | int | None
    source: str
    from_settings: bool = False


def settings_of(message: Mapping[str, Any], run_config: Mapping[str, Any], *, sgd: bool) -> tuple[Setting, ...]:
    """The numbers that an audit needs: from the message of training, else from the run configuration, else to be filled in."""
    found = []
    for name, names, what in (
        ("learning_rate", RATES, "learning rate of the clients' optimizer"),
        ("local_epochs", EPOCHS, "passes over a client's data in a round"),
        ("batch_size", BATCHES, "batch size of the clients' training"),
    ):
        value, alone = first_number([message, run_config], names), first_number([message], names) is None
        key = next((one for one in names if one in (run_config if alone else message)), "")
        source = f"`{key}` of the {'run configuration' if alone else 'message of training'}"
        found.append(Setting(name, None, what) if value is None else Setting(name, value, source, alone))
    for name in ("momentum", "weight_decay") if sgd else ():
        found.append(Setting(name, None, f"{name.replace('_', ' ')} of the clients' SGD, 0.0 for none"))
    return tuple(found)


class Addition(NamedTuple):
    """Lines to add: to which file, where in it, and the lines."""

    file: str
    where: str
    text: str


@dataclass(frozen=True)
class ServerFacts:
    """The ServerApp, as it began its first round in the trial.

    ``asked`` nodes are to train in round 1, and the strategy ``waits_for`` so many. ``message`` are the plain values
    of the message of training. ``audited``: whether the file imports that function.
    """

    strategy: Sequence[str] = ()
    rounds: int = 0
    asked: int = 0
    waits_for: int = 0
    message: Mapping[str, Any] | None = None
    audited: bool = False


@dataclass(frozen=True)
class ClientFacts:
    """Mods of the ClientApp, and whether its file imports ``answer_audits``."""

    app_mods: Sequence[str] = ()
    train_mods: Sequence[str] = ()
    answers: bool = False


@dataclass(frozen=True)
class ModelFacts:
    """What builds the model that the arrays are of, as ``find_model`` of the trial gives it."""

    factory: str = ""
    call: str = ""
    home: str = ""
    images: str = ""


@dataclass(frozen=True)
class AppReport:
    """An app, and what an audit can and cannot do with it.

    Attributes:
        folder: Of the app, whose entry points are ``server_app`` and ``client_app``.
        refused: Reasons for which the app cannot be audited or checked; () for none.
        nodes: Of the federation.
        run_config: Of pyproject.toml.
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
