"""Checks of the settings of attacks on a sensitive attribute, which several scenarios have."""

from __future__ import annotations

from clients.data.datasets import has_sensitive_attribute
from clients.task.auxiliary import OWN_AUXILIARY
from clients.task.task import FLOAT_BYTES
from simulations.experiment.experiment import Experiment
from simulations.settings.errors import ConfigError
from strategies.audit.kinds import ATTRIBUTE_SETTING, Kind


def check_attribute_attacks(experiment: Experiment, kind: Kind) -> None:
    """Raise ``ConfigError`` for attacks on an attribute that the data do not have, or of which the server knows nothing."""
    if not experiment.attacks[kind]:
        return
    chosen = f"{ATTRIBUTE_SETTING} is {experiment.attribute_attacks!r}"  # type: ignore[attr-defined]
    require_attribute(experiment, chosen, f"{ATTRIBUTE_SETTING} = ''")
    if experiment.auxiliary_data not in OWN_AUXILIARY:
        raise ConfigError(
            f"{chosen}, which learn from examples with the same attribute, and auxiliary-data is {experiment.auxiliary_data!r}; "
            f"allowed: {' or '.join(OWN_AUXILIARY)}"
        )
    held_out = experiment.auxiliary_data == "held-out" and experiment.partition != "node"
    if held_out and not experiment.auxiliary_fraction:
        raise ConfigError(f"{chosen}, which learn from the server's own examples: auxiliary-fraction is 0, raise it")


def require_attribute(experiment: Experiment, what: str, instead: str) -> None:
    """Raise ``ConfigError`` for data without a sensitive attribute: ``what`` needs one, ``instead`` is the remedy."""
    if not has_sensitive_attribute(experiment.dataset):
        raise ConfigError(
            f"{what}, and dataset = {experiment.dataset!r} has no sensitive attribute: take garment-digit, photo-face, or two "
            f"attributes of CelebA such as celeba:Wearing_Lipstick,Wearing_Hat; or set {instead}"
        )


def check_memory(experiment: Experiment, queries: int, values: int, copies: int = 1) -> None:
    """Raise ``ConfigError`` for more features at once than ``image-memory`` allows.

    ``queries`` images of all clients have ``values`` numbers each, of which ``copies`` are held.
    """
    size = copies * FLOAT_BYTES * queries * values
    if size > experiment.image_memory * 2**30:
        raise ConfigError(
            f"image-memory is {experiment.image_memory:g}, and {ATTRIBUTE_SETTING} read features of {queries} queries, "
            f"{size / 2**30:.2g} GiB at once: raise it, or lower test-limit"
        )
