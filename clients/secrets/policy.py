"""A node's policy: requests beyond training and evaluation that its configuration allows; no Flower here.

The keys are those of Flower's ``--node-config``. A node in a simulation answers all requests unless its configuration forbids
them. A deployed node answers only what its operator allows, because each of these replies reveals more about the node's images
than training.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from clients.data.datasets import dataset_names
from clients.models.library import LIBRARIES
from clients.wire.schema import Settings, fields_of, setting
from defenses.checks import Limit
from defenses.pipeline import Pipeline
from defenses.spec import parse

UNLIMITED = -1
"""Value of ``transmissions``: as many as the server asks for."""
Times = Annotated[int, Limit(0, also=UNLIMITED, word="-1 (no limit)")]

NodeConfig = Mapping[str, Any]
"""What Flower's ``--node-config`` says."""
NO_DEFENSE = "none"
"""How ``pipelines`` names the pipeline without a defence."""


class RefusedError(RuntimeError):
    """A request that this node does not answer."""


class RefusedModelError(RefusedError):
    """A request that this node does not answer because it does not believe the sent model."""


class AnswerPolicy(Settings):
    """Requests that a node answers; in its configuration the names are written with hyphens."""

    place: ClassVar[str] = " in the node's configuration"

    probes: bool = setting(
        False,
        "``train.probe``, ``train.audit_step``: updates of one or few steps on a few images, which training never sends",
    )
    canaries: bool = setting(
        False, "training with an auditor's canaries among the examples, and their coins: the model is worse for it"
    )
    publish_labels: bool = setting(False, "the classes of probed images")
    audits: bool = setting(
        False,
        "``query.audit``: scores of guesses against the node's images. Numbers alone, but a server that sends enough guesses can "
        "work out an image from its distances to them",
    )
    share_images: bool = setting(False, "pictures of the node's images, in the answer to an audit")
    transmissions: Times = setting(
        0, "``train.smash``: how often in a run an audit batch may be sent, all targets and rounds counted"
    )
    reveal_orders: bool = setting(False, "the true order of shuffled tokens")
    repeats: Times = setting(
        0,
        "how often more than once the training of a round, a batch of it or the test images behind it are sent, or its model is "
        "evaluated, for each pipeline of a run: noise averages out, and answers add up. Training never needs it",
    )
    upload_passes: Times = setting(
        1, "``train.upload``: how often each image may be uploaded in the passes that a task asks for"
    )

    @classmethod
    def of(cls, node_config: NodeConfig, *, simulated: bool) -> AnswerPolicy:
        """Read the policy of a node's configuration; ``ValueError`` for a value that is not allowed."""
        known = fields_of(cls)
        everything = {key: UNLIMITED if spec.annotation is int else True for key, spec in known.items()}
        chosen = {key: node_config[key] for key in known if key in node_config}
        return cls(**(everything if simulated else {}) | chosen)

    def require(self, name: str, what: str) -> None:
        """Raises ``RefusedError`` unless the field ``name`` allows ``what``."""
        if not getattr(self, name):
            raise RefusedError(refusal(name, what))

    @property
    def has_account(self) -> bool:
        """Whether the node counts what it sends."""
        return self.repeats != UNLIMITED

    def require_times(self, name: str, what: str, times: int, used: str = "") -> None:
        """Raises ``RefusedError`` when the field ``name`` allows ``what`` fewer than ``times`` times."""
        most = getattr(self, name)
        if most != UNLIMITED and times > most:
            raise RefusedError(f"{refusal(name, what)} (now {most}{used})")


def allowed_pipelines(node_config: NodeConfig) -> frozenset[Pipeline] | None:
    """The pipelines under which a node takes part, by its key ``pipelines``, texts separated by ``;``; None: all.

    That without any defence is written ``none``, so that it is never allowed by a slip. ``ValueError`` for any other text.
    """
    if "pipelines" not in node_config:
        return None
    text, allowed = node_config["pipelines"], set()
    for part in str(text).split(";") if isinstance(text, str) else [""]:
        if not part.strip():
            raise ValueError(
                f"pipelines is {text!r} in the node's configuration; allowed: texts separated by ';', none for no defence"
            )
        allowed.add(Pipeline() if part.strip() == NO_DEFENSE else parse(part))
    return frozenset(allowed)


def require_pipeline(node_config: NodeConfig, pipeline: str) -> None:
    """Raises ``RefusedError`` when the node takes part under other pipelines only."""
    allowed = allowed_pipelines(node_config)
    if allowed is not None and parse(pipeline) not in allowed:
        raise RefusedError(refusal("pipelines", f"anything under the pipeline {pipeline or NO_DEFENSE!r}"))


def require_own_code(node_config: NodeConfig, model: str, dataset: str, *, simulated: bool) -> None:
    """Raise ``RefusedError`` when the server names code for the model or the data set, and the operator does not allow it.

    Naming it runs it. ``own-code`` lists what may be named, separated by ``;``. In a simulation the user has named it.
    Whatever stands before a colon and is no library (or, of data, no data set) counts as code, whether or not there is any.
    """
    allowed = _listed(node_config, "own-code")
    for name, known in ((model, LIBRARIES), (dataset, dataset_names())):
        prefix, colon, _ = name.rpartition(":")
        if colon and prefix not in known and not simulated and name not in allowed:
            raise RefusedError(refusal("own_code", f"anything of {name!r}, whose code the server names"))


def require_own_files(node_config: NodeConfig, data_dir: str, weights: str = "", *, simulated: bool) -> None:
    """Raise ``RefusedError`` when the server names files of the node's machine, ``data_dir`` or ``weights``, and the operator
    has not.

    Else it could have the node train on any pictures that lie there, and ask which files there are. In a simulation the user
    has named them. ``data-dir`` of the configuration is read in place of the server's folder; ``weights`` lists files,
    separated by ``;``.
    """
    if simulated:
        return
    if data_dir and "data-dir" not in node_config:
        raise RefusedError(refusal("data_dir", f"anything of the folder {data_dir!r}, which the server names"))
    if weights and weights not in _listed(node_config, "weights"):
        raise RefusedError(refusal("weights", f"anything of the file {weights!r}, which the server names"))


def _listed(node_config: NodeConfig, key: str) -> list[str]:
    return [entry.strip() for entry in str(node_config.get(key, "")).split(";")]


def may_download(node_config: NodeConfig, *, simulated: bool) -> bool:
    """Whether the node fetches data sets that the server names, by ``download`` (true or false) in its configuration."""
    value = node_config.get("download", simulated)
    if not isinstance(value, bool):
        raise ValueError(f"download is {value!r} in the node's configuration; allowed: true or false")
    return value


def refusal(name: str, what: str) -> str:
    """The text of a refusal: it names the key that would allow it."""
    return f"this node does not give {what}: its operator may allow it by {name.replace('_', '-')} in the node's configuration"


def not_again(what: str) -> RefusedError:
    """The refusal of what would give the server another look at the same examples."""
    return RefusedError(f"{refusal('repeats', what)} (-1 allows it)")
