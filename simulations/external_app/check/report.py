"""Results of ``check_app`` about an app."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple


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
