"""All metrics, by name."""

from importlib import import_module
from types import MappingProxyType

from attacks.metrics.metric import Metric
from defenses.registry import RegistryError, modules_in


def _declared() -> dict[str, Metric]:
    found: dict[str, Metric] = {}
    for module in modules_in(__package__ or "", without=__name__):
        for one in vars(import_module(module)).values():
            if isinstance(one, Metric) and found.setdefault(one.name, one) is not one:
                raise RegistryError(f"{module} defines the metric {one.name!r}, which another file defines too")
    return found


METRICS = MappingProxyType(_declared())
"""Name -> metric, of every file of this folder."""
MEASURED = tuple(one for one in METRICS.values() if one.measure)
"""What clients compute for every guessed image."""
_PREFIXES = tuple(one for one in METRICS.values() if one.prefix)


def known_metric(name: str) -> Metric | None:
    """The metric of a name in rows; None for one that no file declares."""
    found = METRICS.get(name)
    if found and not found.prefix:
        return found
    return next((one for one in _PREFIXES if name.startswith(one.name)), None)


def metric_of(name: str) -> Metric:
    """The metric of a name in rows; of one that no file declares a plain number."""
    return known_metric(name) or Metric(name, shown=())


def metric_label(name: str) -> str:
    """What pages call the metric of a name in rows."""
    metric = metric_of(name)
    return name if metric.prefix else metric.label or name
