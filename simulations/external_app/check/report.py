"""Results of ``check_app`` about an app."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import ceil
from typing import Any, Literal, NamedTuple

LEAST_IMAGES = 16
"""Probed images of an audit with default settings, at least: fewer validate no attack."""
READY, REFUSED = 0, 2
"""Exit codes."""


class SentArray(NamedTuple):
    """One array of the initial weights."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Setting:
    """A number of the clients' training.

    Attributes:
        name: As ``audited`` calls it: learning_rate, local_epochs, batch_size, momentum, weight_decay or nesterov.
        value: What an audit would reckon with; None where it is unknown.
        source: Where the value comes from, in words.
        argument: Whether ``audited`` must be told, as neither the message of training nor the run configuration holds it.
        from_settings: Whether ``audited`` finds it in the run configuration alone, which it must then be given.
        conflict: What the source says instead, if it differs; "".
    """

    name: str
    value: float | int | bool | None
    source: str
    argument: bool = False
    from_settings: bool = False
    conflict: str = ""


class Addition(NamedTuple):
    """Lines to add: to which file, where in it, and the lines."""

    file: str
    where: str
    text: str


@dataclass(frozen=True)
class ServerFacts:
    """The ServerApp, as it began its first round.

    Attributes:
        strategy: Classes of the strategy, the outermost first.
        rounds: Number of rounds; 0 where it was not seen.
        asked: Nodes that are asked to train in round 1; 0 where it was not seen.
        waits_for: Nodes without which the strategy does not begin.
        message: Plain values in the configuration of the message of training.
        arrays: Initial weights.
        failed: Why no message of training was seen; "".
        audited: Whether ``audited`` is already called.
    """

    strategy: tuple[str, ...] = ()
    rounds: int = 0
    asked: int = 0
    waits_for: int = 0
    message: Mapping[str, Any] | None = None
    arrays: tuple[SentArray, ...] = ()
    failed: str = ""
    audited: bool = False

    @property
    def kind_of_arrays(self) -> Literal["", "list", "state_dict", "named"]:
        """Whether names are numbers, as of lists of arrays, or those of a PyTorch ``state_dict``; "" for no arrays."""
        if not self.arrays:
            return ""
        if [one.name for one in self.arrays] == list(map(str, range(len(self.arrays)))):
            return "list"
        return (
            "state_dict" if any("." in one.name or one.name in ("weight", "bias") for one in self.arrays) else "named"
        )

    @property
    def statistics(self) -> tuple[str, ...]:
        """Arrays with the running statistics of BatchNorm."""
        return tuple(one.name for one in self.arrays if one.name.endswith(("running_mean", "running_var")))


@dataclass(frozen=True)
class ClientFacts:
    """The ClientApp.

    Attributes:
        functions: What it registers, such as "train.default".
        app_mods: Mods of the app, with their settings.
        train_mods: Mods of ``@app.train``.
        budgets: Of each LocalDpMod: epsilon, delta, sensitivity, clipping norm, and whether the noise is enough for epsilon.
        answers: Whether ``answer_audits`` was called.
    """

    functions: tuple[str, ...] = ()
    app_mods: tuple[str, ...] = ()
    train_mods: tuple[str, ...] = ()
    budgets: tuple[tuple[float, float, float, float, bool], ...] = ()
    answers: bool = False


@dataclass(frozen=True)
class ModelFacts:
    """The model that the arrays are of.

    Attributes:
        factory: ``module:name``, called without arguments; "" where none was found.
        call: A call with arguments that builds it instead, such as ``get_model('tiny')``; "".
        by: "names" or "order" of the arrays, by which it was found; "trained" where they are those of all trained parameters;
            "source" where no arrays were seen.
        facts: parameters, batch_norm, dropout, frozen (number of parameters), embeds, convolves, transformer.
    """

    factory: str = ""
    call: str = ""
    by: str = ""
    facts: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class SourceFacts:
    """Facts from the source, as text; () or "" where the source does not show them."""

    optimizers: tuple[str, ...] = ()
    losses: tuple[str, ...] = ()
    normalisation: tuple[str, ...] = ()
    augmentations: tuple[str, ...] = ()
    beyond: tuple[str, ...] = ()
    privacy: tuple[str, ...] = ()
    replies: str = ""
    loading: str = ""


@dataclass(frozen=True)
class AppReport:
    """An app, and what an audit can and cannot do with it.

    Attributes:
        folder: Of the app.
        server_app: Entry point.
        client_app: Entry point.
        refused: Reasons for which the app cannot be audited or checked; () for none.
        missing: Packages to install.
        nodes: Of the federation.
        run_config: Of pyproject.toml.
        server: Facts of the ServerApp.
        client: Facts of the ClientApp.
        model: Facts of the model.
        source: What the source says of training.
        settings: Numbers of training.
        can: What an audit does.
        cannot: What it does not.
        additions: Lines to add.
        to_decide: What is missing or unclear.
        wrote: Files that starting the app left in its folder.
    """

    folder: str
    server_app: str
    client_app: str
    refused: tuple[str, ...]
    missing: tuple[str, ...]
    nodes: int
    run_config: Mapping[str, Any]
    server: ServerFacts
    client: ClientFacts
    model: ModelFacts
    source: SourceFacts
    settings: tuple[Setting, ...]
    can: tuple[str, ...] = ()
    cannot: tuple[str, ...] = ()
    additions: tuple[Addition, ...] = ()
    to_decide: tuple[str, ...] = ()
    wrote: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """0 for an app that is ready or becomes so by the added lines, 2 for one that cannot be audited."""
        return REFUSED if self.refused else READY

    @property
    def images_of_node(self) -> int:
        """Number of images that the audit probes at each requested node."""
        return ceil(LEAST_IMAGES / self.nodes_asked)

    @property
    def nodes_asked(self) -> int:
        """Number of requested nodes in an attacked round."""
        return max(1, self.server.asked or self.nodes)

    def setting(self, name: str) -> Setting | None:
        """One of ``settings``."""
        return next((one for one in self.settings if one.name == name), None)

    def to_json(self) -> dict[str, Any]:
        """Plain values, with the exit code and the number of probed images."""
        values = asdict(self)
        for part in ("server", "model", "client"):
            values[part] = {key: value for key, value in values[part].items() if value is not None}
        return {
            **values, "exit_code": self.exit_code, "arrays": self.server.kind_of_arrays,
            "images": self.images_of_node * self.nodes_asked,
        }  # fmt: skip
