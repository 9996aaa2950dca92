"""Names of models and data sets that a setting may have, checked before anything is read."""

from __future__ import annotations

from collections.abc import Collection

from clients.data.datasets import dataset_names, require_name
from clients.models.classifiers import model_names
from clients.process.own_code import is_own
from simulations.settings.errors import naming, require_known


def require_dataset(key: str, name: str, also: Collection[str] = ()) -> None:
    """Raise ``ConfigError``, with the nearest name, unless the name is a data set, own code, or one of ``also``."""
    known = dataset_names()
    if not is_own(name, known):
        others = [one for one in also if one]
        beside = f"(or {' or '.join(others)})" if others else ""  # which the list of data sets does not have
        require_known(key, name.partition(":")[0], {**dict.fromkeys(also), **known}, beside, listed="datasets")
    if name not in also:
        with naming(key):
            require_name(name)


def require_model(name: str) -> None:
    """Raise ``ConfigError``, with the nearest name, for an unknown model; a name with a colon is tried when it is built."""
    if ":" not in name:
        also = "or a torchvision or timm classifier, such as torchvision:resnet18"
        require_known("model", name, model_names(), also=also, listed="models")
